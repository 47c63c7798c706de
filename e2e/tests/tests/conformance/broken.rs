//! A backend that is broken in one way fails the checks that name it.

use std::{collections::BTreeSet, time::Duration};

use localnet_conformance::{Level, Options, run};

use crate::{levels, passes, program};

fn of(fault: &str) -> Options {
    let backend = format!("{} {fault} {{api}} {{dump}}", program("broken"));
    levels(backend, &[Level::Wire, Level::State, Level::Life])
}

#[test]
fn one_that_is_not_broken_passes() {
    let outcomes = passes(&of("none"));
    assert!(outcomes.count() > 150, "{} checks", outcomes.count());
}

/// What fails of these checks.
fn failed(fault: &str, level: Level, only: &[String], patience: Duration) -> BTreeSet<String> {
    let options = Options { levels: vec![level], patience, only: only.to_vec(), ..of(fault) };
    run(&options, |_| {}).unwrap().failed().collect()
}

/// What has nothing to do with any of the faults.
const SOUND: [&str; 3] = ["first-state", "node-changed", "service-added"];

/// The checks that name the fault fail, and the sound ones do not.
#[track_caller]
fn fails(fault: &str, level: Level, expected: &[&str]) {
    let names = |of: &[&str]| of.iter().map(|name| format!("{level}/{name}")).collect::<Vec<_>>();
    // What never comes is not waited for long.
    let found = failed(fault, level, &names(expected), Duration::from_secs(2));
    assert_eq!(found.into_iter().collect::<Vec<_>>(), names(expected), "{fault}");
    let sound = SOUND.map(|name| format!("wire/{name}"));
    assert_eq!(failed(fault, Level::Wire, &sound, Options::of("").patience), BTreeSet::new(), "{fault}");
}

#[test]
fn a_backend_that_keeps_deleted_services_is_found() {
    let expected = ["another-brain-with-less", "another-brain-with-nothing", "full-state-where-changes-were-asked-for"];
    fails("keeps-deleted", Level::Wire, &expected);
}

#[test]
fn a_backend_that_ignores_removed_is_found() {
    let expected =
        ["everything-removed", "one-removed-of-many", "service-removed", "service-removed-and-back", "service-renamed"];
    fails("ignores-removed", Level::Wire, &expected);
}

#[test]
fn a_backend_that_applies_a_cut_stream_is_found() {
    let expected =
        ["connection-lost-in-an-answer", "cut-after-the-last-item", "cut-after-the-node", "cut-in-the-middle"];
    fails("applies-cut", Level::Wire, &expected);
}

#[test]
fn a_backend_that_merges_endpoints_is_found() {
    fails("merges-endpoints", Level::Wire, &["endpoint-removed", "endpoint-replaced", "last-endpoint-removed"]);
}

#[test]
fn a_backend_that_forgets_the_token_is_found() {
    fails("forgets-the-token", Level::Wire, &["goes-on-with-the-token-of-the-last-answer"]);
}

#[test]
fn a_backend_that_ends_without_a_brain_is_found() {
    fails("ends-without-a-brain", Level::Life, &["brain-away-and-back", "starts-without-a-brain"]);
}

#[test]
fn a_backend_that_is_none_fails_everything() {
    let backend = "true".to_owned();
    let options = Options {
        levels: vec![Level::Wire],
        only: vec!["service-added".to_owned()],
        patience: Duration::from_secs(2),
        ..Options::of(backend)
    };
    let outcomes = run(&options, |_| {}).unwrap();
    assert_eq!(outcomes.failed().collect::<Vec<_>>(), ["wire/service-added"]);
    assert!(outcomes.table(false).contains("the backend has ended with exit code 0"), "{}", outcomes.table(false));
    let case = ["state/cluster-ip".to_owned()];
    let state = failed("ignores-removed", Level::State, &case, Duration::from_secs(2));
    assert!(!state.is_empty(), "what is left of one Case is seen in the next one");
}
