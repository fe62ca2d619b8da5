#!/usr/bin/env bash
# That the program without debug information, as it is packed, is under 9 MB: whoever installs it gets no
# laboratory. The client of S3 with its TLS takes 1.3 MB of that, and tables of checksums that are never used,
# in the library of checksums, 0.7 MB.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly program=${1:-target/release-lto/coulter} limit=$((9 * 1000 * 1000))
stripped=$(mktemp)
trap 'rm -f "$stripped"' EXIT
strip -o "$stripped" "$program"
size=$(stat -c %s "$stripped")
echo "$program: $size bytes without debug information, at most $limit"
((size < limit))
