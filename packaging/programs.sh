#!/bin/sh
# Builds the programs as they are shipped: static, so that they run on any Linux of their processor, and the same bytes each time.
#
#   packaging/programs.sh [amd64|arm64]…     into target/ship/ARCH/bin; all that can be built here, if none is named
#
# amd64 is built by the Rust that is there. arm64 needs a Rust with the source of its standard library (`make windows` unpacks Debian's
# aside, for tests under Wine), and Debian's gcc-aarch64-linux-gnu as the linker.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
cargo=${CARGO:-cargo}
programs="localnet-brain localnet-nft localnet-iptables localnet-ipvs localnet-node localnet"
flags=
for program in $programs; do flags="$flags -p $program"; done
# No path of this machine is in what is shipped.
remap="--remap-path-prefix=$root=localnet --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo"

fail() {
    echo "failed to build for $1" >&2
    exit 1
}

build() {
    arch=$1
    case $arch in
        amd64) target=x86_64-unknown-linux-gnu ;;
        arm64) target=aarch64-unknown-linux-gnu ;;
        *) fail "$arch: amd64 or arm64" ;;
    esac
    if [ "$arch" = "$(dpkg --print-architecture)" ]; then
        # shellcheck disable=SC2086 # a list of words
        CARGO_TARGET_DIR=target/ship/build RUSTFLAGS="-C target-feature=+crt-static $remap" \
            "$cargo" build --release --locked --target "$target" $flags
    else
        cross "$target"
    fi
    mkdir -p "target/ship/$arch/bin"
    for program in $programs; do
        cp "target/ship/build/$target/release/$program" "target/ship/$arch/bin/$program"
    done
}

# For a processor that the Rust here has no library for: it is built along.
cross() {
    rust=${LOCALNET_CACHE:-.cache}/wine/rust/usr
    [ -x "$rust/bin/rustc" ] || fail "$1: run \`e2e/wine/build.sh\` first"
    command -v aarch64-linux-gnu-gcc >/dev/null || fail "$1: apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross"
    rust=$(cd "$rust" && pwd)
    # shellcheck disable=SC2086 # a list of words
    LD_LIBRARY_PATH=$rust/lib/x86_64-linux-gnu RUSTC=$rust/bin/rustc RUSTDOC=$rust/bin/rustdoc RUSTC_BOOTSTRAP=1 \
        CARGO_TARGET_DIR=target/ship/build CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
        CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc \
        RUSTFLAGS="-C target-feature=+crt-static $remap" \
        "$rust/bin/cargo" build --release --locked --target "$1" -Zbuild-std=std,panic_unwind $flags
}

if [ $# -eq 0 ]; then
    set -- "$(dpkg --print-architecture)"
    [ "$1" = arm64 ] || ! command -v aarch64-linux-gnu-gcc >/dev/null || set -- "$1" arm64
fi
for arch in "$@"; do build "$arch"; done
