#!/bin/bash
# A Kubernetes cluster of real nodes on this machine: etcd, kube-apiserver, controller manager and scheduler in one network namespace, and
# nodes with a kubelet and containerd in namespaces of their own (network, mounts, processes, host name). Dual stack; one zone a node.
# It has CoreDNS and a load balancer (loadbalancer.py), and no Service proxy: proxy.sh installs one.
#
#   cluster.sh up [NODES]                 starts it (default: 3 nodes); it runs until `down`
#   cluster.sh addresses ipv4|dual        restarts the kubelets, so that nodes have IPv4 addresses only, or addresses of both families
#   cluster.sh down                       ends all its processes, and removes its namespaces, mounts and cgroups; programs, images and logs
#                                         stay in .cache/kubernetes
. "$(dirname "$0")/common.sh"

# Folders that a node mounts over. `down` removes those that did not exist before.
folders="/var/lib/kubelet /var/lib/containerd /var/lib/cni /var/log/pods /var/log/containers /etc/cni/net.d /etc/cni"
# Folder of the nodes' cgroups, in each hierarchy.
cgroup=localnet-kubernetes

# daemon NAME COMMAND…: starts a program that outlives this script, in a process group of its own.
daemon() {
    local name=$1
    shift
    setsid "$@" >"$log/$name.log" 2>&1 </dev/null &
    echo $! >"$run/$name.pid"
}

# certificate NAME SUBJECT CA [EXTENSIONS]
certificate() {
    openssl req -newkey rsa:2048 -nodes -keyout "$pki/$1.key" -out "$pki/$1.csr" -subj "$2" 2>/dev/null
    openssl x509 -req -in "$pki/$1.csr" -CA "$pki/$3.crt" -CAkey "$pki/$3.key" -CAcreateserial -days 3650 -out "$pki/$1.crt" \
        -extfile <(echo "${4-}") 2>/dev/null
}

credentials() {
    [ ! -f "$pki/front-proxy.crt" ] || return 0
    local authority names
    for authority in ca front-proxy-ca; do
        openssl req -x509 -newkey rsa:2048 -nodes -keyout "$pki/$authority.key" -out "$pki/$authority.crt" -subj "/CN=$authority" -days 3650 \
            -addext keyUsage=critical,keyCertSign,digitalSignature 2>/dev/null
    done
    names=DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local
    certificate apiserver /CN=kube-apiserver ca "subjectAltName=$names,IP:172.30.0.1,IP:127.0.0.1,IP:10.96.0.1,IP:fd10:96::1"
    openssl genrsa -out "$pki/service-account.key" 2048 2>/dev/null
    certificate front-proxy /CN=front-proxy-client front-proxy-ca
}

start_fabric() {
    ip netns add $fabric
    in_fabric sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 net.ipv4.fib_multipath_hash_policy=1 \
        net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0 net.ipv4.conf.all.send_redirects=0 net.ipv4.conf.default.send_redirects=0
    # 198.51.100.1 and fd31::1 are the addresses of clients outside of the cluster.
    ip -n $fabric -batch - <<END
link set lo up
link add br0 type bridge
link set br0 up
addr add 172.30.0.1/24 dev br0
addr add fd30::1/64 dev br0 nodad
addr add 198.51.100.1/32 dev lo
addr add fd31::1/128 dev lo nodad
END
}

start_control_plane() {
    local services=10.96.0.0/16,fd10:96::/112
    mkdir -p "$run/etcd"
    mountpoint -q "$run/etcd" || mount -t tmpfs tmpfs "$run/etcd"
    daemon etcd nsenter --net=/run/netns/$fabric "$bin/etcd" --data-dir "$run/etcd" --unsafe-no-fsync --log-level warn
    daemon apiserver nsenter --net=/run/netns/$fabric "$bin/kube-apiserver" --etcd-servers=http://127.0.0.1:2379 \
        --bind-address=0.0.0.0 --advertise-address=172.30.0.1 --service-cluster-ip-range=$services --allow-privileged \
        --tls-cert-file="$pki/apiserver.crt" --tls-private-key-file="$pki/apiserver.key" --client-ca-file="$pki/ca.crt" \
        --service-account-key-file="$pki/service-account.key" --service-account-signing-key-file="$pki/service-account.key" \
        --service-account-issuer=https://kubernetes.default.svc.cluster.local --authorization-mode=RBAC --token-auth-file="$run/tokens.csv" \
        --kubelet-preferred-address-types=InternalIP --proxy-client-cert-file="$pki/front-proxy.crt" --proxy-client-key-file="$pki/front-proxy.key" \
        --requestheader-client-ca-file="$pki/front-proxy-ca.crt" --requestheader-allowed-names=front-proxy-client \
        --requestheader-username-headers=X-Remote-User --requestheader-group-headers=X-Remote-Group \
        --requestheader-extra-headers-prefix=X-Remote-Extra-
    await 120 "the API server is ready" kubectl get --raw /readyz
    daemon controllers nsenter --net=/run/netns/$fabric "$bin/kube-controller-manager" --kubeconfig="$kubeconfig" --leader-elect=false \
        --service-account-private-key-file="$pki/service-account.key" --root-ca-file="$pki/ca.crt" \
        --cluster-signing-cert-file="$pki/ca.crt" --cluster-signing-key-file="$pki/ca.key" \
        --cluster-cidr=10.244.0.0/16,fd10:244::/48 --service-cluster-ip-range=$services --allocate-node-cidrs=false \
        --node-monitor-grace-period=90s --kube-api-qps=100 --kube-api-burst=200
    daemon scheduler nsenter --net=/run/netns/$fabric "$bin/kube-scheduler" --kubeconfig="$kubeconfig" --leader-elect=false --kube-api-qps=100 \
        --kube-api-burst=200
    # What the API server asks kubelets for (logs, exec), it asks as this user.
    kubectl create clusterrolebinding apiserver --clusterrole=cluster-admin --user=kube-apiserver >/dev/null
}

