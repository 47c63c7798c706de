#!/bin/sh
# Installs and downloads most of what `make test` needs, and builds nothing. It is optional: `make test` does the same.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
"$here/deps.sh"
"$here/deps.sh" guest
"$here/deps.sh" windows
"$here/deps.sh" kubernetes
for module in "$here/controlplane" "$here/helm" "$here"/kubernetes/modules/* "$here/../go" "$here/../examples/go"; do
    (cd "$module" && go mod download)
done
