#!/bin/sh
# Builds the tools of go.mod (etcd, kube-apiserver, kube-controller-manager, kube-proxy, grpcurl) from the Go module proxy.
# previous/go.mod is for the kube-proxy of the previous minor version (kube-proxy-previous), oldest/go.mod for the kube-apiserver
# of the oldest supported version (kube-apiserver-oldest).
#
#   e2e/controlplane/build.sh [NAME …]      the tools of go.mod, or those named
#
# They land in ${LOCALNET_CACHE:-<repository>/.cache}/controlplane/bin. A tool is built again only when go.mod, go.sum, this
# script or the version of Go has changed; one run at a time, so parallel callers wait instead of building twice.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
cache=${LOCALNET_CACHE:-$(dirname "$(dirname "$here")")/.cache}/controlplane
bin=$cache/bin

fail() {
    echo "failed to build the control plane: $1" >&2
    exit 1
}

package() {
    case $1 in
        etcd) echo go.etcd.io/etcd/server/v3 ;;
        grpcurl) echo github.com/fullstorydev/grpcurl/cmd/grpcurl ;;
        kube-apiserver | kube-controller-manager | kube-proxy) echo "k8s.io/kubernetes/cmd/$1" ;;
        kube-proxy-previous) echo k8s.io/kubernetes/cmd/kube-proxy ;;
        kube-apiserver-oldest) echo k8s.io/kubernetes/cmd/kube-apiserver ;;
        *) fail "no tool is called $1" ;;
    esac
}

[ $# -gt 0 ] || set -- etcd grpcurl kube-apiserver kube-controller-manager kube-proxy
command -v go >/dev/null || fail "go is not installed: install Go 1.26 or newer"

mkdir -p "$bin"
exec 9>"$cache/lock"
flock 9

# Builds one tool in the folder of its go.mod, unless it is up to date.
build() {
    name=$1
    path=$(package "$name")
    stamp=$({ go version; cat go.mod go.sum "$here/build.sh"; } | sha256sum | cut -d' ' -f1)
    if [ -x "$bin/$name" ] && [ "$(cat "$cache/$name.stamp" 2>/dev/null)" = "$stamp" ]; then
        echo "controlplane: $name is up to date"
        return
    fi
    began=$(date +%s)
    kubernetes=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
    minor=${kubernetes#v1.}
    version=k8s.io/component-base/version
    # Kubernetes refuses to guess its own version: without gitVersion every component calls itself v0.0.0.
    flags="-s -w -X $version.gitVersion=$kubernetes -X $version.gitMajor=1 -X $version.gitMinor=${minor%%.*}"
    [ "$name" != grpcurl ] || flags="-s -w -X main.version=$(go list -m -f '{{.Version}}' github.com/fullstorydev/grpcurl)"
    CGO_ENABLED=0 go build -mod=readonly -buildvcs=false -trimpath -ldflags="$flags" -o "$bin/.$name.new" "$path" ||
        fail "go build $path: see the lines above"
    mv "$bin/.$name.new" "$bin/$name"
    echo "$stamp" >"$cache/$name.stamp"
    echo "controlplane: built $name in $(($(date +%s) - began)) s"
}

for tool; do
    case $tool in
        *-previous) cd "$here/previous" ;;
        *-oldest) cd "$here/oldest" ;;
        *) cd "$here" ;;
    esac
    build "$tool"
done
