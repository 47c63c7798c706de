#!/bin/sh
# Generates localnetv1 and localnet/v1 from proto/localnetv1.proto and proto/localnet/v1 with protoc.
#
#   go/generate.sh [verify]
#
# With `verify`, changes nothing, and fails if the committed code differs. As with buf, the Go package of localnet.v1 is localnet/v1, and its
# name is localnetv1.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

fail() {
    echo "failed to generate the messages in go: $1" >&2
    exit 1
}

command -v protoc >/dev/null || fail "protoc is not installed: e2e/deps.sh installs it"
cd "$here"
for plugin in google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc; do
    go build -modfile=tools.mod -mod=readonly -o "$out/bin/" "$plugin" || fail "go build $plugin: is the Go module proxy reachable?"
done

# generate PACKAGE OUT FILE…: generates the Go package from files of the proto folder, below $out/code/OUT.
generate() {
    package=$1 code=$out/code/$2
    shift 2
    mkdir -p "$code"
    options=paths=source_relative
    for file; do options="$options,M$file=$package"; done
    PATH="$out/bin:$PATH" protoc -I ../proto --go_out="$code" --go_opt="$options" --go-grpc_out="$code" --go-grpc_opt="$options" "$@" ||
        fail "protoc: see above"
}
generate localnet.dev/go/localnetv1 localnetv1 localnetv1.proto
# shellcheck disable=SC2046 # The names of the files contain no spaces.
generate 'localnet.dev/go/localnet/v1;localnetv1' . $(cd ../proto && echo localnet/v1/*.proto)

# The version of protoc does not affect the code.
find "$out/code" -name '*.go' -exec sed -i -E '/^\/\/ (- |\t)protoc +v/d' {} +
for folder in localnetv1 localnet/v1; do
    if [ "${1-}" = verify ]; then
        diff -r "$out/code/$folder" "$folder" >&2 || fail "the committed code differs: run go/generate.sh"
    else
        mkdir -p "$folder"
        rm -f "$folder"/*.go
        cp "$out/code/$folder"/*.go "$folder"
    fi
done
