#!/usr/bin/env bash
# How long `coulter fs mount` takes after a kill, with a million files and 100 GiB mapped.
#
# scripts/mount_mapped.sh [GIBIBYTES] [FILES]
# COULTER is the program, DIRECTORY where the store goes. What is written is text that repeats, and the store lies on a
# loop device on Btrfs that compresses: 100 GiB take some 6 GiB of this disk. Needs root.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly gibibytes=${1:-100} files=${2:-1000000}
coulter=$(realpath "${COULTER:-target/release/coulter}")
work=$(mktemp -d "${DIRECTORY:-/var/tmp}/coulter-mapped.XXXXXX")
export COULTER_STATE_DIRECTORY=$work/state
readonly coulter work point=$work/mount below=$work/below
loop=

# What stays in the way of removing the directory is unmounted first.
finish() {
  "$coulter" umount "$point" >/dev/null 2>&1 || true
  mountpoint -q "$point" && umount --lazy "$point"
  [ -z "$loop" ] || losetup --detach "$loop" || true
  mountpoint -q "$below" && umount "$below"
  rm -rf "$work"
}
trap finish EXIT

now() { date +%s.%N; }
# The daemon of the mount.
pid() { "$coulter" list --json | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' | head -n 1; }

# Mounts, and tells how long that took and how much memory the daemon then has.
timed_mount() {
  local begin end memory
  begin=$(now)
  "$coulter" fs mount "$loop" "$point"
  end=$(now)
  memory=$(awk '/^VmRSS/ {printf "%d MiB", $2 / 1024}' "/proc/$(pid)/status")
  printf '  %-34s %9.2f s   daemon %s\n' "$1" "$(echo "$end - $begin" | bc)" "$memory"
}

make_files() {
  perl -e '
    my ($base, $files) = @ARGV;
    for my $number (0 .. $files - 1) {
      my $directory = sprintf "%s/d%03d", $base, $number / 1000;
      mkdir $directory if $number % 1000 == 0;
      open my $file, ">", "$directory/file-$number" or die "file-$number: $!";
      print $file "x" x 4096;
      close $file or die "file-$number: $!";
    }' "$1" "$2"
}

kill_daemon() {
  local daemon
  daemon=$(pid)
  kill -KILL "$daemon"
  while kill -0 "$daemon" 2>/dev/null; do sleep 0.01; done
}

mkdir "$point" "$below"
truncate --size $((gibibytes / 4 + 16))G "$work/btrfs.img"
mkfs.btrfs --quiet --data single --metadata single "$work/btrfs.img" 2>/dev/null
mount -o loop,compress-force=zstd:1 "$work/btrfs.img" "$below"
truncate --size $((gibibytes * 13 / 10 + 8))G "$below/disk.img"
loop=$(losetup --find --show "$below/disk.img")

echo "coulter fs, $files files and $gibibytes GiB in files of 1 GiB:"
"$coulter" fs create "$loop" >/dev/null
timed_mount "mount, empty"
make_files "$point" "$files"
for number in $(seq "$gibibytes"); do
  head --bytes 1G <(yes "text of file $number") >"$point/large-$number"
done
"$coulter" sync "$point"
df -h --output=used "$point" | tail -n 1
# What recovery has to take from the log.
perl -e 'for (0 .. 999) { open my $f, ">", "$ARGV[0]/late-$_" or die; print $f "y" x 5000 }' "$point"
kill_daemon
timed_mount "mount after a kill"
cmp <(yes "text of file $gibibytes" | head --bytes 1G) "$point/large-$gibibytes"
kill_daemon
timed_mount "mount after another"
"$coulter" umount "$point"
timed_mount "mount"
"$coulter" umount "$point"
