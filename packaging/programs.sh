#!/bin/sh
# Builds the programs for shipping. They are static (static.sh checks this), so they run on any Linux of their architecture, and two builds are identical.
#
#   packaging/programs.sh [amd64|arm64|windows-amd64]…
#                                            builds into target/ship/PLATFORM/bin; without an argument, for all platforms that this machine supports.
#                                            The conformance kit is in target/ship/ARCH/kit, with what it needs, and the licences of all
#                                            libraries are in target/ship/NOTICES.gz.
#
# The installed Rust builds for this machine's architecture, and writes manual pages and completions into target/ship/manual.
# On amd64, Debian's Rust builds for arm64: it comes with the source of the standard library, and `e2e/wine/build.sh compiler` unpacks it into
# the cache, and builds for Windows. Debian's gcc-aarch64-linux-gnu and mingw link the programs.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
cargo=${CARGO:-cargo}
here=$(dpkg --print-architecture)
# The command, and each program that has a service.
programs="localnet $(basename --suffix .service --multiple packaging/systemd/*.service)"
windows_programs="localnet-brain localnet-win localnet-node"
flags=
for program in $programs localnet-conformance; do flags="$flags -p $program"; done
# The programs contain no path of this machine.
remap="--remap-path-prefix=$root=localnet --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo"
# Keep the names of functions, for profiles and panics. Line numbers would make the programs three times as large.
export CARGO_PROFILE_RELEASE_DEBUG="${CARGO_PROFILE_RELEASE_DEBUG:-none}" CARGO_PROFILE_RELEASE_STRIP=debuginfo
export CARGO_TARGET_DIR=target/ship/build
# C code that contains its time of compilation (mimalloc) gets the time of the commit.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
export SOURCE_DATE_EPOCH

fail() {
    echo "failed to build for $1" >&2
    exit 1
}

build() {
    arch=$1
    began=$(date +%s)
    case $arch in
        amd64) target=x86_64-unknown-linux-gnu ;;
        arm64) target=aarch64-unknown-linux-gnu ;;
        windows-amd64)
            windows
            echo "programs for $arch: $(($(date +%s) - began)) s"
            return
            ;;
        *) fail "$arch: only amd64, arm64 and windows-amd64 are supported" ;;
    esac
    if [ "$arch" = "$here" ]; then
        linker "${CC:-cc}"
        # shellcheck disable=SC2086 # a list of words
        RUSTFLAGS="-C target-feature=+crt-static $remap" "$cargo" build --release --locked --target "$target" $flags -p localnet-packaging
        rm -rf target/ship/manual
        "$CARGO_TARGET_DIR/$target/release/localnet-manual" target/ship/manual
    elif [ "$here-$arch" = amd64-arm64 ]; then
        cross
    else
        fail "$arch: this is not possible on $here"
    fi
    mkdir -p "target/ship/$arch/bin"
    for program in $programs; do
        cp "$CARGO_TARGET_DIR/$target/release/$program" "target/ship/$arch/bin/$program"
    done
    packaging/kit.sh "$CARGO_TARGET_DIR/$target/release/localnet-conformance" "target/ship/$arch/kit"
    packaging/static.sh "target/ship/$arch"/bin/* "target/ship/$arch"/kit/bin/*
    echo "programs for $arch: $(($(date +%s) - began)) s"
}

# linker CC: makes this compiler cargo's linker, and adds names.c. rustc derives the flags from its name.
linker() {
    mkdir -p "target/ship/$arch"
    if ! cmp --quiet packaging/names.c "target/ship/$arch/names.c"; then
        # Cargo does not notice a change of what it links.
        rm -rf "${CARGO_TARGET_DIR:?}/$target"
        "$1" -std=c11 -O2 -Wall -Wextra -Werror -c -o "target/ship/$arch/names.o" packaging/names.c
        printf '#!/bin/sh\nexec %s "%s" "$@"\n' "$1" "$root/target/ship/$arch/names.o" >"target/ship/$arch/gcc"
        chmod 755 "target/ship/$arch/gcc"
        cp packaging/names.c "target/ship/$arch/names.c"
    fi
    export "CARGO_TARGET_$(echo "$target" | tr a-z- A-Z_)_LINKER=$root/target/ship/$arch/gcc"
}

# Builds for arm64 on amd64, together with the standard library.
cross() {
    command -v aarch64-linux-gnu-gcc >/dev/null || fail "arm64: aarch64-linux-gnu-gcc is missing: e2e/deps.sh images"
    linker aarch64-linux-gnu-gcc
    e2e/wine/build.sh compiler
    rust=$(cd "${LOCALNET_CACHE:-.cache}/wine/rust/usr" && pwd -P)
    # jemalloc aborts if the kernel's pages are larger than it was built for. Pages of arm64 have 4, 16 or 64 KiB.
    # shellcheck disable=SC2086 # a list of words
    env -u RUSTUP_TOOLCHAIN -u RUSTC_WRAPPER -u RUSTC_WORKSPACE_WRAPPER -u CARGO_ENCODED_RUSTFLAGS -u CARGO_BUILD_TARGET \
        LD_LIBRARY_PATH="$rust/lib/x86_64-linux-gnu" CARGO="$rust/bin/cargo" RUSTC="$rust/bin/rustc" RUSTDOC="$rust/bin/rustdoc" \
        RUSTC_BOOTSTRAP=1 CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc JEMALLOC_SYS_WITH_LG_PAGE=16 \
        RUSTFLAGS="-C target-feature=+crt-static $remap --remap-path-prefix=$rust=rust" \
        "$rust/bin/cargo" build --release --locked --target "$target" -Zbuild-std=std,panic_unwind $flags
}

# Builds for Windows on amd64, together with the standard library.
windows() {
    [ "$here" = amd64 ] || fail "$arch: this is not possible on $here"
    command -v x86_64-w64-mingw32-gcc >/dev/null || fail "$arch: x86_64-w64-mingw32-gcc is missing: e2e/deps.sh images"
    e2e/wine/build.sh compiler
    rust=$(cd "${LOCALNET_CACHE:-.cache}/wine/rust/usr" && pwd -P)
    # shellcheck disable=SC2046 # a list of words
    CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUSTFLAGS="$remap --remap-path-prefix=$rust=rust -C link-arg=-Wl,--no-insert-timestamp" \
        e2e/wine/cargo build --release --locked $(printf -- '-p %s ' $windows_programs)
    mkdir -p "target/ship/$arch/bin"
    for program in $windows_programs; do
        cp "$CARGO_TARGET_DIR/wine/x86_64-pc-windows-gnu/release/$program.exe" "target/ship/$arch/bin"
    done
}

if [ $# -eq 0 ]; then
    set -- "$here"
    [ "$here" != amd64 ] || ! command -v aarch64-linux-gnu-gcc >/dev/null || set -- "$@" arm64
    [ "$here" != amd64 ] || ! command -v x86_64-w64-mingw32-gcc >/dev/null || set -- "$@" windows-amd64
fi
for arch in "$@"; do build "$arch"; done
packaging/notices.sh | gzip --best --no-name >target/ship/NOTICES.gz
for kit in target/ship/*/kit; do
    [ ! -d "$kit" ] || cp target/ship/NOTICES.gz "$kit/share/doc/localnet-conformance"
done
