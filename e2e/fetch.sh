#!/bin/sh
# Fetches what `make test` installs and downloads, and builds nothing. `make test` does without it, later.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
"$here/deps.sh"
"$here/deps.sh" guest
"$here/deps.sh" windows
for module in "$here/controlplane" "$here/helm" "$here/../examples/go"; do
    (cd "$module" && go mod download)
done
