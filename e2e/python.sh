#!/bin/sh
# Creates a Python environment for the tests in .cache/python, with the packages of python.txt from PyPI and the library in python/. If it
# exists already, the script changes nothing.
#
#   e2e/python.sh          the environment imports the library from its sources, so it follows each change
#   e2e/python.sh tools    only the packages, which build the library's wheel
set -eu

here=$(cd "$(dirname "$0")" && pwd)
cache=${LOCALNET_CACHE:-$(dirname "$here")/.cache}/python

fail() {
    echo "failed to create the Python environment: $1" >&2
    exit 1
}

command -v python3 >/dev/null || fail "python3 is not installed"
stamp=$({ python3 --version; cat "$here/python.txt" "$here/python.sh"; } | sha256sum | cut -d' ' -f1)

mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
if [ "$(cat "$cache/stamp" 2>/dev/null)" != "$stamp" ]; then
    echo "python: installing $(tr '\n' ' ' <"$here/python.txt")"
    rm -rf "$cache/venv" "$cache/wheels"
    python3 -m venv "$cache/venv" || fail "python3 -m venv: is python3-venv installed?"
    # Tests install packages from these wheels into environments of their own.
    "$cache/venv/bin/pip" wheel --quiet --disable-pip-version-check --wheel-dir "$cache/wheels" -r "$here/python.txt" ||
        fail "pip wheel: is PyPI reachable?"
    "$cache/venv/bin/pip" install --quiet --disable-pip-version-check --no-index --find-links "$cache/wheels" -r "$here/python.txt"
    echo "$stamp" >"$cache/stamp"
fi
[ "${1-}" = tools ] || echo "$(dirname "$here")/python" >"$(echo "$cache"/venv/lib/python3*/site-packages)/localnet.pth"
