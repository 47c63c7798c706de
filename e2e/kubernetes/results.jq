# Ginkgo's reports as a list of {test, state, seconds, reason}, without the tests that are not in focus, and what the run was.
$ARGS.named + { tests: [
    .[][].SpecReports[]?
    | select(.LeafNodeType == "It" and .State != "pending")
    | { test: ((.ContainerHierarchyTexts // []) + [.LeafNodeText] | join(" ") | sub("^\\[sig-network\\] "; "")),
        state: (if .State == "passed" or .State == "skipped" then .State else "failed" end),
        seconds: (.RunTime / 1e9 | round),
        reason: (.Failure.Message // "" | split("\n")[0] // "" | .[:300]) }
    | select(.state != "skipped" or .reason != "")
] | sort_by(.test) }
