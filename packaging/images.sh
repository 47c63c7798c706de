#!/bin/sh
# Builds the container images. An image contains only static programs; those of localnet-iptables and localnet-node also contain Debian's
# iptables tools, nft and ipset. Images for Windows are for HostProcess containers.
#
#   packaging/images.sh                   writes target/images: an OCI layout with all images for each architecture, and bills of materials
#   packaging/images.sh verify            builds everything again from an empty folder, and fails if a digest differs
#   packaging/images.sh of FOLDER OUT     writes a layout to OUT, with the programs in FOLDER/ARCH/bin and FOLDER/windows-ARCH/bin, the kit in FOLDER/ARCH/kit and
#                                         FOLDER/NOTICES.gz
#
# Layers, from the bottom: the command `localnet` and the licences, which all images share; the tools; the program. The image of the conformance kit contains
# only the kit, for other images to copy. An image for Windows has one layer: the program, the licences and five registry hives, without which Windows accepts no
# lowest layer. It names no version of Windows, so containerd accepts it on each.
#
# No container engine is needed: buildah writes the layout, as root. To push an image, run
# `skopeo copy --all oci:target/images:localnet-nft-VERSION docker://REGISTRY/localnet-nft:VERSION`.
set -eu
umask 022

here=$(cd "$(dirname "$0")" && pwd)
cd "$here/.."
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
# All files have the date of the commit, so that two builds are identical.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
export SOURCE_DATE_EPOCH
# Maximum compressed size of an image without tools, in MiB.
most=20
tools="iptables libip4tc2 libip6tc2 libmnl0 libnetfilter-conntrack3 libnfnetlink0 libnftnl11 libxtables12 libc6
    nftables libnftables1 libedit2 libbsd0 libmd0 libtinfo6 libgmp10 libjansson4 ipset libipset13"

fail() {
    echo "failed to make the images: $1" >&2
    exit 1
}

for command in buildah jq; do
    command -v $command >/dev/null || fail "$command is missing: e2e/deps.sh images"
done

