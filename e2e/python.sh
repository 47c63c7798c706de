#!/bin/sh
# Creates a Python environment for the tests in .cache/python, with grpcio and its code generator from PyPI. If it exists already, the
# script changes nothing.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
cache=${LOCALNET_CACHE:-$(dirname "$here")/.cache}/python

fail() {
    echo "failed to create the Python environment: $1" >&2
    exit 1
}

command -v python3 >/dev/null || fail "python3 is not installed"
stamp=$({ python3 --version; cat "$here/python.txt"; } | sha256sum | cut -d' ' -f1)

mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
[ "$(cat "$cache/stamp" 2>/dev/null)" != "$stamp" ] || exit 0

echo "python: installing $(tr '\n' ' ' <"$here/python.txt")"
rm -rf "$cache/venv"
python3 -m venv "$cache/venv" || fail "python3 -m venv: is python3-venv installed?"
"$cache/venv/bin/pip" install --quiet --disable-pip-version-check -r "$here/python.txt" || fail "pip install: is PyPI reachable?"
echo "$stamp" >"$cache/stamp"
