//! What others do to the tables is put right by the programs as shipped, with or without a brain.

use std::{collections::BTreeSet, net::SocketAddr, process::Command};

use anyhow::Context as _;
use localnet_e2e::{Programs, await_condition};
use localnet_lab::{Endpoint, Namespace, Network, Probe, Protocol, Running, Servers, Topology};

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

struct World {
    programs: Programs,
    pods: Vec<SocketAddr>,
    brain: Running,
    _backend: Running,
    _servers: Servers,
    network: Network,
}

impl World {
    /// The examples are programmed.
    fn build() -> anyhow::Result<Self> {
        let network = Network::build(Topology::with_pods(PODS)?)?;
        let pods = PODS.iter().map(|pod| format!("{pod}:8080").parse()).collect::<Result<Vec<SocketAddr>, _>>()?;
        let endpoints = pods.iter().map(|&address| Endpoint { protocol: Protocol::Tcp, address });
        let _servers = Servers::start(&network, endpoints)?;
        let programs = Programs::new()?;
        let examples = concat!("file:", env!("CARGO_MANIFEST_DIR"), "/../../examples");
        let brain = programs.start_brain(network.node(), examples)?;
        let _backend = programs.start_nft(network.node())?;
        let world = Self { programs, pods, brain, _backend, _servers, network };
        world.await_answers()?;
        Ok(world)
    }

    fn await_answers(&self) -> anyhow::Result<()> {
        let web = Probe::new(Protocol::Tcp, WEB.parse()?);
        self.programs.await_answers(self.network.client(), web, &self.pods)
    }

    fn await_said(&self, text: &str) -> anyhow::Result<()> {
        await_condition(text, || self.programs.log("localnet-nft").contains(text))
            .with_context(|| self.programs.log("localnet-nft"))
    }
}

#[test]
fn flushed_rules_come_back_while_the_brain_is_away() -> anyhow::Result<()> {
    let mut world = World::build()?;
    let node = world.network.node();
    let before = words(node)?;
    world.brain.kill()?;
    world.brain.wait()?;
    world.await_said("no state from the brain")?;
    for _ in 0..ROUNDS {
        nft(node, &["flush", "ruleset"])?;
        world.await_answers()?;
        await_condition("the tables are as they were", || words(node).is_ok_and(|now| now == before))?;
    }
    let log = world.programs.log("localnet-nft");
    let said: BTreeSet<_> =
        log.lines().filter(|line| line.contains("the tables were changed by someone else")).collect();
    assert!((1..=ROUNDS).contains(&said.len()) && said.iter().all(|line| line.contains("nft")), "{log}");
    Ok(())
}

/// Each puts right what the other wrote: neither may keep the node busy with it, and an operator must be told.
#[test]
fn two_backends_of_one_node_say_so_and_fight_ever_more_slowly() -> anyhow::Result<()> {
    let world = World::build()?;
    let node = world.network.node();
    let before = words(node)?;
    let api = world.programs.api();
    let mut rival = world.programs.start(node, "localnet-nft", &["--api", &api, "--masquerade-all"])?;
    world.await_said("another localnet-nft writes the same tables: only one may run on a node")?;
    world.await_said("someone keeps changing the tables ip localnet and ip6 localnet: repairs slow down")?;
    rival.kill()?;
    rival.wait()?;
    let log = world.programs.log("localnet-nft");
    let repairs = log.matches(" applied revision=").count();
    assert!((50..150).contains(&repairs), "{repairs} repairs until the fight slowed down");
    await_condition("the tables are as they were", || words(node).is_ok_and(|now| now == before))?;
    world.await_answers()
}
