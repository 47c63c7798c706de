//! Tests of the program: exit codes, one line for each failure, and a clean shutdown.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::net::UnixListener,
    path::Path,
    process::{Child, Command, Stdio},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tempfile::TempDir;

const CLUSTER: &str = "
apiVersion: v1
kind: Service
metadata: { name: web, namespace: default }
spec: { clusterIP: 10.96.0.10, ports: [{ port: 80 }] }
---
apiVersion: v1
kind: Node
metadata: { name: node-a }
";

fn brain(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_localnet-brain"));
    command
        .args(arguments)
        .env_remove("RUST_LOG")
        .env_remove("KUBECONFIG")
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    command
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Returns a folder with a cluster, its `--source`, and the `--listen` of a socket in it.
fn folder() -> (TempDir, String, String) {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("cluster.yaml"), CLUSTER).unwrap();
    let source = format!("file:{}", text(&folder.path().join("cluster.yaml")));
    let listen = format!("unix://{}", text(&folder.path().join("brain.sock")));
    (folder, source, listen)
}

/// Runs the program, and checks its exit code and its only error line, which contains all `words`.
#[track_caller]
fn check_failure(arguments: &[&str], code: i32, words: &[&str]) {
    let output = brain(arguments).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{errors}");
    let lines: Vec<_> = errors.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(lines.len(), 1, "{errors}");
    for word in words {
        assert!(lines[0].contains(word), "{word:?} is missing in {errors}");
    }
}

#[test]
fn a_failure_is_one_line_and_exit_code_1() {
    let (folder, source, listen) = folder();
    check_failure(
        &["--source", "kube:/none/kubeconfig", "--listen", &listen],
        1,
        &["failed to use kubeconfig /none/kubeconfig", "No such file"],
    );
    check_failure(
        &["--source", &source, "--listen", "unix:///proc/self/brain.sock"],
        1,
        &["/proc/self", "make it writable"],
    );
    check_failure(&["--source", &source, "--listen", "tcp://0.0.0.0:0"], 1, &["--insecure-tcp"]);
    // tracing-subscriber would take such a word for the name of a module, and show nothing.
    for level in ["a=loud", "verbose", "warning"] {
        let arguments = ["--source", &source, "--listen", &listen, "--log-level", level];
        check_failure(&arguments, 1, &["--log-level", level, "off, error, warn, info, debug, trace"]);
    }
    let twice = ["--source", &source, "--listen", &listen, "--listen", &listen];
    check_failure(&twice, 1, &[&listen, "is given twice; remove one of the two"]);
    let tcp = ["--source", &source, "--listen", "tcp://127.0.0.1:0"];
    check_failure(&[&tcp[..], &["--allow-uid", "7"]].concat(), 1, &["--allow-uid applies to unix sockets", "remove"]);
    let unix = ["--source", &source, "--listen", &listen, "--insecure-tcp"];
    check_failure(&unix, 1, &["--insecure-tcp applies to TCP", "tcp://HOST:PORT"]);
    check_failure(&["--source", "file:/none/cluster.yaml", "--listen", &listen], 1, &["/none/cluster.yaml"]);

    fs::write(folder.path().join("cluster.yaml"), "kind: Service\nspec: [").unwrap();
    check_failure(&["--source", &source, "--listen", &listen], 1, &["cluster.yaml"]);

    let _other = UnixListener::bind(folder.path().join("brain.sock")).unwrap();
    check_failure(&["--source", &source, "--listen", &listen], 1, &["another process listens on this"]);
}

/// kube-proxy has both flags. The brain programs nothing, so it can neither clean up nor initialize.
#[test]
fn flags_that_only_a_backend_can_obey_are_refused() {
    let (_folder, source, listen) = folder();
    let serve = ["--source", source.as_str(), "--listen", listen.as_str()];
    for (flag, command) in
        [("--cleanup", "the backend's command `cleanup`"), ("--init-only", "the backend's command `init`")]
    {
        check_failure(&[&serve[..], &[flag]].concat(), 1, &[flag, command]);
        check_failure(&[flag], 1, &[flag, command]);
        check_failure(&["check", "--source", &source, flag], 2, &[flag, command]);
    }
    check_failure(&["--cleanup", "--init-only"], 1, &["--cleanup: cannot be combined with --init-only"]);
}

