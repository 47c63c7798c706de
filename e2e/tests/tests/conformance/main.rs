//! The conformance kit: our backends pass it, the examples in other languages pass their claims, and broken backends fail.
//!
//! | file | what it verifies |
//! |---|---|
//! | `broken` | each kind of fault fails the checks that name it |
//! | `command` | the kit as a program: table, JUnit, exit codes |
//! | `examples` | Go, Python, shell, Rust |
//! | `ours` | localnet-nft, localnet-iptables, localnet-ebpf |

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod broken;
mod command;
mod examples;
mod ours;

use localnet_conformance::{Level, Options, Outcomes, claims::Claims, run};

/// Verifies that all checks pass, and prints the failures. Returns the outcomes.
#[track_caller]
fn passes(options: &Options) -> Outcomes {
    let outcomes = run(options, |_| {}).unwrap();
    assert!(outcomes.passed(), "{}\n{}", options.backend, outcomes.table(false));
    println!("{}\n{}", options.backend, outcomes.table(false));
    outcomes
}

/// The path of a program of the workspace.
fn program(name: &str) -> String {
    localnet_e2e::program(name).unwrap().display().to_string()
}

/// All levels, with the packets of only one Case of each kind. Other tests of our backends send those of all Cases.
fn all_levels(backend: String) -> Options {
    let cases = [
        "cluster-ip",
        "dual-stack",
        "hairpin",
        "load-balancer",
        "no-endpoints-reject",
        "node-port-protocols",
        "policy-external-local-by-type",
        "policy-internal-local-hints",
        "ports-one-target",
        "session-affinity",
        "source-ranges-several",
        "terminating-external-local",
        "udp",
        "unallocated-address-drop",
    ];
    let levels = ["wire/", "state/", "life/"].map(str::to_owned);
    let only = levels.into_iter().chain(cases.map(|case| format!("packets/{case}"))).collect();
    Options { only, ..Options::of(backend) }
}

/// These levels, without claims about packets.
fn levels(backend: String, levels: &[Level]) -> Options {
    Options { levels: levels.to_vec(), claims: Claims::none(), ..Options::of(backend) }
}
