#!/usr/bin/env bash
# Scenarios on real kernels in virtual machines; `make vm` calls it. Arguments are those of the
# program `vm` (`scripts/vm.sh --help`). PROFILE=dev takes what the tests have built.
set -euo pipefail
cd "$(dirname "$0")/.."

PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin:$HOME/.cargo/bin
cargo=${CARGO:-cargo}

profile=${PROFILE:-release}
directory=target/${profile/dev/debug}

"$cargo" build --quiet --profile "$profile" --package coulter-cli --package coulter-systems --bins
# The suite that every attach point passes is a test program, and goes into the guest as it is.
suite=$("$cargo" test --profile "${profile/dev/test}" --package coulter-attach --test conformance \
  --no-run --message-format=json 2>/dev/null |
  sed -n 's/.*"executable":"\([^"]*conformance[^"]*\)".*/\1/p' | tail -n 1)
exec "$directory/vm" --coulter "$directory/coulter" --conformance "$suite" "$@"
