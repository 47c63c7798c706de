//! `localnet-ipvs` passes the conformance kit: streams, states, and what can happen to it. Of packets two Cases and those of `life`: where
//! those of all Cases go is backend-ipvs's own `guest`, and `make conformance-ipvs` takes its time for them here.

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
    // Of what it holds only calls are claimed: nobody shows that but packets, which are looked at below.
    on_ipvs(|| passes(&[Level::Wire], &[], 6).unwrap_or_else(|error| panic!("{error:#}")));
}

#[test]
fn it_passes_the_kit_for_states_and_its_life() {
    let levels = [Level::State, Level::Packets, Level::Life];
    let only = ["state/", "packets/udp", "packets/load-balancer", "life/"];
    on_ipvs(|| passes(&levels, &only, 20).unwrap_or_else(|error| panic!("{error:#}")));
}

/// The kit passes what it claims with at least so many checks. Addresses of VIPs are the node's own (`docs/backends/ipvs.md`): what is sent
/// to another port of one is refused, and what the node sends to one comes from that very address, and is masqueraded.
fn passes(levels: &[Level], only: &[&str], at_least: usize) -> anyhow::Result<()> {
    let ipvs = program("localnet-ipvs")?.display().to_string();
    let claims = Claim::ALL.into_iter().filter(|claim| !matches!(claim, Claim::Untouched | Claim::NodeSource));
    let outcomes = run(
        &Options {
            levels: levels.to_vec(),
            only: only.iter().map(|&name| name.to_owned()).collect(),
            claims: claims.collect::<Claims>(),
            patience: Duration::from_secs(240),
            // The kernel lists virtual servers by positions in which those of all namespaces count.
            at_a_time: 1,
            flush: Some("sh -c 'ipvsadm -C && nft flush ruleset'".to_owned()),
            cleanup: Some(format!("{ipvs} cleanup")),
            ..Options::of(format!("{ipvs} --api {{api}} {{flags}}"))
        },
        |_| {},
    )?;
    println!("{}", outcomes.table(false));
    anyhow::ensure!(outcomes.passed(), "{}", outcomes.table(false));
    anyhow::ensure!(outcomes.count() >= at_least, "{} checks", outcomes.count());
    Ok(())
}