# hierarchies: where the hierarchies of cgroups are mounted.
hierarchies() {
    awk '$3 == "cgroup" || $3 == "cgroup2" { print $2 }' /proc/mounts
}

# start_node NODE NUMBER: its namespaces, its network and containerd.
start_node() {
    local node=$1 number=$2 folder=$run/$1 controller unified other outer
    rm -rf "$folder"/{kubelet,pods,containers,cni-state,ready}
    mkdir -p "$folder"/{kubelet,containerd,pods,containers,cni-state,cni,cgroup}
    setsid unshare --mount --uts --ipc --net --pid --fork --mount-proc --propagation private "$here/node/init.sh" "$node" "$folder" "$bin/pause" \
        >"$log/$node.log" 2>&1 </dev/null &
    outer=$!
    await 30 "$node has its mounts" test -e "$folder/ready"
    ps -o pid= --ppid $outer | tr -d ' ' >"$folder/pid"
    ip netns attach "kube-$node" "$(cat "$folder/pid")"
    for controller in $(hierarchies); do
        mkdir -p "$controller/$cgroup/$node"
        [ ! -f "$controller/cpuset.cpus" ] || for other in "$controller/$cgroup" "$controller/$cgroup/$node"; do
            cat "$controller/cpuset.cpus" >"$other/cpuset.cpus"
            cat "$controller/cpuset.mems" >"$other/cpuset.mems"
        done
        # On a real node, pods have the weight of all its processors. Here, without this, all pods together have that of one other program.
        [ ! -f "$controller/cpu.shares" ] || echo $((10240 * $(nproc))) >"$controller/$cgroup/cpu.shares"
    done
    # All nodes share the hierarchy of cgroup v2, so eBPF programs for all processes of a node go to a part of it.
    unified=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts)
    if [ -n "$unified" ]; then
        in_node "$node" mkdir /run/cgroup
        in_node "$node" mount --bind "$unified/$cgroup/$node" /run/cgroup
    fi
    ip -n $fabric link add "$node" type veth peer name eth0 netns "kube-$node"
    ip -n $fabric link set "$node" master br0 up
    # accept_dad=0: otherwise, a node reaches a new pod by IPv6 only a second after the pod is ready.
    nsenter --net="/run/netns/kube-$node" sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 net.ipv6.conf.default.forwarding=1 \
        net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0 net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0
    {
        echo "link set lo up"
        echo "link set eth0 up"
        echo "addr add 172.30.0.$((10 + number))/24 dev eth0"
        echo "addr add fd30::$((10 + number))/64 dev eth0 nodad"
        echo "route add default via 172.30.0.1"
        echo "route add default via fd30::1"
        for other in $(numbers); do
            [ "$other" = "$number" ] || pod_routes "$other"
        done
    } | ip -n "kube-$node" -batch -
    pod_routes "$number" | ip -n $fabric -batch -
    fill node/pods.conflist "$node" "$number" >"$folder/cni/10-pods.conflist"
    fill node/containerd.toml "$node" "$number" >"$folder/containerd.toml"
    fill node/kubelet.yaml "$node" "$number" >"$folder/kubelet.yaml"
    daemon "$node-containerd" nsenter --all -t "$(cat "$folder/pid")" env PATH="$PATH" "$bin/containerd" -c "$folder/containerd.toml"
}

# pod_routes NUMBER: the routes to the pods of a node.
pod_routes() {
    echo "route add 10.244.$1.0/24 via 172.30.0.$((10 + $1))"
    echo "route add fd10:244:$1::/64 via fd30::$((10 + $1))"
}

