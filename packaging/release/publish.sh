#!/bin/sh
# Publishes the release in target/dist: images, chart, files, crates and the Python library. Run it again if it fails: what is published already
# stays the same. The tag go/vX.Y.Z publishes the Go module, so the script only checks that this tag exists.
#
#   packaging/release/publish.sh    needs skopeo, cosign, gh, cargo and twine, with credentials: the workflow .github/workflows/release.yml has them
#   DIST=…                          another folder than target/dist
#   REGISTRY=…                      another registry than that in packaging/release/registry
#   PLAIN_HTTP=1                    a registry without TLS, for tests
#
# cosign signs with the identity of the workflow (keyless), and records each signature in a public log. Each image gets a signature, and
# attestations of its bill of materials and of its provenance (SLSA). The files have one signature and one provenance, of their checksums. twine
# needs no token: PyPI trusts the workflow (trusted publishing).
set -eu

cd "$(dirname "$0")/../.."
version=$(packaging/release/version.sh)
: "${GITHUB_SHA:?only the workflow release.yml can publish: packaging/release/version.sh explains how to start it}"
dist=$(cd "${DIST:-target/dist}" && pwd)
registry=${REGISTRY:-$(cat packaging/release/registry)}
insecure=
plain=
[ -z "${PLAIN_HTTP-}" ] || insecure=--dest-tls-verify=false plain=--plain-http

# Check everything that can be refused before anything is published.
for tag in $(git ls-files '*/go.mod' | sed -n "s,^\([^/]*\)/go.mod\$,\1/v$version,p"); do
    gh api --silent "repos/$GITHUB_REPOSITORY/git/ref/tags/$tag" || { echo "failed to publish: the tag $tag is missing: push it" >&2; exit 1; }
done
wheel=$dist/files/localnet_client-$version-py3-none-any.whl
twine check --strict "$wheel"
# Crates that are published already stay: crates.io accepts each version once. The others must build from their packages before anything is published.
for crate in $(cargo metadata --no-deps --format-version 1 | jq -r '.packages[] | select(.publish != []) | .name'); do
    cargo info --registry crates-io "$crate@$version" >/dev/null 2>&1 || set -- "$@" --package "$crate"
done
[ $# -eq 0 ] || cargo publish --dry-run --locked "$@"

# What built the release, from which source: the predicate of SLSA for GitHub's workflows.
jq -n '
    env as $e
    | ($e.GITHUB_SERVER_URL + "/" + $e.GITHUB_REPOSITORY) as $repository
    | ($e.GITHUB_SERVER_URL + "/" + $e.GITHUB_WORKFLOW_REF) as $workflow
    | {
        buildDefinition: {
            buildType: "https://slsa-framework.github.io/github-actions-buildtypes/workflow/v1",
            externalParameters: {workflow: {
                ref: $e.GITHUB_REF, repository: $repository, path: ".github/workflows/release.yml"
            }},
            internalParameters: {github: {event_name: $e.GITHUB_EVENT_NAME, runner_environment: $e.RUNNER_ENVIRONMENT}},
            resolvedDependencies: [{uri: ("git+" + $repository + "@" + $e.GITHUB_REF), digest: {gitCommit: $e.GITHUB_SHA}}]
        },
        runDetails: {
            builder: {id: $workflow},
            metadata: {invocationId: ($repository + "/actions/runs/" + $e.GITHUB_RUN_ID + "/attempts/" + $e.GITHUB_RUN_ATTEMPT)}
        }
    }' >"$dist/provenance.json"

# attest IMAGE TYPE FILE: adds a signed statement about an image.
attest() {
    cosign attest --yes --type "$2" --predicate "$3" "$1"
}

while IFS=': ' read -r name digest <&3; do
    skopeo copy --all --preserve-digests $insecure "oci:$dist/images:$name-$version" "docker://$registry/$name:$version"
    image=$registry/$name@$digest
    cosign sign --yes --recursive "$image"
    attest "$image" cyclonedx "$dist/sbom/$name.cdx.json"
    attest "$image" slsaprovenance1 "$dist/provenance.json"
done 3<"$dist/digests.yaml"

digest=$("${LOCALNET_CACHE:-.cache}/helm/bin/helm" push $plain "$dist/files/localnet-$version.tgz" "oci://$registry/charts" 2>&1 | tee /dev/stderr |
    sed -n 's/^Digest: //p')
image=$registry/charts/localnet@${digest:?the chart was not pushed}
cosign sign --yes "$image"
attest "$image" slsaprovenance1 "$dist/provenance.json"

sums=$dist/files/SHA256SUMS
cosign sign-blob --yes --bundle "$sums.sigstore.json" "$sums"
cosign attest-blob --yes --type slsaprovenance1 --predicate "$dist/provenance.json" --bundle "$sums.provenance.json" "$sums"
packaging/release/version.sh notes >"$dist/notes.md"
gh release view "v$version" >/dev/null 2>&1 || gh release create "v$version" --verify-tag --draft --title "localnet $version" --notes-file "$dist/notes.md"
gh release upload "v$version" --clobber "$dist"/files/*
gh release edit "v$version" --draft=false

[ $# -eq 0 ] || cargo publish --no-verify --locked "$@"
twine upload --non-interactive --skip-existing "$wheel"
