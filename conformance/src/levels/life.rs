//! What can happen to a backend. Where it claims packets, they are looked at, too.

use std::{collections::BTreeSet, time::Duration};

use anyhow::Context as _;
use localnet_lab::{Endpoint, Flow, Flows, Network, Servers, Topology, check::probe_flows, probe::Protocol};
use localnet_proto::Snapshot;
use rustix::process::Signal;

use super::{
    Level, Options,
    bench::{Bench, Node},
    check, side_by_side,
    states::{endpoint, service, state},
};
use crate::{
    backend::Line,
    claims::Claim,
    outcome::{Outcome, Verdict},
};

/// The pods of these checks.
const PODS: [&str; 2] = ["10.180.0.1", "10.180.0.2"];

type Check = fn(&mut Life<'_>) -> anyhow::Result<Verdict>;

const CHECKS: &[(&str, Check)] = &[
    ("starts-without-a-brain", starts_without_a_brain),
    ("ends-when-asked", ends_when_asked),
    ("ends-when-asked-without-a-brain", ends_when_asked_without_a_brain),
    ("ends-when-asked-in-the-middle-of-an-answer", ends_in_the_middle),
    ("killed-and-started-again", killed_and_started_again),
    ("killed-and-started-again-after-changes", killed_and_changed),
    ("killed-in-the-middle-of-an-answer", killed_in_the_middle),
    ("stalled", stalled),
    ("brain-away-and-back", brain_away_and_back),
    ("brain-away-keeps-everything", brain_away_keeps_everything),
    ("end-keeps-everything", end_keeps_everything),
    ("started-a-second-time-beside-itself", started_twice),
    ("flushed-by-others", flushed),
    ("cleaned-up", cleaned_up),
];

pub(super) fn run(options: &Options, tell: &(impl Fn(&Outcome) + Sync)) -> anyhow::Result<Vec<Outcome>> {
    let asked: Vec<_> = CHECKS.iter().filter(|(name, _)| options.asks_for(Level::Life, name)).collect();
    let outcome = |(name, done): &&(&str, Check)| {
        check(Level::Life, name, tell, || {
            let world = World::build()?;
            let node = world.as_ref().map_or(Node::Here, |world| Node::Lent(world.network.node()));
            let bench = Bench::new(options, node)?;
            done(&mut Life { bench, world: world.as_ref() })
        })
    };
    Ok(side_by_side(options, &asked, outcome))
}

/// A network with two pods that answer.
struct World {
    network: Network,
    _servers: Servers,
}

impl World {
    /// `None` for who may not make one.
    fn build() -> anyhow::Result<Option<Self>> {
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        let network = Network::build(Topology::with_pods(PODS)?)?;
        let endpoints: BTreeSet<Endpoint> = PODS
            .iter()
            .map(|pod| Ok(Endpoint { protocol: Protocol::Tcp, address: format!("{pod}:8080").parse()? }))
            .collect::<anyhow::Result<_>>()?;
        let servers = Servers::start(&network, endpoints)?;
        Ok(Some(Self { network, _servers: servers }))
    }
}

struct Life<'a> {
    bench: Bench<'a>,
    world: Option<&'a World>,
}

/// The state of these checks: one service of so many of the pods, which are on its node.
fn serving(pods: usize) -> Snapshot {
    let mut web = service(1, 0);
    let addresses = PODS.iter().take(pods).filter_map(|pod| pod.parse().ok());
    web.endpoints = addresses.map(|address| endpoint(address, "http", 8080)).collect();
    state([web])
}

impl Life<'_> {
    fn start(&mut self) -> anyhow::Result<()> {
        self.bench.brain.start()?;
        self.bench.start_backend()
    }

    /// Whether packets say what a state of so many pods means. Nothing is asked of who does not claim it.
    fn packets(&self, pods: usize) -> anyhow::Result<()> {
        let claims = &self.bench.options.claims;
        let outcome = if pods == 0 { Claim::Reject } else { Claim::Answers };
        let needed = [Claim::Tcp, Claim::Ipv4, Claim::ClusterIp, outcome];
        let Some(world) = self.world else { return Ok(()) };
        if !needed.iter().all(|claim| claims.has(*claim)) || !self.bench.options.levels.contains(&Level::Packets) {
            return Ok(());
        }
        probe_flows(&world.network, &[flow(pods)?])
    }

    /// Waits until they do.
    fn await_packets(&self, pods: usize) -> anyhow::Result<()> {
        let deadline = std::time::Instant::now() + self.bench.options.patience;
        loop {
            match self.packets(pods) {
                Err(error) if std::time::Instant::now() > deadline => return Err(error),
                Err(_) => {}
                Ok(()) => return Ok(()),
            }
        }
    }
}

