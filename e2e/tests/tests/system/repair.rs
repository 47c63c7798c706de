//! The programs as shipped repair changes that other programs make to the tables, with or without a brain.

use std::{collections::BTreeSet, net::SocketAddr};

use anyhow::Context as _;
use localnet_e2e::{Backend, Programs, await_condition};
use localnet_lab::{Endpoint, Network, Probe, Protocol, Running, Servers, Topology};

const PODS: [&str; 3] = ["10.180.0.1", "10.180.0.2", "10.180.0.3"];
/// The ClusterIP of `web` in the examples.
const WEB: &str = "172.30.0.10:80";
const ROUNDS: usize = 5;

struct World {
    kind: Backend,
    programs: Programs,
    pods: Vec<SocketAddr>,
    brain: Running,
    _backend: Running,
    _servers: Servers,
    network: Network,
}

impl World {
    /// A node on which the examples are programmed.
    fn build(kind: Backend) -> anyhow::Result<Self> {
        let network = Network::build(Topology::with_pods(PODS)?)?;
        let pods = PODS.iter().map(|pod| format!("{pod}:8080").parse()).collect::<Result<Vec<SocketAddr>, _>>()?;
        let endpoints = pods.iter().map(|&address| Endpoint { protocol: Protocol::Tcp, address });
        let _servers = Servers::start(&network, endpoints)?;
        let programs = Programs::new()?;
        let examples = concat!("file:", env!("CARGO_MANIFEST_DIR"), "/../../examples");
        let brain = programs.start_brain(network.node(), examples)?;
        let _backend = programs.start_backend(network.node(), kind)?;
        let world = Self { kind, programs, pods, brain, _backend, _servers, network };
        world.await_answers()?;
        // One family may answer before the other is programmed.
        world.await_log(" applied revision=")?;
        Ok(world)
    }

    fn await_answers(&self) -> anyhow::Result<()> {
        let web = Probe::new(Protocol::Tcp, WEB.parse()?);
        self.programs.await_answers(self.network.client(), web, &self.pods)
    }

    fn await_log(&self, text: &str) -> anyhow::Result<()> {
        await_condition(text, || self.programs.log(self.kind.program()).contains(text))
            .with_context(|| self.programs.log(self.kind.program()))
    }
}

#[test]
fn flushed_rules_are_repaired_while_the_brain_is_unavailable() -> anyhow::Result<()> {
    Backend::ALL.into_iter().try_for_each(repaired_while_the_brain_is_unavailable)
}

fn repaired_while_the_brain_is_unavailable(kind: Backend) -> anyhow::Result<()> {
    let mut world = World::build(kind)?;
    let node = world.network.node();
    let before = kind.listing(node)?;
    world.brain.kill()?;
    world.brain.wait()?;
    world.await_log("cannot get the state from the brain")?;
    for _ in 0..ROUNDS {
        kind.flush(node)?;
        world.await_answers()?;
        let mut now = Vec::new();
        await_condition("the tables are as they were", || {
            now = kind.listing(node).unwrap_or_default();
            now == before
        })
        .with_context(|| {
            let [more, less] = [(&now, &before), (&before, &now)]
                .map(|(one, other)| one.iter().filter(|line| !other.contains(*line)).collect::<Vec<_>>());
            format!("{kind:?}: there is more {more:?} and less {less:?}: {}", world.programs.log(kind.program()))
        })?;
    }
    let log = world.programs.log(kind.program());
    let (text, most) = match kind {
        Backend::Nft | Backend::Ipvs => ("another program changed the tables", ROUNDS),
        Backend::Ebpf => ("another program deleted pinned programs or maps", ROUNDS),
        // The tools flush each table of each family separately.
        Backend::Iptables(_) => ("another program changed the chains of Services", 4 * ROUNDS),
    };
    let repairs_logged: BTreeSet<_> = log.lines().filter(|line| line.contains(text)).collect();
    assert!((1..=most).contains(&repairs_logged.len()), "{log}");
    assert!(
        kind != Backend::Nft || repairs_logged.iter().all(|line| line.contains("nft")),
        "the log names the program: {log}"
    );
    Ok(())
}

/// If two backends run on one node, each repairs the changes of the other. They must not keep the node busy, and must report this
/// to the operator.
#[test]
fn two_backends_on_one_node_warn_and_repair_with_backoff() -> anyhow::Result<()> {
    let world = World::build(Backend::Nft)?;
    let node = world.network.node();
    let before = world.kind.listing(node)?;
    let api = world.programs.api();
    let mut rival = world.programs.start(node, "localnet-nft", &["--api", &api, "--masquerade-all"])?;
    world.await_log("another localnet-nft writes the same tables")?;
    world.await_log("another program keeps changing the tables ip localnet and ip6 localnet")?;
    rival.kill()?;
    rival.wait()?;
    let repairs = world.programs.states_applied("localnet-nft");
    assert!((50..150).contains(&repairs), "{repairs} repairs before the repairs slowed down");
    await_condition("the tables are as they were", || world.kind.listing(node).is_ok_and(|now| now == before))?;
    world.await_answers()
}
