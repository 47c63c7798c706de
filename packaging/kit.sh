#!/bin/sh
# Collects the conformance kit in a folder: the program, the Cases, what a backend in any language is generated from, and the pages for authors.
#
#   packaging/kit.sh PROGRAM FOLDER           PROGRAM is the path of localnet-conformance
#   packaging/kit.sh pack FOLDER ARCH OUT     packs such a folder: writes localnet-conformance_VERSION_linux_ARCH.tar.gz to the folder OUT
#   COMPRESSION=none …                        packs faster, but the archive is larger
set -eu
umask 022

if [ "${1-}" = pack ]; then
    folder=${2:?the folder of the kit is missing}
    arch=${3:?the architecture is missing}
    out=${4:?the output folder is missing}
    root=$(dirname "$0")/..
    version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$root/Cargo.toml" | head -n 1)
    time=${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct)}
    level=--best
    [ "${COMPRESSION-}" != none ] || level=--fast
    tar --create --sort=name --mtime="@$time" --owner=0 --group=0 --numeric-owner --directory "$folder" . |
        gzip $level --no-name >"$out/localnet-conformance_${version}_linux_$arch.tar.gz"
    exit
fi

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
install -m 644 LICENSE docs/first-backend*.md docs/writing-a-backend.md docs/api.md "$folder/share/doc/localnet-conformance"
# The pages refer to each other and to the proto files of the kit. All other links lead to the repository.
repository=$(sed -n 's/^repository = "\(.*\)"/\1/p' Cargo.toml)/blob/v$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
for page in "$folder"/share/doc/localnet-conformance/*.md; do
    sed -i -e "s,](\.\./,]($repository/,g" -e "s,](\([a-z][a-z0-9/-]*\.md\),]($repository/docs/\1,g" "$page"
    for shipped in "$folder"/share/doc/localnet-conformance/*.md "$folder"/share/localnet/proto/*.proto; do
        name=$(basename "$shipped")
        sed -i -e "s,]($repository/docs/$name,]($name,g" -e "s,]($repository/proto/$name,](../../localnet/proto/$name,g" "$page"
    done
done
# The kit does not need the plans of localnet's own backends.
find e2e/cases -name '*.yaml' -exec sh -c 'install -D -m 644 "$2" "$1/share/localnet/cases/${2#e2e/cases/}"' sh "$folder" {} \;
