#!/bin/sh
# Builds the examples in Go into .cache/examples, and installs the example in Node.js there.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
cache=${LOCALNET_CACHE:-$root/.cache}/examples

fail() {
    echo "failed to build the examples: $1" >&2
    exit 1
}

command -v go >/dev/null || fail "go is not installed"
command -v npm >/dev/null || fail "npm is not installed: run e2e/deps.sh"

mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
stamp=$(find "$here/go" "$root/go" "$here"/node/*.js* "$root/proto/localnetv1.proto" "$here/build.sh" -type f -exec cat {} + |
    { go version; node --version; cat; } | sha256sum | cut -d' ' -f1)
[ "$(cat "$cache/stamp" 2>/dev/null)" != "$stamp" ] || exit 0

echo "examples: building the backends in Go"
mkdir -p "$cache/bin"
cd "$here/go"
for program in proxy=. incremental=./incremental; do
    CGO_ENABLED=0 go build -mod=readonly -buildvcs=false -o "$cache/bin/go-${program%=*}" "${program#*=}" ||
        fail "go build: is the Go module proxy reachable?"
done
GOOS=windows GOARCH=amd64 go build -mod=readonly -buildvcs=false -o "$cache/bin/go-incremental.exe" ./incremental || fail "go build: see above"

echo "examples: installing the backend in Node.js"
rm -rf "$cache/node"
mkdir "$cache/node"
cp "$here"/node/*.js* "$root/proto/localnetv1.proto" "$cache/node"
cd "$cache/node"
npm ci --silent --ignore-scripts --no-audit --no-fund || fail "npm ci: is the npm registry reachable?"
echo "$stamp" >"$cache/stamp"
