#!/bin/sh
# Builds localnet-sim with all mutants of e2e/sim/mutants, and prints for each mutant a seed that finds it, or that none of SEEDS
# (1000) seeds does. Fails if the seeds find fewer than 90 % of the mutants. The variable MUTANT switches on one mutant. Restores
# the code after the build. Arguments are the names of mutants; the default is all.
set -u

cd "$(dirname "$0")/../.." || exit 1
seeds=${SEEDS:-1000}
planted=
restore() {
    for patch in $planted; do
        git apply --reverse "$patch"
    done
    planted=
}
trap restore EXIT
trap 'exit 1' INT TERM

for patch in e2e/sim/mutants/*.patch; do
    git apply "$patch" || exit 1
    planted="$patch $planted"
done
e2e/sim/build.sh --quiet && cp target/simulation/localnet-sim target/localnet-sim-mutants || exit 1
restore

[ $# -gt 0 ] || for patch in e2e/sim/mutants/*.patch; do set -- "$@" "$(basename "$patch" .patch)"; done
found=0
for name in "$@"; do
    # A mutant of a backend needs seeds with that backend.
    backend=${name%%-*}
    case $backend in
    nft | iptables | ipvs | win | ebpf) backend="--backend $backend" ;;
    *) backend= ;;
    esac
    # shellcheck disable=SC2086
    finding=$(MUTANT=$name target/localnet-sim-mutants search --seeds "$seeds" --first 1 $backend --no-shrink --fail-fast 2>&1 |
        sed -n 's/^seed \([0-9]*\) violates \([a-z-]*\):.*/seed \1, `\2`/p' | head -n 1)
    [ -z "$finding" ] || found=$((found + 1))
    printf '%-24s %s\n' "$name" "${finding:-not found}"
done
echo "$found of $# mutants found in $seeds seeds: $((100 * found / $#)) % (the goal is at least 90 %)"
[ $((10 * found)) -ge $((9 * $#)) ]
