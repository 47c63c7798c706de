#!/bin/sh
# Generates the messages and stubs in localnet_client from proto/localnetv1.proto with protoc.
#
#   python/generate.sh [verify]
#
# With `verify`, changes nothing, and fails if the committed code differs. The code is that of protoc 3.21, the version of Debian 12 and 13:
# it runs with this version of Python's protobuf and with all later ones.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

fail() {
    echo "failed to generate python/localnet_client: $1" >&2
    exit 1
}

plugin=$(command -v grpc_python_plugin) && command -v protoc >/dev/null || fail "protoc or its plugin is not installed: e2e/deps.sh installs both"
cd "$here"
protoc -I ../proto --plugin="protoc-gen-grpc=$plugin" --python_out="$out" --pyi_out="$out" --grpc_out="$out" localnetv1.proto || fail "protoc: see above"
# protoc expects the code outside of a package.
sed -i 's/^import localnetv1_pb2 as/from . import localnetv1_pb2 as/' "$out/localnetv1_pb2_grpc.py"
for file in "$out"/*; do
    if [ "${1-}" = verify ]; then
        diff "$file" "localnet_client/${file##*/}" >&2 || fail "the committed code differs: run python/generate.sh"
    else
        cp "$file" localnet_client
    fi
done
