//! A temporary network namespace, and programs in it.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::thread;

/// Runs `test` in a new network namespace, which ends with the thread.
pub(crate) fn isolated(test: impl FnOnce() + Send + 'static) {
    let thread = thread::spawn(move || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("these tests need root");
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
    child.stdin.take().expect("it is piped").write_all(input.as_bytes()).expect("the program reads its input");
    let output = child.wait_with_output().expect("the program ends");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {error}\n{input}");
    String::from_utf8(output.stdout).expect("the output is text")
}
