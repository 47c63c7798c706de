# Input of all functions: for each proxy, the results of suite.sh.
def count(state): map(select(.state == state)) | length;
def row: "| " + join(" | ") + " |";
def table(header): (header | row), "|" + (header | map("---|") | join("")), (.[] | row);
def escaped: gsub("\\|"; "\\|");

# The tests that kube-proxy passes and localnet fails. Each of our proxies is compared with kube-proxy's mode.
def worse:
  { nft: "kube-proxy-nftables", ebpf: "kube-proxy-nftables", node: "kube-proxy-nftables", iptables: "kube-proxy-iptables" } as $peers
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

# Input: the lines of docs/conformance.md. The results that it shows, for each proxy.
def of_page:
  def cells: gsub("\\\\\\|"; "\u0001") | ltrimstr("| ") | rtrimstr(" |") | split(" | ") | map(gsub("\u0001"; "|"));
  def rows(title): (index(title) // error("docs/conformance.md has no line \(title)")) as $at
    | [ label $out | .[$at + 1:][] | if startswith("#") then break $out else select(startswith("| ")) | cells end ];
  ( join(" ") | capture("Kubernetes (?<kubernetes>v[0-9.]+) .* cluster of (?<nodes>[0-9]+) nodes.* Linux (?<kernel>[0-9.]+[0-9])") ) as $run
  | ( INDEX(rows("## Tests that skip themselves")[1:][]; .[0]) | map_values(.[1]) ) as $skipped
  | ( if index("## Tests that failed") then INDEX(rows("## Tests that failed")[1:][]; .[0]) | map_values(.[-1]) else {} end ) as $failed
  | rows("## Test by test") as $tests
  | map(select(startswith("| "))) | map(cells) | .[1:index([first(.[] | select(.[0] == "name contains" or .[0] == "test"))])][]
  | .[0] as $proxy | ($tests[0] | index($proxy)) as $column | select($column)
  | $run + { proxy: $proxy, focus: "", took: (.[4] | rtrimstr(" s")), date: .[5], commit: .[6],
      tests: [ $tests[1:][] | .[0] as $test | .[$column] as $state | select($state != "-")
        | { test: $test, state: $state, reason: ({ $skipped, $failed }[$state][$test] // "") } ] };

# The figures for README.md.
def line: map("\(.proxy | if startswith("kube-proxy") then . else "localnet-\(.)" end) passes \(.tests | count("passed")) of \(.tests | count("passed") + count("failed"))") | join(", ") + ".";