# unpack_tools ARCH TREE: unpacks the iptables tools, nft, ipset, and the libraries that they load. apt uses package lists of its own for this, so this
# machine's lists do not change.
unpack_tools() {
    apt=$work/apt-$1
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$apt/debs" "$2"
    options="-q -o APT::Architecture=$1 -o APT::Architectures=$1 -o APT::Sandbox::User=root -o Dir::State::status=/dev/null"
    options="$options -o Dir::State::lists=$apt/lists -o Dir::Cache=$apt/cache"
    # shellcheck disable=SC2086 # lists of words
    apt-get $options update >"$apt/log" 2>&1 || fail "apt-get update: $(tail -n 3 "$apt/log")"
    # shellcheck disable=SC2086
    (cd "$apt/debs" && apt-get $options download $tools >>"$apt/log" 2>&1) || fail "apt-get download: $(tail -n 3 "$apt/log")"
    for deb in "$apt"/debs/*.deb; do
        dpkg-deb -x "$deb" "$2"
        dpkg-deb --show "$deb" >>"$out/tools-$1.txt"
    done
    find "$2/usr/share" ! -type d ! -path "*/doc/*/copyright" -delete
    find "$2" -type d -empty -delete
    rm -rf "$2"/usr/lib/*/gconv "$2"/usr/lib/*/audit "$2"/lib/*/gconv "$2"/lib/*/audit
    # Merge them into /usr, as Debian's own installations do.
    for folder in lib lib64 sbin bin; do
        if [ -d "$2/$folder" ]; then
            mkdir -p "$2/usr/$folder"
            cp -a "$2/$folder/." "$2/usr/$folder/"
            rm -r "${2:?}/$folder"
        fi
        [ ! -d "$2/usr/$folder" ] || ln -s "usr/$folder" "$2/$folder"
    done
    # `localnet shadow` reads kube-proxy's modes nftables and ipvs with them. To print its version, ipset would need privileges.
    for command in "nft --version" "ipset help"; do
        # shellcheck disable=SC2086 # a list of words
        [ "$1" != "$(dpkg --print-architecture)" ] || chroot "$2" /usr/sbin/$command >/dev/null || fail "$command does not start"
    done
    # Both flavours: the backend chooses one.
    for family in iptables ip6tables; do
        for flavour in legacy nft; do
            for part in "" -save -restore; do
                tool=usr/sbin/$family-$flavour$part
                [ -L "$2/$tool" ] || [ -e "$2/$tool" ] || fail "$tool is not in Debian's iptables"
                # Check that they find their libraries.
                [ "$1" != "$(dpkg --print-architecture)" ] || chroot "$2" "/$tool" --version >/dev/null || fail "$tool does not start"
            done
        done
    done
}

# layer NAME ARCH LOWER TREE [OS]: builds the image NAME from the image LOWER and a tree of files.
layer() {
    # Owner and date do not depend on the build.
    find "$4" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
    tag=$2
    if [ "${5-linux}" = windows ]; then
        tag=windows-$2
        # A HostProcess container starts in the folder of its image, as the user that its pod names.
        set -- "$@" --entrypoint "[\"$1.exe\"]"
    else
        user=0
        [ "$1" != localnet-brain ] || user=65532:65532
        set -- "$1" "$2" "$3" "$4" linux --user "$user" --entrypoint "[\"/usr/bin/$1\"]" --env PATH=/usr/sbin:/usr/bin
    fi
    name=$1 arch=$2 lower=$3 tree=$4 os=$5
    shift 5
    container=$(store from --quiet --pull-never --arch "$arch" "$lower")
    store copy --quiet --chown 0:0 "$container" "$tree" / >/dev/null
    store config --os "$os" --arch "$arch" "$@" --label "org.opencontainers.image.title=$name" \
        --label "org.opencontainers.image.version=$version" \
        --label org.opencontainers.image.licenses=Apache-2.0 --created-by packaging/images.sh "$container"
    store commit --quiet --identity-label=false --disable-compression=false --timestamp "$SOURCE_DATE_EPOCH" --rm --format oci \
        "$container" "$name:$tag" >/dev/null
    rm -rf "$tree"
    [ "$name" = localnet-tools ] || made="$made $name:$tag"
}

store() {
    buildah --root "$work/store" --runroot "$work/run" --storage-driver vfs "$@"
}

# images ARCH FOLDER: builds the images of one architecture from the programs in a folder.
images() {
    for program in localnet tools conformance $(basename --multiple "$2"/localnet-* | sed s/localnet-//); do
        lower=localhost/localnet:$1
        name=localnet-$program
        case $program in
            localnet) name=localnet lower=scratch ;;
            conformance) lower=scratch ;;
            tools) [ -e "$2/localnet-iptables" ] || [ -e "$2/localnet-node" ] || continue ;;
            iptables | node) lower=localhost/localnet-tools:$1 ;;
        esac
        tree=$work/tree
        if [ "$program" = tools ]; then
            unpack_tools "$1" "$tree"
        elif [ -e "$2/../kit/bin/$name" ]; then
            mkdir "$tree"
            cp -r "$2/../kit" "$tree/usr"
        elif [ -e "$2/$name" ]; then
            install -D -m 755 "$2/$name" "$tree/usr/bin/$name"
            # All images contain that of `localnet`.
            [ "$name" != localnet ] || [ ! -e "$2/../../NOTICES.gz" ] ||
                install -D -m 644 "$2/../../NOTICES.gz" "$tree/usr/share/doc/localnet/NOTICES.gz"
        else
            continue
        fi
        layer "$name" "$1" "$lower" "$tree"
    done
}

# windows_images ARCH FOLDER: builds the images of the Windows programs in a folder.
windows_images() {
    for program in "$2"/*.exe; do
        tree=$work/tree
        mkdir -p "$tree/Files/Windows/System32/config"
        install -m 755 "$program" "$tree/Files"
        [ ! -e "$2/../../NOTICES.gz" ] || install -m 644 "$2/../../NOTICES.gz" "$tree/Files"
        for hive in DEFAULT SAM SECURITY SOFTWARE SYSTEM; do
            packaging/hive.py "$hive" >"$tree/Files/Windows/System32/config/$hive"
        done
        layer "$(basename "$program" .exe)" "$1" scratch "$tree" windows
    done
}

# make_all FOLDER OUT: builds multi-platform images of the programs in FOLDER/ARCH/bin.
make_all() {
    out=$2
    rm -rf "$out"
    mkdir -p "$out" target/ship
    work=$(mktemp -d "$here/../target/ship/images.XXXXXX")
    work=$(cd "$work" && pwd)
    trap 'rm -rf "$work"' EXIT
    made=
    for folder in "$1"/*/bin; do
        platform=$(basename "$(dirname "$folder")")
        case $platform in
            windows-*) windows_images "${platform#windows-}" "$folder" ;;
            *)
                [ -x "$folder/localnet" ] || fail "$folder has no programs"
                images "$platform" "$folder"
                ;;
        esac
    done
    # shellcheck disable=SC2086 # a list of words
    for name in $(printf '%s\n' $made | sed 's/:.*//' | sort -u); do
        store manifest create "$name:all" >/dev/null
        for image in $made; do
            [ "${image%:*}" != "$name" ] || store manifest add "$name:all" "containers-storage:localhost/$image" >/dev/null
        done
        store manifest push --quiet --all "$name:all" "oci:$out:$name-$version" >/dev/null
    done
    rm -rf "$work"
    trap - EXIT
}

