#!/usr/bin/env bash
# Runs a program that cargo has built; cargo calls it (`.cargo/config.toml`).
#
#   scripts/test-runner.sh PROGRAM [ARGUMENT…]
#
# A test program gets a mount namespace of its own: tools such as `mkfs.btrfs` look at every mount that they see, and fail
# at one of which another test has just killed the daemon. However the program ends, what it has left goes: processes
# in that namespace, and with them its mounts, loop devices over files of its scratch directories, and these.
#
# TEST_SECONDS ends a program that takes longer, with status 124.
set -uo pipefail

# What follows the process number in the names of scratch directories (`coulter_systems::Scratch`).
readonly scratch=/var/tmp/coulter-systems-
# How long processes may take that are ending anyway, in tenths of a second.
readonly patience=20

limited=()
[[ -z ${TEST_SECONDS:-} ]] || limited=(timeout --kill-after=10 "$TEST_SECONDS")
# Programs that are not tests mount for their user; and without root nobody mounts.
if [[ $1 != */deps/* ]] || ! unshare --mount --propagation private true 2>/dev/null; then
  exec "${limited[@]}" "$@"
fi

told=$(mktemp)
trap 'rm -f "$told"' EXIT
export COULTER_TEST_RUN=$told
# shellcheck disable=SC2016 # The inner shell expands it.
"${limited[@]}" unshare --mount --propagation private \
  bash -c '{ echo $$; readlink /proc/self/ns/mnt; } >"$0"; exec "$@"' "$told" "$@"
status=$?
{ read -r pid; read -r namespace; } <"$told" || exit "$status"

# The processes that are left in the namespace. Once the last of them has ended, a program beside may get its
# number: those of this one have its mark, too.
left() {
  local process
  for process in $(ls -l /proc/[0-9]*/ns/mnt 2>/dev/null | grep -F -e "-> $namespace" |
    sed 's|.* /proc/\([0-9]*\)/ns/mnt .*|\1|'); do
    grep -qzxF "COULTER_TEST_RUN=$COULTER_TEST_RUN" "/proc/$process/environ" 2>/dev/null && echo "$process"
  done
}

for ((tenths = 0; tenths < patience; tenths++)); do
  pids=$(left)
  [[ -n $pids ]] || break
  sleep 0.1
done
for process in $(left); do
  echo "test-runner: left behind by $(basename "$1"), and ended: process $process, $(tr '\0' ' ' <"/proc/$process/cmdline")" >&2
  kill -KILL "$process" 2>/dev/null
done
while [[ -n $(left) && $((tenths++)) -lt $((2 * patience)) ]]; do
  sleep 0.1
done
for directory in "$scratch$pid"-*; do
  # One that is locked is of a living owner with the same number in another namespace.
  flock --nonblock "$directory/lock" true 2>/dev/null || continue
  echo "test-runner: left behind by $(basename "$1"), and removed: $directory" >&2
  losetup --noheadings --raw --output NAME,BACK-FILE |
    while read -r device file; do
      [[ $file != "$directory"/* ]] || losetup --detach "$device"
    done
  rm -rf --one-file-system "$directory"
done
exit "$status"
