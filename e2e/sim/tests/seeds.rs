//! Runs seeds: some twice, those that once failed, and a fixed range.
#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::process::Command;

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
