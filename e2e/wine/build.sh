#!/bin/sh
# Sets up what builds programs for Windows and runs them here: a Rust compiler that comes with the source of its standard library,
# mingw's linker, Wine, and stand-ins for two DLLs that Wine does not have. Debian packages and nothing else; the compiler and its
# libraries are unpacked aside, so that no other Rust on this machine is touched.
#
#   e2e/wine/build.sh [compiler]     compiler: the compiler alone, which builds for other processors too
#
# It lands in ${LOCALNET_CACHE:-<repository>/.cache}/wine, each part made again only when what it is made from has changed. To move to
# a newer compiler of the same release, delete that folder. One run at a time.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
cache=${LOCALNET_CACHE:-$(dirname "$(dirname "$here")")/.cache}/wine

fail() {
    echo "failed to set up Windows builds: $1" >&2
    exit 1
}

# depends PACKAGE: the libraries that it needs.
depends() {
    apt-cache depends --no-recommends --no-suggests "$1" 2>/dev/null | sed -n 's/^ *Depends: \(lib[^ ]*\)$/\1/p'
}

# libraries PACKAGE…: those that the packages need and that are not installed, and so on.
libraries() {
    todo="$*"
    seen=" "
    while [ -n "$todo" ]; do
        next=
        for package in $todo; do
            for library in $(depends "$package"); do
                case "$seen" in *" $library "*) continue ;; esac
                seen="$seen$library "
                dpkg-query -W "$library" >/dev/null 2>&1 || next="$next $library"
            done
        done
        [ -z "$next" ] || echo "$next"
        todo=$next
    done
}

# The compiler, its library's source, and cargo.
compiler() {
    packages="rustc-web cargo-web libstd-rust-web-dev rust-web-src"
    stamp="1 $packages"
    [ "$(cat "$cache/rust/stamp" 2>/dev/null)" != "$stamp" ] || return 0
    began=$(date +%s)
    work=$(mktemp -d "$cache/.new.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    for attempt in archive lists; do
        # The lists may not be there, or be older than the archive.
        [ $attempt = archive ] || apt-get update -q >/dev/null || fail "apt-get update: is the package archive reachable, and is this root?"
        # shellcheck disable=SC2046,SC2086 # lists of words
        ! (cd "$work" && apt-get -q -o APT::Sandbox::User=root download $packages $(libraries $packages) >/dev/null 2>&1) || break
        [ $attempt = archive ] || fail "downloading $packages: this Debian release may not have them"
    done
    for deb in "$work"/*.deb; do
        dpkg-deb -x "$deb" "$work"
        rm "$deb"
    done
    LD_LIBRARY_PATH="$work/usr/lib/x86_64-linux-gnu" "$work/usr/bin/rustc" --version >"$work/version" || fail "the compiler does not run"
    echo "$stamp" >"$work/stamp"
    chmod 755 "$work"
    rm -rf "$cache/rust"
    mv "$work" "$cache/rust"
    trap - EXIT
    echo "wine: unpacked $(cat "$cache/rust/version") in $(($(date +%s) - began)) s"
}

# A Windows installation, as Wine calls a folder with a registry and system files.
prefix() {
    [ ! -e "$cache/prefix/stamp" ] || return 0
    began=$(date +%s)
    rm -rf "$cache/prefix"
    "$here/run" wineboot -i >"$cache/prefix.log" 2>&1 || fail "wineboot: see $cache/prefix.log"
    touch "$cache/prefix/stamp"
    echo "wine: made a Windows installation in $(($(date +%s) - began)) s"
}

# library NAME [ARGUMENT…]: one of the DLLs that stand in for those that Wine does not have.
library() {
    name=$1
    shift
    stamp=$(sha256sum "$here/dll/$name.c" "$here/dll/json.h" "$here/build.sh" | sha256sum | cut -d' ' -f1)
    [ "$(cat "$cache/$name.stamp" 2>/dev/null)" != "$stamp" ] || return 0
    x86_64-w64-mingw32-gcc -std=c11 -O1 -Wall -Wextra -Werror -D_WIN32_WINNT=0x0A00 -shared -static-libgcc \
        -o "$cache/$name.new" "$here/dll/$name.c" "$@" || fail "compiling $name.c"
    # Programs that have the old one open keep it.
    mv "$cache/$name.new" "$cache/prefix/drive_c/windows/system32/$name.dll"
    echo "$stamp" >"$cache/$name.stamp"
    echo "wine: compiled $name.dll"
}

# A server on a named pipe, for tests.
pipe() {
    stamp=$(sha256sum "$here/pipe.c" "$here/build.sh" | sha256sum | cut -d' ' -f1)
    [ "$(cat "$cache/pipe.stamp" 2>/dev/null)" != "$stamp" ] || return 0
    x86_64-w64-mingw32-gcc -std=c11 -O1 -Wall -Wextra -Werror -D_WIN32_WINNT=0x0A00 -static-libgcc -o "$cache/pipe.new" "$here/pipe.c" -lws2_32 ||
        fail "compiling pipe.c"
    mv "$cache/pipe.new" "$cache/pipe.exe"
    echo "$stamp" >"$cache/pipe.stamp"
    echo "wine: compiled pipe.exe"
}

if [ "$(uname -m)" != x86_64 ]; then
    echo "wine: there is none for $(uname -m): WHAT RUNS ON WINDOWS IS NOT TESTED HERE" >&2
    [ -z "${CI:-}" ] || fail "this machine is no x86_64"
    exit 0
fi
[ "${1-all}" = compiler ] || for tool in x86_64-w64-mingw32-gcc /usr/lib/wine/wine64; do
    command -v "$tool" >/dev/null || fail "$tool is not installed: run e2e/deps.sh windows"
done
for tool in apt-get dpkg-deb; do
    command -v "$tool" >/dev/null || fail "$tool is missing: this is no Debian system"
done
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
compiler
[ "${1-all}" != compiler ] || exit 0
prefix
library bcryptprimitives -ladvapi32
library computenetwork -lole32 -luuid
library vmcompute
pipe
