#!/usr/bin/env bash
# The sVFS paper's row for F2FS, which this host's kernel does not have: in user-mode Linux, 8 threads that write 4 KiB
# at random to F2FS, with `coulter overlay` and without, in turns, direct and buffered. Prints each turn and the medians
# of the ratios.
#
#   scripts/overlay_f2fs.sh [SECONDS]
set -euo pipefail
cd "$(dirname "$0")/.."

readonly seconds=${1:-4}
readonly limit=400
source scripts/uml.sh

truncate -s 1G "$work/bare"
truncate -s 1G "$work/over"
boot mem=768M "ubda=$work/bare" "ubdb=$work/over" PART=overlay "SECONDS_EACH=$seconds"
await '^end ok' 1
tr -d '\r' <"$work/out" | grep '^micro ' | python3 -c '
import collections, statistics, sys
rates = collections.defaultdict(dict)
for line in sys.stdin:
    _, turn, direct, side, rate = line.rstrip(".\n").split()
    rates[direct, turn][side] = int(rate)
for direct, name in (("1", "direct"), ("0", "buffered")):
    turns = [(sides["a"], sides["b"]) for (kind, _), sides in rates.items() if kind == direct]
    for bare, over in turns:
        print(f"f2fs {name}: {bare}/s bare, {over}/s overlay")
    ratio = statistics.median(over / bare for bare, over in turns)
    print(f"f2fs {name}: {ratio:.2f} with the overlay / without")
'
