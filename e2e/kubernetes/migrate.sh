#!/bin/bash
# Changes the Service proxy of the running cluster, or what it serves, under load from pods and from outside, and counts what fails.
#
#   migrate.sh [STEP …]     [default: all steps, with the chart and with kube-proxy]
#
#   beside:MODE                 shadow and canary on a node with kube-proxy in this mode, with the commands in docs/migrating.md
#   migrate:MODE, back:MODE     from kube-proxy in this mode to the chart, node by node, and back, with the commands in docs/migrating.md
#   upgrade                     the chart, from the images with the tag `previous` to ours, to each mixture of brain and backend, and back
#   drain:PROXY                 drains each node; PROXY is a name that proxy.sh knows
#   rollouts:PROXY              updates the servers ROLLOUTS (100) times; the first three steps update them all the time, too
#   keep:PROXY                  updates the servers ROLLOUTS (500) times, while clients also keep their connections to them (HTTP keep-alive), and
#                               connections to removed endpoints are closed; takes 50 minutes, so it runs only if it is named
#
# Each client opens RATE (20) connections a second to each address. .cache/kubernetes/results/migrate has the counts and the failures.
. "$(dirname "$0")/common.sh"

results=$results/migrate
output=$log/migrate.log
loads=() replacing='' failed=''

# The commands of the page run programs beside kube-proxy on the node $beside. What uses kubectl runs on the machine of the operator.
localnet() {
    if [ -n "${beside-}" ] && [ "$1" != canary ]; then
        in_node "$beside" "$programs/localnet" "$@"
    else
        in_fabric env PATH="$bin:$PATH" KUBECONFIG="$kubeconfig" "$programs/localnet" "$@"
    fi
}

localnet-brain() {
    in_node "$beside" sh -c 'echo $$ >/run/beside-brain.pid && exec "$@"' sh "$programs/localnet-brain" "$@"
}

localnet-nft() {
    in_node "$beside" sh -c 'echo $$ >/run/beside-nft.pid && exec "$@"' sh "$programs/localnet-nft" "$@"
}

# stop_beside PROGRAM: ends a program that runs beside kube-proxy.
stop_beside() {
    in_node "$beside" sh -c 'pid=$(cat "$1") && kill "$pid" && while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done; rm "$1"' sh "/run/beside-$1.pid"
}