# list FOLDER: prints name, platform, digest, compressed and unpacked size in KiB of each image.
list() {
    blob() { echo "$1/blobs/$2" | tr : /; }
    jq -r '.manifests[] | .annotations["org.opencontainers.image.ref.name"] + " " + .digest' "$1/index.json" | sort | while read -r name index; do
        jq -r '.manifests[] | .platform.os + "/" + .platform.architecture + " " + .digest' "$(blob "$1" "$index")" | while read -r platform digest; do
            manifest=$(blob "$1" "$digest")
            sent=$(jq '[.layers[].size] | add / 1024 | floor' "$manifest")
            unpacked=$(for layer in $(jq -r '.layers[].digest' "$manifest"); do zcat "$(blob "$1" "$layer")"; done | wc -c)
            echo "$name $platform $digest $sent $((unpacked / 1024))"
        done
    done
}

case ${1-} in
    "")
        packaging/programs.sh
        make_all target/ship target/images
        # shellcheck disable=SC2046 # a list of words
        packaging/sbom.sh target/images localnet-conformance $(basename --multiple --suffix .exe target/ship/*/bin/* | sort -u)
        list target/images | while read -r name platform digest sent unpacked; do
            echo "$name $platform: $sent KiB, unpacked $unpacked KiB, $digest"
            case $name in
                localnet-iptables* | localnet-node*) ;;
                *) [ "$sent" -le $((most * 1024)) ] || fail "$name has $sent KiB compressed; the limit is $most MiB" ;;
            esac
        done
        ;;
    verify)
        [ -f target/images/index.json ] || fail "there are no images to compare with: run make images first"
        list target/images >target/ship/first
        rm -rf target/ship/build target/ship/*64
        packaging/programs.sh
        make_all target/ship target/ship/again
        list target/ship/again | diff target/ship/first - || fail "the second build has other digests"
        echo "made a second time, all have the same digests"
        ;;
    of) make_all "${2:?the folder of ARCH/bin}" "${3:?where the layout is to be}" ;;
    *) fail "unknown argument $1: use verify, of, or no argument" ;;
esac
