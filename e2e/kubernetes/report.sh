#!/bin/bash
# Prints docs/conformance.md from the results of suite.sh: report.sh PROXY …
. "$(dirname "$0")/common.sh"

files=
for proxy; do files="$files $results/$proxy.json"; done
# shellcheck disable=SC2086 # a list of files
all() { jq -r --slurp "$@" $files; }
# one FIELD: the value that all results have in common.
one() { all "map(.$1) | unique | join(\" and \")"; }

# table FILE: a list of tests with their reasons.
table() {
    printf '| name contains | reason |\n|---|---|\n'
    grep -v '^#' "$here/$1" | sed 's/\\//g; s/^/| /; s/\t/ | /; s/$/ |/'
}

cat <<END
# Kubernetes' own tests
\`make kubernetes\` wrote this page. It runs the [sig-network] tests of Kubernetes $(one kubernetes) (\`e2e.test\`) on a cluster of $(one nodes) nodes, with Linux
$(one kernel). Each node has its own kubelet and containerd, and addresses of IPv4 and IPv6. [e2e/kubernetes](../e2e/kubernetes/README.md) describes the cluster.

\`nft\` and \`iptables\` are the chart with that backend. \`node\` is \`localnet-node\` in place of kube-proxy, with kube-proxy's own configuration.

END
all -f "$here/report.jq"
cat <<END

## Tests that run on nodes without IPv6 addresses
$(table single-stack)

## Tests that do not run
$(table skip)
END
