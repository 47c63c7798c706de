# Input of all functions: for each proxy, the results of suite.sh.
def count(state): map(select(.state == state)) | length;
def row: "| " + join(" | ") + " |";
def table(header): (header | row), "|" + (header | map("---|") | join("")), (.[] | row);
def escaped: gsub("\\|"; "\\|");

# The tests that kube-proxy passes and localnet fails. Each of our proxies is compared with kube-proxy's mode.
def worse:
  { nft: "kube-proxy-nftables", node: "kube-proxy-nftables", iptables: "kube-proxy-iptables" } as $peers
  | INDEX(.proxy) as $runs
  | [ .[] | .proxy as $proxy | $runs[$peers[$proxy] // ""] as $peer | select($peer)
      | ($peer.tests | map(select(.state == "passed") | .test)) as $passed
      | .tests[] | select(.state == "failed" and IN(.test; $passed[])) | { proxy: $proxy, test, reason } ];

# The tables of docs/conformance.md: first what matters, then all tests.
def summary:
  . as $runs
  | map(.tests | INDEX(.test)) as $by_test
  | ( $runs | map([.proxy, (.tests | count("passed"), count("failed"), count("skipped") | tostring), "\(.took) s", .date, .commit])
      | table(["proxy", "passed", "failed", "skipped themselves", "time", "date", "commit"]) ),
    "", "Tests that kube-proxy passes in the same mode, as far as it has run, and localnet fails: \(worse | length).",
    ( [ $runs[].tests[] | select(.state == "failed") | .test ] | unique
      | select(. != [])
      | "", "## Tests that failed",
        ( map(. as $test | [($test | escaped)] + [$by_test[] | .[$test].state // "-"] + [[$by_test[][$test] | select(.state == "failed") | .reason[:200]] | unique | join("; ") | escaped])
          | table(["test"] + ($runs | map(.proxy)) + ["reason"]) ) ),
    "", "## Tests that skip themselves",
    ( [ [$runs[].tests[] | select(.state == "skipped")] | group_by(.test)[] | [(.[0].test | escaped), (map(.reason) | unique | join("; "))] ]
      | table(["test", "reason"]) );
def tests:
  . as $runs
  | map(.tests | INDEX(.test)) as $by_test
  | ( [ [$runs[].tests[].test] | unique[] as $test | [($test | escaped)] + [$by_test[] | .[$test].state // "-"] ]
      | table(["test"] + ($runs | map(.proxy))) );

# The figures for README.md.
def line: map("\(.proxy | if startswith("kube-proxy") then . else "localnet-\(.)" end) passes \(.tests | count("passed")) of \(.tests | count("passed") + count("failed"))") | join(", ") + ".";
