#!/bin/sh
# What a scrub costs whoever uses the volume: 4 KiB random reads and writes (70 to 30, at queue depth 8) over NBD,
# in turns without a scrub and while one reads at its default rate. Prints each turn's rate and slowest hundredth,
# and the median of the turns' ratios. Needs fio with its nbd engine, and 3 GiB below $DIRECTORY.
#   scripts/scrub_latency.sh [TURNS] [SECONDS]
set -eu
turns=${1:-5} seconds=${2:-10}
coulter=${COULTER:-target/release/coulter}
directory=$(mktemp -d "${DIRECTORY:-/var/tmp}/scrub-latency.XXXXXX")
cleanup() {
    "$coulter" --state-directory "$directory/state" detach store >/dev/null 2>&1 || true
    rm -rf "$directory"
}
trap cleanup EXIT
trap 'exit 1' INT TERM
mkdir "$directory/state"
"$coulter" create "$directory/store.img" --size 1G >/dev/null
uri=$("$coulter" --state-directory "$directory/state" attach "$directory/store.img" --via nbd-server)
load() {
    # The engine itself prints a line where fio's report goes by default.
    fio --name=load --ioengine=nbd --uri="$uri" --bs=4k --iodepth=8 --size=1g --output-format=json \
        --output="$directory/fio.json" "$@" >/dev/null
}
load --rw=write --bs=1m
scrub() { "$coulter" --state-directory "$directory/state" scrub store "$@" >/dev/null; }
turn() {
    [ "$1" = quiet ] || scrub --background --restart
    load --rw=randrw --rwmixread=70 --time_based --runtime="$seconds"
    python3 - "$directory/fio.json" <<'P'
import json, sys
job = json.load(open(sys.argv[1]))["jobs"][0]
p99 = lambda side: job[side]["clat_ns"]["percentile"]["99.000000"] / 1000
print("%.0f %.0f %.0f" % (job["read"]["iops"] + job["write"]["iops"], p99("read"), p99("write")))
P
    [ "$1" = quiet ] || scrub --stop
}
echo "side, requests/s, p99 of reads and of writes in us"
: >"$directory/turns"
for number in $(seq "$turns"); do
    order="scrub quiet"
    [ $((number % 2)) -eq 1 ] || order="quiet scrub"
    for side in $order; do
        echo "$side $(turn "$side")" | tee -a "$directory/turns"
    done
done
python3 - "$directory/turns" <<'P'
import statistics, sys
sides = {"scrub": [], "quiet": []}
for line in open(sys.argv[1]):
    side, *figures = line.split()
    sides[side].append([float(figure) for figure in figures])
pairs = list(zip(sides["scrub"], sides["quiet"]))
ratios = [statistics.median(scrub[i] / quiet[i] for scrub, quiet in pairs) for i in range(3)]
print("ratio of a turn: requests {:.2f}, p99 of reads {:.2f}, of writes {:.2f}".format(*ratios))
P
