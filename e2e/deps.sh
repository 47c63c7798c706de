#!/bin/sh
# Installs the Debian packages that `make test` and `make bench` need and that are not there yet. Changes nothing when all of them are.
#
#   e2e/deps.sh [guest|windows|images]
#
#   nftables    nft, to compare what it loads with what netlink loads; kube-proxy calls it
#   iptables    both flavours of its tools, for localnet-iptables and kube-proxy
#   iproute2    ip, to make and to enter network namespaces
#   conntrack   what the kernel remembers of the connections under test
#   procps      ps and sysctl
#   systemd     its opinion of our services
#   strace      which programs a program starts
#   util-linux  setpriv, which ends programs together with their test
#   protobuf-compiler, jq   what the examples in Go and shell need
#   buildah     writes OCI layouts
#
# and with `guest`, for the guest of e2e/vm, on the processors for which there is one:
#   qemu-system-x86   runs it
#   busybox-static    its first program
#   kmod              its modules
#   xz-utils, zstd    unpack its kernel
#   ipvsadm           what the kernel holds, to compare
#   ipset             kube-proxy's ipvs mode calls it
#
# and with `images`, for `make images` alone, which reads what buildah wrote with jq:
#   gcc, libc6-dev, make                           what is linked statically, and jemalloc
#   gcc-aarch64-linux-gnu, libc6-dev-arm64-cross   link for the other processor
#
# and with `windows`, for programs of Windows (e2e/wine), on the same processors as the guest:
#   gcc-mingw-w64-x86-64-win32   links them
#   wine64                       runs them
set -eu

packages="nftables iptables iproute2 conntrack procps strace systemd util-linux protobuf-compiler jq buildah"
case "${1-} $(uname -m)" in
"guest x86_64") packages="$packages qemu-system-x86 busybox-static kmod xz-utils zstd ipvsadm ipset" ;;
"windows x86_64") packages="$packages gcc-mingw-w64-x86-64-win32 wine64" ;;
"images x86_64") packages="buildah jq gcc libc6-dev make gcc-aarch64-linux-gnu libc6-dev-arm64-cross" ;;
images*) packages="buildah jq gcc libc6-dev make" ;;
esac

fail() {
    echo "failed to install test dependencies: $1" >&2
    exit 1
}

installed() {
    case $(dpkg -s "$1" 2>/dev/null) in
        *"Status: install ok installed"*) return 0 ;;
        *) return 1 ;;
    esac
}

command -v dpkg >/dev/null || fail "this is no Debian system: install $packages (or their like) yourself"

missing=
for package in $packages; do
    installed "$package" || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" -eq 0 ]; then
    as_root=
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    as_root=sudo
else
    fail "not root and no sudo without a password: run as root: apt-get install$missing"
fi

echo "installing$missing"
# Some systems answer package questions on the terminal: nobody is there to do so.
$as_root apt-get update -qq || fail "apt-get update: is the package archive reachable?"
# shellcheck disable=SC2086 # a list of words
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null ||
    fail "apt-get install$missing: see the lines above"
