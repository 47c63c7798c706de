#!/bin/sh
# Builds CoreDNS with the plugin kubernetes from the Go module proxy, into ${LOCALNET_CACHE:-<repository>/.cache}/coredns/coredns.
# It is built again only when a file of this folder or the version of Go has changed.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
cache=${LOCALNET_CACHE:-$(dirname "$(dirname "$here")")/.cache}/coredns

fail() {
    echo "failed to build CoreDNS: $1" >&2
    exit 1
}

command -v go >/dev/null || fail "go is not installed: install Go 1.26 or newer"

mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
cd "$here"
stamp=$({ go version; cat go.mod go.sum main.go build.sh; } | sha256sum | cut -d' ' -f1)
if [ -x "$cache/coredns" ] && [ "$(cat "$cache/stamp" 2>/dev/null)" = "$stamp" ]; then
    echo "coredns: up to date"
    exit
fi
began=$(date +%s)
CGO_ENABLED=0 go build -mod=readonly -buildvcs=false -trimpath -ldflags="-s -w" -o "$cache/.coredns.new" . ||
    fail "go build: is the Go module proxy reachable?"
mv "$cache/.coredns.new" "$cache/coredns"
echo "$stamp" >"$cache/stamp"
echo "coredns: built in $(($(date +%s) - began)) s"
