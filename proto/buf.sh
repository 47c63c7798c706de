#!/bin/sh
# Checks the proto files with buf (buf.yaml): the names and comments follow its rules, and nothing breaks clients of the last release.
#
#   proto/buf.sh [FOLDER]    checks the files in a folder; default: this one
#   proto/buf.sh image       writes released.binpb, with which later files are compared. packaging/release/version.sh does this for a release.
#                            Before version 1.0, also run it to change the draft localnet.v1 on purpose. It fails if the files break clients
#                            of localnetv1
#
# buf is installed from npm into ${LOCALNET_CACHE:-<repository>/.cache}/buf. buf/package-lock.json has its version and checksums.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
cache=${LOCALNET_CACHE:-$(dirname "$here")/.cache}/buf
buf=$cache/node_modules/.bin/buf

fail() {
    echo "failed to check the proto files: $1" >&2
    exit 1
}

command -v npm >/dev/null || fail "npm is not installed: run e2e/deps.sh"
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
stamp=$(sha256sum <"$here/buf/package-lock.json")
if [ "$(cat "$cache/stamp" 2>/dev/null)" != "$stamp" ]; then
    rm -f "$cache/stamp"
    cp "$here"/buf/*.json "$cache"
    (cd "$cache" && npm ci --silent --ignore-scripts --no-audit --no-fund) || fail "npm ci: is the npm registry reachable?"
    # npm skips an optional dependency that it cannot download, and the program is one.
    "$buf" --version >/dev/null || fail "npm has not installed the program of buf: is the npm registry reachable?"
    echo "$stamp" >"$cache/stamp"
fi
flock -u 9

instead="add a field or a message instead, or make the change in an alpha package"
if [ "${1-}" = image ]; then
    cd "$here"
    "$buf" breaking --against released.binpb --path localnetv1.proto --path localv1.proto ||
        fail "the lines above break clients of localnetv1: $instead"
    exec "$buf" build --exclude-source-info -o released.binpb
fi
cd "${1:-$here}"
"$buf" lint || fail "the lines above break a rule for names or comments: https://buf.build/docs/lint/rules"
"$buf" breaking --against "$here/released.binpb" ||
    fail "the lines above break clients of the last release: $instead. To change the draft localnet.v1 on purpose, run proto/buf.sh image"
