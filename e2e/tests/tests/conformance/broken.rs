//! A backend with one fault fails the checks that name the fault. A backend without faults passes all of them.
//!
//! For each fault, only the necessary checks run.

use std::{process::Command, thread, time::Duration};

use localnet_conformance::{
    Level, Options, Outcomes,
    claims::{Claim, Claims},
    outcome::Verdict,
    run,
};

use crate::{levels, passes, program};

/// A fault, and the checks that name it.
type Fault = (&'static str, &'static [&'static str]);

/// Faults that are visible in a dump and in the backend's requests.
const OF_THE_STREAM: &[Fault] = &[
    ("keeps-deleted", &["wire/another-brain-with-less", "wire/full-state-instead-of-a-delta"]),
    ("ignores-removed", &["wire/everything-removed", "wire/one-removed-of-many", "wire/service-renamed"]),
    ("applies-cut", &["wire/connection-lost-in-an-answer", "wire/cut-after-the-last-item", "wire/cut-in-the-middle"]),
    ("merges-endpoints", &["wire/endpoint-removed", "wire/endpoint-replaced", "wire/last-endpoint-removed"]),
    ("forgets-the-token", &["wire/continues-with-the-token-of-the-last-answer"]),
    ("rounds-the-instance", &["wire/continues-with-the-token-of-the-last-answer"]),
    ("forgets-the-instance", &["wire/another-brain-with-less", "wire/another-brain-with-nothing"]),
    ("dies-on-unknown-items", &["wire/unknown-items"]),
    ("keeps-old-vips", &["wire/address-changed"]),
    ("leaks-connections", &["wire/connections-do-not-accumulate"]),
    ("ends-without-a-brain", &["life/brain-unavailable-and-back", "life/starts-without-a-brain"]),
    ("ends-with-an-error", &["life/exits-on-signal", "life/exits-on-signal-without-a-brain"]),
    ("token-before-apply", &["life/continues-after-an-apply-that-failed"]),
    ("reports-before-apply", &["life/continues-after-an-apply-that-failed"]),
];

/// Faults of readers of `localnet.v1`.
const OF_V1: &[Fault] = &[
    ("v1-forgets-the-token", &["wire/continues-with-the-token-of-the-last-answer"]),
    ("v1-applies-cut", &["wire/cut-in-the-middle", "wire/cut-after-the-last-item"]),
    ("v1-needs-no-commit", &["wire/no-commit"]),
    ("v1-ignores-the-sum", &["wire/wrong-digest", "wire/wrong-digest-of-a-full-state"]),
    ("v1-ignores-the-base", &["wire/wrong-base"]),
    ("v1-counts-removed-endpoints", &["wire/keeps-the-sum-of-digests"]),
    ("v1-ignores-replace", &["wire/service-replaced"]),
];

/// Faults that only packets reveal: these backends report only that everything is applied.
const OF_PACKETS: &[Fault] = &[
    ("liar", &["packets/dual-stack", "life/killed-and-restarted", "life/stalled"]),
    ("flushes-at-start", &["life/restarted-with-half-an-answer"]),
    ("flushes-at-end", &["life/exit-keeps-everything"]),
    ("flushes-at-each-change", &["life/changes-interrupt-nothing"]),
    ("ignores-a-flush", &["life/flushed-by-another-program"]),
    ("leaves-a-table", &["life/cleaned-up"]),
    ("one-endpoint", &["life/killed-and-restarted"]),
    ("no-affinity", &["life/affinity-with-several-endpoints"]),
    ("no-weights", &["life/weights-with-several-endpoints"]),
    ("no-hash", &["life/hash-with-several-endpoints"]),
    ("hash-without-ports", &["life/hash-with-several-endpoints"]),
    ("no-masquerade", &["packets/hairpin-everywhere"]),
    ("drops-instead-of-rejecting", &["packets/no-endpoints-reject"]),
    ("one-family", &["packets/dual-stack"]),
    ("leaves-udp-flows", &["life/stale-udp-flows-end"]),
];

/// Checks that no fault affects.
const NO_FAULT: [&str; 3] = ["wire/first-state", "wire/node-changed", "wire/service-added"];

fn of_the_stream(fault: &str) -> Options {
    let backend = format!("{} --fault {fault} --api {{api}} --dump {{dump}}", program("broken"));
    Options {
        // This creates a folder at the path that the backend writes to first.
        obstruct: Some("mkdir {folder}/dump.new".to_owned()),
        clear: Some("rmdir {folder}/dump.new".to_owned()),
        ..levels(backend, &[Level::Wire, Level::State, Level::Life])
    }
}

fn of_packets(fault: &str) -> Options {
    let claims = [Claim::Tcp, Claim::Udp, Claim::Ipv4, Claim::Ipv6, Claim::ClusterIp, Claim::Answers];
    let more =
        [Claim::Source, Claim::Reject, Claim::Affinity, Claim::Weights, Claim::Hash, Claim::Flows, Claim::Outside];
    Options {
        claims: claims.into_iter().chain(more).collect(),
        listing: Some("nft list tables".to_owned()),
        flush: Some("nft flush ruleset".to_owned()),
        cleanup: Some("sh -c 'nft delete table ip broken; nft delete table ip6 broken'".to_owned()),
        ..levels(format!("{} --fault {fault} --api {{api}} --rules", program("broken")), &[Level::Packets, Level::Life])
    }
}

/// Runs only these checks, with a short timeout for events that never happen.
fn only(options: Options, checks: impl IntoIterator<Item = &'static str>, seconds: u64) -> Outcomes {
    let only = checks.into_iter().map(str::to_owned).collect();
    run(&Options { only, patience: Duration::from_secs(seconds), ..options }, |_| {}).unwrap()
}

/// The number of faults to test at a time. They spend most of the time waiting.
const AT_A_TIME: usize = 4;

/// Verifies that the checks that name a fault fail. Other checks with the same prefix may fail, too.
#[track_caller]
fn are_found(faults: &[Fault], options: fn(&str) -> Options) {
    let is_found = |(fault, checks): &Fault| {
        let outcomes = only(options(fault), checks.iter().copied(), 3);
        let failed: Vec<String> = outcomes.failed().collect();
        let passed = checks.iter().filter(|check| !failed.iter().any(|failed| failed == *check));
        passed.map(|check| format!("{fault} passes {check}\n{}", outcomes.table(true))).collect::<String>()
    };
    let passed: String = thread::scope(|scope| {
        let groups = faults.chunks(faults.len().div_ceil(AT_A_TIME));
        let groups: Vec<_> =
            groups.map(|group| scope.spawn(move || group.iter().map(is_found).collect::<String>())).collect();
        groups.into_iter().map(|group| group.join().unwrap()).collect()
    });
    assert!(passed.is_empty(), "{passed}");
}

#[test]
fn one_that_is_not_broken_passes() {
    let outcomes = passes(&of_the_stream("none"));
    assert!(outcomes.count() > 150, "{} checks", outcomes.count());
}

#[test]
fn one_that_reads_localnet_v1_passes() {
    let outcomes = passes(&of_the_stream("v1-none"));
    assert!(outcomes.count() > 150, "{} checks", outcomes.count());
    let not_claimed = outcomes.0.iter().filter(|of| of.level == Level::Wire && of.verdict != Verdict::Passed);
    assert_eq!(not_claimed.count(), 0, "{}", outcomes.table(true));
}

#[test]
fn an_intact_backend_passes_with_packets() {
    let checks = OF_PACKETS.iter().flat_map(|(_, checks)| checks.iter().copied());
    let outcomes = only(of_packets("none"), checks, 20);
    assert!(outcomes.passed(), "{}", outcomes.table(true));
    let not_claimed = outcomes.0.iter().filter(|outcome| matches!(outcome.verdict, Verdict::NotClaimed(_)));
    assert_eq!(not_claimed.count(), 0, "{}", outcomes.table(true));
}

#[test]
fn faults_of_the_stream_are_detected() {
    are_found(OF_THE_STREAM, of_the_stream);
}

#[test]
fn faults_of_readers_of_localnet_v1_are_detected() {
    are_found(OF_V1, of_the_stream);
}

#[test]
fn faults_of_packets_are_found() {
    are_found(OF_PACKETS, of_packets);
}

#[test]
fn every_fault_is_tested_and_fails_only_its_checks() {
    let printed = Command::new(program("broken")).arg("--faults").output().unwrap().stdout;
    let printed = String::from_utf8(printed).unwrap();
    let mut listed: Vec<&str> = printed.lines().filter(|fault| !["none", "v1-none"].contains(fault)).collect();
    let mut tried: Vec<&str> = OF_THE_STREAM.iter().chain(OF_V1).chain(OF_PACKETS).map(|(fault, _)| *fault).collect();
    listed.sort_unstable();
    tried.sort_unstable();
    assert_eq!(tried, listed);
    for (fault, _) in OF_THE_STREAM.iter().chain(OF_V1) {
        let outcomes = only(of_the_stream(fault), NO_FAULT, 20);
        assert_eq!(outcomes.failed().count(), 0, "{fault}\n{}", outcomes.table(true));
    }
}

/// Regression: a backend that discarded every state and reported it as applied passed nearly all checks. Without a dump, the kit
/// must not pass any claim about contents.
#[test]
fn false_reports_pass_no_check_of_contents() {
    let backend = format!("{} --fault liar --api {{api}}", program("broken"));
    let checks =
        ["wire/service", "wire/endpoint", "wire/unknown", "state/cluster-ip", "life/killed", "life/brain-unavailable"];
    let outcomes = only(levels(backend, &[Level::Wire, Level::State, Level::Life]), checks, 20);
    let passed: Vec<_> = outcomes.0.iter().filter(|outcome| outcome.verdict == Verdict::Passed).collect();
    assert!(passed.is_empty() && outcomes.0.len() > 20, "{}", outcomes.table(true));
    assert!(outcomes.table(true).contains("nothing shows the backend's state"), "{}", outcomes.table(true));
}

/// `life` also sends packets, whatever other levels are selected.
#[test]
fn false_reports_fail_the_level_life() {
    let options = Options { levels: vec![Level::Life], claims: Claims::default(), ..of_packets("liar") };
    let outcomes = only(options, ["life/brain-unavailable-keeps-everything"], 3);
    assert_eq!(outcomes.failed().collect::<Vec<_>>(), ["life/brain-unavailable-keeps-everything"]);
}

#[test]
fn a_program_that_is_no_backend_fails_every_check() {
    let outcomes = only(Options { levels: vec![Level::Wire], ..Options::of("true") }, ["wire/service-added"], 2);
    assert_eq!(outcomes.failed().collect::<Vec<_>>(), ["wire/service-added"]);
    assert!(outcomes.table(false).contains("the backend exited with exit code 0"), "{}", outcomes.table(false));
    let state =
        only(Options { levels: vec![Level::State], ..of_the_stream("ignores-removed") }, ["state/cluster-ip"], 2);
    assert!(!state.passed(), "the next Case shows leftovers of the previous one");
}
