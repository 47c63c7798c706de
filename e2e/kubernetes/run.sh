#!/bin/bash
# Runs Kubernetes' own [sig-network] tests on a cluster of real nodes, once with each Service proxy, and writes docs/conformance.md and the line
# in README.md that cites it.
#
#   run.sh [PROXY …]           the proxies of proxy.sh [default: all six]
#   run.sh migrate [STEP …]    migrate.sh on such a cluster. PREVIOUS: the commit whose images are upgraded [default: HEAD~1]
#
# FOCUS: a regular expression of test names, to run a part of them. QUICK=1: the part in `quick`, with nft on two nodes. NODES: the number of
# nodes (3). TESTED=1: use the programs of `make test`. `make cluster` must have built everything else.
#
# After all tests, it fails if localnet fails a test that kube-proxy passes. After a part, it fails if a test fails, and writes no page.
. "$(dirname "$0")/common.sh"

[ "$(id -u)" = 0 ] || fail "it creates namespaces and mounts: run it as root"
if [ -n "${QUICK-}" ]; then
    NODES=${NODES:-2} FOCUS=${FOCUS:-$(grep -v '^#' "$here/quick" | paste -sd'|')}
    [ $# -gt 0 ] || set -- nft
fi
# shellcheck disable=SC2086 # a list of words
[ $# -gt 0 ] || set -- $proxies
mkdir -p "$cache"
exec 9>"$cache/run.lock"
flock -n 9 || fail "another run is in progress"

[ -n "${TESTED-}" ] || (cd "$repository" && packaging/programs.sh "$arch")
"$here/images.sh" ours
# Of the steps of migrate.sh, only `upgrade` needs these. It is one of the steps if none is named.
[[ "$1 ${2-upgrade} $*" != migrate*upgrade* ]] || "$here/images.sh" previous "${PREVIOUS:-HEAD~1}"
trap '"$here/cluster.sh" down' EXIT
trap 'exit 1' INT TERM
"$here/cluster.sh" up "${NODES:-3}" 9>&-
if [ "$1" = migrate ]; then
    shift
    "$here/migrate.sh" "$@"
    exit
fi
failed=
for proxy; do
    "$here/proxy.sh" "$proxy"
    "$here/suite.sh" "$proxy" ${FOCUS:+"$FOCUS"} || failed=1
done
if [ -n "${FOCUS-}" ]; then
    [ -z "$failed" ]
else
    "$here/report.sh" write
    "$here/report.sh" worse
fi
