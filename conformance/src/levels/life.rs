//! What can happen to a backend. Where it claims packets, they are looked at, too.

use std::{collections::BTreeSet, time::Instant};

use anyhow::Context as _;
use localnet_lab::{Endpoint, Flow, Flows, Network, Servers, Topology, check::probe_flows, probe::Protocol};
use localnet_proto::{Service, Snapshot};
use rustix::process::Signal;

use super::{
    Level, Options, applied,
    bench::{Bench, Node},
    check, side_by_side,
    states::{endpoint, service, state},
    traffic,
};
use crate::{
    claims::Claim,
    outcome::{Outcome, Verdict},
};

/// The pods of these checks.
pub(super) const PODS: [&str; 2] = ["10.180.0.1", "10.180.0.2"];

pub(super) type Check = fn(&mut Life<'_>) -> anyhow::Result<Verdict>;

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
    ("restarted-with-half-an-answer", traffic::half_an_answer),
    ("token-comes-after-the-state", applied::token_after_state),
    ("goes-on-after-an-apply-that-failed", applied::apply_fails),
    ("changes-interrupt-nothing", traffic::changes_interrupt_nothing),
    ("affinity-with-several-endpoints", traffic::affinity),
    ("stale-udp-flows-end", traffic::stale_udp),
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
pub(super) struct World {
    pub(super) network: Network,
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
            .flat_map(|pod| [Protocol::Tcp, Protocol::Udp].map(|protocol| (pod, protocol)))
            .map(|(pod, protocol)| Ok(Endpoint { protocol, address: format!("{pod}:8080").parse()? }))
            .collect::<anyhow::Result<_>>()?;
        let servers = Servers::start(&network, endpoints)?;
        Ok(Some(Self { network, _servers: servers }))
    }
}

pub(super) struct Life<'a> {
    pub(super) bench: Bench<'a>,
    world: Option<&'a World>,
}

/// The state of these checks: one service of so many of the pods, which are on its node.
pub(super) fn serving(pods: usize) -> Snapshot {
    state([web(1, pods)])
}

/// The service of that number with so many of the pods.
pub(super) fn web(number: u16, pods: usize) -> Service {
    let addresses = PODS.iter().take(pods).filter_map(|pod| pod.parse().ok());
    let endpoints = addresses.map(|address| endpoint(address, "http", 8080)).collect();
    Service { endpoints, ..service(number, 0) }
}

impl<'a> Life<'a> {
    pub(super) fn start(&mut self) -> anyhow::Result<()> {
        self.bench.start_brain()?;
        self.bench.start_backend()
    }

