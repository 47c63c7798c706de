//! A temporary network namespace on a kernel with IPVS, and `ipvsadm` in it.

use std::io::Write;
use std::process::{Command, Stdio};
use std::thread;

use localnet_linux::ipvs::{Change, Destination, Frontend, Protocol, Socket, VirtualServer};

/// Runs `test` in a new network namespace, which ends with the thread.
pub(crate) fn isolated(test: impl FnOnce() + Send + 'static) {
    let thread = thread::spawn(move || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("these tests need root");
        run("ip", &["link", "set", "lo", "up"], "");
        test();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Runs a program with that input and returns its output.
#[track_caller]
pub(crate) fn run(program: &str, arguments: &[&str], input: &str) -> String {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("failed to run {program}: {error}"));
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {error}\n{input}");
    String::from_utf8(output.stdout).unwrap()
}

/// The sorted lines of `ipvsadm -S -n`.
pub(crate) fn ipvsadm() -> Vec<String> {
    sorted(&run("ipvsadm", &["-S", "-n"], ""))
}

pub(crate) fn sorted(text: &str) -> Vec<String> {
    let mut lines: Vec<_> = text.lines().map(|line| line.trim_end().to_owned()).collect();
    lines.sort();
    lines
}

/// Applies changes, of which the kernel must refuse none.
#[track_caller]
pub(crate) fn apply(socket: &mut Socket, changes: &[Change]) {
    let applied = socket.apply(changes).unwrap();
    assert_eq!((applied.changes, applied.refused), (changes.len(), Vec::new()));
}

pub(crate) fn frontend(protocol: Protocol, address: &str) -> Frontend {
    Frontend::new(protocol, address.parse().unwrap())
}

pub(crate) fn server(protocol: Protocol, address: &str, scheduler: &str) -> VirtualServer {
    VirtualServer::new(frontend(protocol, address), scheduler.parse().unwrap())
}

pub(crate) fn destination(address: &str, weight: u32) -> Destination {
    Destination::masqueraded(address.parse().unwrap(), weight)
}
