#!/bin/sh
# Builds the examples from proto/localnetv1.proto with protoc, as their authors would, into .cache/examples.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
cache=${LOCALNET_CACHE:-$root/.cache}/examples

fail() {
    echo "failed to build the examples: $1" >&2
    exit 1
}

command -v go >/dev/null || fail "go is not installed"
command -v protoc >/dev/null || fail "protoc is not installed: e2e/deps.sh installs it"

mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
stamp=$({ go version; cat "$root/proto/localnetv1.proto" "$here"/go/*.go "$here"/go/go.* "$here/build.sh"; } | sha256sum | cut -d' ' -f1)
[ "$(cat "$cache/stamp" 2>/dev/null)" != "$stamp" ] || exit 0

echo "examples: building the Go proxy"
rm -rf "$cache/go"
mkdir -p "$cache/go/localnetv1" "$cache/bin"
cp "$here"/go/*.go "$here"/go/go.* "$cache/go"
cd "$cache/go"
for plugin in google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc; do
    go build -mod=readonly -o "$cache/bin/" "$plugin" || fail "go build $plugin: is the Go module proxy reachable?"
done
package=Mlocalnetv1.proto=localnet/examples/go/localnetv1
PATH="$cache/bin:$PATH" protoc -I "$root/proto" --go_out=localnetv1 --go_opt=paths=source_relative,$package \
    --go-grpc_out=localnetv1 --go-grpc_opt=paths=source_relative,$package localnetv1.proto || fail "protoc: see above"
CGO_ENABLED=0 go build -mod=readonly -buildvcs=false -o "$cache/bin/go-proxy" . || fail "go build: see above"
echo "$stamp" >"$cache/stamp"
