#!/usr/bin/env bash
# Sees to it that the programs a target needs are there.
#
#   scripts/setup.sh build|demo|test|bench|instructions|vm|f2fs
#
# As root on Debian or Ubuntu it installs what is missing through apt. Otherwise it prints one line
# that names what is missing and ends with 1. It never fetches a Rust toolchain: that is a choice
# of whoever owns the machine.
set -euo pipefail

readonly purpose=${1:?usage: scripts/setup.sh build|demo|test|bench|instructions|vm|f2fs}
readonly rust_version_min=1.89

PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin:$HOME/.cargo/bin

# program:package, by purpose; each purpose includes the ones before it.
build_tools=(cc:build-essential c++:build-essential)
demo_tools=(fio:fio mkfs.ext4:e2fsprogs e2fsck:e2fsprogs losetup:mount fusermount3:fuse3)
test_tools=(
  mkfs.xfs:xfsprogs xfs_repair:xfsprogs mkfs.btrfs:btrfs-progs
  qemu-nbd:qemu-utils qemu-io:qemu-utils qemu-img:qemu-utils
  nbdinfo:libnbd-bin nbdcopy:libnbd-bin fstrim:util-linux
  sqlite3:sqlite3 pg_ctlcluster:postgresql
)
bench_tools=(sysbench:sysbench postmark:postmark)
instructions_tools=(valgrind:valgrind)
vm_tools=(
  qemu-system-x86_64:qemu-system-x86 busybox:busybox-static cpio:cpio depmod:kmod xz:xz-utils
)
f2fs_tools=(mkfs.f2fs:f2fs-tools linux.uml:user-mode-linux)

case $purpose in
  build) wanted=("${build_tools[@]}") ;;
  demo) wanted=("${build_tools[@]}" "${demo_tools[@]}") ;;
  test) wanted=("${build_tools[@]}" "${demo_tools[@]}" "${test_tools[@]}") ;;
  bench)
    wanted=("${build_tools[@]}" "${demo_tools[@]}" "${test_tools[@]}" "${bench_tools[@]}") ;;
  instructions) wanted=("${build_tools[@]}" "${demo_tools[@]}" "${instructions_tools[@]}") ;;
  vm) wanted=("${build_tools[@]}" "${demo_tools[@]}" "${test_tools[@]}" "${vm_tools[@]}") ;;
  f2fs) wanted=("${build_tools[@]}" "${demo_tools[@]}" "${vm_tools[@]}" "${f2fs_tools[@]}") ;;
  *) echo "setup: '$purpose' is none of build, demo, test, bench, instructions, vm, f2fs" >&2; exit 2 ;;
esac

missing=()
for tool in "${wanted[@]}"; do
  package=${tool#*:}
  command -v "${tool%%:*}" >/dev/null || [[ " ${missing[*]} " == *" $package "* ]] ||
    missing+=("$package")
done

if ((${#missing[@]})); then
  if ((EUID == 0)) && command -v apt-get >/dev/null; then
    echo "setup: installing ${missing[*]}" >&2
    export DEBIAN_FRONTEND=noninteractive
    # A stale list of packages is the usual reason for a failure; only then is it fetched anew.
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null 2>&1 || {
      apt-get update -qq >&2
      apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2
    }
  else
    echo "setup: missing: ${missing[*]} (on Debian and Ubuntu: sudo apt install ${missing[*]})" >&2
    exit 1
  fi
fi

version=$(rustc --version 2>/dev/null | awk '{print $2}' || true)
oldest=$(printf '%s\n%s\n' "$rust_version_min" "${version:-0}" | sort -V | head -n 1)
if ! command -v cargo >/dev/null || [[ $oldest != "$rust_version_min" ]]; then
  echo "setup: missing: Rust $rust_version_min or newer (found: ${version:-none}; the one that" \
    "Debian packages is too old): install it with rustup, https://rustup.rs" >&2
  exit 1
fi