# start_kubelet NODE NUMBER ADDRESSES
start_kubelet() {
    daemon "$1-kubelet" nsenter --all -t "$(cat "$run/$1/pid")" env PATH="$bin:$PATH" "$bin/kubelet" --kubeconfig="$kubeconfig" \
        --config="$run/$1/kubelet.yaml" --hostname-override="$1" --node-ip="$3" --v=2
}

# start_kubelets ipv4|dual
start_kubelets() {
    local number
    for number in $(numbers); do
        case $1 in
            ipv4) start_kubelet "n$number" "$number" "172.30.0.$((10 + number))" ;;
            dual) start_kubelet "n$number" "$number" "172.30.0.$((10 + number)),fd30::$((10 + number))" ;;
        esac
    done
}

all_ready() {
    [ "$(kubectl get nodes --no-headers | grep -cw Ready)" = "$(cat "$run/nodes")" ]
}

# have_addresses COUNT: whether the nodes have so many addresses in total.
have_addresses() {
    [ "$(kubectl get nodes -o jsonpath='{.items[*].status.addresses[?(@.type=="InternalIP")].address}' | wc -w)" = "$1" ]
}

up() {
    local number
    [ ! -e "$run/apiserver.pid" ] || fail "a cluster runs already, or was not ended: e2e/kubernetes/cluster.sh down"
    mkdir -p "$pki" "$log"
    echo "${1:-3}" >"$run/nodes"
    for number in $folders; do [ -e "$number" ] || echo "$number"; done >"$run/folders"
    echo "nameserver 172.30.0.1" >"$run/resolv.conf"
    credentials
    fill manifests/kubeconfig >"$kubeconfig"
    cp "$here/manifests/tokens.csv" "$run/tokens.csv"
    start_fabric
    start_control_plane
    for number in $(numbers); do fill manifests/node.yaml "n$number" "$number"; done | kubectl apply -f - >/dev/null
    for number in $(numbers); do start_node "n$number" "$number"; done
    for number in $(numbers); do
        await 60 "containerd of n$number answers" containerd_of "n$number" version
        # While a disk is full, kubelets delete images.
        rm -f "$run/n$number"/*.imported
        "$here/images.sh" import "n$number"
    done
    start_kubelets dual
    kubectl apply -f "$here/manifests/coredns.yaml" >/dev/null
    daemon loadbalancer nsenter --net=/run/netns/$fabric python3 "$here/loadbalancer.py" "$pki/ca.crt"
    await 180 "all nodes are ready" all_ready
    kubectl get nodes -o wide
}

addresses() {
    local node count
    count=$(cat "$run/nodes")
    [ "$1" = ipv4 ] || count=$((2 * count))
    for node in $(nodes); do end "$run/$node-kubelet.pid"; done
    start_kubelets "$1"
    await 60 "the nodes have $count addresses" have_addresses "$count"
    await 60 "all nodes are ready" all_ready
}

# end PIDFILE…: kills the process groups of these files, if they still run programs of ours.
end() {
    local file
    for file; do
        [ -f "$file" ] || continue
        ! grep -qs -F -e "$bin/" -e "$here/" "/proc/$(cat "$file")/cmdline" || kill -9 -- "-$(cat "$file")"
        rm -f "$file"
    done
}

no_cgroups() {
    local controller
    for controller in $(hierarchies); do
        [ ! -d "$controller/$cgroup" ] || find "$controller/$cgroup" -depth -type d -exec rmdir {} + || return 1
    done
}

down() {
    local file folder name pid
    [ -d "$run" ] || return 0
    for file in "$run"/*.pid; do [ "$file" = "$run/etcd.pid" ] || end "$file"; done
    for folder in "$run"/n[0-9]*/; do
        [ -f "$folder/pid" ] || continue
        # With its first process, all processes and mounts of a node end.
        pid=$(cat "$folder/pid")
        if grep -qs -F "$bin/pause" "/proc/$pid/cmdline"; then
            kill -9 "$pid"
            await 30 "the processes of $folder have ended" test ! -e "/proc/$pid"
        fi
        rm -f "$folder/pid"
    done
    end "$run/etcd.pid"
    for name in $(ip netns list | awk '/^kube-/ { print $1 }'); do ip netns del "$name"; done
    ! mountpoint -q "$run/etcd" || await 10 "etcd has ended" umount "$run/etcd"
    await 30 "the cgroups are empty" no_cgroups
    for folder in $(cat "$run/folders" 2>/dev/null); do
        [ ! -d "$folder" ] || rmdir --ignore-fail-on-non-empty "$folder"
    done
    rm -f "$run/proxy" "$run/folders"
}

case "${1-} ${2-}" in
    "up "*) up "${2-}" ;;
    "addresses ipv4" | "addresses dual") addresses "$2" ;;
    "down ") down ;;
    *) fail "usage: cluster.sh up [NODES] | addresses ipv4|dual | down" ;;
esac
