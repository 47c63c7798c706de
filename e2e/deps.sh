#!/bin/sh
# Installs missing Debian packages for `make test` and `make bench`. If none is missing, it changes nothing.
#
#   e2e/deps.sh [guest|windows|images|kubernetes]
#
#   nftables    nft, to compare its tables with those that netlink loads; kube-proxy calls it
#   iptables    both flavours of its tools, for localnet-iptables and kube-proxy
#   iproute2    ip, to make and enter network namespaces
#   conntrack   lists the tracked connections
#   procps      ps and sysctl
#   systemd     checks our units
#   strace      lists the programs that a program starts
#   util-linux  setpriv, which ends programs together with their test
#   protobuf-compiler, protobuf-compiler-grpc   generate the code of the Go and Python libraries
#   python3-venv, openssl   make the environment for Python, and certificates for its tests
#   jq          for the example in shell
#   buildah     writes OCI layouts
#   skopeo, shellcheck   push images, and check our scripts
#   libhivex-bin         reads the registry hives of our images for Windows
#   valgrind    counts instructions
#   chromium, fonts-dejavu-core   show the page of `localnet ui`
#   nodejs, npm   install and run the example in Node.js; `make deps` installs neither if npm exists already
#
# With `guest`, also the packages for the guest of e2e/vm (x86_64 only):
#   qemu-system-x86   runs the guest
#   busybox-static    the first program in the guest
#   kmod              lists kernel modules
#   xz-utils, zstd    unpack the kernel
#   ipvsadm           lists virtual servers
#   ipset             kube-proxy's ipvs mode calls it
#
# With `images`, only the packages for `make images`:
#   buildah, jq, skopeo                            write, read and push OCI layouts
#   gcc, libc6-dev, make                           link static programs, and build jemalloc
#   python3-venv                                   builds the wheel of the Python library
#   gcc-aarch64-linux-gnu, libc6-dev-arm64-cross   link for arm64
#   gcc-mingw-w64-x86-64-win32                     links for Windows
#
# With `kubernetes`, those for this machine's images and for `make kubernetes`:
#   debootstrap, conntrack, iproute2, nftables, iptables, openssl, python3   make and run the cluster of e2e/kubernetes
#   libseccomp-dev, pkg-config                                               build runc
#
# With `windows`, also the packages for Windows programs (e2e/wine, x86_64 only):
#   gcc-mingw-w64-x86-64-win32   links them
#   wine64                       runs them
set -eu

packages="nftables iptables iproute2 conntrack procps strace systemd util-linux protobuf-compiler protobuf-compiler-grpc"
packages="$packages python3-venv openssl jq buildah skopeo shellcheck libhivex-bin valgrind chromium fonts-dejavu-core"
# A Node.js from elsewhere contains npm, and conflicts with Debian's package.
command -v npm >/dev/null || packages="$packages nodejs npm"
case "${1-} $(uname -m)" in
"guest x86_64") packages="$packages qemu-system-x86 busybox-static kmod xz-utils zstd ipvsadm ipset" ;;
"windows x86_64") packages="$packages gcc-mingw-w64-x86-64-win32 wine64" ;;
"images x86_64") packages="buildah jq skopeo gcc libc6-dev make python3-venv gcc-aarch64-linux-gnu libc6-dev-arm64-cross
    gcc-mingw-w64-x86-64-win32" ;;
images*) packages="buildah jq skopeo gcc libc6-dev make python3-venv" ;;
kubernetes*)
    packages="buildah jq gcc libc6-dev make debootstrap conntrack iproute2 nftables iptables openssl python3 procps libseccomp-dev pkg-config"
    ;;
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

command -v dpkg >/dev/null || fail "this is not a Debian system: install $packages, or similar packages, yourself"

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
# Packages must not ask questions on the terminal (DEBIAN_FRONTEND).
$as_root apt-get update -qq || fail "apt-get update: is the package archive reachable?"
# shellcheck disable=SC2086 # a list of words
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null ||
    fail "apt-get install$missing: see the lines above"
