#!/bin/sh
# Builds the package of the chart. The package pins the images of the release by digest.
#
#   packaging/release/chart.sh DIGESTS FOLDER    DIGESTS is a file with a line `IMAGE: DIGEST` for each image
#   REGISTRY=… …                                 for images in another registry than that in packaging/release/registry
set -eu

cd "$(dirname "$0")/../.."
digests=${1:?the file of the digests is missing}
folder=${2:?the output folder is missing}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cp -r charts/localnet LICENSE "$work"
mv "$work/LICENSE" "$work/localnet"
cp "$digests" "$work/localnet/files/digests.yaml"
sed -i "s,^  registry: .*,  registry: ${REGISTRY:-$(cat packaging/release/registry)}," "$work/localnet/values.yaml"
"${LOCALNET_CACHE:-.cache}/helm/bin/helm" package "$work/localnet" --destination "$folder"
