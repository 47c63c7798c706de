# Paths and helpers of the scripts in this folder. Sourced, not run.
set -eu

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repository=$(cd "$here/../.." && pwd)
caches=${LOCALNET_CACHE:-$repository/.cache}
cache=$caches/kubernetes
bin=$cache/bin
run=$cache/run
pki=$run/pki
log=$run/log
results=$cache/results
kubeconfig=$run/kubeconfig
arch=$(dpkg --print-architecture)
# Our programs: those of packaging/programs.sh, or with TESTED=1 those that `make test` has built.
programs=$repository/target/ship/$arch/bin
[ -z "${TESTED-}" ] || programs=$repository/target/debug
# The names that proxy.sh knows, in the order of docs/conformance.md.
proxies="kube-proxy-nftables nft ebpf node kube-proxy-iptables iptables"
# The network of the control plane is also the fabric between the nodes.
fabric=kube-cp

fail() {
    echo "e2e/kubernetes: $1" >&2
    exit 1
}

# in_fabric COMMAND…: runs a command in the network namespace of the control plane.
in_fabric() {
    nsenter --net="/run/netns/$fabric" "$@"
}

# in_node NODE COMMAND…: runs a command in all namespaces of a node.
in_node() {
    local node=$1
    shift
    nsenter --all -t "$(cat "$run/$node/pid")" "$@"
}

kubectl() {
    in_fabric "$bin/kubectl" --kubeconfig="$kubeconfig" "$@"
}

helm() {
    in_fabric env HELM_CACHE_HOME="$cache/helm" HELM_CONFIG_HOME="$cache/helm" HELM_DATA_HOME="$cache/helm" \
        "$bin/helm" --kubeconfig="$kubeconfig" --namespace kube-system "$@"
}

containerd_of() {
    local node=$1
    shift
    in_node "$node" "$bin/ctr" --address /run/containerd/containerd.sock --namespace k8s.io "$@"
}

# numbers: the numbers of all nodes. The node with number 1 is called n1.
numbers() {
    seq "$(cat "$run/nodes")"
}

nodes() {
    seq -f 'n%g' "$(cat "$run/nodes")"
}

# await SECONDS WHAT COMMAND…: runs the command until it succeeds.
await() {
    local limit=$1 what=$2 began=$SECONDS
    shift 2
    until "$@" >/dev/null 2>&1; do
        [ $((SECONDS - began)) -lt "$limit" ] || fail "$what: not within $limit s; logs are in $log"
        sleep 0.2
    done
}

# fill TEMPLATE [NODE NUMBER]: replaces the placeholders of a template.
fill() {
    sed "s#@CACHE@#$cache#g; s#@RUN@#$run#g; s#@NODE@#${2-}#g; s#@NUMBER@#${3-}#g; s#@ZONE@#${3:+$(((${3:-1} - 1) % 3 + 1))}#g" "$here/$1"
}
