#!/usr/bin/env bash
# Sees to it that the programs a target needs are there.
#
#   scripts/setup.sh build|demo|test|bench|suites|instructions|vm|f2fs|package|static|await-apt
#
# As root on Debian or Ubuntu it installs what is missing through apt. Otherwise it prints one line
# that names what is missing and ends with 1; what is only wished for, and has no package on every
# release, is named and then done without. It never fetches a Rust toolchain: that is a choice
# of whoever owns the machine. `await-apt` only waits until nobody holds the lock of apt.
set -euo pipefail

readonly purpose=${1:?usage: scripts/setup.sh build|demo|test|bench|suites|instructions|vm|f2fs|package|static|await-apt}
readonly rust_version_min=1.89

PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin:$HOME/.cargo/bin

# program:package, by purpose; each purpose includes the ones before it.
build_tools=(cc:build-essential c++:build-essential)
demo_tools=(fio:fio mkfs.ext4:e2fsprogs e2fsck:e2fsprogs losetup:mount fusermount3:fuse3)
test_tools=(
  mkfs.xfs:xfsprogs xfs_repair:xfsprogs mkfs.btrfs:btrfs-progs
  qemu-nbd:qemu-utils qemu-io:qemu-utils qemu-img:qemu-utils
  nbdinfo:libnbd-bin nbdcopy:libnbd-bin fstrim:util-linux
  sqlite3:sqlite3 pg_ctlcluster:postgresql setfacl:acl
)
# Formats that must be recognised are made by those who own them; a test skips what it has no tool for.
wished_tools=(
  sfdisk:fdisk sgdisk:gdisk mkntfs:ntfs-3g mkfs.exfat:exfatprogs mkfs.vfat:dosfstools
  mkudffs:udftools mksquashfs:squashfs-tools mkfs.erofs:erofs-utils genisoimage:genisoimage
  cryptsetup:cryptsetup-bin make-bcache:bcache-tools mkfs.f2fs:f2fs-tools
  mkfs.nilfs2:nilfs-tools mkfs.jfs:jfsutils mkfs.reiserfs:reiserfsprogs
)
bench_tools=(
  sysbench:sysbench postmark:postmark bindfs:bindfs git:git
  mariadbd:mariadb-server-core mariadb:mariadb-client-core
)
suites_tools=(stress-ng:stress-ng rsync:rsync git:git setfattr:attr python3:python3)
instructions_tools=(valgrind:valgrind)
vm_tools=(
  qemu-system-x86_64:qemu-system-x86 busybox:busybox-static cpio:cpio depmod:kmod xz:xz-utils
  dmsetup:dmsetup nvme:nvme-cli
)
f2fs_tools=(mkfs.f2fs:f2fs-tools linux.uml:user-mode-linux nbd-client:nbd-client nbdinfo:libnbd-bin qemu-io:qemu-utils)
package_tools=(dpkg-deb:dpkg debootstrap:debootstrap qemu-system-x86_64:qemu-system-x86)
static_tools=(musl-gcc:musl-tools)

wished=()
case $purpose in
  build) wanted=("${build_tools[@]}") ;;
  demo) wanted=("${build_tools[@]}" "${demo_tools[@]}") ;;
  test)
    wanted=("${build_tools[@]}" "${demo_tools[@]}" "${test_tools[@]}")
    wished=("${wished_tools[@]}") ;;
  bench)
    wanted=("${build_tools[@]}" "${demo_tools[@]}" "${test_tools[@]}" "${bench_tools[@]}") ;;
  suites)
    wanted=("${build_tools[@]}" "${demo_tools[@]}" "${test_tools[@]}" "${suites_tools[@]}") ;;
  instructions) wanted=("${build_tools[@]}" "${demo_tools[@]}" "${instructions_tools[@]}") ;;
  vm)
    wanted=("${build_tools[@]}" "${demo_tools[@]}" "${test_tools[@]}" "${vm_tools[@]}")
    wished=("${wished_tools[@]}") ;;
  f2fs) wanted=("${build_tools[@]}" "${demo_tools[@]}" "${vm_tools[@]}" "${f2fs_tools[@]}") ;;
  package) wanted=("${build_tools[@]}" "${demo_tools[@]}" "${package_tools[@]}") ;;
  static) wanted=("${build_tools[@]}" "${static_tools[@]}") ;;
  await-apt) wanted=() ;;
  *)
    echo "setup: '$purpose' is none of build, demo, test, bench, suites, instructions, vm, f2fs," \
      "package, static" >&2
    exit 2 ;;
