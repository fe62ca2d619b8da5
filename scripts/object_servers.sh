#!/usr/bin/env bash
# Installs the S3-compatible services that the tests of `product/object` run, below target/tools.
#
#   scripts/object_servers.sh
#
# versitygw comes through the proxy of Go modules, moto from the Python package index. What is there already
# is left alone.
set -euo pipefail

readonly versitygw_version=v1.8.0
readonly moto_version=5.2.5

cd "$(dirname "$0")/.."
readonly tools=$PWD/target/tools
mkdir -p "$tools/bin"

need() {
  command -v "$1" >/dev/null || { echo "object_servers: $1 is missing: $2" >&2; exit 1; }
}

if [[ ! -x $tools/bin/versitygw ]]; then
  need go "install Go 1.25 or newer"
  GOBIN="$tools/bin" go install -trimpath -ldflags='-s -w' \
    "github.com/versity/versitygw/cmd/versitygw@$versitygw_version"
fi

if [[ ! -x $tools/moto/bin/moto_server ]]; then
  need python3 "install Python 3 with venv"
  python3 -m venv "$tools/moto"
  "$tools/moto/bin/pip" install --quiet "moto[server]==$moto_version"
fi
