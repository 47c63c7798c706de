//! Tests that need IPVS, as other crates write them. Each runs natively if the kernel has IPVS, otherwise in the guest.
#![cfg(target_arch = "x86_64")]

use std::fs;
use std::path::Path;
use std::process::Command;

use localnet_vm::on_ipvs;

/// The release of the running kernel.
fn kernel() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").expect("proc is mounted").trim().to_owned()
}

#[test]
fn the_body_runs_on_a_kernel_with_ipvs() {
    on_ipvs(|| {
        Command::new("modprobe").arg("ip_vs").status().unwrap();
        assert!(Path::new("/proc/net/ip_vs").exists(), "on {}", kernel());
    });
}

mod in_a_module {
    use super::*;

    #[test]
    fn test_names_may_contain_modules() {
        on_ipvs(|| println!("ran on {}", kernel()));
    }
}

/// The environment variable that makes the next two tests fail.
const FAIL: &str = "FAIL_ON_PURPOSE";

#[test]
fn a_test_that_can_fail() {
    on_ipvs(|| assert!(std::env::var_os(FAIL).is_none(), "failed on purpose"));
}

#[test]
fn a_test_whose_body_is_another_function() {
    fn body() {}
    if std::env::var_os(FAIL).is_some() {
        // This closure is in another function, so its type does not contain the name of a test.
        on_ipvs(body);
    }
}

#[test]
fn failing_and_missing_tests_in_the_guest_fail_here() {
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(["a_test_that_can_fail", "a_test_whose_body_is_another_function", "--exact"]);
    let output = program.env("LOCALNET_VM", "guest").env(FAIL, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(101), "{text}");
    assert!(text.contains("0 passed; 2 failed"), "{text}");
    assert!(text.contains("a_test_that_can_fail failed in the guest") && text.contains("failed on purpose"), "{text}");
    assert!(text.contains("body failed in the guest") && text.contains("running 0 tests"), "{text}");
}
