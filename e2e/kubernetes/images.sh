#!/bin/bash
# The images of the test cluster.
#
#   images.sh build            Kubernetes' test images, CoreDNS and kube-proxy, from the programs of build.sh
#   images.sh ours             our own images, from target/ship (packaging/programs.sh) as packaging/images.sh writes them; with TESTED=1
#                              those of the brain and of three backends, from the programs of `make test`, on the root of the test images
#   images.sh previous COMMIT    our own images as of another commit, with the tag `previous`
#   images.sh import NODE      brings to a node of the running cluster what is new
. "$(dirname "$0")/common.sh"

archive=$cache/images.tar
ours=$cache/ours.tar
previous=$cache/previous.tar
# `backend: shadow` of the chart uses the image of the iptables backend.
tested="localnet localnet-brain localnet-nft localnet-iptables localnet-ebpf"

build() {
    local module stamp
    module=$(cd "$here/modules/kubernetes" && go list -m -f '{{.Dir}}' k8s.io/kubernetes)
    "$here/image/root.sh" "$cache/root"
    install -m 644 "$module"/test/images/agnhost/porter/localhost.crt "$module"/test/images/agnhost/porter/localhost.key "$bin/"
    stamp=$(cat "$cache"/{agnhost,coredns,pause,regression-issue-74839}.stamp "$caches/controlplane/kube-proxy.stamp" "$here"/image/* |
        sha256sum | cut -d' ' -f1)
    if [ ! -f "$archive" ] || [ "$(cat "$archive.of" 2>/dev/null)" != "$stamp" ]; then
        python3 "$here/image/archive.py" test "$bin" "$cache/root" "$module/test/utils/image/manifest.go" "$archive.new"
        mv "$archive.new" "$archive"
        echo "$stamp" >"$archive.of"
    fi
}

ours() {
    local stamp sources
    [ -x "$programs/localnet" ] || fail "our programs are not built: packaging/programs.sh $arch"
    # shellcheck disable=SC2059,SC2086 # lists of files
    if [ -n "${TESTED-}" ]; then sources=$(printf "$programs/%s " $tested); else sources=$(echo "$programs"/*); fi
    # shellcheck disable=SC2086 # a list of files
    stamp=$(cat $sources "$repository/packaging/images.sh" "$here/image/archive.py" | sha256sum | cut -d' ' -f1)
    # What docs/conformance.md says was tested.
    git -C "$repository" describe --always --dirty --exclude '*' >"$ours.commit" 2>/dev/null || echo unknown >"$ours.commit"
    if [ -f "$ours" ] && [ "$(cat "$ours.of" 2>/dev/null)" = "$stamp" ]; then return 0; fi
    if [ -n "${TESTED-}" ]; then tested; else shipped "$repository" "$ours"; fi
    echo "$stamp" >"$ours.of"
}

previous() {
    local commit tree=$cache/previous
    commit=$(git -C "$repository" rev-parse "$1")
    [ "$(cat "$previous.of" 2>/dev/null)" != "$commit" ] || return 0
    rm -rf "$tree"
    mkdir -p "$tree"
    git -C "$repository" archive "$commit" | tar -x -C "$tree"
    (cd "$tree" && packaging/programs.sh "$arch")
    shipped "$tree" "$previous" previous
    echo "$commit" >"$previous.of"
    rm -rf "$tree"
}

# tested: images of the programs of `make test`, without their debug information.
tested() {
    local program folder=$cache/tested
    rm -rf "$folder"
    mkdir -p "$folder"
    for program in $tested; do strip --strip-debug -o "$folder/$program" "$programs/$program"; done
    python3 "$here/image/archive.py" ours "$folder" "$cache/root" "$("$programs/localnet" --version | cut -d' ' -f2)" "$ours.new"
    rm -rf "$folder"
    mv "$ours.new" "$ours"
}

# shipped ROOT ARCHIVE [TAG]: our images as we ship them, for this machine's architecture only, from ROOT/target/ship.
shipped() {
    local layout=$cache/ours
    mkdir -p "$cache/ship"
    ln -sfn "$1/target/ship/$arch" "$cache/ship/$arch"
    (cd "$1" && packaging/images.sh of "$cache/ship" "$layout")
    # The chart calls them REGISTRY/NAME:VERSION; the layout calls them NAME-VERSION.
    jq --arg tag "${3-}" '.manifests[] |= (.annotations["org.opencontainers.image.ref.name"] as $ref
        | ($ref | capture("^(?<name>.+)-(?<version>[0-9][^-]*)$")) as $of
        | .annotations["io.containerd.image.name"] = "localhost/" + $of.name + ":" + (if $tag == "" then $of.version else $tag end))' \
        "$layout/index.json" >"$layout/index.new"
    mv "$layout/index.new" "$layout/index.json"
    tar -C "$layout" -cf "$2.new" .
    mv "$2.new" "$2"
    rm -rf "$layout"
}

import() {
    local node=$1 file
    for file in "$archive" "$ours" "$previous"; do
        [ -f "$file" ] || continue
        [ "$file" -nt "$run/$node/$(basename "$file").imported" ] || continue
        containerd_of "$node" images import --local --all-platforms --discard-unpacked-layers "$file" >"$log/$node-import.log" 2>&1 ||
            fail "$node does not take $file: $(tail -n 2 "$log/$node-import.log")"
        touch "$run/$node/$(basename "$file").imported"
    done
}

case ${1-} in
    build) build ;;
    ours) ours ;;
    previous) previous "${2:?a commit}" ;;
    import) import "${2:?a node}" ;;
    *) fail "usage: images.sh build | ours | previous COMMIT | import NODE" ;;
esac
