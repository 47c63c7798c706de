# The tables of docs/conformance.md. Input: for each proxy, the results of suite.sh.
def count(state): map(select(.state == state)) | length;
def row: "| " + join(" | ") + " |";
def table(header): (header | row), "|" + (header | map("---|") | join("")), (.[] | row);
. as $runs
| ($runs | map(.tests | INDEX(.test))) as $by_test
| ( $runs | map([.proxy, (.tests | count("passed"), count("failed"), count("skipped") | tostring), "\(.took) s", .date, .commit])
    | table(["proxy", "passed", "failed", "skipped themselves", "time", "date", "commit"]) ),
  "", "## Test by test",
  ( [ [$runs[].tests[].test] | unique[] as $test
      | [($test | gsub("\\|"; "\\|"))]
        + [ $by_test[] | .[$test] // { state: "-" } | if .state == "failed" then "**failed**: \(.reason[:160] | gsub("\\|"; "\\|"))" else .state end ] ]
    | table(["test"] + ($runs | map(.proxy))) ),
  "", "## Tests that skip themselves",
  ( [ [ $runs[].tests[] | select(.state == "skipped") | [.test, .reason] ] | unique[] ] | table(["test", "reason"]) )
