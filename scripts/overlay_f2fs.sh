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
readonly program=${COULTER:-$PWD/target/release/coulter}
work=$(mktemp -d /var/tmp/coulter-f2fs.XXXXXX)
guest=

# User-mode Linux is a group of processes; nothing of it stays.
pull_the_plug() {
  [[ -z $guest ]] || kill -KILL -- "-$guest" 2>/dev/null || true
  [[ -z $guest ]] || wait "$guest" 2>/dev/null || true
  guest=
}
trap 'pull_the_plug; rm -rf "$work"' EXIT

truncate -s 1G "$work/bare"
truncate -s 1G "$work/over"
TMPDIR=$work setsid linux.uml mem=768M root=/dev/root rootfstype=hostfs rootflags=/ rw \
  "ubda=$work/bare" "ubdb=$work/over" "init=$PWD/scripts/f2fs-guest.sh" con=null con0=null,fd:1 quiet \
  PART=overlay "SECONDS_EACH=$seconds" "COULTER=$program" </dev/null >"$work/out" 2>"$work/errors" &
guest=$!
deadline=$((SECONDS + limit))
until grep -q '^end ' "$work/out"; do
  if ((SECONDS > deadline)); then break; fi
  sleep 0.2
done
if ! grep -q '^end ok' "$work/out"; then
  tail -n 30 "$work/out" "$work/errors" >&2
  echo "overlay_f2fs: failed" >&2
  exit 1
fi
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
