#!/bin/sh
# Builds the eBPF programs: programs.o and its record, programs.txt. Both are in the repository, because only a compiler with the
# source of its library can build programs.o (docs/decisions/0025-ebpf-programs.md).
#
#   backend-ebpf/programs/build.sh           builds both files
#   backend-ebpf/programs/build.sh verify    builds them aside, and fails if a file of the repository differs
#
# The compiler is Debian's, which `e2e/wine/build.sh compiler` unpacks into the cache. No linker and no other crate is necessary:
# the compiler itself writes the object file. Two builds with the same compiler are identical.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$(dirname "$here")")
cache=${LOCALNET_CACHE:-$root/.cache}

fail() {
    echo "failed to build the eBPF programs: $1" >&2
    exit 1
}

if [ "$(uname -m)" != x86_64 ]; then
    echo "ebpf: only x86_64 has the compiler: THE PROGRAMS ARE NOT COMPARED WITH THEIR SOURCE" >&2
    [ "${1-}" = verify ] && [ -z "${CI:-}" ] || fail "this machine is no x86_64"
    exit 0
fi
"$root/e2e/wine/build.sh" compiler
rust=$(cd "$cache/wine/rust/usr" && pwd -P)
export LD_LIBRARY_PATH="$rust/lib/x86_64-linux-gnu" RUSTC_BOOTSTRAP=1
version=$("$rust/bin/rustc" --version)
library=$(echo "$rust"/src/rustc-*/library/core/src/lib.rs)
[ -f "$library" ] || fail "the source of the core library is missing: delete $cache/wine/rust"

# compile ARGUMENT…: one crate, for a processor that differs from rustc's BPF target in one point: objects are ELF files and not
# LLVM's bitcode, which would need a linker of its own.
compile() {
    "$rust/bin/rustc" --edition 2024 -Zunstable-options --target "$out/bpfel.json" -L "$out" -C panic=abort -C opt-level=3 \
        -C codegen-units=1 --remap-path-prefix="$rust=rust" --remap-path-prefix="$root=localnet" "$@"
}

out=$cache/ebpf
stamp="1 $version"
mkdir -p "$out"
exec 9>"$out/lock"
flock 9
if [ "$(cat "$out/stamp" 2>/dev/null)" != "$stamp" ]; then
    "$rust/bin/rustc" -Zunstable-options --print target-spec-json --target bpfel-unknown-none |
        sed 's/"obj-is-bitcode": true/"obj-is-bitcode": false/' >"$out/bpfel.json"
    # The programs use only inline functions of these libraries, so descriptions of the libraries are enough.
    compile --crate-name core --crate-type rlib --emit metadata --cap-lints allow -Zforce-unstable-if-unmarked -Zalways-encode-mir \
        -o "$out/libcore.rmeta" "$library" || fail "the core library"
    compile --crate-name compiler_builtins --crate-type rlib --emit metadata --cap-lints allow -Zforce-unstable-if-unmarked \
        -Zcrate-attr='feature(compiler_builtins)' -Zcrate-attr=compiler_builtins -Zcrate-attr=no_std \
        -o "$out/libcompiler_builtins.rmeta" /dev/null || fail "an empty library"
    echo "$stamp" >"$out/stamp"
fi

compile --crate-name programs --crate-type lib --emit obj -D warnings -A dead_code -o "$out/programs.o" "$here/main.rs" || fail "main.rs"
cd "$root"
{
    echo "$version"
    sha256sum backend-ebpf/programs/main.rs backend-ebpf/programs/build.sh backend-ebpf/src/decide.rs backend-ebpf/src/layout.rs
    echo "$(sha256sum <"$out/programs.o" | cut -d' ' -f1)  backend-ebpf/programs/programs.o"
} >"$out/programs.txt"

if [ "${1-}" != verify ]; then
    cp "$out/programs.o" "$out/programs.txt" "$here"
elif [ "$(head -n 1 "$here/programs.txt")" != "$version" ]; then
    echo "ebpf: THE PROGRAMS ARE NOT COMPARED WITH THEIR SOURCE, because the compiler differs: $version; run make ebpf to renew them" >&2
elif cmp "$out/programs.o" "$here/programs.o" && cmp "$out/programs.txt" "$here/programs.txt"; then
    echo "ebpf: programs.o is the result of its source"
else
    fail "programs.o is not the result of its source: run make ebpf"
fi
