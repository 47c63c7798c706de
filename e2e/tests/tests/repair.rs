//! What others do to the tables is put right by the programs as shipped, with or without a brain.

use std::{collections::BTreeSet, net::SocketAddr, process::Command};

use localnet_e2e::{Programs, await_condition};
use localnet_lab::{Endpoint, Namespace, Network, Probe, Protocol, Servers, Topology};

const PODS: [&str; 3] = ["10.180.0.1", "10.180.0.2", "10.180.0.3"];
/// The cluster IP of `web` in the examples.
const WEB: &str = "172.30.0.10:80";
const ROUNDS: usize = 5;

fn nft(node: &Namespace, arguments: &[&str]) -> anyhow::Result<String> {
    node.output(Command::new("nft").args(arguments))
}

/// The listing, in whatever order the kernel tells elements.
fn words(node: &Namespace) -> anyhow::Result<Vec<String>> {
    let listing = nft(node, &["list", "ruleset"])?;
    let mut words: Vec<_> = listing.split([' ', ',', '\n', '\t']).map(str::to_owned).collect();
    words.sort();
    Ok(words)
}

#[test]
fn flushed_rules_come_back_while_the_brain_is_away() -> anyhow::Result<()> {
    let network = Network::build(Topology::with_pods(PODS)?)?;
    let pods = PODS.iter().map(|pod| format!("{pod}:8080").parse()).collect::<Result<Vec<SocketAddr>, _>>()?;
    let _servers = Servers::start(&network, pods.iter().map(|&address| Endpoint { protocol: Protocol::Tcp, address }))?;
    let programs = Programs::new()?;
    let examples = concat!("file:", env!("CARGO_MANIFEST_DIR"), "/../../examples");
    let mut brain = programs.start_brain(network.node(), examples)?;
    let _backend = programs.start_nft(network.node())?;
    let web = Probe::new(Protocol::Tcp, WEB.parse()?);
    programs.await_answers(network.client(), web, &pods)?;
    let before = words(network.node())?;

    brain.kill()?;
    brain.wait()?;
    await_condition("the backend notices that the brain is gone", || {
        programs.log("localnet-nft").contains("no state from the brain")
    })?;
    for _ in 0..ROUNDS {
        nft(network.node(), &["flush", "ruleset"])?;
        programs.await_answers(network.client(), web, &pods)?;
        await_condition("the tables are as they were", || words(network.node()).is_ok_and(|now| now == before))?;
    }
    let log = programs.log("localnet-nft");
    let said: BTreeSet<_> =
        log.lines().filter(|line| line.contains("the tables were changed by someone else")).collect();
    assert!((1..=ROUNDS).contains(&said.len()) && said.iter().all(|line| line.contains("nft")), "{log}");
    Ok(())
}
