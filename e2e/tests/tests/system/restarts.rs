//! Restarting the brain or a backend interrupts no packet (invariant 10): repeated kill -9 under load.
//!
//! `RESTARTS=100 cargo test -p localnet-e2e --test system restarts` kills each of them 100 times instead of 10.

use std::{collections::BTreeSet, env, net::SocketAddr, thread::scope, time::Duration};

use anyhow::Context as _;
use localnet_e2e::{
    Backend, Programs, await_condition,
    load::{Answered, Connections, Load},
};
use localnet_lab::{
    Endpoint, Network, Probe, Protocol, Running, Sandbox, Servers, Topology,
    topology::{CLIENT, CLIENT_TWO},
};

const PODS: [&str; 3] = ["10.180.0.1", "10.180.0.2", "10.180.0.3"];
/// Pods that are only clients.
const ASKING: [&str; 2] = ["10.180.0.4", "10.180.0.5"];
/// The ClusterIPs of `web` and of `dns` in the examples.
const WEB: &str = "172.30.0.10:80";
const DNS: &str = "172.30.0.53:53";
/// New TCP connections per second: the minimum for all senders while programs are killed, and the rate of each of the five
/// senders.
const CONNECTIONS: f64 = 500.0;
const CONNECTIONS_OF_EACH: u32 = 120;
const UDP_FLOWS: usize = 50;
const SEND_EVERY: Duration = Duration::from_millis(50);

struct World {
    backend: Backend,
    network: Network,
    programs: Programs,
    _servers: Servers,
}

impl World {
    fn build(backend: Backend) -> anyhow::Result<Self> {
        let network = Network::build(Topology::with_pods(PODS.into_iter().chain(ASKING))?)?;
        let endpoint = |protocol, pod: &str, port: u16| -> anyhow::Result<Endpoint> {
            Ok(Endpoint { protocol, address: SocketAddr::new(pod.parse()?, port) })
        };
        let mut endpoints = Vec::new();
        for pod in PODS {
            endpoints.push(endpoint(Protocol::Tcp, pod, 8080)?);
            endpoints.push(endpoint(Protocol::Udp, pod, 5353)?);
        }
        let servers = Servers::start(&network, endpoints)?;
        Ok(Self { backend, network, programs: Programs::new()?, _servers: servers })
    }

    fn start_brain(&self) -> anyhow::Result<Running> {
        let examples = concat!("file:", env!("CARGO_MANIFEST_DIR"), "/../../examples");
        self.programs.start_brain(self.network.node(), examples)
    }

    /// The number of applied states in the backend's log.
    fn applied(&self) -> usize {
        self.programs.states_applied(self.backend.program())
    }

    fn start_backend(&self) -> anyhow::Result<Running> {
        self.programs.start_backend(self.network.node(), self.backend)
    }

    /// Kills a program, starts it again, and waits until the backend has applied a state again.
    fn restart(&self, program: &mut Running, start: impl FnOnce() -> anyhow::Result<Running>) -> anyhow::Result<()> {
        let before = self.applied();
        program.kill()?;
        program.wait()?;
        *program = start()?;
        await_condition("the backend applies the state again", || self.applied() > before).with_context(|| {
            format!("{}{}", self.programs.log("localnet-brain"), self.programs.log(self.backend.program()))
        })
    }
}

#[test]
fn kill_and_restart_under_load_fails_no_connection_and_moves_no_flow() -> anyhow::Result<()> {
    kill_and_restart_under_load(Backend::Nft, 10)
}

#[test]
fn kill_and_restart_of_iptables_under_load_fails_no_connection_and_moves_no_flow() -> anyhow::Result<()> {
    kill_and_restart_under_load(Backend::Iptables("nft"), 8)?;
    kill_and_restart_under_load(Backend::Iptables("legacy"), 12)
}

#[test]
fn kill_and_restart_of_ebpf_under_load_fails_no_connection_and_moves_no_flow() -> anyhow::Result<()> {
    Sandbox::run(|_| kill_and_restart_under_load(Backend::Ebpf, 10))
}

fn kill_and_restart_under_load(backend: Backend, restarts: usize) -> anyhow::Result<()> {
    let chosen = env::var("RESTARTS").ok();
    let restarts: usize = chosen.map_or(Ok(restarts), |text| text.parse()).context("reading RESTARTS")?;
    let world = World::build(backend)?;
    let (web, dns): (SocketAddr, SocketAddr) = (WEB.parse()?, DNS.parse()?);
    let node = world.network.node();
    let client = world.network.client();
    let mut brain = world.start_brain()?;
    let mut backend = world.start_backend()?;
    let pods = PODS.iter().map(|pod| format!("{pod}:8080").parse()).collect::<Result<BTreeSet<_>, _>>()?;
    let all: Vec<_> = pods.iter().copied().collect();
    world.programs.await_answers(client, Probe::new(Protocol::Tcp, web), &all)?;
    // Connections from outside are masqueraded, those of pods are not, and those of the node pass other hooks.
    let senders = [
        (client, Some(CLIENT[0])),
        (client, Some(CLIENT_TWO[0])),
        (world.network.pod(ASKING[0].parse()?)?, None),
        (world.network.pod(ASKING[1].parse()?)?, None),
        (node, None),
    ];

    // One family may answer before the other is programmed.
    await_condition("the backend applies the state", || world.applied() > 0)?;
    let before = world.backend.identity(node)?;
    let (connections, datagrams) = scope(|scope| {
        let (udp, used) = Load::flows(scope, client, dns, UDP_FLOWS, SEND_EVERY)?;
        anyhow::ensure!(used.len() == 2, "flows to both endpoints of dns were expected: {used:?}");
        let tcp = senders.map(|(from, source)| {
            let endpoints = pods.clone();
            let connections = Connections { source, to: vec![web], endpoints, rate: CONNECTIONS_OF_EACH };
            Load::connections(scope, from, connections)
        });
        let restarted = (0..restarts).try_for_each(|_| {
            world.restart(&mut backend, || world.start_backend())?;
            world.restart(&mut brain, || world.start_brain())
        });
        let tcp: Vec<_> = tcp.into_iter().map(Load::finish).collect();
        let udp = udp.finish();
        restarted?;
        anyhow::Ok((
            Answered::together(tcp.into_iter().collect::<Result<Vec<_>, _>>().context("TCP")?),
            udp.context("UDP")?,
        ))
    })?;
    println!(
        "{:?}: {restarts} restarts each; connections: {connections}; datagrams: {datagrams}; all were answered",
        world.backend
    );
    assert!(connections.rate() >= CONNECTIONS, "only {connections} connections");
    assert_eq!(world.backend.identity(node)?, before, "restarts changed the kernel");
    Ok(())
}
