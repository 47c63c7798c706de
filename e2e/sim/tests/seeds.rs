//! Runs seeds: some twice, those that once failed, and a fixed range.
#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{collections::BTreeSet, process::Command};

/// The number of seeds that run twice: one for each backend.
const TWICE: u64 = 5;
/// The number of seeds in the fixed range.
const FIXED: &str = "60";

fn run(arguments: &[&str]) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_localnet-sim")).args(arguments).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text)
}

#[test]
fn a_seed_always_gives_the_same_trace() {
    for seed in 0..TWICE {
        let seed = seed.to_string();
        let (passes, output) = run(&["run", &seed]);
        assert!(passes, "{output}");
        // The trace must not change the run.
        let (_, traced) = run(&["run", &seed, "--trace"]);
        assert_eq!(output.lines().next(), traced.lines().next(), "seed {seed}");
    }
}

/// Each line of the corpus is a seed that once violated an invariant, its backend, and the bug that it found.
#[test]
fn seeds_that_once_failed_pass() {
    for line in include_str!("corpus.txt").lines().filter(|line| !line.starts_with('#')) {
        let [seed, backend] = line.split_whitespace().take(2).collect::<Vec<_>>()[..] else { panic!("{line}") };
        let (passes, text) = run(&["run", seed, "--backend", backend]);
        assert!(passes, "{line}\n{text}");
    }
}

/// The output contains the command that repeats a seed that failed.
#[test]
fn a_fixed_range_of_seeds_violates_no_invariant() {
    let (passes, text) = run(&["search", "--first", "1", "--seeds", FIXED]);
    assert!(passes, "{text}");
}

/// `e2e/sim/mutants.sh` plants the mutants.
#[test]
fn every_mutant_can_be_planted() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/mutants");
    for entry in std::fs::read_dir(folder).unwrap() {
        let patch = entry.unwrap().path();
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        let check = Command::new("git").args(["apply", "--check"]).arg(&patch).current_dir(root).output().unwrap();
        assert!(check.status.success(), "{}: {}", patch.display(), String::from_utf8_lossy(&check.stderr));
    }
}

/// The numbers or names in the first column of the tables below a heading of `docs/simulation.md`, each with the last column.
fn rows(heading: &str) -> Vec<(&'static str, &'static str)> {
    let (_, section) = include_str!("../../../docs/simulation.md").split_once(heading).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let table = section.lines().skip_while(|line| !line.starts_with("|---")).skip(1);
    let cells = table.filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    cells.map(|row| (row.split(" | ").next().unwrap(), row.rsplit(" | ").next().unwrap())).collect()
}

#[test]
fn the_page_lists_the_seeds_of_the_corpus() {
    let corpus = include_str!("corpus.txt").lines().filter(|line| !line.starts_with('#'));
    let corpus: BTreeSet<_> = corpus.filter_map(|line| line.split(' ').next()).collect();
    let listed = rows("## Bugs that it found\n").into_iter().flat_map(|(seeds, _)| seeds.split(", "));
    assert_eq!(listed.collect::<BTreeSet<_>>(), corpus);
}

/// Each mutant has the invariant that it violates, or a reason why no seed finds it. The page counts them.
#[test]
fn the_page_lists_the_mutants() {
    let rows = rows("## Mutants\n");
    let listed: BTreeSet<_> = rows.iter().map(|(name, _)| format!("{}.patch", name.trim_matches('`'))).collect();
    let entries = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/mutants")).unwrap();
    let planted: BTreeSet<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(listed, planted);
    let (found, others): (Vec<_>, Vec<_>) = rows.iter().partition(|(_, result)| result.starts_with('`'));
    let without_reason: Vec<_> = others.iter().filter(|(_, result)| !result.starts_with("not found: ")).collect();
    assert!(without_reason.is_empty(), "{without_reason:?}");
    let count = format!("{} of {}", found.len(), rows.len());
    assert!(include_str!("../../../docs/simulation.md").contains(&count), "the page does not say {count}");
}
