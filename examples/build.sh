#!/bin/sh
# Builds the examples in Go into .cache/examples.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
cache=${LOCALNET_CACHE:-$root/.cache}/examples

fail() {
    echo "failed to build the examples: $1" >&2
    exit 1
}

command -v go >/dev/null || fail "go is not installed"

mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
stamp=$(find "$here/go" "$root/go" "$here/build.sh" -type f -exec cat {} + | { go version; cat; } | sha256sum | cut -d' ' -f1)
[ "$(cat "$cache/stamp" 2>/dev/null)" != "$stamp" ] || exit 0

echo "examples: building the backends in Go"
mkdir -p "$cache/bin"
cd "$here/go"
for program in proxy=. incremental=./incremental; do
    CGO_ENABLED=0 go build -mod=readonly -buildvcs=false -o "$cache/bin/go-${program%=*}" "${program#*=}" ||
        fail "go build: is the Go module proxy reachable?"
done
GOOS=windows GOARCH=amd64 go build -mod=readonly -buildvcs=false -o "$cache/bin/go-incremental.exe" ./incremental || fail "go build: see above"
echo "$stamp" >"$cache/stamp"
