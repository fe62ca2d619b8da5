#!/usr/bin/env bash
# Runs one test program where cargo would, and prints in one piece what it printed; `scripts/test.sh` calls it.
#
#   scripts/test-program.sh SECONDS LOCK DIRECTORY PROGRAM
set -uo pipefail

readonly seconds=$1 lock=$2 directory=$3 program=$4
runner=$(realpath "$(dirname "$0")/test-runner.sh")
output=$(mktemp)
trap 'rm -f "$output"' EXIT
name=$(basename "$directory"): # the crate, then the program without its hash
name+=" $(basename "${program%-*}")"
cd "$directory" || exit 1
began=$SECONDS
TEST_SECONDS=$seconds "$runner" "$program" >"$output" 2>&1
status=$?
exec 9>"$lock"
flock 9
printf '\n     Running %s (%d s)\n' "$name" "$((SECONDS - began))"
cat "$output"
case $status in
  0) ;;
  124) echo "error: test failed: $name did not end in $seconds s" ;;
  *) echo "error: test failed: $name, status $status" ;;
esac
exit "$((status != 0))"
