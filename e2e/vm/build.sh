#!/bin/sh
# Makes the guest that has what this machine's kernel may lack (IPVS, dummy interfaces, SCTP sockets): a Debian kernel and an
# initramfs that mounts this machine's own files. Nothing is installed.
#
#   e2e/vm/build.sh [linux-image-VERSION]      without a package: the kernel of this Debian release
#
# It lands in ${LOCALNET_CACHE:-<repository>/.cache}/vm/PACKAGE and is made again only when this script or guest/init has changed.
# To move to a newer kernel of the same release, delete ${LOCALNET_CACHE:-<repository>/.cache}/vm. One run at a time.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
cache=${LOCALNET_CACHE:-$(dirname "$(dirname "$here")")/.cache}/vm

fail() {
    echo "failed to build the guest: $1" >&2
    exit 1
}

# The package that the release's own kernel package stands for.
current_kernel() {
    apt-cache show --no-all-versions linux-image-amd64 2>/dev/null |
        sed -n 's/^Depends:.*\(linux-image-[0-9][^ ,]*\).*/\1/p' | head -n 1
}

# download PACKAGE: its file into the current folder.
download() {
    apt-get -q -o APT::Sandbox::User=root download "$1" >/dev/null
}

# number FILE OFFSET BYTES: an unsigned little-endian number in a file.
number() {
    od -A n -t "u$3" -j "$2" -N "$3" "$1" | tr -d ' '
}

# unpack_kernel BZIMAGE VMLINUX: the kernel proper. QEMU boots it directly (PVH); to let the guest unpack itself costs
# a quarter of a minute where the processor is emulated. The offsets are those of the x86 boot protocol, 2.08 and later.
unpack_kernel() {
    offset=$((($(number "$1" 497 1) + 1) * 512 + $(number "$1" 584 4)))
    # The last four bytes are the unpacked size.
    length=$(($(number "$1" 588 4) - 4))
    case $(od -A n -t x1 -j "$offset" -N 4 "$1" | tr -d ' ') in
        fd377a58) unpack="xz -dc" ;;
        28b52ffd) unpack="zstd -dcq" ;;
        *) fail "$1 is packed in a way that this script does not know" ;;
    esac
    tail -c "+$((offset + 1))" "$1" | head -c "$length" | $unpack >"$2" || fail "unpacking $1"
    [ "$(od -A n -t x1 -N 4 "$2" | tr -d ' ')" = 7f454c46 ] || fail "what was unpacked from $1 is no kernel"
}

# plain MODULE: its bytes, as the kernel wants them.
plain() {
    case $1 in
        *.xz) xz -dc "$1" ;;
        *.zst) zstd -dcq "$1" ;;
        *) cat "$1" ;;
    esac
}

# initramfs FOLDER VERSION: what the first process needs until this machine's files are mounted.
initramfs() {
    mkdir -p "$1/root/bin" "$1/root/modules"
    cp "$(command -v busybox)" "$1/root/bin/busybox"
    cp "$here/guest/init" "$1/root/init"
    chmod +x "$1/root/init"
    count=100
    modprobe -d "$1" -S "$2" --show-depends -a virtio_pci 9pnet_virtio 9p overlay >"$1/modules"
    while read -r verb module rest; do
        case "$verb $rest" in insmod*) ;; *) continue ;; esac
        grep -qxF "$module" "$1/seen" 2>/dev/null && continue
        echo "$module" >>"$1/seen"
        count=$((count + 1))
        plain "$module" >"$1/root/modules/$count.ko"
    done <"$1/modules"
    (cd "$1/root" && find . | busybox cpio -o -H newc 2>/dev/null) | gzip -1 >"$1/initramfs"
    rm -rf "$1/root" "$1/modules" "$1/seen"
}

if [ "$(uname -m)" != x86_64 ]; then
    { [ -e /proc/net/ip_vs ] || modprobe --dry-run --quiet ip_vs; } 2>/dev/null ||
        fail "there is one for x86_64 only: run the tests on a kernel that has IPVS itself"
    echo "guest: there is none for $(uname -m), and this kernel has IPVS itself"
    exit 0
fi
for tool in apt-get busybox depmod dpkg-deb modprobe xz zstd qemu-system-x86_64; do
    command -v "$tool" >/dev/null || fail "$tool is not installed: run e2e/deps.sh guest"
done
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9

stamp=$(cat "$here/build.sh" "$here/guest/init" | sha256sum | cut -d' ' -f1)
package=${1:-$(cat "$cache/kernel" 2>/dev/null || true)}
if [ -n "$package" ] && [ "$(cat "$cache/$package/stamp" 2>/dev/null)" = "$stamp" ]; then
    echo "guest: $package is up to date"
    exit 0
fi

began=$(date +%s)
work=$(mktemp -d "$cache/.new.XXXXXX")
trap 'rm -rf "$work"' EXIT
[ -n "$package" ] || package=$(current_kernel)
if [ -z "$package" ] || ! (cd "$work" && download "$package") 2>/dev/null; then
    # The lists are not there, or older than the archive.
    apt-get update -q >/dev/null || fail "apt-get update: is the package archive reachable, and is this root?"
    [ $# -gt 0 ] || package=$(current_kernel)
    [ -n "$package" ] || fail "the archive has no linux-image-amd64"
    (cd "$work" && download "$package") || fail "downloading $package"
fi
version=${package#linux-image-}
# Newer releases keep kernel, lists and modules in packages of their own.
for part in "linux-base-$version" "linux-binary-$version" "linux-modules-$version"; do
    [ -z "$(apt-cache show "$part" 2>/dev/null)" ] || (cd "$work" && download "$part") || fail "downloading $part"
done
for deb in "$work"/*.deb; do
    # A package need not have a file for each of these; what must be there is looked for below.
    dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$work" --wildcards --no-wildcards-match-slash --no-anchored --warning=none \
        'boot/vmlinuz-*' 'modules/*/vmlinuz' 'modules.builtin*' 'modules.order' \
        'kernel/arch' 'kernel/crypto' 'kernel/lib' 'kernel/net' 'kernel/drivers/virtio' 'kernel/drivers/net/*.ko*' \
        'kernel/drivers/net/vxlan' 'kernel/drivers/net/ipvlan' \
        'kernel/fs/9p' 'kernel/fs/netfs' 'kernel/fs/fscache' 'kernel/fs/overlayfs' 2>/dev/null || true
    rm "$deb"
done
[ -d "$work/lib/modules" ] || ln -s usr/lib "$work/lib"
[ -n "$(find "$work/lib/modules/$version/kernel/net/netfilter/ipvs" -name 'ip_vs.ko*')" ] || fail "$package has no IPVS"
# Newer releases keep the kernel beside its modules.
packed=$(find "$work/boot" "$work/lib/modules/$version" -name 'vmlinuz*' 2>/dev/null | head -n 1)
unpack_kernel "$packed" "$work/vmlinux"
rm -r "$packed"
depmod -b "$work" "$version"
initramfs "$work" "$version"
echo "$stamp" >"$work/stamp"
chmod 755 "$work"
rm -rf "${cache:?}/$package"
mv "$work" "$cache/$package"
[ $# -gt 0 ] || echo "$package" >"$cache/kernel"
echo "guest: built $package in $(($(date +%s) - began)) s"
