#!/usr/bin/env bash
# What a kernel asks of the engine's object code: no division of 128 bits, for there is no function for it,
# and no stack frame above a limit, for the stack is small.
#
# usage: scripts/object-code.sh LIBRARY...
# Code that is generic over the driver's buffers is compiled where it is used, so it is not in the library.
set -euo pipefail

readonly frame_max=${FRAME_MAX:-2048}

command -v objdump >/dev/null || {
  echo "SKIPPED: object code is not read: objdump (binutils) is not installed" >&2
  exit 0
}
(($#)) || { echo "usage: $0 LIBRARY..." >&2; exit 2; }

objdump --disassemble --reloc --demangle --no-show-raw-insn "$@" 2>/dev/null |
  perl -ne '
    BEGIN { $most = shift @ARGV; ($count, $largest, $where, $wrong, $size) = (0, 0, "none", 0, 0); }
    if (/^[0-9a-f]+ <(.*)>:$/) { &judge; ($name, $size) = ($1, 0); $count++; }
    if (/__u?(?:div|mod)ti[34]/ && !$divides{$name}++) {
      print "divides 128 bits: $name\n"; $wrong++;
    }
    # A large frame is taken in steps, so that no page is passed over.
    $size += hex $1 if /sub +\$0x([0-9a-f]+),%rsp/;
    sub judge {
      ($largest, $where) = ($size, $name) if $size > $largest;
      if ($size > $most) { print "stack frame of $size bytes: $name\n"; $wrong++; }
    }
    END {
      &judge;
      if (!$count) { print "no function was found\n"; exit 1; }
      print "$count functions, largest stack frame $largest bytes ($where)\n";
      exit($wrong ? 1 : 0);
    }' "$frame_max"
