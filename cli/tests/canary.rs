//! `localnet canary` with a program in place of kubectl that records its arguments.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    process::{Command, Output},
};

use tempfile::TempDir;

const KUBECTL: &str = r#"#!/bin/sh
echo "$*" >>"${0%/*}/calls"
case "$*" in *refused*) echo "'proxy' already has a value (other)" >&2; exit 1 ;; esac
echo service/web labeled
"#;

fn localnet(folder: &TempDir, arguments: &[&str]) -> (Output, String) {
    let program = folder.path().join("kubectl");
    fs::write(&program, KUBECTL).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:/usr/bin:/bin", folder.path().display());
    let output = Command::new(env!("CARGO_BIN_EXE_localnet")).args(arguments).env("PATH", path).output().unwrap();
    let calls = folder.path().join("calls");
    let called = fs::read_to_string(&calls).unwrap_or_default();
    _ = fs::remove_file(calls);
    (output, called)
}

#[test]
fn services_of_a_namespace_are_labelled_unless_only_the_plan_is_wanted() {
    let folder = tempfile::tempdir().unwrap();
    let add = "--namespace shop label services --all proxy=localnet";
    let (output, called) = localnet(&folder, &["canary", "add", "--plan", "--namespace", "shop"]);
    let line = format!("# let localnet serve all Services of namespace shop\nkubectl {add}\n");
    assert_eq!((String::from_utf8(output.stdout).unwrap(), called.as_str()), (line.clone(), ""));
    let (output, called) = localnet(&folder, &["canary", "add", "--namespace", "shop"]);
    assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{line}service/web labeled\n"));
    assert_eq!(called, format!("{add}\n"));
    let (_, called) = localnet(&folder, &["canary", "remove", "--namespace", "shop"]);
    assert_eq!(called, "--namespace shop label services --selector proxy=localnet proxy-\n");
}

#[test]
fn a_failure_names_the_way_back() {
    let folder = tempfile::tempdir().unwrap();
    let (output, _) = localnet(&folder, &["canary", "add", "--namespace", "refused"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{error}");
    assert!(error.contains("localnet canary remove") && error.contains("already has a value"), "{error}");
}
