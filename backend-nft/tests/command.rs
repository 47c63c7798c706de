//! Tests the command line: it executes a request, or refuses it and names the remedy. These tests need no privileges.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{fs, process::Command};

fn localnet_nft(arguments: &[&str], rust_log: &str) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_localnet-nft"));
    let output = command.args(arguments).env("RUST_LOG", rust_log).output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[track_caller]
fn check_refused(arguments: &[&str], words: &[&str]) {
    let (code, errors) = localnet_nft(arguments, "");
    assert_eq!(code, Some(1), "{arguments:?}: {errors}");
    for word in words {
        assert!(errors.contains(word), "{word:?} is missing in {errors}");
    }
}

#[test]
fn contradicting_flags_are_refused() {
    check_refused(&["--cleanup", "--init-only"], &["--cleanup: cannot be combined with --init-only"]);
    check_refused(&["--cleanup", "--dry-run"], &["--dry-run changes nothing, but --cleanup does"]);
    check_refused(&["init", "--cleanup"], &["--cleanup: does not apply to the command init"]);
    check_refused(
        &["init", "--write-config-to", "/nowhere"],
        &["--write-config-to: does not apply to the command init"],
    );
    check_refused(&["--dry-run", "--tls-ca", "/none"], &["--tls-ca:", "use --api tcp://HOST:PORT"]);
}

/// `tracing` interprets an unknown level as the name of a module and shows only its lines, of which there are none.
#[test]
fn an_unknown_log_level_is_refused() {
    for level in ["verbose", "warning", "info,loud", "localnet=loud"] {
        let (code, errors) = localnet_nft(&["--dry-run", "--once"], level);
        assert_eq!(code, Some(1), "{errors}");
        assert!(errors.contains("RUST_LOG") && errors.contains("off, error, warn, info, debug, trace"), "{errors}");
    }
}

/// kube-proxy accepts `_` instead of `-` in the names of flags.
#[test]
fn flags_may_be_written_with_underscores() {
    let folder = tempfile::tempdir().unwrap();
    let written = folder.path().join("config.yaml");
    let (code, errors) = localnet_nft(
        &["--proxy_mode=nftables", "--cluster_cidr", "10.180.0.0/16", "--write_config_to", written.to_str().unwrap()],
        "",
    );
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    let text = fs::read_to_string(written).unwrap();
    assert!(text.contains("mode: nftables") && text.contains("10.180.0.0/16"), "{text}");
}
