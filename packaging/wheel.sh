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
# PyPI shows the README, and does not know its relative links.
repository=$(sed -n 's/^repository = "\(.*\)"/\1/p' Cargo.toml)
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
sed -i "s,](\.\./,]($repository/blob/v$version/,g" "$tree/README.md"
"${LOCALNET_CACHE:-.cache}/python/venv/bin/pip" wheel --quiet --disable-pip-version-check --no-index --no-build-isolation --no-deps \
    --wheel-dir "$out" "$tree"
