#!/bin/sh
# A backend for localnet as a shell script: grpcurl reads the state, jq converts it to text, a file stores it.
#
#   dump.sh unix:///run/localnet/brain.sock FILE
#
# To do something else with the state, replace the command that writes the file. It needs grpcurl and jq.
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

# Convert the items of one answer to lines. An item with Continues adds endpoints to its Service.
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
    # Run in the background, so that the script handles signals at once. Exit code 0 means OK; discard any other answer.
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
