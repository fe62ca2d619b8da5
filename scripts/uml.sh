# User-mode Linux, for scripts that source this: a guest whose root is the host's, whose first process is
# f2fs-guest.sh, and of which nothing stays. It makes the
# directory `work`, and waits `limit` seconds.
#
#   boot [WORD...]          a guest; words are for its kernel or, as NAME=VALUE, for its first process
#   await PATTERN COUNT     until so many lines of what it says match, or the script fails
#   pull_the_plug           ends it, without a warning
work=$(mktemp -d /var/tmp/coulter-f2fs.XXXXXX)
guest=

# User-mode Linux is a group of processes.
pull_the_plug() {
  [[ -z $guest ]] || kill -KILL -- "-$guest" 2>/dev/null || true
  [[ -z $guest ]] || wait "$guest" 2>/dev/null || true
  guest=
}

trap 'pull_the_plug; rm -rf "$work"' EXIT

# Its memory is a file, with no name, of the directory for temporary files. What it says goes to $work/out.
boot() {
  : >"$work/out"
  TMPDIR=${memory:-$work} setsid linux.uml root=/dev/root rootfstype=hostfs rootflags=/ rw \
    "init=$PWD/scripts/f2fs-guest.sh" con=null con0=null,fd:1 quiet \
    "COULTER=${COULTER:-$PWD/target/release/coulter}" "LABORATORY=${LABORATORY:-$PWD/target/release/coulter-lab}" \
    "$@" </dev/null >"$work/out" 2>"$work/errors" &
  guest=$!
}

await() {
  local deadline=$((SECONDS + limit))
  until (($(grep -c "$1" "$work/out" || true) >= $2)); do
    if ((SECONDS > deadline)) || grep -q '^end [^o]' "$work/out" || ! kill -0 "$guest" 2>/dev/null; then
      # It may have said so just before it ended.
      (($(grep -c "$1" "$work/out" || true) < $2)) || return 0
      tail -n 60 "$work/out" "$work/errors" >&2
      echo "${0##*/}: failed while waiting for '$1'" >&2
      exit 1
    fi
    sleep 0.1
  done
}