# page HEADING NUMBER [NODE]: runs a block of commands of docs/migrating.md, with the names of this cluster.
page() {
    local block
    block=$(awk -v heading="$1" -v wanted="$2" '/^```/ { inside = !inside; number += /^```sh/; next }
        /^#/ && !inside { section = $0; number = 0 }
        inside && section ~ heading && number == wanted' "$repository/docs/migrating.md" |
        sed "s/REGISTRY/localhost/g; s/ADDRESS/172.30.0.1/g; s/\bNODE\b/${3-}/g
            s#\bCONFIG\b#$run/kube-proxy.conf#g; s#\bKUBECONFIG\b#$kubeconfig#g; s/\bNAMESPACE\b/load/g; s/\bSERVICE\b/web/g
            s/--set 'cleanup={iptables}'/--set nodeSelector=null --set 'cleanup={$stale}'/")
    [ -n "$block" ] || fail "docs/migrating.md has no block $2 of commands under \"$1\""
    echo "$(date +%T) $block" >>"$output"
    (
        cd "$repository"
        eval "$block"
    ) >>"$output" 2>&1
}

# of SERVICE PATH: a field of a Service.
of() {
    kubectl --namespace load get service "$1" -o jsonpath="$2"
}

start_servers() {
    kubectl apply -f "$here/manifests/load.yaml" >>"$output"
    for name in deployment/web daemonset/steady daemonset/client; do
        kubectl --namespace load rollout status --timeout 2m "$name" >>"$output"
    done
    for name in web steady; do await 60 "$name has an address of the load balancer" has_address "$name"; done
}

has_address() {
    [ -n "$(of "$1" '{.status.loadBalancer.ingress[0].ip}')" ]
}

# network_of NODE ADDRESS: the path of the network namespace of the pod with this address.
network_of() {
    local path
    for path in "/proc/$(cat "$run/$1/pid")/root/run/netns"/cni-*; do
        ! nsenter --net="$path" ip -o address | grep -qF " $2/" || { echo "$path"; return; }
    done
    fail "$1 has no pod with the address $2"
}

# load NAME NETWORK TARGET…
load() {
    local name=$1 network=$2
    shift 2
    nsenter --net="$network" python3 "$here/load.py" "$counts/$name.json" "${RATE:-20}" "$@" 2>"$log/load-$name.log" &
    loads+=($!)
}

# start_load STEP [replacing]: with `replacing`, the servers are replaced until stop_load.
start_load() {
    local address node name targets=() outside=()
    counts=$results/$1
    rm -rf "$counts" "$run/stop"
    mkdir -p "$counts"
    echo 0 >"$counts/updates"
    for address in $(of web '{.spec.clusterIPs[*]}'); do targets+=("tcp:$address:80" "udp:$address:81"); done
    if [ "${1%%:*}" = keep ]; then
        for address in $(of web '{.spec.clusterIPs[*]}'); do targets+=("kept:$address:80"); done
        for address in $(of web '{.status.loadBalancer.ingress[*].ip}'); do outside+=("kept:$address:80"); done
    fi
    for address in $(of steady '{.spec.clusterIPs[*]}'); do targets+=("held:$address:80"); done
    for node in $(numbers); do
        outside+=("tcp:172.30.0.$((10 + node)):$(of web '{.spec.ports[0].nodePort}')")
        outside+=("held:172.30.0.$((10 + node)):$(of steady '{.spec.ports[0].nodePort}')")
    done
    for address in $(of web '{.status.loadBalancer.ingress[*].ip}'); do outside+=("tcp:$address:80"); done
    for node in $(nodes); do
        address=$(kubectl --namespace load get pods --selector app=client --field-selector "spec.nodeName=$node" -o jsonpath='{.items[0].status.podIP}')
        load "$node" "$(network_of "$node" "$address")" "${targets[@]}"
    done
    load outside "/run/netns/$fabric" "${outside[@]}"
    began=$SECONDS
    sleep 3
    if [ -n "${2-}" ]; then
        replace &
        replacing=$!
    fi
}

replace() {
    local update=0
    while [ ! -e "$run/stop" ]; do
        roll_out $((update += 1))
        sleep 1
    done
}

# roll_out NUMBER: replaces all pods of web.
roll_out() {
    kubectl --namespace load set env deployment/web "UPDATE=$1" >>"$output"
    kubectl --namespace load rollout status --timeout 2m deployment/web >>"$output"
    echo "$1" >"$counts/updates"
}

# stop_load STEP: prints the counts.
stop_load() {
    local pid
    touch "$run/stop"
    [ -z "$replacing" ] || wait "$replacing"
    sleep 5
    for pid in "${loads[@]}"; do kill -TERM "$pid"; done
    for pid in "${loads[@]}"; do wait "$pid"; done
    loads=() replacing=
    jq -s --arg step "$1" --arg took $((SECONDS - began)) --arg updates "$(cat "$counts/updates")" '
        def sum(kind): map(select(.key | startswith(kind)).value.answered) | add // 0;
        [.[] | to_entries[]] | {step: $step, took: $took, updates: $updates, connections: sum("tcp"), datagrams: sum("udp"), held: sum("held"),
        kept: sum("kept"), repeated: map(.value.repeated) | add, failed: map(.value.failed) | add, slowest: (map(.value.slowest) | max * 1000 | round),
        failures: [.[] | select(.value.failed > 0) | "\(.key): \(.value.failed): \(.value.failures)"]}' "$counts"/*.json >"$counts.json"
    jq -r '"| \(.step) | \(.took) s | \(.updates) | \(.connections) | \(.datagrams) | \(.held) | \(.kept) | \(.repeated) | \(.failed) | \(.slowest) ms |", .failures[]' "$counts.json"
    [ "$(jq .failed "$counts.json")" = 0 ] || failed=1
}

# proxy NAME: installs a proxy, unless the cluster has it.
proxy() {
    [ "$(cat "$run/proxy" 2>/dev/null)" = "$1" ] || "$here/proxy.sh" "$1"
}

beside() {
    local beside=n1
    proxy "kube-proxy-$1"
    kubectl --namespace kube-system get configmap kube-proxy -o jsonpath='{.data.config\.conf}' >"$run/kube-proxy.conf"
    start_load "$step" replacing
    shadow
    page "4. Compare" 1 "$beside"
    stop_beside brain
    page "5. Let localnet" 1 "$beside"
    for _ in {1..5}; do
        page "5. Let localnet" 2
        await 30 "localnet serves web" serves
        sleep 2
        page "5. Let localnet" 3
        await 30 "kube-proxy serves web" serves_nothing
        sleep 2
    done
    page "5. Let localnet" 4
    await 30 "localnet serves all Services of the namespace" serves
    sleep 2
    page "5. Let localnet" 5
    await 30 "kube-proxy serves them again" serves_nothing
    stop_beside nft
    stop_beside brain
    in_node "$beside" "$programs/localnet-nft" cleanup >>"$output" 2>&1
    stop_load "$step"
}

# Lets the chart compare on all nodes.
shadow() {
    local pod
    helm install localnet "$repository/charts/localnet" --set backend=shadow --set config.metricsBindAddress=127.0.0.1:10349 \
        --set apiServer.host=172.30.0.1 --set image.registry=localhost --set image.pullPolicy=Never \
        --set 'config.nodePortAddresses={primary,localhost}' --set config.featureGates.KubeProxyNFTablesLocalhostNodePorts=true \
        --set config.detectLocalMode=ClusterCIDR --set 'config.detectLocal.clusterCIDRs={10.244.0.0/16,fd10:244::/48}' --wait >>"$output"
    for pod in $(kubectl --namespace kube-system get pods --selector app.kubernetes.io/name=localnet -o name); do
        await 60 "the shadow in $pod finds no difference" agrees "$pod"
    done
    helm uninstall localnet --wait >>"$output"
}

agrees() {
    [ "$(kubectl --namespace kube-system exec "$1" -c shadow -- localnet status -o json | jq '.backends[] | select(.name == "shadow").skippedCount')" = 0 ]
}

# Whether the canary has a rule for the ClusterIP of web.
serves() {
    in_node "$beside" nft list table ip localnet | grep -wF "$(of web '{.spec.clusterIP}')"
}

serves_nothing() {
    ! serves
}

migrate() {
    local node
    proxy "kube-proxy-$1"
    start_load "$step" replacing
    page "6. Take over" 2
    for node in $(nodes); do page "6. Take over" 3 "$node"; done
    page "6. Take over" 4
    stop_load "$step"
}

back() {
    local node
    start_load "$step" replacing
    page "7. Go back" 1
    for node in $(nodes); do
        page "7. Go back" 2 "$node"
        await 60 "localnet's rules are removed from $node" without_rules "$node"
    done
    helm uninstall localnet --wait >>"$output"
    stop_load "$step"
}

without_rules() {
    ! in_node "$1" nft list tables | grep -w localnet
}

# change COMMAND…: changes the DaemonSet of the chart, and waits until all nodes have the change.
change() {
    "$@" >>"$output"
    kubectl --namespace kube-system rollout status --timeout 5m daemonset/localnet >>"$output"
}

upgrade() {
    local chart=(helm upgrade localnet "$repository/charts/localnet" --reuse-values)
    local images=(kubectl --namespace kube-system set image daemonset/localnet)
    local brain=brain=localhost/localnet-brain nft=nft=localhost/localnet-nft
    "$here/proxy.sh" nft --set image.tag=previous
    start_load "$step" replacing
    change "${chart[@]}" --set image.tag=null
    change "${images[@]}" "$nft:previous"
    change "${images[@]}" "$brain:previous" "$nft:$version"
    change "${chart[@]}" --set image.tag=previous
    stop_load "$step"
    # Later steps need our images.
    "$here/proxy.sh" none
}

drain() {
    local node
    proxy "$1"
    start_load "$step"
    for node in $(nodes); do
        kubectl drain "$node" --ignore-daemonsets --pod-selector app=web --timeout 2m >>"$output" 2>&1
        kubectl --namespace load rollout status --timeout 2m deployment/web >>"$output"
        kubectl uncordon "$node" >>"$output"
    done
    stop_load "$step"
}

rollouts() {
    local update
    proxy "$1"
    start_load "$step"
    for update in $(seq "${ROLLOUTS:-100}"); do roll_out "$update"; done
    stop_load "$step"
}

keep() {
    local update annotation=localnet.dev/close-connections-after
    proxy "$1"
    kubectl --namespace load annotate --overwrite service web "$annotation=0s" >>"$output"
    start_load "$step"
    for update in $(seq "${ROLLOUTS:-500}"); do roll_out "$update"; done
    stop_load "$step"
    kubectl --namespace load annotate service web "$annotation-" >>"$output"
}

ended() {
    local status=$?
    [ "$status" = 0 ] || [ -n "$failed" ] || tail -n 5 "$output" "$log"/load-*.log >&2
    touch "$run/stop"
    [ -z "${loads[*]}" ] || kill "${loads[@]}"
    wait
}

version=$("$programs/localnet" --version | cut -d' ' -f2)
trap ended EXIT
[ $# -gt 0 ] || set -- {beside,migrate,back}:iptables {beside,migrate,back}:nftables upgrade {drain,rollouts}:nft {drain,rollouts}:kube-proxy-nftables
mkdir -p "$results"
start_servers
echo "| step | time | updates of the Deployment | connections | datagrams | requests on held connections | requests on kept connections | of these, repeated | failed | slowest answer |"
for step; do
    # What the chart calls kube-proxy's rules of this mode.
    stale=iptables
    [ "${step#*:}" != nftables ] || stale=kube-proxy-nftables
    "${step%%:*}" "${step#*:}"
done
[ -z "$failed" ]