    /// The world, if packets may be looked at there: who does not claim all of this is not asked.
    pub(super) fn claimed(&self, needed: &[Claim]) -> Option<&'a World> {
        let claims = &self.bench.options.claims;
        self.world.filter(|_| needed.iter().all(|claim| claims.has(*claim)))
    }

    fn claims_packets(&self, pods: usize) -> Option<&'a World> {
        let outcome = if pods == 0 { Claim::Reject } else { Claim::Answers };
        self.claimed(&[Claim::Tcp, Claim::Ipv4, Claim::ClusterIp, outcome])
    }

    /// Whether packets say what a state of so many pods means.
    fn packets(&mut self, pods: usize) -> anyhow::Result<()> {
        let Some(world) = self.claims_packets(pods) else { return Ok(()) };
        probe_flows(&world.network, &[flow(pods)?])?;
        self.bench.shown = true;
        Ok(())
    }

    /// Waits until they do.
    pub(super) fn await_packets(&mut self, pods: usize) -> anyhow::Result<()> {
        self.eventually(|life| life.packets(pods))
    }

    pub(super) fn eventually(&mut self, so: impl Fn(&mut Self) -> anyhow::Result<()>) -> anyhow::Result<()> {
        let deadline = Instant::now() + self.bench.options.patience;
        loop {
            match so(self) {
                Err(error) if Instant::now() > deadline => return Err(error),
                Err(_) => {}
                Ok(()) => return Ok(()),
            }
        }
    }

    /// What the backend has written; nothing where no command shows it.
    fn written(&self) -> anyhow::Result<Vec<String>> {
        let Some(listing) = &self.bench.options.listing else { return Ok(Vec::new()) };
        self.bench.line.other(listing).lines(self.bench.namespace()).context("--listing")
    }

    /// Whether all is as it was with so many pods: packets, and what was written.
    fn is_as(&mut self, pods: usize, written: &[String]) -> anyhow::Result<()> {
        self.packets(pods)?;
        if self.bench.options.read_back.is_some() {
            self.bench.reads_back(&serving(pods))?;
        }
        let now = self.written()?;
        self.bench.shown |= self.bench.options.listing.is_some();
        anyhow::ensure!(now == written, "what is written was {written:#?}, and is {now:#?}");
        Ok(())
    }

    /// Why it cannot be seen what is there when the backend is not.
    fn is_blind(&self) -> Option<Verdict> {
        let options = &self.bench.options;
        let sees = self.claims_packets(2).is_some() || options.listing.is_some() || options.read_back.is_some();
        let blind = "neither packets nor a --listing nor a --read-back show what is there";
        (!sees).then(|| Verdict::NotClaimed(blind.to_owned()))
    }
}

fn flow(pods: usize) -> anyhow::Result<Flow> {
    let to = "from: client, proto: tcp, to: 172.30.0.1, port: 80";
    let answers: Vec<String> = PODS.iter().take(pods).map(|pod| format!("{pod}:8080")).collect();
    let expected = if pods == 0 { "outcome: reject".to_owned() } else { format!("answers: [{}]", answers.join(", ")) };
    Flows::parse(&format!("flows: [{{{to}, {expected}}}]"))?.flows.pop().context("a flow")
}

/// Waits until the backend has tried to reach a brain that turns it away, again and again.
fn turned_away(life: &mut Life<'_>) -> anyhow::Result<()> {
    const ATTEMPTS: usize = 3;
    life.bench.turn_away()?;
    let what = format!("{ATTEMPTS} attempts to reach a brain that turns it away");
    life.bench.brain.wait(life.bench.options.patience, &what, |log| (log.turned_away >= ATTEMPTS).then_some(()))?;
    life.bench.backend()?.is_alive().context("while the brain is away: it has to wait for one, not to end")
}

fn starts_without_a_brain(life: &mut Life<'_>) -> anyhow::Result<Verdict> {
    life.bench.start_backend()?;
    turned_away(life)?;
    life.bench.start_brain()?;
    life.bench.apply(&serving(2))?;
    life.packets(2)?;
    Ok(life.bench.verdict())
}

fn ended(life: &mut Life<'_>) -> anyhow::Result<Verdict> {
    let options = life.bench.options;
    let backend = life.bench.backend()?;
    backend.is_alive()?;
    backend.signal(options.stop)?;
    let ended = backend.ended(options.patience / 2).with_context(|| format!("after signal {:?}", options.stop))?;
    anyhow::ensure!(
        ended.success(),
        "after signal {:?} it has ended with {ended}, and not with exit code 0{}",
        options.stop,
        backend.log_tail()
    );
    // How it ends is what was looked at.
    Ok(Verdict::Passed)
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
    let patience = life.bench.options.patience;
    let backend = life.bench.backend()?;
    backend.signal(Signal::KILL)?;
    backend.ended(patience).map(drop)
}

fn killed_and_started_again(life: &mut Life<'_>) -> anyhow::Result<Verdict> {
    life.start()?;
    let revision = life.bench.apply(&serving(2))?;
    let written = life.written()?;
    killed(life)?;
    if proxies_itself(life).is_none() {
        life.is_as(2, &written).context("while it does not run")?;
    }
    life.bench.start_backend()?;
    life.bench.holds(revision, &serving(2))?;
    life.eventually(|life| life.is_as(2, &written))?;
    Ok(life.bench.verdict())
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
    Ok(life.bench.verdict())
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
    Ok(life.bench.verdict())
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
    Ok(life.bench.verdict())
}

