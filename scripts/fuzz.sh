#!/usr/bin/env bash
# Throws bytes at every decoder, every protocol and the engine.
#
#   scripts/fuzz.sh [SECONDS] [TARGET…]      seconds for each target, 60 by default
#
# libFuzzer on stable Rust: the compiler's coverage pass is asked for by name, so neither a nightly
# compiler nor cargo-fuzz is needed. New inputs that reach further go to proof/fuzz/found, inputs
# that crash to proof/fuzz/artifacts. `scripts/fuzz.sh minimise` takes what was found into proof/fuzz/corpus.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly host=$(rustc -vV | awk '/^host:/ {print $2}')
readonly seconds=${1:-60}
readonly all=(superblock record map_page root_list checkpoint run segment_table store crafted
  nbd_handshake nbd_transmission nbd_client fuse_message nvme_decoders nvme_target object_volume object_pins object_commit
  object_manifest object_copy engine)
shift || true
targets=("$@")
((${#targets[@]})) || targets=("${all[@]}")

flags=(-Cpasses=sancov-module -Ccodegen-units=1 --cfg fuzzing)
for feature in level=4 inline-8bit-counters pc-table trace-compares; do
  flags+=("-Cllvm-args=-sanitizer-coverage-$feature")
done
# Named apart from the build scripts', which must not be instrumented.
RUSTFLAGS="${flags[*]}" cargo build --quiet --release --manifest-path proof/fuzz/libfuzzer/Cargo.toml \
  --target "$host"
readonly program=proof/fuzz/libfuzzer/target/$host/release/fuzz

mkdir -p proof/fuzz/artifacts
for target in "${targets[@]}"; do
  export COULTER_FUZZ_TARGET=$target
  mkdir -p "proof/fuzz/found/$target" "proof/fuzz/corpus/$target"
  if [[ $seconds == minimise ]]; then
    rm -rf "proof/fuzz/libfuzzer/target/minimal/$target"
    mkdir -p "proof/fuzz/libfuzzer/target/minimal/$target"
    "$program" -merge=1 -max_len=1024 "proof/fuzz/libfuzzer/target/minimal/$target" "proof/fuzz/corpus/$target" \
      "proof/fuzz/found/$target" 2>/dev/null
    # Small: the shortest few dozen are worth keeping in the repository.
    rm -f "proof/fuzz/corpus/$target"/*
    find "proof/fuzz/libfuzzer/target/minimal/$target" -type f -size -3k -printf '%s %p\n' | sort -n | head -n 16 |
      cut -d' ' -f2 | xargs -r -I{} cp {} "proof/fuzz/corpus/$target/"
    echo "$target: $(find "proof/fuzz/corpus/$target" -type f | wc -l) inputs"
    continue
  fi
  log=$(mktemp)
  if ! "$program" -max_total_time="$seconds" -max_len=4200 -timeout=30 -rss_limit_mb=2048 \
    -artifact_prefix="proof/fuzz/artifacts/$target-" -print_final_stats=1 \
    "proof/fuzz/found/$target" "proof/fuzz/corpus/$target" >"$log" 2>&1; then
    tail -n 60 "$log"
    rm -f "$log"
    echo "fuzz: $target fails; the input is in proof/fuzz/artifacts" >&2
    exit 1
  fi
  runs=$(awk '/number_of_executed_units/ {print $2}' "$log")
  reached=$(grep -o 'cov: [0-9]*' "$log" | tail -n 1)
  echo "$target: $runs inputs, ${reached:-cov: ?}"
  rm -f "$log"
done
