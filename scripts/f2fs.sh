#!/usr/bin/env bash
# F2FS on a volume, in user-mode Linux, since neither this host's kernel nor Debian's small one has
# it: verified by fio, checked by fsck.f2fs, and then its power cut: files that were durable have to
# be there afterwards, unchanged.
#
#   scripts/f2fs.sh [CUTS]
set -euo pipefail
cd "$(dirname "$0")/.."

readonly cuts=${1:-3}
readonly limit=240
source scripts/uml.sh

# start PART ROUND
start() { boot mem=768M "ubd0=$work/disk" "PART=$1" "ROUND=$2"; }

truncate -s 3G "$work/disk"
start verify 0
await '^end ok' 1
grep -q '^mounted 1' "$work/out"
pull_the_plug
echo "f2fs: fio verified, trimmed, fsck.f2fs clean, store sound"

: >"$work/durable"
start drive 0
await '^end ok' 1
pull_the_plug
echo "f2fs: fio verified, fsck.f2fs clean on an emulated flash drive, and on a volume on one:"
grep '^drive ' "$work/out" | tr -d '\r' | sed 's/^drive /  /'

for ((round = 0; round < cuts; round++)); do
  start write "$round"
  await '^durable ' 5
  sleep "$((round % 3)).$((round * 37 % 10))"
  pull_the_plug
  grep '^durable .*\.' "$work/out" | tr -d '\r' | cut -d' ' -f2- >>"$work/durable"
  start check "$round"
  await '^end ok' 1
  pull_the_plug
  grep '^found ' "$work/out" | tr -d '\r' | cut -d' ' -f2- | sort >"$work/found"
  lost=$(sort "$work/durable" | comm -23 - "$work/found")
  [[ -z $lost ]] || { echo "f2fs: VIOLATION: durable, and lost or changed: $lost" >&2; exit 1; }
done
echo "f2fs: $cuts cuts, $(wc -l <"$work/durable") durable files whole, fsck.f2fs clean"