esac

# The packages of those programs that are not there, each once.
missing_of() {
  local tool
  for tool in "$@"; do
    command -v "${tool%%:*}" >/dev/null || echo "${tool#*:}"
  done | sort -u
}

# Another apt or dpkg, the upgrades at boot for one, holds the locks for minutes. It is waited for, with a
# word and not for ever.
readonly lock_wait_s=${COULTER_APT_WAIT:-300}
apt_locks="/var/lib/dpkg/lock-frontend /var/lib/dpkg/lock /var/lib/apt/lists/lock /var/cache/apt/archives/lock"
read -ra locks <<<"${COULTER_APT_LOCKS:-$apt_locks}"

# Who holds one of the locks, as `process 7 (apt-get)`; nothing if nobody does.
lock_holder() {
  local lock pid
  for lock in "${locks[@]}"; do
    [[ -e $lock ]] || continue
    # These are locks by fcntl, which /proc/locks names with the file's number.
    pid=$(awk -v inode=":$(stat -c %i "$lock")" \
      '$2 == "POSIX" && substr($6, length($6) - length(inode) + 1) == inode {print $5; exit}' /proc/locks)
    if [[ -n $pid ]]; then
      echo "process $pid ($(cat "/proc/$pid/comm" 2>/dev/null || echo ended))"
      return
    fi
  done
}

await_apt() {
  local holder deadline=$((SECONDS + lock_wait_s)) told=
  while holder=$(lock_holder) && [[ -n $holder ]]; do
    if ((SECONDS >= deadline)); then
      echo "setup: $holder holds the lock of apt for more than $lock_wait_s s; wait for its end, or set" \
        "COULTER_APT_WAIT to more seconds" >&2
      exit 1
    fi
    [[ -n $told ]] || echo "setup: waiting for $holder, which holds the lock of apt, $lock_wait_s s at most" >&2
    told=yes
    sleep 1
  done
}

# A stale list of packages is the usual reason for a failure; only then is it fetched anew. Between the look
# and the call another may come, for whom apt itself waits.
apt_install() {
  export DEBIAN_FRONTEND=noninteractive
  local get=(apt-get -o "DPkg::Lock::Timeout=$lock_wait_s" -qq)
  await_apt
  "${get[@]}" install -y --no-install-recommends "$@" >/dev/null 2>&1 || {
    await_apt
    "${get[@]}" update >&2
    await_apt
    "${get[@]}" install -y --no-install-recommends "$@" >&2
  }
}

if [[ $purpose == await-apt ]]; then
  await_apt
  exit
fi

may_install() {
  ((EUID == 0)) && command -v apt-get >/dev/null
}

mapfile -t missing < <(missing_of "${wanted[@]}")
if ((${#missing[@]})); then
  if may_install; then
    echo "setup: installing ${missing[*]}" >&2
    apt_install "${missing[@]}"
  else
    echo "setup: missing: ${missing[*]} (on Debian and Ubuntu: sudo apt install ${missing[*]})" >&2
    exit 1
  fi
fi

mapfile -t missing < <(missing_of "${wished[@]}")
if ((${#missing[@]})) && may_install; then
  # What a release has no package of any more is not asked for again and again.
  available=()
  for package in "${missing[@]}"; do
    if apt-cache show "$package" >/dev/null 2>&1; then available+=("$package"); fi
  done
  if ((${#available[@]})); then
    echo "setup: installing ${available[*]}" >&2
    apt_install "${available[@]}" || true
    mapfile -t missing < <(missing_of "${wished[@]}")
  fi
fi
if ((${#missing[@]})); then
  echo "setup: done without: ${missing[*]}" >&2
fi

version=$(rustc --version 2>/dev/null | awk '{print $2}' || true)
oldest=$(printf '%s\n%s\n' "$rust_version_min" "${version:-0}" | sort -V | head -n 1)
if ! command -v cargo >/dev/null || [[ $oldest != "$rust_version_min" ]]; then
  echo "setup: missing: Rust $rust_version_min or newer (found: ${version:-none}; the one that" \
    "Debian packages is too old): install it with rustup, https://rustup.rs" >&2
  exit 1
fi
