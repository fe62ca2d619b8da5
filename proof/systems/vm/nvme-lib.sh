# What scenarios of NVMe share: a target in the foreground, and the kernel's own initiator.

ADDRESS=127.0.0.1 PORT=4420

nvme_ready() {
  mkdir -p /etc/nvme
  echo nqn.2014-08.org.nvmexpress:uuid:11111111-1111-1111-1111-111111111111 >/etc/nvme/hostnqn
  echo 11111111-1111-1111-1111-111111111111 >/etc/nvme/hostid
  # Kernels before 6.14 load the checksum of digests by hand only.
  modprobe -q crc32c_generic 2>/dev/null || true
  modprobe nvme-tcp
}

# Serves $STORE with these options; the process is $TARGET.
serve_nvme() {
  rm -f /run/served
  coulter serve $STORE --nvme tcp:$ADDRESS:$PORT "$@" >/run/served 2>/run/serve.log &
  TARGET=$!
  for _ in $(seq 200); do
    [ ! -s /run/served ] || break
    kill -0 $TARGET 2>/dev/null || { cat /run/serve.log; fail "the target ended"; }
    usleep 50000
  done
  NQN=$(sed 's|.*/||' /run/served)
  [ -n "$NQN" ] || { cat /run/serve.log; fail "the target does not say its name"; }
}

# Ends the target in order.
end_target() {
  kill -INT $TARGET
  wait $TARGET || { cat /run/serve.log; fail "the target did not end cleanly"; }
}

# The controller of $NQN, such as nvme1.
controller() {
  for found in /sys/class/nvme/nvme*; do
    [ "$(cat "$found/subsysnqn" 2>/dev/null)" != "$NQN" ] || echo "${found##*/}"
  done
}

# Connects with these options; the controller is $CONTROLLER, the block device $DEVICE.
connect_nvme() {
  nvme connect -t tcp -a $ADDRESS -s $PORT -n "$NQN" "$@" || { dmesg | tail -20; fail "connect"; }
  CONTROLLER=$(controller)
  DEVICE=
  for _ in $(seq 200); do
    DEVICE=$(ls -d /sys/class/nvme/"$CONTROLLER"/nvme*n1 2>/dev/null | sed 's|.*/|/dev/|') || true
    [ -z "$DEVICE" ] || [ ! -b "$DEVICE" ] || break
    usleep 50000
  done
  [ -b "$DEVICE" ] || { dmesg | tail -20; fail "there is no block device"; }
}

disconnect_nvme() {
  nvme disconnect -n "$NQN" | grep -q 'disconnected 1' || fail "disconnect"
}

# One field of what nvme-cli prints as "name : value".
field() { sed -n "s/^$1[[:space:]]*: *//p" | head -n 1; }
