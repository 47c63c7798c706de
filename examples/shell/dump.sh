#!/bin/sh
# A backend of localnet as a shell script: grpcurl reads the state, jq makes text of it, a file holds it.
#
#   dump.sh unix:///run/localnet/brain.sock FILE
#
# Put what you want to do with the state where the file is written. Needs grpcurl and jq.
set -u

api=${1#unix://}
file=$2
proto=${PROTO:-$(dirname "$0")/../../proto}
grpcurl=${GRPCURL:-grpcurl}
answer=$file.answer
reading=

ended() {
    [ -z "$reading" ] || kill "$reading" 2>/dev/null
    rm -f "$answer"
    exit 0
}
trap ended TERM INT

# From the items of one answer to lines. Items that continue a service add endpoints to it.
lines='
def named: if (.Name // "") == "" then "-" else .Name end;
def ips: (.V4 // []) + (.V6 // []);
def scopes:
  [ if .Internal then "internal" else empty end, if .External then "external" else empty end,
    if .ShortCircuit then "shortcircuit" else empty end, if .Established then "established" else empty end ]
  | if length == 0 then "-" else join("+") end;
def key: .Service.Namespace + "/" + .Service.Name;
def vips: .Service.IPs as $ips | key as $key
  | (["cluster", $ips.ClusterIPs], ["external", $ips.ExternalIPs], ["balancer", $ips.LoadBalancerIPs])
  | .[0] as $kind | (.[1] // {}) | ips[] | "vip \($key) \($kind) \(.)";
map(select(type == "object"))
| (map(.Next // empty)[0]) as $token
| "rev \($token.InstanceID) \($token.Rev // 0)",
  (map(.Node // empty)[] | "node \(.Name // "")"),
  (map(.Endpoints // empty)
   | reduce .[] as $item ({}; ($item | key) as $key
       | if $item.Continues then .[$key].Endpoints += ($item.Endpoints // []) else .[$key] = $item end)
   | .[]
   | key as $key | (.Endpoints // []) as $endpoints
   | vips,
     (.Service.Ports // [] | .[] | select(.Protocol == "TCP" or .Protocol == "UDP" or .Protocol == "SCTP")
      | named as $port | (.Name // "") as $name
      | "port \($key) \($port) \(.Protocol) \(.Port) \(.NodePort // 0)",
        ($endpoints[] | (.IPs | ips[0]) as $ip | (.Scopes // {} | scopes) as $scopes
         | (.PortOverrides // [] | .[]) | select((.Name // "") == $name)
         | "endpoint \($key) \($port) \($ip) \(.Port) \($scopes)")),
     (.Service.ClientIP // empty | "affinity \($key) \(.TimeoutSeconds // 0)"))
'

token='{}'
while :; do
    # In the background, so that a signal is heard at once. OK is exit code 0: anything else never happened.
    "$grpcurl" -plaintext -import-path "$proto" -proto localnetv1.proto -authority localhost -max-msg-sz 16777216 \
        -d "$token" -unix "$api" localnetv1.Endpoints/Next >"$answer" &
    reading=$!
    if wait "$reading" && jq -r -s "$lines" "$answer" >"$file.new"; then
        token=$(jq -c -s '[.[] | .Next // empty][0] | {InstanceID, Rev}' "$answer")
        mv "$file.new" "$file"
    else
        sleep 0.1
    fi
    reading=
done
