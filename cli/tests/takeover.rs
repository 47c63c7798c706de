//! `localnet takeover` with a program in place of kubectl that records its arguments.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    process::{Command, Output},
};

use tempfile::TempDir;

/// Reports both DaemonSets. It fails the first `wait`, as kubectl does before a pod exists, and each command that contains `REFUSED`.
const KUBECTL: &str = r#"#!/bin/sh
cd "${0%/*}"
case "$*" in
*"get daemonset localnet"*)
    echo '{"metadata": {"name": "localnet"}, "spec": {"selector": {"matchLabels": {"app": "localnet"}}, "template": {"spec":
        {"nodeSelector": {"localnet": "on"}, "containers": [{"name": "nft"}]}}}}'
    exit ;;
*"get daemonset kube-proxy"*)
    echo '{"metadata": {"name": "kube-proxy"}, "spec": {"selector": {}, "template": {"spec": {}}}}'
    exit ;;
esac
echo "$1 $2 $3 $4" >>calls
case "$*" in
*"${REFUSED:-nothing}"*) echo "forbidden" >&2; exit 1 ;;
*condition=Ready*) [ -e waited ] || { touch waited; exit 1; } ;;
esac
"#;

struct Kubectl(TempDir);

impl Kubectl {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kubectl");
        fs::write(&path, KUBECTL).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        Self(folder)
    }

    fn localnet(&self, arguments: &[&str], refused: &str) -> Output {
        let path = format!("{}:/usr/bin:/bin", self.0.path().display());
        let mut command = Command::new(env!("CARGO_BIN_EXE_localnet"));
        command.args(arguments).env("PATH", path).env("REFUSED", refused).output().unwrap()
    }

    /// The first words of each command that is not a question.
    fn calls(&self) -> Vec<String> {
        fs::read_to_string(self.0.path().join("calls")).unwrap_or_default().lines().map(str::to_owned).collect()
    }
}

#[test]
fn a_plan_changes_nothing() {
    let kubectl = Kubectl::new();
    let output = kubectl.localnet(&["takeover", "--plan", "--context", "west", "n1"], "nothing");
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("# n1, step 3 of 6: start localnet on n1\nkubectl --context=west label node n1 "), "{text}");
    assert_eq!(kubectl.calls(), [""; 0]);
}

#[test]
fn a_takeover_waits_for_a_pod_that_does_not_exist_yet() {
    let kubectl = Kubectl::new();
    let output = kubectl.localnet(&["takeover", "n1"], "nothing");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let wait = "--namespace kube-system wait --for=condition=Ready";
    let expected = [
        "--namespace kube-system patch daemonset",
        "--namespace kube-system rollout status",
        "label node n1 --overwrite",
        wait,
        wait,
        "label node n1 --overwrite",
        "--namespace kube-system wait --for=delete",
    ];
    assert_eq!(kubectl.calls(), expected);
}

#[test]
fn a_takeover_stops_at_a_step_that_fails_and_names_the_way_back() {
    let kubectl = Kubectl::new();
    let output = kubectl.localnet(&["takeover", "n1"], "label node");
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{error}");
    assert!(error.contains("takeover stopped at step 3") && error.contains("kubectl: forbidden"), "{error}");
    assert!(error.contains("localnet give-back n1"), "{error}");
    assert_eq!(kubectl.calls().len(), 3);
}
