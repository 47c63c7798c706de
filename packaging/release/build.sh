#!/bin/sh
# Builds all files of a release in target/dist: images, Debian packages, the programs for Windows, the chart, the conformance kit, the
# Go module, the wheel of the Python library, licences, bills of materials and checksums.
#
#   packaging/release/build.sh            builds the programs first
#   packaging/release/build.sh of FOLDER  uses the programs in FOLDER/ARCH/bin and FOLDER/windows-ARCH/bin, and the manuals in FOLDER/manual, as packaging/programs.sh writes them
#   DIST=…                                another folder than target/dist
#   TAG=vX.Y.Z                            fails if this is not the tag of the current version
set -eu
umask 022

cd "$(dirname "$0")/../.."
version=$(packaging/release/version.sh)
dist=${DIST:-target/dist}
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
if [ -n "${TAG-}" ]; then
    [ "$TAG" = "v$version" ] || { echo "failed to build the release: the tag is $TAG, but Cargo.toml has $version" >&2; exit 1; }
    packaging/release/version.sh notes >/dev/null
fi

rm -rf "$dist"
mkdir -p "$dist/files" "$dist/sbom"
e2e/helm/build.sh
if [ "${1-}" = of ]; then
    programs=${2:?the folder of the programs is missing}
    packaging/images.sh of "$programs" "$dist/images"
    # shellcheck disable=SC2046 # a list of words
    packaging/sbom.sh "$dist/sbom" localnet-conformance $(basename --multiple --suffix .exe "$programs"/*/bin/* | sort -u)
else
    programs=target/ship
    packaging/images.sh
    cp -r target/images "$dist/images"
    mv "$dist"/images/*.cdx.json "$dist/sbom"
fi

# The images, each with its digest, which covers all architectures.
jq -r --arg version "-$version" '.manifests[] | (.annotations["org.opencontainers.image.ref.name"] | rtrimstr($version)) + ": " + .digest' \
    "$dist/images/index.json" | sort >"$dist/digests.yaml"
packaging/release/chart.sh "$dist/digests.yaml" "$dist/files"
for folder in "$programs"/*/bin; do
    platform=$(basename "$(dirname "$folder")")
    case $platform in
        windows-*)
            # The same bytes in each build.
            tar --create --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=go=rX \
                --directory "$folder" . --directory "$PWD" LICENSE --directory "$(realpath "$programs")" NOTICES.gz |
                gzip --best --no-name >"$dist/files/localnet_${version}_$(echo "$platform" | tr - _).tar.gz"
            ;;
        *)
            packaging/deb.sh of "$folder" "$programs/manual" "$platform" "$dist/files"
            packaging/kit.sh pack "$folder/../kit" "$platform" "$dist/files"
            ;;
    esac
done
packaging/module.sh "$dist/files"
packaging/wheel.sh "$dist/files"
cp "$programs/NOTICES.gz" "$dist/files"
# The bills of materials, and the lists of Debian packages in images.
cp "$dist"/sbom/* "$dist/files"
find "$dist/images" -maxdepth 1 -name 'tools-*.txt' -exec mv {} "$dist/files" \;
(cd "$dist/files" && sha256sum -- * >SHA256SUMS)
ls "$dist/files"
cat "$dist/digests.yaml"
