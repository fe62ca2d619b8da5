#!/usr/bin/env bash
# Installs the package in a booted Debian and uses it as its owner would; `make package-test` calls it.
#
#   scripts/package-test.sh [PACKAGE.deb]
#
# A minimal Debian, of the release and from the mirror of this host's apt, boots in QEMU by systemd. One
# service in it runs the stage that the kernel's command line names, and tells of it on the serial port:
#
#   1 install   the package; stores; lines of /etc/fstab of both kinds; no ordering cycle; clean shutdown
#   2 reboot    both are mounted, with their data; what was written last before the shutdown is there
#   3 upgrade   of the package, while a writer syncs files on both mounts; nothing fails, nothing is lost
#   4 purge     refused while volumes are attached; then done, and nothing is left but the stores
#
# Between the stages the host looks into the stores, with the machine off: `check --data`, and that each
# was closed in order. The host's kernel and mounts are not used.
# ACCELERATOR=kvm is ten times as fast where it works. The base system is kept in target/package-test for the next time.
set -euo pipefail
cd "$(dirname "$0")/.."

PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
((EUID == 0)) || { echo "package-test: needs root, for debootstrap" >&2; exit 1; }
package=${1:-$(ls -t target/package/coulter_*.deb | head -n 1)}
readonly package work=target/package-test limit=${LIMIT:-1800}
mkdir -p "$work"
base=$work/base.tar
machine='' mounted=

clean_up() {
  [[ -z $machine ]] || kill -KILL "$machine" 2>/dev/null || true
  [[ -z $mounted ]] || umount "$mounted" 2>/dev/null || true
  rm -rf "$work/root" "$work/upgrade"
}
trap clean_up EXIT
fail() {
  echo "package-test: $*" >&2
  [[ ! -f $work/console ]] || tail -n 40 "$work/console" >&2
  exit 1
}

# The base system, once.
if [[ ! -f $base ]]; then
  echo "package-test: making a minimal Debian" >&2
  release=$(. /etc/os-release && echo "$VERSION_CODENAME")
  mirror=$(apt-cache policy | grep -o 'https\?://[^ ]*/debian\b' | head -n 1)
  rm -rf "$work/root"
  debootstrap --variant=minbase \
    --include=systemd-sysv,udev,kmod,e2fsprogs,fuse3,initramfs-tools,linux-image-cloud-amd64,dbus,procps,man-db \
    "$release" "$work/root" "${mirror:-http://deb.debian.org/debian}" >"$work/debootstrap.log" 2>&1 ||
    fail "debootstrap failed; see $work/debootstrap.log"
  tar -C "$work/root" -cf "$base.new" .
  mv "$base.new" "$base"
  rm -rf "$work/root"
fi

# A newer version of the package, of another build of the program: one byte more behind its end.
upgrade=$work/upgrade
rm -rf "$upgrade"
dpkg-deb --raw-extract "$package" "$upgrade"
sed -i 's/^\(Version: .*\)$/\1+newer/' "$upgrade/DEBIAN/control"
printf '\n' >>"$upgrade/usr/bin/coulter"
dpkg-deb --root-owner-group --build "$upgrade" "$work/newer.deb" >/dev/null

root=$work/root
rm -rf "$root"
mkdir "$root"
tar -C "$root" -xf "$base"
cp "$package" "$root/root/coulter.deb"
cp "$work/newer.deb" "$root/root/newer.deb"
echo package-test >"$root/etc/hostname"
echo '/dev/vda / ext4 defaults 0 1' >"$root/etc/fstab"
mkdir -p "$root/var/log/journal"
install -m 755 scripts/package-test-stage.sh "$root/root/stage"
cat >"$root/etc/systemd/system/stage.service" <<'UNIT'
[Unit]
Description=The stage of the package test
After=multi-user.target
[Service]
Type=oneshot
ExecStart=/root/stage
StandardOutput=file:/dev/ttyS1
StandardError=inherit
TimeoutStartSec=infinity
[Install]
WantedBy=multi-user.target
UNIT
sed -i 's/^After=.*/After=local-fs.target dbus.service/' "$root/etc/systemd/system/stage.service"
ln -s ../stage.service "$root/etc/systemd/system/multi-user.target.wants/stage.service"
# Nothing here needs these, and under emulation each takes seconds.
for unit in apt-daily.timer apt-daily-upgrade.timer man-db.timer dpkg-db-backup.timer e2scrub_reap.service \
  e2scrub_all.timer systemd-timesyncd.service getty@tty1.service systemd-pstore.service; do
  ln -sf /dev/null "$root/etc/systemd/system/$unit"
done
cp "$root"/boot/vmlinuz-* "$work/kernel"
cp "$root"/boot/initrd.img-* "$work/initrd"
rm -f "$work/disk"
truncate -s 4G "$work/disk"
mkfs.ext4 -q -d "$root" "$work/disk"
rm -rf "$root"

# KVM by choice: in machines that are virtual themselves it is there, and often does not work.
accelerator=${ACCELERATOR:-tcg,thread=multi}
processor=max,-cx16
[[ $accelerator != kvm ]] || processor=host

# boot STAGE: runs it to the machine's end; what it told is in $work/told.
boot() {
  echo "package-test: stage $1" >&2
  : >"$work/told"
  timeout --signal=KILL "$limit" qemu-system-x86_64 -accel "$accelerator" -cpu "$processor" -m 1024 -smp 2 \
    -nodefaults -no-reboot -display none -serial "file:$work/console" -serial "file:$work/told" \
    -kernel "$work/kernel" -initrd "$work/initrd" \
    -append "console=ttyS0 no_timer_check root=/dev/vda rw panic=-1 systemd.show_status=true stage=$1" \
    -drive "if=virtio,format=raw,file=$work/disk" </dev/null 2>"$work/errors" &
  machine=$!
  wait "$machine" || { cat "$work/told" "$work/errors" >&2; fail "the machine did not end in $limit s at stage $1"; }
  machine=
  sed "s/^/  /" "$work/told" >&2
  cp "$work/console" "$work/console-$1"
  grep -q "^stage $1: done" "$work/told" || fail "stage $1 failed"
}

# look: both stores are sound, and were closed in order.
look() {
  local store found
  mounted=$work/root
  mkdir -p "$mounted"
  mount -o loop,ro,noload "$work/disk" "$mounted"
  for store in one two; do
    cp --sparse=always "$mounted/srv/$store.img" "$work/$store.img"
    ${COULTER:-target/release-lto/coulter} check --data "$work/$store.img" >/dev/null 2>&1 || fail "$store is not sound"
    ${COULTER:-target/release-lto/coulter} check --json "$work/$store.img" | grep -q '"clean": true' ||
      fail "$store was not closed in order"
    rm "$work/$store.img"
    echo "  $store: sound, and closed in order" >&2
  done
  umount "$mounted"
  rmdir "$mounted"
  mounted=
}

boot 1
look
boot 2
boot 3
look
boot 4
echo "package-test: passed" >&2
