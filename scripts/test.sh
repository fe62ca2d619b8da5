#!/usr/bin/env bash
# Everything that must hold before a change goes in; `make test` and `.ci/run` call it.
#
# Parts: tidiness, format, lints, documentation, packages, bare-metal builds, tests, examples, virtual machines.
# `scripts/test.sh PART…` runs only some of them.
set -euo pipefail
cd "$(dirname "$0")/.."

PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin:$HOME/.cargo/bin
export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-auto}

readonly bare_target=x86_64-unknown-none
# Bytes of the largest stack frame there: what a kernel leaves for one function.
readonly bare_frame_max=2048
# Seconds that one test program may take; the longest takes two minutes on a machine that has nothing else to do.
readonly program_seconds_max=1200
# Directories of the test programs that compute for minutes.
readonly computing='/\(proof/sim\|proof/canary-sim\|lab/bench\) '

# The rule book of the workspace, proof/tidy/tidy.toml. First: it takes seconds.
part_tidy() {
  cargo run --quiet -p coulter-tidy
}

part_format() {
  cargo fmt --all -- --check
}

part_lint() {
  cargo clippy --workspace --all-targets --all-features -- -D warnings
}

part_docs() {
  RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items
}

# The engine has to run where there is no operating system: a build for such a target proves it.
part_bare() {
  if ! rustc --print target-libdir --target "$bare_target" 2>/dev/null | xargs test -d; then
    command -v rustup >/dev/null || {
      echo "test: missing: the Rust target $bare_target, and rustup to add it" >&2
      return 1
    }
    rustup target add "$bare_target"
  fi
  cargo build -p coulter-format -p coulter-engine --no-default-features --target "$bare_target" \
    --release
  FRAME_MAX=$bare_frame_max scripts/object-code.sh \
    "${CARGO_TARGET_DIR:-target}/$bare_target/release/libcoulter_engine.rlib"
}

# Tests that need root, a loop device, FUSE or a program print `SKIPPED: …` where these are not to
# be had; the lines are repeated at the end so that nobody takes a skipped test for a passed one. With
# `COULTER_REQUIRE=root,loop,fuse` a skip for want of one of these is a failure. A test program that fails,
# or that takes twenty minutes, does not keep the others from running.
#
# Cargo runs one program after the other, and most of those that take long wait for daemons and disks. So as
# many run at once as there are processors, each with some tests at once; and beside them, one after the other,
# those that compute for minutes. What one prints comes when it ends.
# Each program has a mount namespace of its own (`test-runner.sh`).
run_programs() {
  local at_once=$1 work=$2
  xargs -L 1 -P "$at_once" scripts/test-program.sh "$program_seconds_max" "$work/lock" | tee -a "$work/log"
}

part_tests() {
  local work status=0
  work=$(mktemp -d)
  export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$(($(nproc) + 1))}
  cargo test --workspace --no-run --message-format=json-render-diagnostics >"$work/built" || status=1
  sed -n 's|.*"manifest_path":"\([^"]*\)/Cargo.toml".*"profile":{[^}]*"test":true}.*"executable":"\([^"]*\)".*|\1 \2|p' "$work/built" \
    >"$work/programs"
  touch "$work/log"
  grep "$computing" "$work/programs" | run_programs 1 "$work" &
  grep -v "$computing" "$work/programs" | run_programs "$(nproc)" "$work" || status=1
  wait "$!" || status=1
  cargo test --workspace --doc --no-fail-fast 2>&1 | tee -a "$work/log" || status=1
  if grep -q 'SKIPPED' "$work/log"; then
    echo
    echo "Not tested on this machine:"
    grep -h 'SKIPPED' "$work/log" | sort -u
  fi
  echo
  grep '^error: test failed' "$work/log" || true
  # The sum of all the test programs, since the last one alone says little.
  awk '/^test result:/ {passed += $4; failed += $6; ignored += $8}
    END {print "test result: " (failed ? "FAILED" : "ok") ". " passed + 0 " passed; " \
      failed + 0 " failed; " ignored + 0 " ignored"}' "$work/log"
  rm -rf "$work"
  return "$status"
}

# Each library crate has an example that runs in seconds and needs nothing from the machine.
part_examples() {
  local path manifest
  for manifest in $(grep -L '^publish = false$' {product,lab,proof}/*/Cargo.toml); do
    # `cli` is the program; its library is for `coulter-lab` alone.
    [[ $manifest == product/cli/* ]] || compgen -G "$(dirname "$manifest")/examples/use_*.rs" >/dev/null || {
      echo "test: $manifest: a library without an example use_….rs" >&2
      return 1
    }
  done
  cargo build --quiet --workspace --examples
  for path in {product,lab,proof}/*/examples/use_*.rs; do
    echo "== example $(basename "$path" .rs)"
    "${CARGO_TARGET_DIR:-target}/debug/examples/$(basename "$path" .rs)" >/dev/null
  done
}

# What would be published can be packed: every crate has the metadata, and names its siblings by version.
part_packages() {
  local manifest excluded=()
  for manifest in $(grep -l '^publish = false$' {product,lab,proof}/*/Cargo.toml); do
    excluded+=(--exclude "$(sed -n 's/^name = "\(.*\)"$/\1/p' "$manifest" | head -n 1)")
  done
  cargo package --quiet --offline --no-verify --allow-dirty --workspace "${excluded[@]}"
}

# `cargo publish` of all that is for others, up to the upload: each crate is built from its own package. Not
# in the list of `make test`, for it builds every library a second time.
part_publish() {
  local manifest excluded=()
  for manifest in $(grep -l '^publish = false$' {product,lab,proof}/*/Cargo.toml); do
    excluded+=(--exclude "$(sed -n 's/^name = "\(.*\)"$/\1/p' "$manifest" | head -n 1)")
  done
  cargo publish --dry-run --allow-dirty --workspace "${excluded[@]}"
}

# The short set of scenarios on a real kernel in a virtual machine, with the programs of the tests.
part_vm() {
  local missing
  if ! command -v qemu-system-x86_64 >/dev/null; then
    missing="qemu-system-x86_64 is not installed"
  elif ! PROFILE=dev scripts/vm.sh --fetch >/dev/null; then
    missing="no kernel can be fetched"
  else
    PROFILE=dev scripts/vm.sh
    return
  fi
  echo "*** SKIPPED: real kernels: $missing ***"
}

parts=("$@")
((${#parts[@]})) || parts=(tidy format lint docs packages bare tests examples vm)
for part in "${parts[@]}"; do
  echo "== $part" >&2
  "part_$part"
done