fn flow(pods: usize) -> anyhow::Result<Flow> {
    let to = "from: client, proto: tcp, to: 172.30.0.1, port: 80";
    let answers: Vec<String> = PODS.iter().take(pods).map(|pod| format!("{pod}:8080")).collect();
    let expected = if pods == 0 { "outcome: reject".to_owned() } else { format!("answers: [{}]", answers.join(", ")) };
    Flows::parse(&format!("flows: [{{{to}, {expected}}}]"))?.flows.pop().context("a flow")
}

fn passed() -> anyhow::Result<Verdict> {
    Ok(Verdict::Passed)
}

fn starts_without_a_brain(life: &mut Life<'_>) -> anyhow::Result<Verdict> {
    life.bench.start_backend()?;
    // Long enough for several attempts of whoever does not wait between them.
    std::thread::sleep(Duration::from_millis(500));
    life.bench.backend()?.is_alive().context("it has to wait for a brain, not to end")?;
    life.bench.brain.start()?;
    life.bench.apply(&serving(2))?;
    life.packets(2)?;
    passed()
}

fn ended(life: &mut Life<'_>) -> anyhow::Result<Verdict> {
    let patience = life.bench.options.patience.min(Duration::from_secs(10));
    let backend = life.bench.backend()?;
    backend.is_alive()?;
    backend.signal(Signal::TERM)?;
    let ended = backend.ended(patience).context("after SIGTERM")?;
    anyhow::ensure!(
        ended.success(),
        "after SIGTERM it has ended with {ended}, and not with exit code 0{}",
        backend.log_tail()
    );
    passed()
}

fn ends_when_asked(life: &mut Life<'_>) -> anyhow::Result<Verdict> {
    life.start()?;
    life.bench.apply(&serving(1))?;
    ended(life)
}

fn ends_when_asked_without_a_brain(life: &mut Life<'_>) -> anyhow::Result<Verdict> {
    life.start()?;
    life.bench.apply(&serving(1))?;
    life.bench.brain.stop();
    ended(life)
}

fn ends_in_the_middle(life: &mut Life<'_>) -> anyhow::Result<Verdict> {
    life.start()?;
    life.bench.apply(&serving(1))?;
    hanging(life)?;
    ended(life)
}

/// The backend has a part of an answer.
fn hanging(life: &mut Life<'_>) -> anyhow::Result<()> {
    life.bench.brain.faults([crate::brain::Fault::Hang(2)]);
    life.bench.brain.publish(&serving(2));
    life.bench.brain.wait(life.bench.options.patience, "an answer", |log| (log.hung > 0).then_some(()))
}

fn killed(life: &mut Life<'_>) -> anyhow::Result<()> {
    let backend = life.bench.backend()?;
    backend.signal(Signal::KILL)?;
    backend.ended(Duration::from_secs(5)).map(drop)
}

fn killed_and_started_again(life: &mut Life<'_>) -> anyhow::Result<Verdict> {
    life.start()?;
    let revision = life.bench.apply(&serving(2))?;
    killed(life)?;
    life.bench.start_backend()?;
    life.bench.holds(revision, &serving(2))?;
    life.await_packets(2)?;
    passed()
}

fn killed_and_changed(life: &mut Life<'_>) -> anyhow::Result<Verdict> {
    life.start()?;
    life.bench.apply(&serving(2))?;
    killed(life)?;
    let revision = life.bench.brain.publish(&serving(1));
    life.bench.start_backend()?;
    life.bench.holds(revision, &serving(1))?;
    life.await_packets(1)?;
    // What is gone was written by the one that was killed.
    life.bench.apply(&state([service(2, 0)]))?;
    passed()
}

