#!/bin/bash
# Runs Kubernetes' own [sig-network] tests against the running cluster, and writes .cache/kubernetes/results/PROXY.json.
#
#   suite.sh PROXY [FOCUS]     FOCUS: a regular expression of test names [default: all]
#
# `skip` lists the tests that are left out, with the reason. Tests in `single-stack` run last, while the nodes have no IPv6 addresses.
# PROCS (8) tests run at a time; serial ones run alone.
. "$(dirname "$0")/common.sh"

proxy=$1 focus=${2-}
output=$results/$proxy
began=$SECONDS

# names FILE: one regular expression of the tests in a file.
names() {
    grep -v '^#' "$here/$1" | cut -f1 | paste -sd'|'
}

# ginkgo FOLDER FOCUS SKIP: writes FOLDER/report.json and FOLDER/log.txt. Fails if a test fails.
ginkgo() {
    local status=0
    mkdir -p "$1"
    in_fabric env KUBECONFIG="$kubeconfig" PATH="$bin:$PATH" "$bin/ginkgo" run --procs="${PROCS:-8}" --timeout=3h --no-color --keep-going \
        --focus="$2" --skip="$3" --output-dir="$1" --json-report=report.json --poll-progress-after=0 "$bin/e2e.test" -- \
        --kubeconfig="$kubeconfig" --provider=skeleton --num-nodes="$(cat "$run/nodes")" --kubectl-path="$bin/kubectl" \
        --report-dir="$1/dump" --allowed-not-ready-nodes=0 --minStartupPods=-1 --dump-logs-on-failure=false --disable-log-dump \
        >"$1/log.txt" 2>&1 || status=$?
    [ -f "$1/report.json" ] || fail "the tests wrote no report: $(tail -n 3 "$1/log.txt")"
    return $status
}

rm -rf "$output"
mkdir -p "$output"
cd "$output"
status=0
ginkgo "$output/all" "\\[sig-network\\].*($focus)" "$(names skip)|$(names single-stack)" || status=1
if names single-stack | grep -qE -e "$focus"; then
    "$here/cluster.sh" addresses ipv4
    ginkgo "$output/single-stack" "$(names single-stack)" "$(names skip)" || status=1
    "$here/cluster.sh" addresses dual
fi
jq -s --arg proxy "$proxy" --arg focus "$focus" --arg took $((SECONDS - began)) --arg nodes "$(cat "$run/nodes")" \
    --arg commit "$(cat "$cache/ours.tar.commit")" --arg date "$(date -u +%F)" --arg kernel "$(uname -r | cut -d- -f1)" \
    --arg kubernetes "$(kubectl get --raw /version | jq -r .gitVersion)" -f "$here/results.jq" "$output"/*/report.json >"$results/$proxy.json"
jq -r -L "$here" 'include "report"; (.tests[] | select(.state == "failed") | "\(.test): failed: \(.reason)"),
    "\(.proxy): \(.tests | count("passed")) passed, \(.tests | count("failed")) failed, \(.tests | count("skipped")) skipped themselves, in \(.took) s"' \
    "$results/$proxy.json"
[ "$status" = 0 ] || echo "logs: $output" >&2
exit $status
