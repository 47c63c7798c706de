//! The kit as a program.

use std::{fs, process::Command};

use crate::program;

fn kit(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(program("localnet-conformance")).args(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn the_kit_prints_a_table_and_writes_junit() {
    let folder = tempfile::tempdir().unwrap();
    let junit = folder.path().join("junit.xml");
    let good = format!("{} --fault none --api {{api}} --dump {{dump}}", program("broken"));
    let only = ["--levels", "wire,state", "--only", "service-added", "--junit", junit.to_str().unwrap()];
    let (code, table, log) = kit(&[&["--backend", &good][..], &only].concat());
    assert_eq!(code, Some(0), "{table}{log}");
    assert!(table.contains("wire             1       0            0"), "{table}");
    assert!(log.contains("ok      wire/service-added"), "{log}");
    let junit = fs::read_to_string(junit).unwrap();
    assert!(junit.contains("<testsuite name=\"wire\" tests=\"1\" failures=\"0\""), "{junit}");
}

#[test]
fn failures_exit_with_1_and_errors_with_2() {
    let (code, table, _) = kit(&["--backend", "false", "--levels", "wire", "--only", "first-state", "--patience", "2"]);
    assert_eq!(code, Some(1));
    assert!(table.starts_with("FAILED  wire/first-state"), "{table}");
    let (code, _, log) = kit(&["--backend", "true", "--levels", "state", "--cases", "/none"]);
    assert_eq!(code, Some(2));
    assert!(log.contains("/none"), "{log}");
    assert_eq!(kit(&["--backend", "true", "--claims", "quic"]).0, Some(2));
    assert_eq!(kit(&["--backend", "true", "--levels", "all"]).0, Some(2));
    assert_eq!(kit(&[]).0, Some(2));
}

#[test]
fn tcp_and_another_signal_can_be_selected() {
    let backend = format!("{} --api tcp://{{tcp}} --dump {{dump}}", program("incremental"));
    let only = "wire/another-brain,wire/connection-lost,life/exits-on-signal,life/starts-without-a-brain";
    let levels = ["--levels", "wire,life", "--claims", "none", "--only", only, "--stop", "INT", "--at-a-time", "2"];
    let (code, table, log) = kit(&[&["--backend", &backend][..], &levels].concat());
    assert_eq!(code, Some(0), "{table}{log}");
    assert!(
        table.contains("wire             5       0            0\nlife             4       0            0"),
        "{table}"
    );
    assert_eq!(kit(&["--backend", "true", "--stop", "KILL"]).0, Some(2));
}

/// In this test, the dump of the backend is the listing. The backend does not repair it.
#[test]
fn a_listing_shows_differences_that_packets_do_not() {
    let backend = format!("{} --fault none --api {{api}} --dump {{dump}}", program("broken"));
    let life = |more: &[&str]| {
        let only = "life/killed-and-restarted,keeps-everything,life/flushed,life/cleaned";
        let arguments =
            ["--backend", &backend, "--levels", "life", "--claims", "none", "--only", only, "--patience", "3"];
        kit(&[&arguments, more].concat())
    };
    let (flush, listing) = (["--flush", "rm {folder}/dump"], ["--listing", "cat {folder}/dump || true"]);
    let (code, table, _) = life(&[flush, ["--cleanup", "true"]].concat());
    assert_eq!(code, Some(0), "{table}");
    assert!(table.contains("life             4       0            2"), "{table}");
    let (code, table, _) = life(&[flush, listing, ["--cleanup", "true"]].concat());
    assert_eq!(code, Some(1), "{table}");
    assert!(
        table.contains("FAILED  life/flushed-by-another-program") && table.contains("FAILED  life/cleaned-up"),
        "{table}"
    );
    assert!(table.contains("life             4       2            0"), "{table}");
    let (code, table, _) = life(&[listing, ["--cleanup", "rm {folder}/dump"]].concat());
    assert_eq!(code, Some(0), "{table}");
    assert!(table.contains("life             5       0            1"), "{table}");
}
