#!/bin/bash
# Runs a test program. After SECONDS, ends it and its child processes: e2e/within.sh SECONDS PROGRAM [ARGUMENT…]
# If it fails, adds its failures to the file $FAILURES.
seconds=$1
shift
output=$(mktemp)
trap 'rm -f "$output"' EXIT
timeout --foreground --kill-after=10 "$seconds" "$@" > >(tee "$output")
status=$?
[ "$status" != 124 ] && [ "$status" != 137 ] || echo "test ended: $1 took more than $seconds s; tests without a result above were running or had not started" >&2
if [ "$status" != 0 ] && [ -n "${FAILURES-}" ]; then
    sleep 1 # until tee has written the rest; a process that outlives the tests would keep tee waiting
    {
        echo "$1 failed with exit status $status:"
        sed -n '/^failures:$/,$p' "$output" | tail -n 200 | grep '' || tail -n 20 "$output"
    } >>"$FAILURES"
fi
exit "$status"
