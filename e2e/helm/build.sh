#!/bin/sh
# Builds helm, kubectl, an image registry for tests, and actionlint, by go.mod, from the Go module proxy into ${LOCALNET_CACHE:-<repository>/.cache}/helm/bin.
#
# They are built again only when go.mod, go.sum, this script or the version of Go has changed; one run at a time.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
cache=${LOCALNET_CACHE:-$(dirname "$(dirname "$here")")/.cache}/helm

fail() {
    echo "failed to build helm: $1" >&2
    exit 1
}

command -v go >/dev/null || fail "go is not installed: install Go 1.26 or newer"
mkdir -p "$cache/bin"
exec 9>"$cache/lock"
flock 9

cd "$here"
stamp=$({ go version; cat go.mod go.sum build.sh ./*/main.go; } | sha256sum | cut -d' ' -f1)
if [ -x "$cache/bin/actionlint" ] && [ "$(cat "$cache/stamp" 2>/dev/null)" = "$stamp" ]; then
    echo "helm and the other programs are up to date"
    exit 0
fi
began=$(date +%s)
version=$(go list -m -f '{{.Version}}' helm.sh/helm/v3)
build() {
    CGO_ENABLED=0 go build -mod=readonly -buildvcs=false -trimpath -ldflags="-s -w $3" -o "$cache/bin/.$1.new" "$2" ||
        fail "go build $2: see the lines above"
    mv "$cache/bin/.$1.new" "$cache/bin/$1"
}
# The version of Kubernetes that helm assumes without a cluster. Its own build sets it in the same way.
minor=$(go list -m -f '{{.Version}}' k8s.io/client-go | cut -d. -f2)
kubernetes=
for package in chartutil lint/rules; do
    kubernetes="$kubernetes -X helm.sh/helm/v3/pkg/$package.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/$package.k8sVersionMinor=$minor"
done
build helm helm.sh/helm/v3/cmd/helm "-X helm.sh/helm/v3/internal/version.version=$version$kubernetes"
build kubectl ./kubectl ""
build registry ./registry ""
build actionlint github.com/rhysd/actionlint/cmd/actionlint ""
echo "$stamp" >"$cache/stamp"
echo "built helm $version and the other programs in $(($(date +%s) - began)) s"
