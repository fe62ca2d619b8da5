#!/usr/bin/env bash
# A virtual machine whose disk is a volume, over NBD on a unix socket: it boots from it, writes, is
# killed together with the daemon, and comes back with all that was durable.
#
#   scripts/guest.sh
set -euo pipefail
cd "$(dirname "$0")/.."

PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
readonly limit=120
coulter() { "$PWD/target/release/coulter" --state-directory "$work/state" "$@"; }

work=$(mktemp -d /var/tmp/coulter-guest.XXXXXX)
guest=
pull_the_plug() {
  [[ -z $guest ]] || kill -KILL "$guest" 2>/dev/null || true
  [[ -z $guest ]] || wait "$guest" 2>/dev/null || true
  guest=
}
trap 'pull_the_plug; coulter detach "$work/store" --force >/dev/null 2>&1 || true; rm -rf "$work"' EXIT

kernel=$(target/release/vm --kernels 6.12 --fetch)
accelerator=${ACCELERATOR:-tcg,thread=multi}

# A root file system of one program and one script.
mkdir -p "$work"/root/{bin,dev,proc,data}
cp "$(command -v busybox)" "$work/root/bin/busybox"
cat >"$work/root/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t devtmpfs dev /dev 2>/dev/null
exec >/dev/ttyS0 2>&1
echo "booted from $(grep ' / ' /proc/mounts | tail -n 1)"
for path in /data/*.sum; do
  [ -e "$path" ] || continue
  file=${path%.sum}
  [ "$(md5sum <"$file")" = "$(cat "$path")" ] && echo "found ${file##*/}." || echo "changed ${file##*/}."
done
echo "looked"
grep -q stop /proc/cmdline && { mount -o remount,ro /; poweroff -f; }
number=$(ls /data/*.sum 2>/dev/null | wc -l)
while true; do
  number=$((number + 1))
  dd if=/dev/urandom of=/data/$number bs=4k count=$((number % 60 + 1)) conv=fsync 2>/dev/null
  md5sum </data/$number >/data/$number.sum
  sync
  echo "durable $number."
done
INIT
chmod +x "$work/root/init"
truncate -s 256M "$work/root.img"
mkfs.ext4 -q -d "$work/root" "$work/root.img"

# start WORDS: boots the machine; what it says goes to $work/out.
start() {
  : >"$work/out"
  qemu-system-x86_64 -accel "$accelerator" -cpu max,-cx16 -m 256 -nodefaults -no-reboot -display none \
    -serial "file:$work/out" -kernel "$kernel" \
    -append "console=ttyS0 no_timer_check quiet panic=-1 root=/dev/nvme0n1 rootfstype=ext4 rw init=/init $1" \
    -drive "if=none,id=disk,format=raw,discard=unmap,file=nbd:unix:$socket:exportname=store" \
    -device nvme,drive=disk,serial=0 </dev/null 2>"$work/errors" &
  guest=$!
}

# await PATTERN COUNT: until so many lines match.
await() {
  local deadline=$((SECONDS + limit))
  until (($(grep -c "$1" "$work/out" || true) >= $2)); do
    if ((SECONDS > deadline)); then
      tail -n 30 "$work/out" "$work/errors" >&2
      echo "guest: nothing like '$1' within $limit s" >&2
      exit 1
    fi
    sleep 0.1
  done
}

coulter create "$work/store" --size 1G >/dev/null
uri=$(coulter attach "$work/store" --via nbd-server)
socket=$work/state/store.nbd
qemu-img convert -n -f raw -O raw "$work/root.img" "$uri"
start write
await '^booted from .* / ext4' 1
await '^durable ' 20
pull_the_plug
grep -o '^durable [0-9]*\.' "$work/out" | cut -d' ' -f2 | sort >"$work/durable"
kill -KILL "$(coulter list --json | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p')"
echo "guest: booted, wrote $(wc -l <"$work/durable") durable files; it and the daemon are killed"

coulter attach "$work/store" --via nbd-server >/dev/null
start stop
await '^looked' 1
wait "$guest"
guest=
grep -o '^found [0-9]*\.' "$work/out" | cut -d' ' -f2 | sort >"$work/found"
! grep '^changed' "$work/out" || { echo "guest: VIOLATION: a file changed" >&2; exit 1; }
lost=$(comm -23 "$work/durable" "$work/found")
[[ -z $lost ]] || { echo "guest: VIOLATION: lost: $lost" >&2; exit 1; }
nbdcopy "$uri" "$work/after.img"
e2fsck -fn "$work/after.img" >"$work/check" 2>&1 || { cat "$work/check" >&2; exit 1; }
coulter detach "$work/store"
coulter check --data "$work/store" >/dev/null 2>&1
echo "guest: came back with all of them; e2fsck and the store are clean"
