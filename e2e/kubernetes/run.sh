#!/bin/bash
# Runs Kubernetes' own [sig-network] tests on a cluster of real nodes, once with each Service proxy, and writes docs/conformance.md.
#
#   run.sh [PROXY …]     the proxies of proxy.sh [default: all five]
#
# FOCUS: a regular expression of test names, to run a part of them. QUICK=1: the part in `quick`, with nft on two nodes. After a part,
# docs/conformance.md stays unchanged. NODES: the number of nodes (3).
. "$(dirname "$0")/common.sh"

[ "$(id -u)" = 0 ] || fail "it creates namespaces and mounts: run it as root"
if [ -n "${QUICK-}" ]; then
    NODES=${NODES:-2} FOCUS=${FOCUS:-$(grep -v '^#' "$here/quick" | paste -sd'|')}
    [ $# -gt 0 ] || set -- nft
fi
[ $# -gt 0 ] || set -- kube-proxy-nftables kube-proxy-iptables nft iptables node
mkdir -p "$cache"
exec 9>"$cache/run.lock"
flock -n 9 || fail "another run is in progress"

"$here/build.sh"
(cd "$repository" && packaging/programs.sh "$arch")
"$here/images.sh" build
"$here/images.sh" ours
trap '"$here/cluster.sh" down' EXIT
trap 'exit 1' INT TERM
"$here/cluster.sh" up "${NODES:-3}" 9>&-
failed=
for proxy; do
    "$here/proxy.sh" "$proxy"
    "$here/suite.sh" "$proxy" ${FOCUS:+"$FOCUS"} || failed=1
done
[ -n "${FOCUS-}" ] || "$here/report.sh" "$@" >"$repository/docs/conformance.md"
[ -z "$failed" ]
