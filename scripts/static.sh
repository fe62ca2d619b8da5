#!/usr/bin/env bash
# Builds `coulter` for musl: one program that needs no library of the system; `make static` calls it.
set -euo pipefail
cd "$(dirname "$0")/.."

PATH=$PATH:$HOME/.cargo/bin
readonly target=$(uname -m)-unknown-linux-musl
if ! rustc --print target-libdir --target "$target" 2>/dev/null | xargs test -d; then
  command -v rustup >/dev/null || {
    echo "static: missing: the Rust target $target, and rustup to add it" >&2
    exit 1
  }
  rustup target add "$target"
fi
cargo build --profile release-lto --package coulter-cli --target "$target"
program=target/$target/release-lto/coulter
# A program that needs a loader or a library says so here.
if readelf --program-headers --dynamic "$program" | grep -E 'INTERP|NEEDED'; then
  echo "static: $program needs what is named above" >&2
  exit 1
fi
"$program" --version
echo "$program"
