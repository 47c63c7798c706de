#!/bin/bash
# Installs a Service proxy on all nodes of the running cluster, and removes the one before, with its rules.
#
#   proxy.sh kube-proxy-nftables | kube-proxy-iptables     kube-proxy, as kubeadm deploys it
#   proxy.sh nft | ebpf | iptables                         our chart with that backend; further arguments go to helm
#   proxy.sh node                                          localnet-node in place of kube-proxy, with kube-proxy's own configuration
#   proxy.sh none
. "$(dirname "$0")/common.sh"

# kube_proxy MODE IMAGE COMMAND: the objects of kube-proxy's DaemonSet.
kube_proxy() {
    sed "s#@MODE@#$1#; s#@IMAGE@#$2#; s#@COMMAND@#$3#" "$here/manifests/kube-proxy.yaml"
}

remove() {
    local node before
    before=$(cat "$run/proxy" 2>/dev/null || echo none)
    case $before in
        none) return 0 ;;
        nft | ebpf | iptables) helm uninstall localnet --wait >/dev/null ;;
        *) kubectl delete -f "$run/proxy.yaml" --wait --ignore-not-found >/dev/null ;;
    esac
    kubectl --namespace kube-system wait --for=delete pod --selector k8s-app=kube-proxy --timeout 2m >/dev/null
    for node in $(nodes); do
        case $before in
            nft | node) in_node "$node" "$programs/localnet-nft" cleanup ;;
            ebpf) in_node "$node" "$programs/localnet-ebpf" cleanup --nft ;;
            iptables) in_node "$node" "$programs/localnet-iptables" cleanup ;;
            *) in_node "$node" "$bin/kube-proxy" --cleanup ;;
        esac >"$log/$node-cleanup.log" 2>&1 || fail "$node: cleanup of $before failed: $(tail -n 2 "$log/$node-cleanup.log")"
        in_node "$node" conntrack -F >/dev/null 2>&1
    done
    rm -f "$run/proxy"
}

install() {
    local name=$1
    shift
    case $name in
        nft | ebpf | iptables)
            # By default, mode iptables serves them with v1alpha1 only; the chart uses v1alpha2.
            [ "$name" != iptables ] || set -- --set config.iptables.localhostNodePorts=true "$@"
            [ "$name" != ebpf ] || set -- --set ebpf.cgroup=/run/cgroup "$@"
            # One of Kubernetes' tests restarts the pods that have the label k8s-app=kube-proxy.
            helm install localnet "$repository/charts/localnet" --set backend="$name" --set apiServer.host=172.30.0.1 \
                --set image.registry=localhost --set image.pullPolicy=Never --set podLabels.k8s-app=kube-proxy \
                --set 'config.nodePortAddresses={primary,localhost}' \
                --set config.featureGates.KubeProxyNFTablesLocalhostNodePorts=true "$@" >/dev/null
            ;;
        node) kube_proxy nftables "localhost/localnet-node:$("$programs/localnet" --version | cut -d' ' -f2)" /usr/bin/localnet-node ;;
        *) kube_proxy "${name#kube-proxy-}" localhost/kube-proxy:test /usr/local/bin/kube-proxy ;;
    esac >"$run/proxy.yaml"
    [ ! -s "$run/proxy.yaml" ] || kubectl apply -f "$run/proxy.yaml" >/dev/null
    echo "$name" >"$run/proxy"
    case $name in
        nft | ebpf | iptables) await_rollout daemonset/localnet ;;
        *) await_rollout daemonset/kube-proxy ;;
    esac
    [ "$name" != ebpf ] || translates
    await_rollout deployment/coredns
}

# translates: fails if the eBPF programs do not see the pods of a node. The nft backend would then serve the pods, and no test would fail.
translates() {
    local node
    for node in $(nodes); do
        in_node "$node" sh -c 'test -e /sys/fs/bpf/localnet-ebpf/links-*/connect4' || fail "$node: no eBPF program is attached"
        in_node "$node" grep -qx 'populated 1' /run/cgroup/cgroup.events || fail "$node: its pods have no cgroup v2, so no eBPF program runs for them"
    done
}

await_rollout() {
    kubectl --namespace kube-system rollout status --timeout 2m "$1" >"$log/rollout.log" 2>&1 ||
        fail "$1 is not ready: $(tail -n 1 "$log/rollout.log"); $(kubectl --namespace kube-system get pods -o wide)"
}

case ${1-} in
    none) remove ;;
    nft | ebpf | iptables | node | kube-proxy-nftables | kube-proxy-iptables)
        remove
        install "$@"
        ;;
    *) fail "usage: proxy.sh nft | ebpf | iptables | node | kube-proxy-nftables | kube-proxy-iptables | none" ;;
esac
