#!/bin/sh
# Builds helm, by go.mod, from the Go module proxy into ${LOCALNET_CACHE:-<repository>/.cache}/helm/bin.
#
# It is built again only when go.mod, go.sum, this script or the version of Go has changed; one run at a time.
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
stamp=$({ go version; cat go.mod go.sum build.sh; } | sha256sum | cut -d' ' -f1)
if [ -x "$cache/bin/helm" ] && [ "$(cat "$cache/stamp" 2>/dev/null)" = "$stamp" ]; then
    echo "helm is up to date"
    exit 0
fi
began=$(date +%s)
version=$(go list -m -f '{{.Version}}' helm.sh/helm/v3)
CGO_ENABLED=0 go build -mod=readonly -buildvcs=false -trimpath \
    -ldflags="-s -w -X helm.sh/helm/v3/internal/version.version=$version" -o "$cache/bin/.helm.new" helm.sh/helm/v3/cmd/helm ||
    fail "go build helm.sh/helm/v3/cmd/helm: see the lines above"
mv "$cache/bin/.helm.new" "$cache/bin/helm"
echo "$stamp" >"$cache/stamp"
echo "built helm $version in $(($(date +%s) - began)) s"
