#!/bin/bash
# Reports the results of suite.sh: those of the last run of all tests with each proxy. If a proxy has not run on this machine, its results are
# those that docs/conformance.md shows.
#
#   report.sh write     writes docs/conformance.md, and the line in README.md that cites it
#   report.sh worse     prints the tests that kube-proxy passes and localnet fails, and fails if there are any
. "$(dirname "$0")/common.sh"

# whole: the results of all tests, of this version of Kubernetes.
whole() {
    set -o pipefail
    local proxy version focus
    version=$(cd "$here/modules/kubernetes" && go list -m -f '{{.Version}}' k8s.io/kubernetes)
    for proxy in $proxies; do
        if [ -f "$results/$proxy.json" ]; then
            focus=$(jq --raw-output .focus "$results/$proxy.json") ||
                fail "$results/$proxy.json is damaged: remove it, or run the tests with $proxy again"
            [ -n "$focus" ] || { cat "$results/$proxy.json" && continue; }
        fi
        jq --raw-input --null-input -L "$here" --arg proxy "$proxy" 'include "report"; [inputs] | of_page | select(.proxy == $proxy)' "$page"
    done | jq --arg version "$version" 'select(.kubernetes == $version)'
}

page=$repository/docs/conformance.md
whole=$(whole)
[ -n "$whole" ] || fail "no proxy has run all tests"
all() { jq --raw-output --slurp -L "$here" "$@" <<<"$whole"; }
# one FIELD: the value that all results have in common.
one() { all "map(.$1) | unique | join(\" and \")"; }

# table FILE: a list of tests with their reasons.
table() {
    printf '| name contains | reason |\n|---|---|\n'
    grep -v '^#' "$here/$1" | sed 's/\\//g; s/^/| /; s/\t/ | /; s/$/ |/'
}

contents() {
    cat <<END
# Kubernetes' own tests
\`make kubernetes\` wrote this page. It runs the [sig-network] tests of Kubernetes $(one kubernetes) (\`e2e.test\`) on a cluster of $(one nodes) nodes. Each node has
its own kubelet and containerd, and addresses of IPv4 and IPv6 ([e2e/kubernetes](../e2e/kubernetes/README.md)). The whole cluster is one machine with $(nproc)
processors, $(awk '/^MemTotal/ { printf "%.0f GiB", $2 / 1048576 }' /proc/meminfo) of memory and Linux $(one kernel).

\`nft\`, \`ebpf\` and \`iptables\` are the chart with that backend. With \`ebpf\`, eBPF programs translate the connections of the pods, and the nft backend serves all
other clients. \`node\` is \`localnet-node\` in place of kube-proxy, with the configuration of kube-proxy-nftables.

END
    all 'include "report"; summary'
    cat <<END

## Tests that run on nodes without IPv6 addresses
$(table single-stack)

## Tests that do not run
$(table skip)

## Test by test
END
    all 'include "report"; tests'
}

# line: the figures for README.md.
line() {
    echo "**Judged by [Kubernetes' own network tests](docs/conformance.md)** ($(one kubernetes)): $(all 'include "report"; line')"
}

case ${1-} in
    write)
        contents >"$page"
        sed -i "s#^\*\*Judged by .*#$(line)#" "$repository/README.md"
        ;;
    worse)
        failed=$(all 'include "report"; worse[] | "\(.proxy): \(.test): \(.reason)"')
        [ -n "$failed" ] || exit 0
        echo "$failed"
        exit 1
        ;;
    *) fail "usage: report.sh write | worse" ;;
esac
