#!/bin/sh
# Pushes a Service to the brain, and keeps the readiness of its endpoints up to date.
#
#   push.sh unix:///run/localnet/brain.sock NAMESPACE/NAME CLUSTERIP:PORT ENDPOINT:PORT...
#
# Each second, the script runs $CHECK ADDRESS PORT for each endpoint. The endpoint is ready if the command succeeds (default: `nc -z`).
# It prints the problems that the brain reports. It needs grpcurl and jq, and serves IPv4.
set -u

api=${1#unix://}
namespace=${2%/*} name=${2#*/}
vip=$3
shift 3
check=${CHECK:-nc -z -w 1}
proto=${PROTO:-$(dirname "$0")/../../proto}
grpcurl=${GRPCURL:-grpcurl}

# The step that sets the Service.
service() {
    endpoints=
    for endpoint in "$@"; do
        # $check is a command with arguments.
        if $check "${endpoint%:*}" "${endpoint#*:}" >/dev/null 2>&1; then condition=READY; else condition=NOT_READY; fi
        endpoints="$endpoints{\"address\":\"${endpoint%:*}\",\"ports\":[{\"number\":${endpoint#*:}}],"
        endpoints="$endpoints\"condition\":\"ENDPOINT_CONDITION_$condition\"},"
    done
    printf '{"set":{"key":{"namespace":"%s","name":"%s"},' "$namespace" "$name"
    printf '"addresses":[{"address":"%s","kind":"ADDRESS_KIND_CLUSTER_IP"}],' "${vip%:*}"
    printf '"ports":[{"number":%s}],"endpoints":[%s]}}\n' "${vip#*:}" "${endpoints%,}"
}

# The steps of a stream. The first commit ends the list. Later ones often commit nothing: they only reveal that the stream has ended.
steps() {
    before=
    while now=$(service "$@"); do
        [ "$now" = "$before" ] || echo "$now" || return
        echo '{"commit":{}}' 2>/dev/null || return
        before=$now
        sleep 1
    done
}

# After the end of a stream, send the list again.
while :; do
    steps "$@" |
        "$grpcurl" -plaintext -import-path "$proto" -proto localnet/source/v1alpha1/source.proto -authority localhost -d @ \
            -unix "$api" localnet.source.v1alpha1.SourceService/Push |
        jq -c --unbuffered '.committed.problems[]?'
    sleep 1
done
