#!/bin/sh
# Runs all tests of the workspace, which `make test` has built: those that need a kernel with IPVS (targets named guest…) beside the
# others, as the guest emulates one processor and waits most of the time for it. What the guest's tests print comes last.
set -u

cargo=${CARGO:-cargo}
mkdir -p target
log=target/guest-tests.log
"$cargo" test --locked --workspace --no-fail-fast --test 'guest*' >"$log" 2>&1 &
guest=$!
trap 'kill "$guest" 2>/dev/null' INT TERM

failed=
"$cargo" test --locked --workspace --no-fail-fast --lib --bins --test '[!g]*' --test 'g[!u]*' || failed=1
"$cargo" test --locked --workspace --no-fail-fast --doc || failed=1
echo "waiting for the tests that need a kernel with IPVS"
wait "$guest" || failed=1
cat "$log"
[ -z "$failed" ]
