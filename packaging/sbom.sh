#!/bin/sh
# Writes the bill of materials (CycloneDX) of each program to a folder, with cargo-sbom, which the first run builds in the cache.
#
#   packaging/sbom.sh FOLDER PROGRAM…
set -eu

cd "$(dirname "$0")/.."
cache=${LOCALNET_CACHE:-.cache}
folder=${1:?the folder is missing}
shift
sbom=$cache/cargo-sbom/bin/cargo-sbom
[ -x "$sbom" ] || "${CARGO:-cargo}" install --quiet --locked --root "$cache/cargo-sbom" --version ^0.10 cargo-sbom
for program in "$@"; do
    "$sbom" --cargo-package "$program" --output-format cyclone_dx_json_1_6 >"$folder/$program.cdx.json"
done
