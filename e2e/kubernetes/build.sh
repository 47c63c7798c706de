#!/bin/sh
# Builds the programs of a cluster of real nodes, and Kubernetes' own tests, from the Go module proxy (modules/*/go.mod).
#
#   e2e/kubernetes/build.sh [NAME …]      all programs, or only those named
#
# They are written to ${LOCALNET_CACHE:-<repository>/.cache}/kubernetes/bin. A program is built again only if its module, this script or
# the version of Go has changed. Parallel callers wait for each other. The control plane comes from e2e/controlplane, kubectl from e2e/helm.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
caches=${LOCALNET_CACHE:-$(dirname "$(dirname "$here")")/.cache}
cache=$caches/kubernetes
bin=$cache/bin
control_plane="etcd kube-apiserver kube-controller-manager kube-proxy"
own="kube-scheduler kubelet containerd containerd-shim-runc-v2 ctr runc ptp host-local loopback portmap coredns agnhost regression-issue-74839 \
ginkgo pause e2e.test"

fail() {
    echo "failed to build the cluster's programs: $1" >&2
    exit 1
}

# module NAME: the folder in modules/ that a program comes from.
module() {
    case $1 in
        coredns | runc) echo "$1" ;;
        containerd | containerd-shim-runc-v2 | ctr) echo containerd ;;
        ptp | host-local | loopback | portmap) echo cni ;;
        kube-scheduler | kubelet | agnhost | regression-issue-74839 | ginkgo | e2e.test) echo kubernetes ;;
        pause) echo . ;;
        *) fail "no program is called $1" ;;
    esac
}

# package NAME: the Go package of a program.
package() {
    case $1 in
        coredns) echo . ;;
        runc) echo github.com/opencontainers/runc ;;
        containerd | containerd-shim-runc-v2 | ctr) echo "github.com/containerd/containerd/v2/cmd/$1" ;;
        ptp | loopback) echo "github.com/containernetworking/plugins/plugins/main/$1" ;;
        host-local) echo "github.com/containernetworking/plugins/plugins/ipam/$1" ;;
        portmap) echo "github.com/containernetworking/plugins/plugins/meta/$1" ;;
        agnhost | regression-issue-74839) echo "k8s.io/kubernetes/test/images/$1" ;;
        ginkgo) echo github.com/onsi/ginkgo/v2/ginkgo ;;
        e2e.test) echo k8s.io/kubernetes/test/e2e ;;
        *) echo "k8s.io/kubernetes/cmd/$1" ;;
    esac
}

# build NAME OUTPUT
build() {
    version=k8s.io/component-base/version
    minor=${kubernetes#v1.}
    # Kubernetes does not guess its version: without these flags, each program calls itself v0.0.0.
    flags="-s -w -X $version.gitVersion=$kubernetes -X $version.gitMajor=1 -X $version.gitMinor=${minor%%.*}"
    case $1 in
        pause) "${CC:-cc}" -O2 -static -s -o "$2" pause.c ;;
        runc) CGO_ENABLED=1 go build -mod=readonly -buildvcs=false -trimpath -tags seccomp -ldflags="-s -w" -o "$2" "$(package "$1")" ;;
        e2e.test) CGO_ENABLED=0 go test -c -mod=readonly -buildvcs=false -vet=off -trimpath -ldflags="$flags" -o "$2" "$(package "$1")" ;;
        *) CGO_ENABLED=0 go build -mod=readonly -buildvcs=false -trimpath -ldflags="$flags" -o "$2" "$(package "$1")" ;;
    esac
}

# from FOLDER NAME…: links programs that another script has built.
from() {
    folder=$1
    shift
    for name; do ln -sf "$caches/$folder/bin/$name" "$bin/$name"; done
}

command -v go >/dev/null || fail "go is not installed: install Go 1.26 or newer"
mkdir -p "$bin"
release() { (cd "$1" && go list -m -f '{{.Version}}' k8s.io/kubernetes); }
kubernetes=$(release "$here/modules/kubernetes")
if [ $# -eq 0 ]; then
    [ "$(release "$here/../controlplane")" = "$kubernetes" ] ||
        fail "e2e/controlplane/go.mod and e2e/kubernetes/modules/kubernetes/go.mod must name the same version of k8s.io/kubernetes"
    # shellcheck disable=SC2086 # a list of words
    "$here/../controlplane/build.sh" $control_plane
    "$here/../helm/build.sh"
    # shellcheck disable=SC2086
    from controlplane $control_plane
    from helm kubectl helm
    # shellcheck disable=SC2086
    set -- $own
fi

exec 9>"$cache/lock"
flock 9
for name; do
    folder=$(module "$name")
    [ "$folder" != . ] || folder=../image
    cd "$here/modules/$folder"
    stamp=$({ go version; cat ./*.* "$here/build.sh"; } | sha256sum | cut -d' ' -f1)
    if [ -x "$bin/$name" ] && [ "$(cat "$cache/$name.stamp" 2>/dev/null)" = "$stamp" ]; then
        continue
    fi
    began=$(date +%s)
    build "$name" "$bin/.$name.new" || fail "$name: see the lines above"
    mv "$bin/.$name.new" "$bin/$name"
    echo "$stamp" >"$cache/$name.stamp"
    echo "kubernetes: built $name in $(($(date +%s) - began)) s"
done
