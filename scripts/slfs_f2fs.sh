#!/usr/bin/env bash
# A load on files of F2FS, in user-mode Linux, on an emulated drive with REDO, the board of the S-LFS paper: what the
# drive did meanwhile, as JSON: `before` and `after`, as `status --json` has them, and what was `done`.
#
#   scripts/slfs_f2fs.sh LOAD FILL_PERCENT MILLISECONDS [--meta-apart] [--trims-as-they-come] [OPTION_OF_THE_DRIVE...]
#
# Guest processes with gigabytes of memory run out of what the host maps for them, so the drive is the host's, and the
# guest has it over NBD, through an interface in a network of their own. --meta-apart puts the part of the file system
# that F2FS overwrites in place on a drive of its own, which maps pages.
# F2FS is set to trim a segment before it uses it again, unless --trims-as-they-come.
set -euo pipefail
cd "$(dirname "$0")/.."

# Two threads of F2FS that wait for one trim, on a kernel with one processor and without preemption, may keep each other
# from ever ending: __wait_discard_cmd_range does not sleep. Then the guest asks the drive for nothing any more, and all is
# done again.
readonly hangs=75
if [[ ${APART:-} != 1 ]]; then
  for attempt in first second third; do
    status=0
    APART=1 unshare --net -- "$0" "$@" || status=$?
    ((status == hangs)) || exit "$status"
    echo "${0##*/}: the guest's kernel hangs, at the $attempt attempt" >&2
  done
  exit 1
fi

readonly load=$1 fill=$2 milliseconds=$3
shift 3
meta=0 trims=first
while :; do
  case ${1:-} in
    --meta-apart) meta=1 ;;
    --trims-as-they-come) trims=as-it-comes ;;
    *) break ;;
  esac
  shift
done
readonly limit=3000 memory=/dev/shm
drives=() watch=
source scripts/uml.sh
finish() {
  local status=$?
  [[ ! -e $work/hung ]] || status=$hangs
  kill "$watch" 2>/dev/null || true
  pull_the_plug
  kill "${drives[@]}" 2>/dev/null || true
  wait
  rm -rf "$work"
  exit "$status"
}
trap finish EXIT
export COULTER=${COULTER:-$PWD/target/release/coulter} LABORATORY=${LABORATORY:-$PWD/target/release/coulter-lab}
export COULTER_STATE_DIRECTORY=$work/state

ip link set lo up
ip tuntap add dev tap0 mode tap
ip addr add 10.0.0.1/24 dev tap0
ip link set tap0 up

# serve NAME PORT OPTION...: a drive, on which every block is written once, in order.
serve() {
  local name=$1 port=$2 size at writes
  : >"$work/$name.out"
  "$LABORATORY" flash serve --name "$name" --nbd "tcp:10.0.0.1:$port" --allow-remote --profile openssd "${@:3}" \
    >"$work/$name.out" 2>"$work/$name.errors" &
  drives+=($!)
  until grep -q '^nbd:' "$work/$name.out"; do
    kill -0 "${drives[-1]}" 2>/dev/null || { cat "$work/$name.errors" >&2 && exit 1; }
    sleep 0.1
  done
  size=$(nbdinfo --size "nbd://10.0.0.1:$port/$name")
  writes=()
  for ((at = 0; at < size; at += 1 << 21)); do
    writes+=(-c "write -q -P 0xa5 $at 2M")
  done
  qemu-io -f raw -t none "${writes[@]}" -c flush "nbd://10.0.0.1:$port/$name"
}
serve drive 10809 --ftl redo "$@"
bytes=$(($(nbdinfo --size nbd://10.0.0.1:10809/drive) * fill / 100))
((meta == 0)) || serve meta 10810 --ftl dftl --size 34M --spare 50%

boot mem=4G vec0:transport=tap,ifname=tap0,depth=128,gro=1 PART=load "META=$meta" "TRIMS=$trims" "WORK=$work" "LOAD=$load" \
  "BYTES=$bytes" "MILLISECONDS=$milliseconds" "FILE_LOAD=${FILE_LOAD:-$PWD/target/release/file-load}"

# Ends a guest whose drive has had no request for a minute.
watch() {
  local before='' now
  while now=$("$COULTER" status drive --json | grep -E '"(reads|writes|trims|flushes)":'); do
    [[ $now != "$before" ]] || { touch "$work/hung" && kill -KILL -- "-$guest"; }
    before=$now
    # A pause without a process that would outlive this one.
    read -rt 60 <> <(:) || true
  done
}
watch >/dev/null 2>&1 &
watch=$!
for moment in before after; do
  await "^count $moment\\." 1
  for drive in drive $( ((meta == 0)) || echo meta); do
    "$COULTER" status "$drive" --json >"$work/$drive.$moment"
  done
  touch "$work/counted.$moment"
done
await '^end ok' 1
python3 - "$work" "$(sed -n 's/^done \(.*}\).*/\1/p' "$work/out")" <<'END'
import json, os, sys
work, done = sys.argv[1], json.loads(sys.argv[2])
outcome = {"done": done}
for drive in ("drive", "meta"):
    moments = {m: f"{work}/{drive}.{m}" for m in ("before", "after")}
    if os.path.exists(moments["before"]):
        outcome[drive] = {m: json.load(open(path)) for m, path in moments.items()}
print(json.dumps(outcome))
END
