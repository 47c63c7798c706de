#!/bin/sh
# Runs all tests of the workspace. `make test` builds them first.
#
# Tests that need a kernel with IPVS (targets named guest…) run at the same time as the others, because the guest emulates one
# processor and mostly waits. The tests of the whole system and of the library start first; those of the backend start when two
# processors are free. The output of all these comes late. Kubernetes' own tests run
# last and alone, because they have time limits of their own. At the end, it repeats what failed.
set -u

# Only panics have a backtrace. Below an error, it would move the message out of sight.
export RUST_LIB_BACKTRACE="${RUST_LIB_BACKTRACE:-0}"
cargo=${CARGO:-cargo}
mkdir -p target
beside=target/guest-beside.log
last=target/guest.log
export FAILURES="$PWD/target/failures.log"
: >"$FAILURES"

# within SECONDS ARGUMENT…: runs cargo test. A test program that takes longer than SECONDS is ended and named.
within() {
    seconds=$1
    shift
    env "CARGO_TARGET_${host}_RUNNER=$here/within.sh $seconds" "$cargo" test --locked --workspace --no-fail-fast "$@"
}
here=$(cd "$(dirname "$0")" && pwd)
host=$("${RUSTC:-rustc}" -vV | sed -n 's/^host: //p' | tr a-z- A-Z_)

{
    within 2400 --test guest_system
    system=$?
    within 2400 --test 'guest_[!s]*' && [ "$system" = 0 ]
} >"$beside" 2>&1 &
guest=$!
trap 'kill "$guest" 2>/dev/null' INT TERM

failed=
within 1200 --lib --bins --test '[!g]*' --test 'g[!u]*' || failed=1
within 1200 --doc || failed=1
echo "running the last tests that need a kernel with IPVS"
within 2400 --test guest >"$last" 2>&1 || failed=1
wait "$guest" || failed=1
cat "$beside" "$last"
echo "running a part of Kubernetes' own tests on a cluster of two nodes"
QUICK=1 TESTED=1 timeout 1200 "$here/kubernetes/run.sh" || { failed=1 && echo "e2e/kubernetes/run.sh failed" >>"$FAILURES"; }
cat "$FAILURES"
[ -z "$failed" ]
