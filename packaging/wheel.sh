#!/bin/sh
# Builds the wheel of the Python library.
#
#   packaging/wheel.sh FOLDER    writes localnet_client-VERSION-py3-none-any.whl to the folder
set -eu
umask 022

mkdir -p "${1:?the output folder is missing}"
out=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
e2e/python.sh tools
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
# The build writes into its sources.
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
cp -r python/. LICENSE "$tree"
"${LOCALNET_CACHE:-.cache}/python/venv/bin/pip" wheel --quiet --disable-pip-version-check --no-index --no-build-isolation --no-deps \
    --wheel-dir "$out" "$tree"
