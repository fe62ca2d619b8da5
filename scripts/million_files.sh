#!/usr/bin/env bash
# A million files on `coulter fs` and under `coulter overlay`: time and the daemon's memory for making them, for
# mounting again in order and after a kill, for `find` and `rm -r`.
#
# scripts/million_files.sh [FILES] [BYTES EACH]
# COULTER is the program, DIRECTORY where the stores go (a file system of the host for the overlay).
set -euo pipefail
cd "$(dirname "$0")/.."

readonly files=${1:-1000000} bytes=${2:-4096}
coulter=$(realpath "${COULTER:-target/release/coulter}")
work=$(mktemp -d "${DIRECTORY:-/var/tmp}/coulter-million.XXXXXX")
export COULTER_STATE_DIRECTORY=$work/state
readonly coulter work point=$work/mount

# What stays in the way of removing the directory is unmounted first.
finish() {
  "$coulter" umount "$point" >/dev/null 2>&1 || true
  mountpoint -q "$point" && umount --lazy "$point"
  rm -rf "$work"
}
trap finish EXIT

now() { date +%s.%N; }
# The daemon of the mount.
pid() { "$coulter" list --json | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' | head -n 1; }
memory() { awk '/^VmRSS/ {printf "%d MiB", $2 / 1024}' "/proc/$(pid)/status"; }

# Runs a command, and tells how long it took and how much memory the daemon then has.
timed() {
  local what=$1 begin end
  shift
  begin=$(now)
  "$@"
  end=$(now)
  printf '  %-34s %9.2f s   daemon %s\n' "$what" "$(echo "$end - $begin" | bc)" "$(memory)"
}

make_files() {
  perl -e '
    my ($base, $files, $bytes) = @ARGV;
    my $content = "x" x $bytes;
    for my $number (0 .. $files - 1) {
      my $directory = sprintf "%s/d%03d", $base, $number / 1000;
      mkdir $directory if $number % 1000 == 0;
      open my $file, ">", "$directory/file-$number" or die "file-$number: $!";
      print $file $content;
      close $file or die "file-$number: $!";
    }' "$1" "$files" "$bytes"
}

kill_daemon() {
  local daemon
  daemon=$(pid)
  kill -KILL "$daemon"
  while kill -0 "$daemon" 2>/dev/null; do sleep 0.01; done
}

find_all() { [ "$(find "$1" -type f -newermt 1970-01-02 | wc -l)" = "$files" ]; }

mkdir "$point"
echo "coulter fs, $files files of $bytes bytes:"
"$coulter" fs create "$work/disk.img" --size $((files * (bytes / 4096 + 1) * 4096 * 5 / 4 + (1 << 30))) >/dev/null
mount_fs() { "$coulter" fs mount "$work/disk.img" "$point"; }
timed "mount, empty" mount_fs
timed "make" make_files "$point"
timed "sync" "$coulter" sync "$point"
timed "find, with the attributes of each" find_all "$point"
perl -e 'for (0 .. 999) { open my $f, ">", "$ARGV[0]/late-$_" or die; print $f "y" x 5000 }' "$point"
kill_daemon
timed "mount after a kill" mount_fs
rm -f "$point"/late-*
timed "find after it" find_all "$point"
"$coulter" umount "$point"
timed "mount" mount_fs
timed "rm -r" rm -r "$point"/d*
"$coulter" umount "$point"
"$coulter" fs check "$work/disk.img"
rm "$work/disk.img"

echo "coulter overlay on $(stat --file-system --format %T "$work"), $files files of $bytes bytes:"
make_files "$point"
mount_overlay() { "$coulter" overlay "$point" --store-size 1G; }
timed "mount" mount_overlay
timed "find, with the attributes of each" find_all "$point"
kill_daemon
timed "mount after a kill" mount_overlay
timed "find after it" find_all "$point"
timed "rm -r" rm -r "$point"/d*
"$coulter" overlay detach "$point"