fn brain_away_and_back(life: &mut Life<'_>) -> anyhow::Result<Verdict> {
    life.start()?;
    life.bench.apply(&serving(1))?;
    for pods in [2, 1, 2] {
        turned_away(life)?;
        let revision = life.bench.brain.publish(&serving(pods));
        life.bench.start_brain()?;
        life.bench.holds(revision, &serving(pods))?;
    }
    life.await_packets(2)?;
    Ok(life.bench.verdict())
}

fn brain_away_keeps_everything(life: &mut Life<'_>) -> anyhow::Result<Verdict> {
    life.start()?;
    let revision = life.bench.apply(&serving(2))?;
    life.await_packets(2)?;
    let written = life.written()?;
    turned_away(life)?;
    if life.bench.backend()?.dumps() {
        life.bench.holds(revision, &serving(2)).context("while the brain is away")?;
    }
    life.is_as(2, &written).context("while the brain is away")?;
    Ok(life.bench.verdict())
}

/// Of who proxies in a process of its own nothing is left when that ends.
fn proxies_itself(life: &Life<'_>) -> Option<Verdict> {
    let claims = &life.bench.options.claims;
    let itself = claims.has(Claim::Answers) && !claims.has(Claim::Source);
    itself.then(|| Verdict::NotClaimed("it proxies in its own process".to_owned()))
}

fn end_keeps_everything(life: &mut Life<'_>) -> anyhow::Result<Verdict> {
    if let Some(itself) = proxies_itself(life) {
        return Ok(itself);
    }
    life.start()?;
    life.bench.apply(&serving(2))?;
    life.await_packets(2)?;
    let written = life.written()?;
    ended(life)?;
    life.is_as(2, &written).context("after its end")?;
    Ok(life.bench.verdict())
}

/// As in a rolling update.
fn started_twice(life: &mut Life<'_>) -> anyhow::Result<Verdict> {
    if let Some(itself) = proxies_itself(life) {
        return Ok(itself);
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
    Ok(life.bench.verdict())
}

fn flushed(life: &mut Life<'_>) -> anyhow::Result<Verdict> {
    let Some(flush) = life.bench.options.flush.clone() else {
        return Ok(Verdict::NotClaimed("no --flush was given".to_owned()));
    };
    if let Some(blind) = life.is_blind() {
        return Ok(blind);
    }
    life.start()?;
    life.bench.apply(&serving(2))?;
    life.await_packets(2)?;
    let written = life.written()?;
    command(life, &flush)?;
    life.eventually(|life| life.is_as(2, &written)).context("after others have removed all rules")?;
    Ok(life.bench.verdict())
}

fn cleaned_up(life: &mut Life<'_>) -> anyhow::Result<Verdict> {
    let Some(cleanup) = life.bench.options.cleanup.clone() else {
        return Ok(Verdict::NotClaimed("no --cleanup was given".to_owned()));
    };
    if let Some(blind) = life.is_blind() {
        return Ok(blind);
    }
    let before = life.written()?;
    life.start()?;
    life.bench.apply(&serving(2))?;
    life.await_packets(2)?;
    ended(life)?;
    command(life, &cleanup)?;
    let blocked = life.claims_packets(2).is_none() || life.packets(2).is_err();
    anyhow::ensure!(blocked, "its rules still work after the cleanup");
    let left = life.written()?;
    anyhow::ensure!(left == before, "before there was {before:#?}, and after the cleanup {left:#?}");
    Ok(life.bench.verdict())
}

pub(super) fn command(life: &Life<'_>, text: &str) -> anyhow::Result<()> {
    life.bench.line.other(text).run(life.bench.namespace(), &[], life.bench.options.patience)
}
