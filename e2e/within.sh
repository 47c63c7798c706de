#!/bin/sh
# Runs a test program, and ends it and all that it has started after so many seconds: e2e/within.sh SECONDS PROGRAM [ARGUMENT…]
seconds=$1
shift
timeout --foreground --kill-after=10 "$seconds" "$@"
status=$?
[ "$status" != 124 ] && [ "$status" != 137 ] || echo "test ended: $1 took more than $seconds s; what is not said above to be ok was running, or was still to be run" >&2
exit "$status"
