#!/bin/sh
# Makes the images: each from nothing but a static program; that of iptables, and of the node, has Debian's tools of iptables beside it.
#
#   packaging/images.sh            target/images: an OCI layout with all of them, for each processor, and their bills of materials
#   packaging/images.sh verify     makes everything a second time from an empty folder: the digests must be the same
#
# Needs no engine: buildah writes the layout. `skopeo copy oci:target/images:localnet-nft-VERSION docker://REGISTRY/localnet-nft:VERSION`
# sends one to a registry.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
cd "$here/.."
cache=${LOCALNET_CACHE:-.cache}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
# The same date whenever it is made: that of the commit.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
export SOURCE_DATE_EPOCH
# What an image of one program may have at most, in MiB.
most=20
tools="iptables libip4tc2 libip6tc2 libmnl0 libnetfilter-conntrack3 libnfnetlink0 libnftnl11 libxtables12 libc6"

fail() {
    echo "failed to make the images: $1" >&2
    exit 1
}

command -v buildah >/dev/null || fail "buildah is missing: apt-get install --no-install-recommends buildah"

# unpack_tools ARCH FOLDER: the tools of iptables and the libraries that they load. Packages of any processor come through lists of
# their own, so that this machine's are as they were.
unpack_tools() {
    apt=$work/apt-$1
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$apt/debs" "$apt/all"
    options="-q -o APT::Architecture=$1 -o APT::Architectures=$1 -o APT::Sandbox::User=root -o Dir::State::status=/dev/null"
    options="$options -o Dir::State::lists=$apt/lists -o Dir::Cache=$apt/cache"
    # shellcheck disable=SC2086 # lists of words
    apt-get $options update >"$apt/log" 2>&1 || fail "apt-get update: $(tail -n 3 "$apt/log")"
    # shellcheck disable=SC2086
    (cd "$apt/debs" && apt-get $options download $tools >>"$apt/log" 2>&1) || fail "apt-get download: $(tail -n 3 "$apt/log")"
    for deb in "$apt"/debs/*.deb; do
        dpkg-deb -x "$deb" "$apt/all"
        basename "$deb" .deb >>"$apt/packages"
    done
    rm -rf "$apt/all/usr/share" "$apt"/all/usr/lib/*/gconv "$apt"/all/usr/lib/*/audit
    # Merged, as in Debian's own installations.
    for folder in lib lib64 sbin bin; do
        if [ -d "$apt/all/$folder" ]; then
            mkdir -p "$apt/all/usr/$folder"
            cp -a "$apt/all/$folder/." "$apt/all/usr/$folder/"
            rm -r "${apt:?}/all/$folder"
        fi
        [ ! -d "$apt/all/usr/$folder" ] || ln -s "usr/$folder" "$apt/all/$folder"
    done
    # Those of kube-proxy's names that its own image has; which flavour is the backend's to choose.
    mkdir -p "$apt/all/usr/sbin" "$2"
    for family in iptables ip6tables; do
        for part in "" -save -restore; do
            for flavour in legacy nft; do
                [ -e "$apt/all/usr/sbin/$family-$flavour$part" ] || [ -L "$apt/all/usr/sbin/$family-$flavour$part" ] || fail "$family-$flavour$part is not in Debian's iptables"
            done
        done
    done
    cp -a "$apt/all/." "$2/"
}

# image PROGRAM ARCH
image() {
    tree=$work/tree-$1-$2
    mkdir -p "$tree/usr/bin"
    cp "target/ship/$2/bin/$1" "$tree/usr/bin/$1"
    case $1 in localnet-iptables | localnet-node) unpack_tools "$2" "$tree" ;; esac
    # Whoever made it, and whenever.
    find "$tree" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
    user=0
    [ "$1" != localnet-brain ] || user=65532:65532
    container=$(store from --arch "$2" scratch)
    store copy --quiet --chown 0:0 "$container" "$tree" / >/dev/null
    store config --os linux --arch "$2" --user "$user" --entrypoint "[\"/usr/bin/$1\"]" --env PATH=/usr/sbin:/usr/bin \
        --label "org.opencontainers.image.title=$1" --label "org.opencontainers.image.version=$version" \
        --label org.opencontainers.image.licenses=Apache-2.0 --created-by "packaging/images.sh" "$container"
    store commit --quiet --timestamp "$SOURCE_DATE_EPOCH" --rm --format oci "$container" "oci:$out:$1-$version-$2" >/dev/null
    rm -rf "$tree"
}

store() {
    buildah --root "$work/store" --runroot "$work/run" --storage-driver vfs "$@"
}

# make FOLDER: all images of all programs that are there.
make_all() {
    out=$1
    work=$(mktemp -d "$here/../target/ship/images.XXXXXX")
    work=$(cd "$work" && pwd)
    trap 'rm -rf "$work"' EXIT
    rm -rf "$out"
    for folder in target/ship/a*64; do
        for program in "$folder"/bin/localnet-*; do
            image "$(basename "$program")" "$(basename "$folder")"
        done
    done
    rm -rf "$work"
    trap - EXIT
}

# list FOLDER: name, size in bytes, digest.
list() {
    python3 - "$1" <<'EOF'
import json, pathlib, sys
layout = pathlib.Path(sys.argv[1])
blob = lambda digest: layout / "blobs" / digest.replace(":", "/")
for image in sorted(json.loads((layout / "index.json").read_text())["manifests"], key=lambda image: image["annotations"]["org.opencontainers.image.ref.name"]):
    manifest = json.loads(blob(image["digest"]).read_text())
    size = sum(layer["size"] for layer in manifest["layers"])
    print(image["annotations"]["org.opencontainers.image.ref.name"], size, image["digest"])
EOF
}

# What each program is made of.
bills() {
    sbom=$cache/cargo-sbom/bin/cargo-sbom
    [ -x "$sbom" ] || cargo install --quiet --locked --root "$cache/cargo-sbom" cargo-sbom
    for program in target/ship/amd64/bin/*; do
        name=$(basename "$program")
        "$sbom" --cargo-package "$name" --output-format cyclone_dx_json_1_6 >"target/images/$name.cdx.json"
    done
}

case ${1-} in
"")
    packaging/programs.sh
    make_all target/images
    bills
    list target/images | while read -r name size digest; do
        echo "$name $((size / 1024)) KiB $digest"
        case $name in
        localnet-iptables* | localnet-node*) ;;
        *) [ "$size" -le $((most * 1024 * 1024)) ] || fail "$name has $size bytes: $most MiB are the most" ;;
        esac
    done
    ;;
verify)
    [ -f target/images/index.json ] || fail "there are none to compare with: make images"
    list target/images >target/ship/first
    rm -rf target/ship/build target/ship/a*64
    packaging/programs.sh
    make_all target/ship/again
    list target/ship/again | diff target/ship/first - || fail "made a second time, they have other digests"
    echo "made a second time, all have the same digests"
    ;;
*) fail "$1: verify, or nothing" ;;
esac
