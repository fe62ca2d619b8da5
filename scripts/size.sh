#!/usr/bin/env bash
# That the program without debug information is under 8 MB: whoever installs it gets no laboratory.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly program=${1:-target/release/coulter} limit=$((8 * 1000 * 1000))
stripped=$(mktemp)
trap 'rm -f "$stripped"' EXIT
strip -o "$stripped" "$program"
size=$(stat -c %s "$stripped")
echo "$program: $size bytes without debug information, at most $limit"
((size < limit))
