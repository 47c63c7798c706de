#!/bin/sh
# Packs the module of the Go library as a folder for GOPROXY, with the files that Go's module proxy would serve for the tag go/vX.Y.Z.
#
#   packaging/module.sh FOLDER    writes localnet-go_VERSION.tar.gz, which contains the folder goproxy, to FOLDER
set -eu
umask 022

out=${1:?the output folder is missing}
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$(dirname "$0")/.."
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
path=$(sed -n 's/^module //p' go/go.mod)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
files=$tree/goproxy/$path/@v
mkdir -p "$files"

echo "v$version" >"$files/list"
cp go/go.mod "$files/v$version.mod"
printf '{"Version":"v%s","Time":"%s"}\n' "$version" "$(date --utc --date="@$SOURCE_DATE_EPOCH" +%FT%TZ)" >"$files/v$version.info"
# Go reads the content of the zip, and ignores times and modes. Like Go, add the repository's licence to a module in a folder.
git ls-files -z go | python3 -c '
import sys, zipfile
archive, prefix = sys.argv[1:]
names = {name.removeprefix("go/"): name for name in sys.stdin.read().split("\0") if name} | {"LICENSE": "LICENSE"}
with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as out:
    for name, source in sorted(names.items()):
        with open(source, "rb") as file:
            out.writestr(zipfile.ZipInfo(prefix + name), file.read(), zipfile.ZIP_DEFLATED)
' "$files/v$version.zip" "$path@v$version/"
tar --create --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --directory "$tree" goproxy |
    gzip --best --no-name >"$out/localnet-go_$version.tar.gz"
