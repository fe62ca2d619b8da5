#!/bin/bash
# The first process of a user-mode Linux whose root is the host's: the part of `f2fs.sh`, `overlay_f2fs.sh` and
# `slfs_f2fs.sh` that is on the inside. It writes nowhere but to its disk and to file systems that it mounts over the host's.
set -eu
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export HOME=/run NO_COLOR=1 LC_ALL=C

MOUNT=/mnt
DISK=/dev/ubda

finish() {
  local status=$?
  [ $status = 0 ] && echo "end ok" || { tail -n 20 /run/errors /run/check; dmesg | tail -n 20; echo "end $status"; }
  sync
  halt -f 2>/dev/null || echo o >/proc/sysrq-trigger
  sleep 10
}
trap finish EXIT

mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /mnt
mount -t devtmpfs dev /dev 2>/dev/null || true
# The console is a terminal, on which progress would be drawn.
exec 2>/run/errors
mkdir -p /mnt/modules/lib /mnt/volume
ln -s /usr/lib/uml/modules /mnt/modules/lib/modules
MOUNT=/mnt/volume
for module in nbd loop fuse crc32_generic f2fs; do
  modprobe -d /mnt/modules "$module" 2>/dev/null || true
done
ip link set lo up 2>/dev/null || true

fail() { echo "FAILED: $*"; exit 1; }
told() { echo "$1 $(md5sum <"$MOUNT/$1" | cut -c1-32)."; }
fsck_f2fs() {
  # It says what it finds, and ends with 0 all the same unless it cannot go on.
  fsck.f2fs --dry-run "$1" >/run/check 2>&1 || fail "fsck.f2fs"
  ! grep -E '\[ASSERT\]|\[FIX\]|\[Fail\]' /run/check || fail "fsck.f2fs found something"
}

# Blocks of 4 KiB that 8 threads write at random below $1 in $2 seconds, direct or not ($3), a second; what waits
# in memory counts when it is durable.
random_writes() {
  local begun blocks
  begun=$(date +%s%N)
  blocks=$(fio --name=random --directory="$1" --size=6M --rw=randwrite --bs=4k --numjobs=8 --thread --group_reporting \
    --ioengine=psync --direct="$3" --time_based --runtime="$2" --end_fsync=1 --filename_format='random.$jobnum' \
    --minimal --eta=never | cut -d';' -f47)
  echo $((blocks / 4 * 1000000 / (($(date +%s%N) - begun) / 1000)))
}

# The same work on an emulated flash drive, with a volume on it or without.
on_drive() {
  device=$("$LABORATORY" flash attach --name drive --size 512M --via loop "$@")
  mkfs.f2fs -q -f "$device" >/run/check
  mount -t f2fs "$device" "$MOUNT"
  fio --name=verify --directory="$MOUNT" --size=96M --rw=randwrite --bs=4k --ioengine=psync \
    --verify=crc32c --do_verify=1 --fsync=64 --output=/run/check --eta=never || fail "fio"
  umount "$MOUNT"
  fsck_f2fs "$device"
  "$COULTER" status drive | sed -n 's/^  *\(flash\|in all\)  */drive \1: /p'
  "$COULTER" detach drive
}

# A drive that the host serves, at port $1, as the disk $2.
on_host() {
  nbd-client 10.0.0.1 "$1" "$2" -b 4096 >/run/check 2>&1
  # As much in one command as the drive takes.
  echo 512 >"/sys/block/${2#/dev/}/queue/max_sectors_kb"
}

