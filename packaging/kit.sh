#!/bin/sh
# Collects the conformance kit in a folder: the program, the Cases, and what a backend in any language is generated from.
#
#   packaging/kit.sh PROGRAM FOLDER    PROGRAM is the path of localnet-conformance
set -eu
umask 022

program=${1:?the program is missing}
folder=${2:?the folder is missing}
rm -rf "$folder"
install -D -m 755 "$program" "$folder/bin/localnet-conformance"
folder=$(cd "$folder" && pwd)
mkdir -p "$folder/share/localnet/proto" "$folder/share/doc/localnet-conformance"
cd "$(dirname "$0")/.."
install -m 644 proto/*.proto "$folder/share/localnet/proto"
# Without the draft of localnet.v1, because the brain of a release does not serve it unless it is asked to.
mkdir "$folder/share/localnet/proto/localnet"
cp -r proto/localnet/source "$folder/share/localnet/proto/localnet"
install -m 644 LICENSE docs/first-backend.md docs/writing-a-backend.md "$folder/share/doc/localnet-conformance"
# The kit does not need the plans of localnet's own backends.
find e2e/cases -name '*.yaml' -exec sh -c 'install -D -m 644 "$2" "$1/share/localnet/cases/${2#e2e/cases/}"' sh "$folder" {} \;
