//! `localnet-win` passes the conformance kit, except for packets, which Wine cannot send.

use std::time::Duration;

use localnet_client::served::Lack;
use localnet_conformance::{Level, Options, claims::Claims, run};
use rustix::process::Signal;

use crate::windows::{is_possible, program, repository};

/// What HNS cannot represent (`docs/backends/windows.md`).
const LACKS: [Lack; 6] = [Lack::Verdicts, Lack::Scopes, Lack::Seconds, Lack::Ports, Lack::HostNetwork, Lack::Sources];

/// Wine's own processes inherit the output and outlive the program, so a pipe would stay open. Instead, the command writes files.
fn read_back(node: &str) -> String {
    let (served, errors) = ("{folder}/served", "{folder}/dump.log");
    format!("{node} dump >{served} 2>{errors} || {{ cat {errors} >&2; exit 1; }}; cat {served}")
}

#[test]
fn it_passes_the_conformance_kit() {
    if !is_possible() {
        return;
    }
    let node = format!("{} {{folder}} {}", repository().join("e2e/wine/node").display(), program().display());
    let options = Options {
        levels: vec![Level::Wire, Level::State, Level::Life],
        claims: Claims::none(),
        // Programming thousands of load balancers takes this long under Wine on a busy machine.
        patience: Duration::from_secs(180),
        // Wine converts this signal to Ctrl-C.
        stop: Signal::INT,
        listing: Some("grep ^balancer {folder}/hns || true".to_owned()),
        flush: Some("sed -i /^balancer/d {folder}/hns".to_owned()),
        cleanup: Some(format!("{node} cleanup --network-name pods")),
        read_back: Some(read_back(&node)),
        cannot_hold: LACKS.into_iter().collect(),
        ..Options::of(format!("{node} --api tcp://{{tcp}} --network-name pods"))
    };
    let outcomes = run(&options, |_| {}).unwrap();
    println!("{}", outcomes.table(false));
    assert!(outcomes.passed(), "{}", outcomes.table(false));
    assert!(outcomes.count() >= 190, "{} checks", outcomes.count());
}