case $PART in
  load)
    ip addr add 10.0.0.2/24 dev vec0
    ip link set vec0 up
    on_host 10809 /dev/nbd0
    if [ "$META" = 1 ]; then
      # Its metadata lies at the beginning of the first.
      on_host 10810 /dev/nbd1
      first=/dev/nbd1 others="-c /dev/nbd0"
    else
      first=/dev/nbd0 others=
    fi
    # shellcheck disable=SC2086
    mkfs.f2fs -q -f -s 1 -z 1 $others $first >/run/check
    if [ "$TRIMS" = as-it-comes ]; then
      mount -t f2fs -o mode=lfs,discard "$first" "$MOUNT"
    else
      # REDO copies what is dead and not trimmed. By itself F2FS takes the lowest free segment on a drive as small as
      # this, at once, and trims after five seconds without work. Of flash pages that are trimmed in part zeros are
      # written, so it is to trim whole segments only.
      mount -t f2fs -o mode=lfs,heap,discard,discard_unit=segment "$first" "$MOUNT"
      mount -o remount,alloc_mode=default "$MOUNT"
      tune() { echo "$2" >"/sys/fs/f2fs/${first#/dev/}/$1"; }
      tune discard_idle_interval 0
      tune min_discard_issue_time 1
      tune mid_discard_issue_time 1
      tune max_discard_request 4096
    fi
    echo "layout $(cat "/sys/fs/f2fs/${first#/dev/}/main_blkaddr")."
    # The host looks at its drive when a line says so, and answers with a file.
    cat >/run/count <<-END
	#!/bin/sh
	echo "count \$1." >/dev/console
	until [ -e $WORK/counted.\$1 ]; do sleep 0.1; done
	END
    chmod +x /run/count
    "$FILE_LOAD" "$MOUNT" "$LOAD" "$BYTES" "$MILLISECONDS" --count /run/count >/run/done || fail "the load"
    echo "done $(cat /run/done)"
    umount "$MOUNT"
    fsck_f2fs "$first"
    ;;
  drive)
    on_drive
    on_drive --volume
    ;;
  overlay)
    for side in a b; do
      mkfs.f2fs -q -f "/dev/ubd$side" >/run/check
      mkdir -p "/mnt/$side"
      mount -t f2fs "/dev/ubd$side" "/mnt/$side"
      mkdir "/mnt/$side/data"
      for number in 0 1 2 3 4 5 6 7; do
        dd if=/dev/urandom of="/mnt/$side/data/random.$number" bs=1M count=6 conv=fsync 2>/dev/null
      done
    done
    "$COULTER" overlay /mnt/b/data --store-size 512M --settle never
    for turn in 1 2 3; do
      for direct in 1 0; do
        for side in a b; do
          echo "micro $turn $direct $side $(random_writes "/mnt/$side/data" "$SECONDS_EACH" $direct)."
        done
      done
    done
    "$COULTER" overlay detach /mnt/b/data
    umount /mnt/b
    fsck_f2fs /dev/ubdb
    ;;
  verify)
    "$COULTER" create $DISK --force >/dev/null
    device=$("$COULTER" attach $DISK --via nbd)
    mkfs.f2fs -q -f "$device" >/run/check
    mount -t f2fs "$device" "$MOUNT"
    echo "mounted $(grep -c ' f2fs ' /proc/mounts)"
    fio --name=verify --directory="$MOUNT" --size=96M --rw=randwrite --bsrange=4k-64k \
      --ioengine=psync --numjobs=2 --verify=crc32c --do_verify=1 --fsync=64 --output=/run/check --eta=never ||
      fail "fio"
    rm "$MOUNT"/verify*
    fstrim "$MOUNT"
    umount "$MOUNT"
    fsck_f2fs "$device"
    "$COULTER" detach $DISK
    "$COULTER" check --data $DISK >/run/check
    ;;
  write)
    device=$("$COULTER" attach $DISK --via nbd)
    mount -t f2fs "$device" "$MOUNT"
    fio --name=load --directory="$MOUNT" --size=32M --rw=randwrite --bs=4k --ioengine=psync \
      --time_based --runtime=600 --output=/dev/null &
    for ((file = 1; ; file++)); do
      name=r$ROUND-$file
      dd if=/dev/urandom of="$MOUNT/$name" bs=4k count=$((file % 12 + 1)) conv=fsync 2>/dev/null
      echo "durable $(told "$name")"
    done
    ;;
  check)
    "$COULTER" check --data $DISK >/run/check || fail "the store is not sound"
    device=$("$COULTER" attach $DISK --via nbd)
    mount -t f2fs "$device" "$MOUNT"
    for path in "$MOUNT"/r*-*; do
      echo "found $(told "${path##*/}")"
    done
    umount "$MOUNT"
    fsck_f2fs "$device"
    "$COULTER" detach $DISK
    ;;
esac
