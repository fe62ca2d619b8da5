# What scripts share. They run under `sh -eu`; what fails ends them.

STORE=/dev/nvme0n1
MOUNT=/mnt

say() { echo "-- $*"; }
report() { echo "$*" >&3; }
fail() { echo "FAILED: $*"; exit 1; }

# A new store on $1, attached by $2; its device is $DEVICE.
attach_new() {
  coulter create "$1" --force >/dev/null
  DEVICE=$(coulter attach "$1" --via "$2")
  [ -b "$DEVICE" ] || fail "$DEVICE is no block device"
}

# The process that serves the only volume.
daemon_pid() { coulter list --json | tr ',{' '\n\n' | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p'; }

# Kills the daemon as though it had crashed, and waits until it is gone.
kill_daemon() {
  local pid
  pid=$(daemon_pid)
  kill -9 "$pid"
  while [ -d "/proc/$pid" ] && ! grep -q 'State:.Z' "/proc/$pid/status" 2>/dev/null; do
    usleep 5000
  done
}

make_file_system() {
  case $1 in
    ext4) mkfs.ext4 -q "$2" ;;
    xfs) mkfs.xfs -q -f "$2" ;;
    btrfs) mkfs.btrfs -q -f "$2" ;;
  esac
}

check_file_system() {
  case $1 in
    ext4) e2fsck -fn "$2" ;;
    xfs) xfs_repair -n "$2" ;;
    btrfs) btrfs check --readonly "$2" ;;
  esac >/run/check 2>&1 || { cat /run/check; fail "the checker of $1 found something"; }
}

# No error that a file system or the block layer saw.
assert_no_errors() {
  ! dmesg | grep -E 'I/O error|EXT4-fs error|XFS .*(error|corrupt|shut)|BTRFS (error|critical)' ||
    fail "the kernel saw errors"
}

# Detaches, and has every block of the store read.
detach_and_check() {
  coulter detach "$1"
  coulter check --data "$1" >/run/check 2>&1 || { cat /run/check; fail "the store is not sound"; }
}
