#!/bin/sh
# Generates the messages and stubs in localnet_client from proto/localnetv1.proto and proto/localnet/v1 with protoc.
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
# shellcheck disable=SC2046 # The names of the files contain no spaces.
protoc -I ../proto --plugin="protoc-gen-grpc=$plugin" --python_out="$out" --pyi_out="$out" --grpc_out="$out" \
    localnetv1.proto $(cd ../proto && echo localnet/v1/*.proto) || fail "protoc: see above"
# protoc expects the code outside of a package.
sed -i 's/^import localnetv1_pb2 as/from . import localnetv1_pb2 as/' "$out/localnetv1_pb2_grpc.py"
sed -i 's/^from localnet\.v1 import/from . import/' "$out"/localnet/v1/*
# Only files with services have stubs.
grep --files-without-match '^class' "$out"/localnet/v1/*_pb2_grpc.py | xargs rm
{
    echo '"""The messages of the draft localnet.v1, from all of its files. The stubs are in state_pb2_grpc and backend_pb2_grpc."""'
    echo
    for file in "$out"/localnet/v1/*_pb2.py; do echo "from .$(basename "$file" .py) import *  # noqa: F403"; done
} >"$out/localnet/v1/__init__.py"
echo '"""The generated package localnet.v1."""' >"$out/localnet/__init__.py"
(cd "$out" && find . -type f) | while read -r file; do
    if [ "${1-}" = verify ]; then
        diff "$out/$file" "localnet_client/$file" >&2 || fail "the committed code differs: run python/generate.sh"
    else
        mkdir -p "localnet_client/$(dirname "$file")"
        cp "$out/$file" "localnet_client/$file"
    fi
done
