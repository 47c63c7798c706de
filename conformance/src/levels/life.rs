//! What can happen to a backend. Where it claims packets, they are looked at, too.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

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
        self.bench.start_brain()?;
        self.bench.start_backend()
    }

    /// Where packets are looked at: whoever does not claim it is not asked.
    fn claims_packets(&self, pods: usize) -> Option<&World> {
        let claims = &self.bench.options.claims;
        let outcome = if pods == 0 { Claim::Reject } else { Claim::Answers };
        let needed = [Claim::Tcp, Claim::Ipv4, Claim::ClusterIp, outcome];
        let claimed = needed.iter().all(|claim| claims.has(*claim));
        self.world.filter(|_| claimed && self.bench.options.levels.contains(&Level::Packets))
    }

    /// Whether packets say what a state of so many pods means.
    fn packets(&self, pods: usize) -> anyhow::Result<()> {
        self.claims_packets(pods).map_or(Ok(()), |world| probe_flows(&world.network, &[flow(pods)?]))
    }

    /// Waits until they do.
    fn await_packets(&self, pods: usize) -> anyhow::Result<()> {
        self.eventually(|| self.packets(pods))
    }

    fn eventually(&self, so: impl Fn() -> anyhow::Result<()>) -> anyhow::Result<()> {
        let deadline = Instant::now() + self.bench.options.patience;
        loop {
            match so() {
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
    fn is_as(&self, pods: usize, written: &[String]) -> anyhow::Result<()> {
        self.packets(pods)?;
        let now = self.written()?;
        anyhow::ensure!(now == written, "what is written was {written:#?}, and is {now:#?}");
        Ok(())
    }

    /// Why it cannot be seen what is there when the backend is not.
    fn is_blind(&self) -> Option<Verdict> {
        let sees = self.claims_packets(2).is_some() || self.bench.options.listing.is_some();
        (!sees).then(|| Verdict::NotClaimed("neither packets nor a --listing show what is there".to_owned()))
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
    life.bench.start_brain()?;
    life.bench.apply(&serving(2))?;
    life.packets(2)?;
    passed()
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
    life.eventually(|| life.is_as(2, &written))?;
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
        life.bench.start_brain()?;
        life.bench.holds(revision, &serving(pods))?;
    }
    life.await_packets(2)?;
    passed()
}

fn brain_away_keeps_everything(life: &mut Life<'_>) -> anyhow::Result<Verdict> {
    life.start()?;
    let revision = life.bench.apply(&serving(2))?;
    life.await_packets(2)?;
    let written = life.written()?;
    life.bench.brain.stop();
    std::thread::sleep(Duration::from_millis(500));
    life.bench.backend()?.is_alive().context("while the brain is away")?;
    if life.bench.backend()?.dumps() {
        life.bench.holds(revision, &serving(2)).context("while the brain is away")?;
    }
    life.is_as(2, &written).context("while the brain is away")?;
    passed()
}

/// Of who proxies in a process of its own nothing is left when that ends.
fn proxies_itself(life: &Life<'_>) -> Option<Verdict> {
    let itself = !life.bench.options.claims.has(Claim::Source);
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
    passed()
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
    passed()
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
    life.eventually(|| life.is_as(2, &written)).context("after others have removed all rules")?;
    passed()
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
    passed()
}

fn command(life: &Life<'_>, text: &str) -> anyhow::Result<()> {
    life.bench.line.other(text).run(life.bench.namespace(), &[], life.bench.options.patience)
}
