#!/bin/sh
# Runs a test program. After SECONDS, ends it and its child processes: e2e/within.sh SECONDS PROGRAM [ARGUMENT…]
seconds=$1
shift
timeout --foreground --kill-after=10 "$seconds" "$@"
status=$?
[ "$status" != 124 ] && [ "$status" != 137 ] || echo "test ended: $1 took more than $seconds s; tests without a result above were running or had not started" >&2
exit "$status"
