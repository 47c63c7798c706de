#!/bin/sh
# Fails unless programs for Linux are static: no other file has to be on the node where they run.
#
#   packaging/static.sh PROGRAM…
set -eu

[ $# -gt 0 ] || { echo "failed to check programs: none is named" >&2; exit 1; }
for program; do
    headers=$(LC_ALL=C readelf --wide --program-headers --dynamic "$program") || { echo "failed to read $program: it is no ELF file" >&2; exit 1; }
    # A static position-independent program has dynamic relocations, but neither an interpreter nor libraries.
    ! echo "$headers" | grep -E '^ *INTERP |\(NEEDED\)' >&2 || { echo "$program is not static: build it with packaging/programs.sh" >&2; exit 1; }
done
