#!/bin/sh
# Prepares GitHub's runner for publish.sh: installs skopeo, cosign, twine and helm, and signs in to the registry as the workflow (GH_TOKEN).
set -eu

cd "$(dirname "$0")/../.."
registry=$(cat packaging/release/registry)
sudo apt-get update -qq
sudo apt-get install -y -qq --no-install-recommends skopeo jq pipx
e2e/helm/build.sh
# Go verifies the source of this version with its checksum database.
go install github.com/sigstore/cosign/v3/cmd/cosign@v3.1.3
echo "$(go env GOPATH)/bin" >>"$GITHUB_PATH"
pipx install --quiet twine==7.0.0
echo "$HOME/.local/bin" >>"$GITHUB_PATH"
# skopeo, helm and cosign all read this file.
mkdir -p "$HOME/.docker"
echo "$GH_TOKEN" | skopeo login --authfile "$HOME/.docker/config.json" --username "$GITHUB_ACTOR" --password-stdin "${registry%%/*}"
