//! Tests that need IPVS, as other crates write them: each runs natively where the kernel can, else in the guest.
#![cfg(target_arch = "x86_64")]

use std::fs;
use std::path::Path;
use std::process::Command;

use localnet_vm::on_ipvs;

/// Says which kernel this is.
fn kernel() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").expect("proc is mounted").trim().to_owned()
}

#[test]
fn the_body_runs_where_ipvs_is() {
    on_ipvs(|| {
        Command::new("modprobe").arg("ip_vs").status().unwrap();
        assert!(Path::new("/proc/net/ip_vs").exists(), "on {}", kernel());
    });
}

mod in_a_module {
    use super::*;

    #[test]
    fn names_have_paths() {
        on_ipvs(|| println!("ran on {}", kernel()));
    }
}

/// Asks the two tests below to fail.
const FAIL: &str = "FAIL_ON_PURPOSE";

#[test]
fn a_test_that_can_fail() {
    on_ipvs(|| assert!(std::env::var_os(FAIL).is_none(), "failed on purpose"));
}

#[test]
fn a_test_whose_body_is_elsewhere() {
    fn body() {}
    if std::env::var_os(FAIL).is_some() {
        // This has a name of its own, which is no test's.
        on_ipvs(body);
    }
}

#[test]
fn tests_that_fail_or_are_not_found_in_the_guest_fail_here() {
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(["a_test_that_can_fail", "a_test_whose_body_is_elsewhere", "--exact"]);
    let output = program.env("LOCALNET_VM", "guest").env(FAIL, "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(101), "{said}");
    assert!(said.contains("0 passed; 2 failed"), "{said}");
    assert!(said.contains("a_test_that_can_fail failed in the guest") && said.contains("failed on purpose"), "{said}");
    assert!(said.contains("body failed in the guest") && said.contains("running 0 tests"), "{said}");
}
