#!/bin/sh
# What files cost, in turns: ext4 on a loop device, `coulter fs`, `coulter overlay` over ext4, and bindfs over
# ext4. The last one does nothing but pass requests on: it is what FUSE itself costs. Prints each turn, the
# medians and their ratios to ext4. Needs root, fio, git, bindfs and 12 GiB below $DIRECTORY.
#   scripts/file_ratios.sh [TURNS] [SECONDS]
set -eu
turns=${1:-3} seconds=${2:-8}
coulter=$(realpath "${COULTER:-target/release/coulter}")
directory=$(mktemp -d "${DIRECTORY:-/var/tmp}/file-ratios.XXXXXX")
state=$directory/state
loops=
cleanup() {
    fusermount3 -qu "$directory/bindfs" 2>/dev/null || true
    "$coulter" --state-directory "$state" umount "$directory/fs" >/dev/null 2>&1 || true
    "$coulter" --state-directory "$state" overlay detach "$directory/overlay/dir" >/dev/null 2>&1 || true
    for side in ext4 overlay lower; do
        mountpoint -q "$directory/$side" && umount "$directory/$side"
    done
    for loop in $loops; do losetup -d "$loop"; done
    rm -rf "$directory"
}
trap cleanup EXIT
trap 'exit 1' INT TERM
# An ext4 of its own, in a file whose blocks have been written.
make_ext4() {
    mkdir "$directory/$1"
    dd if=/dev/zero of="$directory/$1.img" bs=1M count=2560 conv=fsync status=none
    loop=$(losetup --find --show --direct-io=on "$directory/$1.img")
    loops="$loops $loop"
    mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0 "$loop"
    mount "$loop" "$directory/$1"
}
mkdir "$state" "$directory/fs" "$directory/bindfs"
make_ext4 ext4
make_ext4 overlay
make_ext4 lower
mkdir "$directory/overlay/dir" "$directory/lower/dir"
"$coulter" fs create "$directory/fs.img" --size 2G >/dev/null
"$coulter" --state-directory "$state" fs mount "$directory/fs.img" "$directory/fs" >/dev/null
"$coulter" --state-directory "$state" overlay "$directory/overlay/dir" --store-size 1G >/dev/null
bindfs "$directory/lower/dir" "$directory/bindfs"

# The tree of small files: the documents and sources of this machine, 64 MiB at most.
tree=$directory/tree
mkdir "$tree"
find /usr/share /usr/include -xdev -type f -size -64k 2>/dev/null | sort | head -n 8000 |
    tar -c --no-recursion -T - 2>/dev/null | tar -x -C "$tree"
git -C "$tree" init -q && git -C "$tree" add -A &&
    git -C "$tree" -c user.name=a -c user.email=a@b commit -qm tree
tar -cf "$directory/tree.tar" -C "$tree" .

place() { case $1 in overlay) echo "$directory/overlay/dir" ;; *) echo "$directory/$1" ;; esac; }
fio_figure() { # WHAT PLACE OPTIONS...
    what=$1 at=$2
    shift 2
    fio --name="$what" --directory="$at" --filename=data --size=512m --ioengine=psync --output-format=json "$@" |
        python3 -c '
import json, sys
job = json.load(sys.stdin)["jobs"][0]
side = "read" if sys.argv[1].endswith("read") else "write"
print(round(job[side]["iops"]))' "$what"
}
seconds_of() { # COMMAND...: thousands divided by its seconds, so that more is better
    start=$(date +%s%N)
    "$@" >/dev/null
    python3 -c "import sys; print(round(1e12 / (int(sys.argv[2]) - int(sys.argv[1]))))" "$start" "$(date +%s%N)"
}
creates() { # PLACE: files of 16 KiB made, written and made durable, a second
    python3 - "$1" "$seconds" <<'P'
import os, sys, time
data, end, count = os.urandom(16384), time.time() + float(sys.argv[2]) / 2, 0
begin = time.time()
while time.time() < end:
    file = os.open(f"{sys.argv[1]}/new-{count}", os.O_CREAT | os.O_WRONLY)
    os.write(file, data)
    os.fsync(file)
    os.close(file)
    count += 1
rate = count / (time.time() - begin)
for number in range(count):
    os.unlink(f"{sys.argv[1]}/new-{number}")
print(round(rate))
P
}
untar() { tar -xf "$directory/tree.tar" -C "$1/tree" && sync -f "$1/tree" && { [ "$2" != fs ] || "$coulter" sync "$1"; }; }
turn() { # SIDE
    at=$(place "$1")
    [ -e "$at/data" ] || fio_figure lay-out "$at" --rw=write --bs=1m --end_fsync=1 >/dev/null
    echo "create16k-fsync $1 $(creates "$at")"
    echo "random-write $1 $(fio_figure random-write "$at" --rw=randwrite --bs=4k --direct=1 --numjobs=8 --group_reporting --time_based --runtime="$seconds" --end_fsync=1)"
    echo "random-write-fsync $1 $(fio_figure random-write-fsync "$at" --rw=randwrite --bs=4k --fsync=1 --time_based --runtime="$seconds")"
    echo "sequential-write $1 $(fio_figure sequential-write "$at" --rw=write --bs=1m --end_fsync=1)"
    echo 3 >/proc/sys/vm/drop_caches
    echo "sequential-read $1 $(fio_figure sequential-read "$at" --rw=read --bs=1m)"
    mkdir "$at/tree"
    echo "untar $1 $(seconds_of untar "$at" "$1")"
    git -C "$at/tree" -c safe.directory='*' status >/dev/null
    echo "git-status $1 $(seconds_of git -C "$at/tree" -c safe.directory='*' status)"
    echo "rm $1 $(seconds_of rm -rf "$at/tree")"
}
: >"$directory/turns"
for number in $(seq "$turns"); do
    order="ext4 fs overlay bindfs"
    [ $((number % 2)) -eq 1 ] || order="bindfs overlay fs ext4"
    for side in $order; do
        turn "$side" | tee -a "$directory/turns"
    done
done
python3 - "$directory/turns" <<'P'
import collections, statistics, sys
rates = collections.defaultdict(lambda: collections.defaultdict(list))
for line in open(sys.argv[1]):
    what, side, rate = line.split()
    rates[what][side].append(float(rate))
print(f"\n{'ratio to ext4':20} {'ext4':>9} {'fs':>7} {'overlay':>8} {'bindfs':>7}")
for what, sides in rates.items():
    medians = {side: statistics.median(values) for side, values in sides.items()}
    ratio = {side: value / medians["ext4"] for side, value in medians.items()}
    print(f"{what:20} {medians['ext4']:9.0f} {ratio['fs']:7.2f} {ratio['overlay']:8.2f} {ratio['bindfs']:7.2f}")
P