fn killed_in_the_middle(life: &mut Life<'_>) -> anyhow::Result<Verdict> {
    life.start()?;
    life.bench.apply(&serving(1))?;
    hanging(life)?;
    killed(life)?;
    let revision = life.bench.brain.publish(&serving(2));
    life.bench.start_backend()?;
    life.bench.holds(revision, &serving(2))?;
    life.await_packets(2)?;
    passed()
}

fn stalled(life: &mut Life<'_>) -> anyhow::Result<Verdict> {
    life.start()?;
    life.bench.apply(&serving(1))?;
    life.bench.backend()?.signal(Signal::STOP)?;
    for pods in 0..50 {
        life.bench.brain.publish(&serving(pods % 3));
    }
    let revision = life.bench.brain.publish(&serving(2));
    life.bench.backend()?.signal(Signal::CONT)?;
    life.bench.holds(revision, &serving(2))?;
    life.await_packets(2)?;
    passed()
}

fn brain_away_and_back(life: &mut Life<'_>) -> anyhow::Result<Verdict> {
    life.start()?;
    life.bench.apply(&serving(1))?;
    for pods in [2, 1, 2] {
        life.bench.brain.stop();
        std::thread::sleep(Duration::from_millis(200));
        life.bench.backend()?.is_alive().context("while the brain is away")?;
        let revision = life.bench.brain.publish(&serving(pods));
        life.bench.brain.start()?;
        life.bench.holds(revision, &serving(pods))?;
    }
    life.await_packets(2)?;
    passed()
}

fn brain_away_keeps_everything(life: &mut Life<'_>) -> anyhow::Result<Verdict> {
    life.start()?;
    let revision = life.bench.apply(&serving(2))?;
    life.await_packets(2)?;
    life.bench.brain.stop();
    std::thread::sleep(Duration::from_millis(500));
    life.bench.backend()?.is_alive().context("while the brain is away")?;
    if life.bench.backend()?.dumps() {
        life.bench.holds(revision, &serving(2)).context("while the brain is away")?;
    }
    life.packets(2).context("while the brain is away")?;
    passed()
}

/// Of who proxies in a process of its own nothing is left when that ends.
fn end_keeps_everything(life: &mut Life<'_>) -> anyhow::Result<Verdict> {
    if !life.bench.options.claims.has(Claim::Source) {
        return Ok(Verdict::NotClaimed("it proxies in its own process".to_owned()));
    }
    life.start()?;
    life.bench.apply(&serving(2))?;
    life.await_packets(2)?;
    ended(life)?;
    life.packets(2).context("after its end")?;
    passed()
}

/// As in a rolling update.
fn started_twice(life: &mut Life<'_>) -> anyhow::Result<Verdict> {
    if !life.bench.options.claims.has(Claim::Source) {
        return Ok(Verdict::NotClaimed("it proxies in its own process".to_owned()));
    }
    life.start()?;
    let revision = life.bench.apply(&serving(2))?;
    let first = life.bench.backend.take();
    life.bench.start_backend()?;
    life.bench.holds(revision, &serving(2))?;
    drop(first);
    life.packets(2)?;
    life.bench.apply(&serving(1))?;
    life.await_packets(1)?;
    passed()
}

fn flushed(life: &mut Life<'_>) -> anyhow::Result<Verdict> {
    let Some(flush) = life.bench.options.flush.clone() else {
        return Ok(Verdict::NotClaimed("no --flush was given".to_owned()));
    };
    life.start()?;
    life.bench.apply(&serving(2))?;
    life.await_packets(2)?;
    command(life, &flush)?;
    life.await_packets(2).context("after others have removed all rules")?;
    passed()
}

fn cleaned_up(life: &mut Life<'_>) -> anyhow::Result<Verdict> {
    let Some(cleanup) = life.bench.options.cleanup.clone() else {
        return Ok(Verdict::NotClaimed("no --cleanup was given".to_owned()));
    };
    life.start()?;
    life.bench.apply(&serving(2))?;
    life.await_packets(2)?;
    ended(life)?;
    command(life, &cleanup)?;
    anyhow::ensure!(life.packets(2).is_err(), "its rules still work after the cleanup");
    passed()
}

fn command(life: &Life<'_>, text: &str) -> anyhow::Result<()> {
    let folder = tempfile::tempdir().context("creating a temporary folder")?;
    Line::new(text, folder.path()).run(life.bench.namespace(), &[], life.bench.options.patience)
}
