#!/bin/sh
# Prints the licence texts of all crates that the released programs contain. Each text names its crates.
set -eu

cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# The command, each program that has a service or runs on Windows, and the conformance kit.
programs="localnet localnet-conformance localnet-win $(basename --suffix .service --multiple packaging/systemd/*.service)"

cat <<'END'
The programs of localnet are licensed under the Apache License 2.0, and contain the libraries below. They also contain Rust's standard library (MIT or
Apache-2.0), and the GNU C Library (LGPL-2.1-or-later) or, on Windows, mingw-w64's runtime (ZPL-2.1). To link the programs with another version of the GNU C Library, run packaging/programs.sh in the
source of this release.
END

# Name, version, licence and folder of each crate from a registry that a program contains.
for platform in x86_64-unknown-linux-gnu x86_64-pc-windows-gnu; do
    "${CARGO:-cargo}" metadata --locked --format-version 1 --filter-platform "$platform" | jq -r --arg programs "$programs" '
    (.packages | INDEX(.id)) as $packages
    | (.resolve.nodes | map({key: .id, value: [.deps[] | select(any(.dep_kinds[]; .kind == null)).pkg]}) | from_entries) as $uses
    | def all: (. + map($uses[.][]) | unique) as $more | if $more == . then . else $more | all end;
    [.packages[] | select(.source == null and IN(.name; $programs | split(" ")[])).id] | unique | all | map($packages[.] | select(.source))
    | .[] | [.name, .version, .license, (.manifest_path | rtrimstr("/Cargo.toml"))] | @tsv'
done | sort -u >"$work/crates"

tab=$(printf '\t')
while IFS=$tab read -r name version licence folder; do
    found=
    for file in "$folder"/LICEN[SC]E* "$folder"/licen[sc]e* "$folder"/COPYING* "$folder"/NOTICE* "$folder"/UNLICENSE*; do
        [ -f "$file" ] || continue
        found=1
        text=$work/text-$(sha256sum "$file" | cut -c 1-16)
        [ -e "$text" ] || cp "$file" "$text"
        echo "$name $version ($licence)" >>"$text.crates"
    done
    [ -n "$found" ] || echo "$name $version ($licence)" >>"$work/without"
done <"$work/crates"

for text in "$work"/text-*; do
    case $text in *.crates) continue ;; esac
    printf '\n%s\n\n' ------------------------------------------------------------------------
    sort -u "$text.crates"
    echo
    cat "$text"
done
if [ -e "$work/without" ]; then
    printf '\n%s\n\n' ------------------------------------------------------------------------
    echo "These crates name their licence, but contain no text:"
    sort -u "$work/without"
fi
