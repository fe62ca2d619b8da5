#!/bin/bash
# The guest's side of scripts/package-test.sh: runs the stage that the kernel's command line names, tells
# of it, and ends the machine.
set -u
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive
stage=$(sed 's/.*\bstage=\([0-9]*\).*/\1/' /proc/cmdline)

failed() {
  echo "stage $stage: FAILED: $*"
  journalctl -b --no-pager -n 80 -o short-monotonic
  cat /run/coulter/*.log 2>/dev/null
  sleep 1
  systemctl poweroff --force
  exit 1
}
must() {
  local output
  output=$("$@" 2>&1) || failed "$*: $output"
}
# end: cleanly, as an owner does.
end() {
  echo "stage $stage: done"
  sync
  systemctl --no-block poweroff
  exit 0
}
no_cycle() {
  if journalctl -b --no-pager | grep -i 'ordering cycle'; then failed "an ordering cycle at boot"; fi
}
mounted() {
  findmnt -n -o SOURCE "$1" >/dev/null || failed "$1 is not mounted: $(systemctl status --no-pager "$2" 2>&1)"
}
verified() {
  (cd "$1" && md5sum --quiet -c sums) || failed "$1 does not hold what was written to it"
}
# write DIRECTORY NAME: a synced file, and its sum.
write() {
  head -c 1M /dev/urandom >"$1/$2" && sync "$1/$2" &&
    (cd "$1" && md5sum "$2" >>sums && sync sums) || echo "$1/$2" >>/root/write-failed
}

case $stage in
  1)
    must dpkg -i /root/coulter.deb
    for file in /usr/share/man/man8/coulter-mount.8.gz /usr/share/man/man8/mount.coulter.8.gz \
      /usr/share/bash-completion/completions/coulter /usr/lib/systemd/system/coulter@.service; do
      [ -f $file ] || failed "$file is not there"
    done
    must man --location mount.coulter
    mkdir /one '/two of them'
    # By the helper.
    must coulter create /srv/one.img --size 512M
    must coulter mount /srv/one.img /one --mkfs ext4
    must coulter umount /one
    echo '/srv/one.img /one coulter noatime,coulter.map-memory=64M,nofail 0 0' >>/etc/fstab
    # By a unit, and the name that udev gives its device.
    must coulter create /srv/two.img --size 512M
    printf 'STORE=/srv/two.img\nOPTIONS=\n' >/etc/coulter/two.conf
    must systemctl daemon-reload
    must systemctl start coulter@two
    for _ in $(seq 100); do [ -b /dev/coulter/two ] && break; sleep 0.1; done
    [ -b /dev/coulter/two ] || failed "/dev/coulter/two is not there: $(coulter list)"
    must mkfs.ext4 -q /dev/coulter/two
    echo '/dev/coulter/two /two\040of\040them ext4 nofail 0 0' >>/etc/fstab
    must systemctl daemon-reload
    verified_units=$(systemd-analyze verify one.mount 'two\x20of\x20them.mount' coulter@two.service 2>&1)
    if grep -i cycle <<<"$verified_units"; then failed "systemd-analyze verify: $verified_units"; fi
    must systemctl start one.mount
    must systemctl start 'two\x20of\x20them.mount'
    mounted /one one.mount
    mounted '/two of them' 'two\x20of\x20them.mount'
    systemctl show -p Requires,After 'two\x20of\x20them.mount' | grep -q 'Requires=.*coulter@two.service' ||
      failed "the mount does not need its volume"
    for number in 1 2 3 4 5 6 7 8; do write /one $number; write '/two of them' $number; done
    # Not synced: a clean shutdown writes it out.
    for directory in /one '/two of them'; do (cd "$directory" && head -c 20M /dev/urandom >last && md5sum last >>sums); done
    end ;;
  2)
    for _ in $(seq 300); do findmnt /one >/dev/null && findmnt '/two of them' >/dev/null && break; sleep 0.1; done
    mounted /one one.mount
    mounted '/two of them' 'two\x20of\x20them.mount'
    verified /one
    verified '/two of them'
    no_cycle
    # Of the shutdown before, systemd's own account.
    journalctl -b -1 --no-pager | grep -iE 'failed (unmounting|to unmount)|timed out|I/O error' | grep -iE 'one|two|loop|coulter' &&
      failed "the shutdown before was not clean"
    # umount(8) detaches, by the helper.
    must umount /one
    coulter list | grep -q '/srv/one.img' && failed "umount left the volume attached"
    must mount /one
    verified /one
    end ;;
  3)
    for _ in $(seq 300); do findmnt /one >/dev/null && findmnt '/two of them' >/dev/null && break; sleep 0.1; done
    rm -f /root/write-failed /root/stop
    (n=0; until [ -e /root/stop ]; do n=$((n + 1)); write /one "during-$n"; write '/two of them' "during-$n"; done) &
    writer=$!
    sleep 2
    before=$(coulter list --json | grep '"pid"')
    must dpkg -i /root/newer.deb
    sleep 2
    touch /root/stop
    wait $writer
    [ ! -e /root/write-failed ] || failed "writes failed: $(cat /root/write-failed)"
    [ "$before" = "$(coulter list --json | grep '"pid"')" ] || failed "the daemons are others"
    for pid in $(coulter list --json | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p'); do
      cmp -s "/proc/$pid/exe" /usr/bin/coulter || failed "process $pid is still the old version"
    done
    verified /one
    verified '/two of them'
    echo "files written during the upgrade: $(ls -d /one/during-* | wc -l)"
    end ;;
  4)
    for _ in $(seq 300); do findmnt /one >/dev/null && findmnt '/two of them' >/dev/null && break; sleep 0.1; done
    verified /one
    verified '/two of them'
    dpkg --purge coulter >/tmp/purge 2>&1 && failed "purged under mounted volumes"
    grep -q 'volumes are attached' /tmp/purge || failed "refused for another reason: $(cat /tmp/purge)"
    [ -x /usr/bin/coulter ] || failed "a refused purge took the program away"
    must umount /one
    must umount '/two of them'
    must systemctl stop coulter@two
    sed -i '/coulter/d' /etc/fstab
    must dpkg --purge coulter
    left=$(find / -xdev \( -path /root -o -path /srv -o -path /proc -o -path /sys -o -path /var/log -o -path /var/cache/man \) -prune -o \
      -iname '*coulter*' -print)
    # What the administrator wrote stays.
    [ "$left" = /etc/coulter ] || failed "left behind: $left"
    [ -f /srv/one.img ] && [ -f /srv/two.img ] || failed "a store is gone"
    must systemctl daemon-reload
    end ;;
  *) failed "there is no stage '$stage'" ;;
esac
