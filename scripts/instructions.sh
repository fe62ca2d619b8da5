#!/usr/bin/env bash
# What a 4 KiB random write costs from an attach point's queue to the device's ring: instructions of
# this program, counted by callgrind and told apart by layer, and processor time at full speed, the
# kernel's included. `make instructions` calls it. Points: those of the example `attach_cost`.
#   instructions.sh [--count N] [--document FILE] [POINT…]
# With --document the table goes into FILE, between its marks.
set -euo pipefail
cd "$(dirname "$0")/.."

points=()
count=20000
document=
while [ $# -gt 0 ]; do
  case $1 in
    --count) count=$2; shift ;;
    --document) document=$2; shift ;;
    *) points+=("$1") ;;
  esac
  shift
done
[ ${#points[@]} -gt 0 ] || points=(library session ublk ublk-driver-copies nbd file loop)

cargo=${CARGO:-cargo}
"$cargo" build --quiet --release --package coulter-attach-suite --example attach_cost
program=$PWD/target/release/examples/attach_cost
directory=$(mktemp -d "${TMPDIR:-/tmp}/instructions-XXXXXX")
cc -O2 -shared -fPIC -o "$directory/preloaded.so" scripts/instructions.c -ldl
child=
# The program ends with its input, and takes away what it has attached.
finish() {
  exec 7>&- 2>/dev/null || true
  [ -z "$child" ] || wait "$child" 2>/dev/null || true
  rm -rf "$directory"
}
trap finish EXIT

# Starts "$@", with what it reads at 7 and what it says at 8, and waits until it is ready; $address
# is where it is.
start() {
  rm -f "$directory"/{in,out}
  mkfifo "$directory"/{in,out}
  "$@" <"$directory/in" >"$directory/out" 2>"$directory/log" 7>&- 8<&- &
  child=$!
  exec 7>"$directory/in" 8<"$directory/out"
  local said
  read -r said address <&8 || { cat "$directory/log" >&2; exit 1; }
  [ "$said" = ready ]
}

stop() {
  echo >&7
  exec 7>&- 8<&-
  wait "$child" || { cat "$directory/log" >&2; exit 1; }
  child=
}

# Writes $1 random blocks at $address.
load() {
  local where
  case $point in
    nbd) where=(--ioengine=nbd "--uri=$address") ;;
    *) where=(--ioengine=libaio --direct=1 "--filename=$address") ;;
  esac
  fio --name=load "${where[@]}" --rw=randwrite --bs=4k --iodepth=32 --norandommap --size=256M \
    --io_size=$(($1 * 4096)) --output=/dev/null
}

# Has $1 writes made, by fio or by the program itself.
run() {
  if [ -n "$address" ]; then
    load "$1"
  else
    echo >&7
    read -r _ _ <&8
  fi
}

# Nanoseconds that the threads of $1 have run so far.
processor_time() {
  cat /proc/"$1"/task/*/schedstat | awk '{ sum += $1 } END { printf "%.0f", sum }'
}

# By layer: sums of what `callgrind_annotate` says of each function.
layers='
  function layer(name) {
    if (name ~ /coulter_(attach|block|fuse|net|nvme_target)|attach_cost/) return "attach"
    if (name ~ /coulter_engine|coulter_format/) return "engine"
    if (name ~ /coulter_device|io_uring/) return "device"
    if (name ~ /crc/) return "checksum"
    if (name ~ /coulter/) return "volume"
    if (name ~ /mem(cpy|move|set)/) return "copy"
    if (name ~ /malloc|calloc|realloc|free|unlink_chunk|alloc/) return "allocator"
    return "system"
  }
  /^ *[0-9,]+ \([ 0-9.]+%\) / {
    value = $1
    gsub(",", "", value)
    if ($0 ~ /PROGRAM TOTALS/) { total = value; next }
    name = $0
    sub(/^[^)]*\) */, "", name)
    # Neither where its lines are from nor which file it is in, only what it is.
    sub(/ \[[^]]*\]$/, "", name)
    sub(/^[^ ]*\.[a-zA-Z]+:/, "", name)
    sum[layer(name)] += value
    known += value
  }
  END {
    sum["system"] += total - known
    printf "%.0f", total / count
    n = split("attach volume engine device checksum copy allocator system", names, " ")
    for (i = 1; i <= n; i++) printf " | %.0f", sum[names[i]] / count
  }'

table=$directory/table
{
  echo "| from | instructions | attach point | volume | engine | device | checksum | copies | allocator | other | µs of processor |"
  echo "|---|---|---|---|---|---|---|---|---|---|---|"
} | tee "$table"
for point in "${points[@]}"; do
  # At full speed first, which leaves the store as it is in the middle of its life.
  many=$((count * 10))
  start "$program" "$point" "$directory/store" $many
  before=$(processor_time "$child")
  run $many
  time_us=$(awk -v a="$before" -v b="$(processor_time "$child")" -v n=$many \
    'BEGIN { printf "%.1f", (b - a) / n / 1000 }')
  stop
  start env LD_PRELOAD="$directory/preloaded.so" valgrind --quiet --tool=callgrind --instr-atstart=no \
    --callgrind-out-file="$directory/profile" "$program" "$point" "$directory/store" "$count"
  [ -z "$address" ] || load $((count / 10))
  callgrind_control --instr=on "$child" >/dev/null
  run "$count"
  callgrind_control --instr=off "$child" >/dev/null
  stop
  callgrind_annotate --auto=no --threshold=100 --show=Ir "$directory/profile" >"$directory/annotated"
  [ -z "${KEEP:-}" ] || cp "$directory/annotated" "$KEEP/$point.txt"
  [ -z "${KEEP:-}" ] || cp "$directory/profile" "$KEEP/$point.profile"
  echo "| $point | $(awk -v count="$count" "$layers" "$directory/annotated") | $time_us |" |
    tee -a "$table"
done

if [ -n "$document" ]; then
  awk -v table="$table" '
    /<!-- end of `make instructions` -->/ { inside = 0 }
    !inside { print }
    /<!-- from `make instructions` -->/ {
      inside = 1
      while ((getline line < table) > 0) print line
    }' "$document" >"$directory/document"
  cat "$directory/document" >"$document"
fi
