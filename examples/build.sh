#!/bin/sh
# Builds the examples in Go into .cache/examples, and installs the example in Node.js there. npm's cache is there as well, because the
# test of docs/first-backend.md runs npm without the network.
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
for program in proxy=. incremental=./incremental incremental-v1=./incremental-v1 changes=./changes; do
    CGO_ENABLED=0 go build -mod=readonly -buildvcs=false -trimpath -o "$cache/bin/go-${program%=*}" "${program#*=}" ||
        fail "go build: is the Go module proxy reachable?"
done
GOOS=windows GOARCH=amd64 go build -mod=readonly -buildvcs=false -o "$cache/bin/go-incremental.exe" ./incremental || fail "go build: see above"

echo "examples: installing the backend in Node.js"
rm -rf "$cache/node" "$cache/npm"
mkdir "$cache/node"
cp "$here"/node/*.js* "$root/proto/localnetv1.proto" "$cache/node"
cd "$cache/node"
export npm_config_cache="$cache/npm" npm_config_audit=false npm_config_fund=false
npm ci --silent --ignore-scripts || fail "npm ci: is the npm registry reachable?"
# As the page does: without the lock file, npm also needs the lists of versions.
page=$(mktemp -d)
trap 'rm -rf "$page"' EXIT
(cd "$page" && npm install --silent --ignore-scripts @grpc/grpc-js @grpc/proto-loader) || fail "npm install: is the npm registry reachable?"
echo "$stamp" >"$cache/stamp"