#[test]
fn each_problem_of_a_configuration_has_a_line() {
    let (folder, source, listen) = folder();
    let config = folder.path().join("config.yaml");
    let text = "apiVersion: kubeproxy.config.k8s.io/v1alpha2\nkind: KubeProxyConfiguration\nmode: x\nsyncPeriod: -1s\n";
    fs::write(&config, text).unwrap();
    let config = config.to_str().unwrap();
    let output = brain(&["--source", &source, "--listen", &listen, "--config", config]).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    let prefixes: Vec<_> = errors.lines().filter_map(|line| line.split(" Invalid value").next()).collect();
    assert_eq!(prefixes, [format!("error: {config}:3: mode:"), format!("error: {config}:4: syncPeriod:")], "{errors}");
}

/// A script must notice if a migration changes the behaviour of a node.
#[test]
fn the_exit_code_of_check_reports_differences() {
    let (folder, source, _) = folder();
    let node_port = "apiVersion: v1
kind: Service
metadata: { name: open, namespace: default }
spec: { type: NodePort, clusterIP: 10.96.0.11, ports: [{ port: 80, nodePort: 30080 }] }
";
    let config = folder.path().join("config.yaml");
    fs::write(&config, "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n").unwrap();
    let config = config.to_str().unwrap();
    let check = |arguments: &[&str]| {
        let always = ["check", "--source", &source, "--node-name", "node-a", "--config", config];
        let output = brain(&[&always, arguments].concat()).stdout(Stdio::piped()).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, report) = check(&[]);
    assert_eq!((code, report.as_str()), (Some(0), "1 Services, all behave as with kube-proxy\n"));
    fs::write(folder.path().join("cluster.yaml"), format!("{CLUSTER}---\n{node_port}")).unwrap();
    let (code, report) = check(&[]);
    assert_eq!(code, Some(1), "{report}");
    assert!(report.contains("(docs/differences.md, 5)") && report.contains("(docs/differences.md, 13)"), "{report}");
    let (code, report) = check(&["--backend", "iptables"]);
    assert_eq!(code, Some(1), "{report}");
    assert!(!report.contains("(docs/differences.md, 13)"), "{report}");
    check_failure(&["check", "--source", "file:/none/cluster.yaml"], 2, &["/none/cluster.yaml"]);
}

#[test]
fn an_invalid_argument_is_exit_code_2() {
    check_failure(&["--source", "nowhere"], 2, &["--source", "file:PATH, kube or kube:KUBECONFIG"]);
    check_failure(&["--source", "kube", "--listen", "/run/brain.sock"], 2, &["unix:///absolute/path"]);
    check_failure(&["--no-such-flag"], 2, &["--no-such-flag"]);
}

/// Starts a brain and waits until it serves. Returns the log up to there.
fn serving(arguments: &[&str]) -> (Child, Vec<String>) {
    let mut child = brain(arguments).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut log = Vec::new();
    while let Some(line) = lines.next().transpose().unwrap() {
        log.push(line);
        if log.last().is_some_and(|line| line.contains("serving")) {
            // Drain the log, or a full pipe would block the program.
            std::thread::spawn(move || lines.count());
            return (child, log);
        }
    }
    panic!("the brain has ended: {:?}: {log:#?}", child.wait());
}

#[test]
fn a_signal_shuts_the_brain_down_cleanly() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let (folder, source, listen) = folder();
        let (mut child, _) = serving(&["--source", &source, "--node-name", "node-a", "--listen", &listen]);
        assert!(folder.path().join("brain.sock").exists());
        kill(Pid::from_raw(child.id().try_into().unwrap()), signal).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0));
        assert!(!folder.path().join("brain.sock").exists());
    }
}

#[test]
fn a_second_brain_replaces_a_killed_one_but_not_a_running_one() {
    let (_folder, source, listen) = folder();
    let arguments = ["--source", source.as_str(), "--node-name", "node-a", "--listen", listen.as_str()];
    let (mut first, _) = serving(&arguments);
    check_failure(&arguments, 1, &["another process listens on this"]);
    first.kill().unwrap();
    first.wait().unwrap();
    let (mut second, _) = serving(&arguments);
    second.kill().unwrap();
    second.wait().unwrap();
}

#[test]
fn log_lines_can_be_json() {
    let (_folder, source, listen) = folder();
    let (mut child, lines) =
        serving(&["--source", &source, "--node-name", "node-a", "--listen", &listen, "--log-format", "json"]);
    child.kill().unwrap();
    child.wait().unwrap();
    for line in lines {
        serde_json::from_str::<serde_json::Value>(&line).unwrap();
    }
}
