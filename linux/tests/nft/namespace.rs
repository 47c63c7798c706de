//! A temporary network namespace, and `nft` in it.

use std::io::Write;
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

/// Runs `nft` with these arguments and that input, and returns its output.
#[track_caller]
pub(crate) fn nft(arguments: &[&str], input: &str) -> String {
    let mut child = Command::new("nft")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("nft is installed");
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "nft {arguments:?}: {error}\n{input}");
    String::from_utf8(output.stdout).unwrap()
}

/// Sorts the elements in a listing, one per line, because the kernel lists those of hash sets in no stable order.
pub(crate) fn sorted(listing: &str) -> String {
    let mut out = String::new();
    let mut rest = listing;
    while let Some(start) = rest.find("elements = { ") {
        let (before, from) = rest.split_at(start);
        let end = from.find(" }\n").expect("elements end");
        let mut elements: Vec<&str> = from["elements = { ".len()..end].split(',').map(str::trim).collect();
        elements.sort_unstable();
        out += before;
        out += "elements = {\n";
        for element in elements {
            out += &format!("\t\t\t{element}\n");
        }
        out += "\t\t}\n";
        rest = &from[end + " }\n".len()..];
    }
    out + rest
}

/// Panics with the lines that differ.
#[track_caller]
pub(crate) fn assert_same(left: &str, right: &str, what: &str) {
    let (left, right) = (sorted(left), sorted(right));
    let only = |these: &str, others: &str| -> String {
        these.lines().filter(|line| !others.lines().any(|other| other == *line)).collect::<Vec<_>>().join("\n")
    };
    assert!(left == right, "{what}\nleft only:\n{}\nright only:\n{}", only(&left, &right), only(&right, &left));
}
