#!/usr/bin/env bash
# Scenarios on real kernels in virtual machines; `make vm` calls it. Arguments are those of the
# program `vm` (`scripts/vm.sh --help`). PROFILE=dev takes what the tests have built.
set -euo pipefail
cd "$(dirname "$0")/.."

PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin:$HOME/.cargo/bin
cargo=${CARGO:-cargo}

profile=${PROFILE:-release}
directory=target/${profile/dev/debug}

# After the tests everything is there, if it is asked for as they asked: another selection of packages
# has other features, and all would be compiled once more. Alone, only what is needed is built.
case $profile in
  dev) selection=(--workspace) ;;
  *) selection=(--profile "$profile" --package coulter-attach-suite --package coulter-device --test conformance)
    "$cargo" build --quiet --profile "$profile" --package coulter-cli --package coulter-systems --bins ;;
esac
# The suites that every attach point and every device pass are test programs, and go into the guest as they are.
built=$("$cargo" test --quiet "${selection[@]}" --no-run --message-format=json)
suite_of() { sed -n "s|.*/$1#.*\"executable\":\"\([^\"]*/conformance[^\"]*\)\".*|\1|p" <<<"$built" | tail -n 1; }
exec "$directory/vm" --coulter "$directory/coulter" --conformance "$(suite_of attach-suite)" \
  --device-conformance "$(suite_of device)" "$@"
