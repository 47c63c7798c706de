//! `localnet-ipvs` passes the conformance kit: streams, states and life cycle. Of the packets, this runs only two Cases and those
//! of `life`. The test `guest` of backend-ipvs checks the packets of all Cases, and `make conformance-ipvs` runs them with the
//! kit.

use std::time::Duration;

use localnet_conformance::{
    Level, Options,
    claims::{Claim, Claims},
    run,
};
use localnet_e2e::program;
use localnet_vm::on_ipvs;

#[test]
fn it_passes_the_kit_for_streams() {
    on_ipvs(|| passes(&[Level::Wire], &[], 51).unwrap_or_else(|error| panic!("{error:#}")));
}

#[test]
fn localnet_ipvs_passes_the_levels_state_and_life() {
    let levels = [Level::State, Level::Packets, Level::Life];
    let only = ["state/", "packets/udp", "packets/load-balancer", "life/"];
    on_ipvs(|| passes(&levels, &only, 140).unwrap_or_else(|error| panic!("{error:#}")));
}

/// Verifies that the kit passes with at least `at_least` checks. With IPVS, the addresses of VIPs are the node's own
/// (`docs/backends/ipvs.md`). So packets to another port of a VIP are rejected, and packets of the node to a VIP have the VIP as
/// source address and are masqueraded.
fn passes(levels: &[Level], only: &[&str], at_least: usize) -> anyhow::Result<()> {
    let ipvs = program("localnet-ipvs")?.display().to_string();
    let claims = Claim::ALL.into_iter().filter(|claim| !matches!(claim, Claim::Untouched | Claim::NodeSource));
    let outcomes = run(
        &Options {
            levels: levels.to_vec(),
            only: only.iter().map(|&name| name.to_owned()).collect(),
            claims: claims.collect::<Claims>(),
            patience: Duration::from_secs(240),
            // The kernel lists virtual servers by positions that count those of all namespaces.
            at_a_time: 1,
            flush: Some("sh -c 'ipvsadm -C && nft flush ruleset'".to_owned()),
            cleanup: Some(format!("{ipvs} cleanup")),
            read_back: Some(format!("{ipvs} dump")),
            ..Options::of(format!("{ipvs} --api {{api}} {{flags}}"))
        },
        |_| {},
    )?;
    println!("{}", outcomes.table(false));
    anyhow::ensure!(outcomes.passed(), "{}", outcomes.table(false));
    anyhow::ensure!(outcomes.count() >= at_least, "{} checks", outcomes.count());
    Ok(())
}
