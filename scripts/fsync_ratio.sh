#!/bin/sh
# The fsync-heavy figure: 8 KiB random writes with an fsync each, 4 jobs, on ext4 by loop, over a default
# store in a file and over a plain file that was written before, in turns. Prints each turn, and the median of
# the turns' ratios: a disk may become three times as fast over the turns. Needs root, fio and 3 GiB below $DIRECTORY.
#   scripts/fsync_ratio.sh [TURNS] [SECONDS]
set -eu
turns=${1:-5} seconds=${2:-10}
coulter=${COULTER:-target/release/coulter}
directory=$(mktemp -d "${DIRECTORY:-/var/tmp}/fsync-ratio.XXXXXX")
plain_loop=
cleanup() {
    for side in store plain; do
        mountpoint -q "$directory/$side" && umount "$directory/$side"
    done
    "$coulter" --state-directory "$directory/state" detach store >/dev/null 2>&1 || true
    [ -z "$plain_loop" ] || losetup -d "$plain_loop"
    rm -rf "$directory"
}
trap cleanup EXIT INT TERM
mkdir "$directory/store" "$directory/plain" "$directory/state"
dd if=/dev/zero of="$directory/plain.img" bs=1M count=1024 conv=fsync status=none
plain_loop=$(losetup --find --show --direct-io=on "$directory/plain.img")
mkfs.ext4 -q -F "$plain_loop"
mount "$plain_loop" "$directory/plain"
"$coulter" create "$directory/store.img" --store-size "${STORE_SIZE:-1300M}" >/dev/null
store_loop=$("$coulter" --state-directory "$directory/state" attach "$directory/store.img" --via loop)
mkfs.ext4 -q -F "$store_loop"
mount "$store_loop" "$directory/store"
turn() {
    fio --name=sync --directory="$directory/$1" --rw=randwrite --bs=8k --size=128m --numjobs=4 --fsync=1 \
        --ioengine=psync --time_based --runtime="$seconds" --group_reporting --output-format=json |
        python3 -c 'import json,sys; print(round(json.load(sys.stdin)["jobs"][0]["write"]["iops"]))'
}
: >"$directory/turns"
for number in $(seq "$turns"); do
    order="store plain"
    [ $((number % 2)) -eq 1 ] || order="plain store"
    for side in $order; do
        echo "$side $(turn "$side")" | tee -a "$directory/turns"
    done
done
python3 - "$directory/turns" <<'P'
import statistics, sys
sides = {"store": [], "plain": []}
for line in open(sys.argv[1]):
    side, rate = line.split()
    sides[side].append(int(rate))
ratios = [store / plain for store, plain in zip(sides["store"], sides["plain"])]
medians = [statistics.median(values) for values in (sides["store"], sides["plain"], ratios)]
print("store {:.0f}/s, plain {:.0f}/s, ratio of a turn {:.2f}".format(*medians))
P
