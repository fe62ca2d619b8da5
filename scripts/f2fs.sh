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
work=$(mktemp -d /var/tmp/coulter-f2fs.XXXXXX)
guest=

# User-mode Linux is a group of processes; nothing of it stays.
pull_the_plug() {
  [[ -z $guest ]] || kill -KILL -- "-$guest" 2>/dev/null || true
  [[ -z $guest ]] || wait "$guest" 2>/dev/null || true
  guest=
}

trap 'pull_the_plug; rm -rf "$work"' EXIT

# start PART ROUND: a guest whose words go to $work/out.
start() {
  : >"$work/out"
  TMPDIR=$work setsid linux.uml mem=768M root=/dev/root rootfstype=hostfs rootflags=/ rw \
    "ubd0=$work/disk" "init=$PWD/scripts/f2fs-guest.sh" con=null con0=null,fd:1 quiet \
    "PART=$1" "ROUND=$2" "COULTER=$PWD/target/release/coulter" \
    </dev/null >"$work/out" 2>"$work/errors" &
  guest=$!
}

# await PATTERN COUNT: until so many lines match.
await() {
  local deadline=$((SECONDS + limit))
  until (($(grep -c "$1" "$work/out" || true) >= $2)); do
    if ((SECONDS > deadline)) || grep -q '^end [^o]' "$work/out"; then
      cat "$work/out" "$work/errors" >&2
      echo "f2fs: failed while waiting for '$1'" >&2
      exit 1
    fi
    sleep 0.1
  done
}

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
