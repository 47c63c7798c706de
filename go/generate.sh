#!/bin/sh
# Generates localnetv1 from proto/localnetv1.proto with protoc.
#
#   go/generate.sh [verify]
#
# With `verify`, changes nothing, and fails if the committed code differs.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

fail() {
    echo "failed to generate go/localnetv1: $1" >&2
    exit 1
}

command -v protoc >/dev/null || fail "protoc is not installed: e2e/deps.sh installs it"
cd "$here"
for plugin in google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc; do
    go build -modfile=tools.mod -mod=readonly -o "$out/bin/" "$plugin" || fail "go build $plugin: is the Go module proxy reachable?"
done
mkdir "$out/code"
package=Mlocalnetv1.proto=localnet.dev/go/localnetv1
PATH="$out/bin:$PATH" protoc -I ../proto --go_out="$out/code" --go_opt=paths=source_relative,$package \
    --go-grpc_out="$out/code" --go-grpc_opt=paths=source_relative,$package localnetv1.proto || fail "protoc: see above"
# The version of protoc does not affect the code.
sed -i -E '/^\/\/ (- |\t)protoc +v/d' "$out"/code/*.go
if [ "${1-}" = verify ]; then
    diff -r "$out/code" localnetv1 >&2 || fail "the committed code differs: run go/generate.sh"
else
    cp "$out"/code/*.go localnetv1
fi
