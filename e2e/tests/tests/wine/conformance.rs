//! `localnet-win` passes the conformance kit, but for packets, of which there are none here.

use std::time::Duration;

use localnet_conformance::{Level, Options, claims::Claims, run};
use rustix::process::Signal;

use crate::windows::{is_possible, program, repository};

#[test]
fn it_passes_the_conformance_kit() {
    if !is_possible() {
        return;
    }
    let node = format!("{} {{folder}} {}", repository().join("e2e/wine/node").display(), program().display());
    let options = Options {
        levels: vec![Level::Wire, Level::State, Level::Life],
        claims: Claims::none(),
        // Thousands of load balancers take that long under Wine on a busy machine.
        patience: Duration::from_secs(180),
        // What Wine makes of it is Ctrl-C.
        stop: Signal::INT,
        listing: Some("grep ^balancer {folder}/hns || true".to_owned()),
        flush: Some("sed -i /^balancer/d {folder}/hns".to_owned()),
        cleanup: Some(format!("{node} cleanup --network-name pods")),
        ..Options::of(format!("{node} --api tcp://{{tcp}} --network-name pods"))
    };
    let outcomes = run(&options, |_| {}).unwrap();
    println!("{}", outcomes.table(false));
    assert!(outcomes.passed(), "{}", outcomes.table(false));
    // Nobody shows what HNS serves in the checks of wire and state: those are not claimed. The listing shows it in those of life.
    assert!(outcomes.count() >= 13, "{} checks", outcomes.count());
}
