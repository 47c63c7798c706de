#!/bin/bash
# Shows that the tests which docs/museum.md names fail on the old bugs. Plants all patches of e2e/museum, builds the tests, restores
# the code, and runs the tests of each row without and with the row's patch, which the variable MUTANT switches on. Skips the tests
# of e2e, which take minutes. Arguments are rows; the default is all. Needs root for network namespaces.
set -u -o pipefail
shopt -s extglob

cd "$(dirname "$0")/.." || exit 1
[ "$(id -u)" = 0 ] || { echo "the tests create network namespaces: run this as root" >&2; exit 1; }
# A test that hangs fails.
limit=${LIMIT:-180}
export PROPTEST_DISABLE_FAILURE_PERSISTENCE=1
unset MUTANT

# Prints a line for each test of a row: the row and the test, such as `B-02 linux/src/pace.rs::NAME` or `B-36 case:NAME`.
tests() {
    sed -n 's/^| \([BL]-[0-9]*\) .*|\([^|]*\)|$/\1 \2/p' docs/museum.md | while read -r row cell; do
        echo "$cell" | sed 's/Case `/`case:/g' | grep -o '`[^`]*`' | tr -d '`' | grep -v '^e2e/' | grep -E '^case:|::' | sed "s/^/$row /"
    done
}

# The tests that compare Cases with the expected states and plans.
case_tests="brain/tests/cases.rs::every_case_has_its_state backend-nft/tests/cases.rs::states_give_plans"

planted=
restore() {
    for patch in $planted; do git apply --reverse "$patch"; done
    planted=
}
trap restore EXIT
trap 'exit 1' INT TERM
for patch in e2e/museum/*.patch; do
    git apply "$patch" || exit 1
    planted="$patch $planted"
done
all=$(tests)
options=$(for test in $(echo "$all" | sed 's/.* //; s/^case:.*//') $case_tests; do
    file=${test%%::*}
    case $file in */src/*) folder=${file%%/src/*}; echo --lib ;; *) folder=${file%%/tests/*}; file=${file#"$folder/tests/"}; echo "--test ${file%%[/.]*}" ;; esac
    sed -n 's/^name = "\(.*\)"$/-p \1/p' "$folder/Cargo.toml" | head -n 1
done | sort -u)
# A line for each test program: the file of its crate, and the program.
# shellcheck disable=SC2086
built=$("${CARGO:-cargo}" test --locked --no-run --message-format=json-render-diagnostics $options |
    sed -n 's/.*"src_path":"\([^"]*\)".*"executable":"\([^"]*\)".*/\1 \2/p') || exit 1
restore

# The test program that contains the tests of a file.
program() {
    local file
    case $1 in
    */src/*) file=${1%%/src/*}/src/lib.rs ;;
    *) file=${1#*/tests/} && file=${1%%/tests/*}/tests/${file%%[/.]*} ;;
    esac
    echo "$built" | sed -n -E "s#^$PWD/${file%.rs}(\.rs|/main\.rs) ##p"
}

# The name of a test in its program, as `--list` prints it.
full_name() {
    local module
    case $1 in
    */src/*) module=${1#*/src/} ;;
    *) module=${1#*/tests/} && case $module in */*) module=${module#*/} ;; *) module= ;; esac ;;
    esac
    module=$(echo "$module" | sed -E 's/\.rs$//; s/(^|\/)(mod|main|lib)$//; s/\//::/g')
    echo "${module:+$module::}$2"
}

# Runs a test. Stores its output in $output.
output=$(mktemp)
run() {
    local file=${1%%::*} name program
    program=$(program "$file")
    for name in "$(full_name "$file" "${1##*::}")" "$(full_name "$file" "tests::${1##*::}")"; do
        "$program" --list 2>/dev/null | grep -x "$name: test" >/dev/null || continue
        (cd "${file%%/@(src|tests)/*}" && timeout "$limit" "$program" --exact "$name") >"$output" 2>&1
        return
    done
    echo "$1 is in no program" | tee "$output" >&2
    return 2
}

# Whether a test of a row passes.
passes() {
    case $1 in
    case:*)
        local test
        for test in $case_tests; do
            run "$test" || return 1
        done
        ;;
    *) run "$1" ;;
    esac
}

broken() { git ls-files --others e2e/fuzz/corpus | grep /broken- | sort; }
before=$(broken)
good=0 rows=0
for patch in e2e/museum/*.patch; do
    row=$(basename "$patch" .patch)
    [ $# = 0 ] || case " $* " in *" $row "*) ;; *) continue ;; esac
    rows=$((rows + 1)) without=untested with=fails
    for test in $(echo "$all" | sed -n "s/^$row //p"); do
        [ "$without" != untested ] || without=passes
        passes "$test" || { without="FAILS in $test" && tail -n 40 "$output" >&2; }
        ! MUTANT=$row passes "$test" || with="PASSES in $test"
    done
    printf '%s %s without, %s with\n' "$row" "$without" "$with"
    [ "$without $with" != "passes fails" ] || good=$((good + 1))
done
# A fuzz target that fails with a mutant keeps its input.
comm -13 <(echo "$before") <(broken) | xargs -r rm -f
rm -f "$output"
echo "$good of $rows rows pass without and fail with their bug"
[ "$good" = "$rows" ] && [ "$rows" -gt 0 ]
