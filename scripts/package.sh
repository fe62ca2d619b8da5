#!/usr/bin/env bash
# Makes the Debian package target/package/coulter_VERSION_ARCH.deb. With PROGRAM=PATH of that program
# instead of a build, with VERSION=… of that version.
#
# By dpkg-deb and not by a tool from elsewhere: it is on every Debian, and there is nothing to it.
set -euo pipefail
cd "$(dirname "$0")/.."

PATH=$PATH:$HOME/.cargo/bin
if [[ -z ${PROGRAM:-} ]]; then
  cargo build --profile release-lto --package coulter-cli
  scripts/size.sh target/release-lto/coulter
fi
export PROGRAM=${PROGRAM:-target/release-lto/coulter}
version=${VERSION:-$("$PROGRAM" --version | awk '{print $2}')-1}
architecture=$(dpkg --print-architecture)
readonly version architecture package=target/package
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"

PREFIX=/usr DESTDIR=$root SBINDIR=/usr/sbin scripts/install.sh install
# dpkg has a list of its own.
rm "$root/usr/share/coulter/installed"
find "$root/usr/share/man" -type f -exec gzip -9n {} +
install -d -m 755 "$root/etc/coulter"
doc=$root/usr/share/doc/coulter
install -D -m 644 dist/debian/copyright "$doc/copyright"
gzip -9nc CHANGELOG.md >"$doc/changelog.gz"
rm "$doc/CHANGELOG.md"
chmod 644 "$doc/changelog.gz"

install -d -m 755 "$root/DEBIAN"
for script in postinst prerm postrm; do install -m 755 "dist/debian/$script" "$root/DEBIAN/$script"; done
# The oldest C library that has every symbol that the program asks for.
libc=$(objdump -T "$root/usr/bin/coulter" | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -V | tail -n 1)
sed -e "s/@VERSION@/$version/" -e "s/@ARCHITECTURE@/$architecture/" -e "s/@LIBC@/${libc:-2.36}/" \
  -e "s/@SIZE@/$(du -sk --exclude=DEBIAN "$root" | cut -f 1)/" dist/debian/control >"$root/DEBIAN/control"
mkdir -p "$package"
dpkg-deb --root-owner-group --build "$root" "$package/coulter_${version}_$architecture.deb" >&2
echo "$package/coulter_${version}_$architecture.deb"
