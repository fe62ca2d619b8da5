#!/usr/bin/env bash
# Installs the program and what belongs to it on a system, or takes it away again; `make install` and
# `make uninstall` call it, and so does scripts/package.sh.
#
#   PREFIX=/usr/local DESTDIR= SBINDIR=/usr/sbin scripts/install.sh install|uninstall
#
# It installs what `make build` has built, or builds it first. What is installed is listed in
# PREFIX/share/coulter/installed, by which it is taken away: files that were changed since too, and
# directories only when they are empty. /etc/coulter is the administrator's and stays.
#
# A user without root's rights gets what lies below PREFIX, which may be $HOME/.local: no units, udev rules or mount
# helpers, because the system looks for those elsewhere. If a step fails, what was installed so far is taken away.
set -euo pipefail
cd "$(dirname "$0")/.."

PATH=$PATH:$HOME/.cargo/bin
readonly action=${1:?usage: scripts/install.sh install|uninstall}
prefix=${PREFIX:-/usr/local}
readonly prefix destdir=${DESTDIR:-} sbindir=${SBINDIR:-/usr/sbin}
readonly list=$prefix/share/coulter/installed
readonly program=${PROGRAM:-target/release/coulter}
# Whether the system's own directories are written to.
system=yes
[[ $EUID == 0 || -n $destdir ]] || system=no
readonly system

# put MODE SOURCE TARGET: a file, with the paths in it made those of this installation.
put() {
  install -D -m "$1" "$2" "$destdir$3"
  case $2 in
    dist/*) sed -i "s|/usr/bin/coulter|$prefix/bin/coulter|g" "$destdir$3" ;;
  esac
  installed+=("$3")
}

# take_away: the files of a list on standard input.
take_away() {
  local file directory
  while read -r file; do
    rm -f "$destdir$file"
    directory=$(dirname "$destdir$file")
    # Its own directories; those of the system have other files in them.
    rmdir --parents --ignore-fail-on-non-empty "$directory" 2>/dev/null || true
  done
}

installed=() generated='' complete=''
end_install() {
  rm -rf "$generated"
  [[ -z $complete ]] || return 0
  echo "install: failed; what was installed so far is taken away" >&2
  printf '%s\n' "${installed[@]}" "$list" | take_away
}

do_install() {
  local file
  mkdir -p "$destdir$prefix" 2>/dev/null && [[ -w $destdir$prefix ]] || {
    echo "install: $destdir$prefix cannot be written to" >&2
    # shellcheck disable=SC2016 # It is for the user to expand.
    echo 'install: become root, or name a directory of yours: make install PREFIX=$HOME/.local' >&2
    exit 1
  }
  [[ -x $program ]] || cargo build --release --package coulter-cli
  generated=$(mktemp -d)
  trap end_install EXIT
  "$program" generate man "$generated/man"
  "$program" generate completions "$generated/completions"

  put 755 "$program" "$prefix/bin/coulter"
  if [[ ${STRIP:-yes} == yes ]]; then strip "$destdir$prefix/bin/coulter"; fi
  for file in "$generated"/man/*.8; do put 644 "$file" "$prefix/share/man/man8/${file##*/}"; done
  put 644 dist/mount/mount.coulter.8 "$prefix/share/man/man8/mount.coulter.8"
  put 644 "$generated/completions/coulter.bash" "$prefix/share/bash-completion/completions/coulter"
  put 644 "$generated/completions/_coulter" "$prefix/share/zsh/vendor-completions/_coulter"
  put 644 "$generated/completions/coulter.fish" "$prefix/share/fish/vendor_completions.d/coulter.fish"
  for file in README.md CHANGELOG.md docs/*.* docs/decisions/*; do put 644 "$file" "$prefix/share/doc/coulter/$file"; done
  for file in dist/monitoring/*; do put 644 "$file" "$prefix/share/coulter/monitoring/${file##*/}"; done
  if [[ $system == yes ]]; then
    put_system
  else
    echo "install: without root: no units, udev rules and mount helpers; mount with \`coulter mount\`, not by fstab" >&2
  fi

  mkdir -p "$destdir${list%/*}"
  printf '%s\n' "${installed[@]}" "$list" >"$destdir$list"
  complete=yes
}

# What systemd, udev and mount(8) look for.
put_system() {
  local file
  for file in dist/systemd/*.service dist/systemd/*.socket dist/systemd/*.timer; do
    put 644 "$file" "$prefix/lib/systemd/system/${file##*/}"
  done
  put 644 dist/systemd/run-coulter-.mount.d/coulter.conf \
    "$prefix/lib/systemd/system/run-coulter-.mount.d/coulter.conf"
  put 755 dist/systemd/coulter-generator "$prefix/lib/systemd/system-generators/coulter-generator"
  for file in dist/udev/*.rules; do
    put 644 "$file" "$prefix/lib/udev/rules.d/${file##*/}"
  done
  # A rule finds its programs here and nowhere else, whatever the prefix.
  put 755 dist/udev/coulter-name /usr/lib/udev/coulter-name
  put 755 dist/mount/mount.coulter "$sbindir/mount.coulter"
  put 755 dist/mount/umount.coulter "$sbindir/umount.coulter"
  put 755 dist/mount/mount.coulter "$sbindir/mount.fuse.coulter"
  put 755 dist/mount/umount.coulter "$sbindir/umount.fuse.coulter"
}

do_uninstall() {
  [[ -f $destdir$list ]] || {
    echo "install: nothing is installed in $destdir$prefix: $destdir$list is not there" >&2
    exit 1
  }
  # Read before: it is in the list itself.
  take_away <<<"$(cat "$destdir$list")"
}

case $action in
  install) do_install ;;
  uninstall) do_uninstall ;;
  *) echo "install: '$action' is neither install nor uninstall" >&2; exit 2 ;;
esac

# The running system learns of it; in a package its scripts see to that.
if [[ -z $destdir && $EUID == 0 && -d /run/systemd/system ]]; then
  systemctl daemon-reload || true
  udevadm control --reload || true
fi
