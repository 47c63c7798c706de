#!/bin/sh
# Prints or sets the version of localnet.
#
#   packaging/release/version.sh          prints the version; fails if files name different versions
#   packaging/release/version.sh notes    prints the section of CHANGELOG.md for this version
#   packaging/release/version.sh X.Y.Z    sets the version in all files, dates the section "Unreleased" of CHANGELOG.md, stores the image of the
#                                         proto files (proto/released.binpb), commits, and tags the commit vX.Y.Z. Each Go module in a
#                                         top-level folder also gets a tag, as Go expects: FOLDER/vX.Y.Z
#
# The release workflow starts when you push the tags: `git push --atomic origin main vX.Y.Z`.
set -eu

cd "$(dirname "$0")/../.."
number='[0-9]+\.[0-9]+\.[0-9]+'
# What precedes the version in text: an image, a package, an archive, the label of a chart, a log line.
before='(localnet[a-z-]*[-_:@]v?|app\.kubernetes\.io/version: "|localnet-brain starts version=")'

fail() {
    echo "failed to set the version: $1" >&2
    exit 1
}

# Searches all text in which the current version may appear.
search() {
    git grep "$@" -- . ':!CHANGELOG.md' ':!*.rs'
}

# The version in each file that has one.
versions() {
    sed -En "/^(version|localnet[a-z-]* =.*version) = /s/.*\"($number)\".*/\1/p" Cargo.toml python/pyproject.toml
    sed -En "/^name = \"localnet/{n;s/^version = \"(.*)\"/\1/p}" Cargo.lock
    sed -En 's/^(version|appVersion): //p' charts/localnet/Chart.yaml
    search -hoE "$before$number" | grep -oE "$number\$"
}

version=$(sed -En 's/^version = "(.*)"/\1/p' Cargo.toml | head -n 1)
others=$(versions | sort -u | awk -v version="$version" '$0 != version')

case ${1-} in
    "")
        [ -z "$others" ] || fail "Cargo.toml has $version, other files have $(echo "$others" | xargs)"
        echo "$version"
        exit
        ;;
    notes)
        notes=$(awk -v heading="## $version " 'index($0, "## ") == 1 { inside = index($0, heading) == 1; next } inside' CHANGELOG.md)
        [ -n "$notes" ] || fail "CHANGELOG.md has no section for $version: run packaging/release/version.sh $version"
        echo "$notes"
        exit
        ;;
esac

new=$1
echo "$new" | grep -qEx "$number" || fail "$new is not a version like 1.2.3"
[ -z "$others" ] || fail "Cargo.toml has $version, other files have $(echo "$others" | xargs)"
[ -z "$(git status --porcelain)" ] || fail "commit your changes first"
tags=$({ echo "v$new"; git ls-files '*/go.mod' | sed -n "s,^\([^/]*\)/go.mod\$,\1/v$new,p"; } | xargs)
for tag in $tags; do
    ! git rev-parse --quiet --verify "refs/tags/$tag" >/dev/null || fail "the tag $tag exists"
done
grep -q '^## Unreleased$' CHANGELOG.md || fail 'CHANGELOG.md has no section "Unreleased"'

proto/buf.sh image
old=$(echo "$version" | sed 's/\./\\./g')
sed -i -E "/^(version|localnet[a-z-]* =.*version) = /s/\"$old\"/\"$new\"/" Cargo.toml python/pyproject.toml
sed -i -E "/^name = \"localnet/{n;s/^version = \"$old\"/version = \"$new\"/}" Cargo.lock
sed -i -E "s/^(version|appVersion): $old\$/\1: $new/" charts/localnet/Chart.yaml
search -zlE "$before$old" | xargs -0 sed -i -E "s,$before$old,\1$new,g"
sed -i "s/^## Unreleased\$/## Unreleased\n\n## $new - $(date --utc +%F)/" CHANGELOG.md
git commit --quiet --all --message "release: $new"
for tag in $tags; do git tag --annotate --message "localnet $new" "$tag"; done
echo "push with: git push --atomic origin $(git branch --show-current) $tags"
