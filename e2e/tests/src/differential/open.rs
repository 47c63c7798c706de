//! Keeps flows open while the cluster changes, and sends on each of them after every change.
//!
//! [`route::fate`] gives the expected outcome. A flow whose endpoint still serves continues with the same endpoint and source
//! address. Any other flow is routed anew. Stale flows are removed a moment after the rules have changed, so a flow that still
//! has its former endpoint is polled until this has happened.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use localnet_client::{
    Snapshot,
    route::{self, Fate, Outcome, Packet},
};
use localnet_lab::{Network, OpenFlow, Probe, Protocol, probe};
use localnet_proto::Family;

use crate::Backend;

use super::{
    ask::{Asked, Seen, Span},
    cluster::{Cluster, Slice},
    ipvs,
    judge::judge,
    pair::Side,
    question::{Question, Sender},
    random::Random,
    scene::{Scene, cannot_return},
    world::World,
    write::must_move,
};

/// The number of flows that are opened in each state.
const OPENED: usize = 8;
/// The maximum number of open flows. Beyond it, the oldest are closed.
const MOST: usize = 48;
/// Maximum time for the removal of stale flows.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);
/// How many requests a flow that has ended may need to be routed anew.
const TRIES: usize = 3;

/// The endpoint that answers a flow, and the source address that it sees.
type Carried = (SocketAddr, IpAddr);

/// A flow on each side.
#[derive(Debug)]
struct Open {
    question: Question,
    sides: Vec<(Side, Held)>,
}

#[derive(Debug)]
struct Held {
    flow: OpenFlow,
    carried: Option<Carried>,
    /// Whether the last request got no answer: it met silence or a reject.
    unanswered: bool,
    /// Whether the backend was started after the flow was last routed. A started backend does not know the previous endpoints.
    restarted: bool,
    /// Whether another program may have ended the flow.
    cut: bool,
}

/// One side of a flow, and its question.
type Asking<'a> = (&'a Question, &'a mut Held);

/// All open flows.
#[derive(Debug, Default)]
pub(crate) struct OpenFlows(Vec<Open>);

/// The outcome of a flow on one side.
#[derive(Debug)]
pub(crate) struct Followed {
    pub(crate) side: Side,
    /// The question as the first packet of a new flow from the same sender.
    pub(crate) asked: Asked,
    pub(crate) seen: Seen,
    pub(crate) became: Became,
    /// The previous and the current endpoint, for messages.
    pub(crate) before: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Became {
    /// The flow continued, as expected.
    WentOn,
    /// The flow was not open or was routed anew, as expected.
    Anew,
    /// The flow continued although its endpoint no longer serves, or ended although its endpoint is ready, or a connection without
    /// an answer is still not translated although the Service has endpoints now. kube-proxy does all three.
    Kept,
    /// The flow ended and was routed anew, by this difference of the ipvs backend.
    Ended(usize),
    Wrong,
}

impl OpenFlows {
    /// Closes all flows, because the cluster ends.
    pub(crate) fn close(&mut self) {
        self.0.clear();
    }

    /// Records that the programs were started again.
    pub(crate) fn restarted(&mut self) {
        self.held().for_each(|(_, held)| held.restarted = true);
    }

    /// Records that another program may have ended the flows of a side.
    pub(crate) fn cut(&mut self, side: Side) {
        self.held().filter(|(of, _)| *of == side).for_each(|(_, held)| held.cut = true);
    }

    fn held(&mut self) -> impl Iterator<Item = &mut (Side, Held)> {
        self.0.iter_mut().flat_map(|open| &mut open.sides)
    }

    /// Sends on all open flows, then opens new ones and sends twice on these.
    pub(crate) fn follow(
        &mut self,
        world: &World,
        scene: &Scene<'_>,
        random: &mut Random,
    ) -> anyhow::Result<Vec<Followed>> {
        self.0.retain(|Open { question, sides }| {
            let is_connection = |(side, held): &(Side, Held)| {
                held.carried.is_some() && !held.cut && held.ends(*side, question, scene, world).is_none()
            };
            let goes_on = question.protocol == Protocol::Tcp && sides.iter().all(is_connection);
            goes_on || !cannot_return(&expected(scene.state, scene, question), question)
        });
        let mut all = ask(world, scene, &mut self.0)?;
        let mut new = Vec::new();
        for _ in 0..OPENED {
            let question = scene.draw(random).question;
            let probe = Probe::new(question.protocol, question.to).from(question.source());
            let held = |side| {
                let flow = OpenFlow::new(question.home(world.network(side))?, probe);
                anyhow::Ok((side, Held { flow, carried: None, unanswered: false, restarted: false, cut: false }))
            };
            let sides = world.pair.sides().map(held).collect::<anyhow::Result<_>>()?;
            new.push(Open { question, sides });
        }
        for _ in 0..2 {
            all.extend(ask(world, scene, &mut new)?);
        }
        self.0.extend(new);
        let too_many = self.0.len().saturating_sub(MOST);
        self.0.drain(..too_many);
        Ok(all)
    }
}

/// Sends on the flows. Those of one sender are handled in sequence, because of SCTP's rejects.
fn ask(world: &World, scene: &Scene<'_>, open: &mut [Open]) -> anyhow::Result<Vec<Followed>> {
    let mut lanes: BTreeMap<(Side, Sender, usize), Vec<Asking<'_>>> = BTreeMap::new();
    for (number, Open { question, sides }) in open.iter_mut().enumerate() {
        // Flows with expected silence wait in parallel.
        let is_silent = expected(scene.state, scene, question) == Outcome::Drop && question.protocol != Protocol::Sctp;
        let number = if is_silent { number + 1 } else { 0 };
        let home = if question.sender == Sender::SecondClient { Sender::Client } else { question.sender };
        for (side, held) in sides {
            lanes.entry((*side, home, number)).or_default().push((question, held));
        }
    }
    let follow_all = |side, lane: Vec<Asking<'_>>| -> anyhow::Result<Vec<Followed>> {
        lane.into_iter().map(|(question, held)| held.follow(side, question, scene, world)).collect()
    };
    thread::scope(|scope| {
        let lanes: Vec<_> =
            lanes.into_iter().map(|((side, ..), lane)| scope.spawn(move || follow_all(side, lane))).collect();
        let mut all = Vec::new();
        for lane in lanes {
            all.extend(lane.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        }
        Ok(all)
    })
}

impl Held {
    /// The difference of the ipvs backend that may end the flow, if there is one.
    fn ends(&self, side: Side, question: &Question, scene: &Scene<'_>, world: &World) -> Option<usize> {
        let is_ipvs = side == Side::Ours && world.pair.backend == Backend::Ipvs;
        let (by, _) = self.carried.filter(|_| is_ipvs)?;
        ipvs::flow_ends(&scene.setup.packet(question), by, &expected(scene.state, scene, question), scene)
    }

    fn follow(
        &mut self,
        side: Side,
        question: &Question,
        scene: &Scene<'_>,
        world: &World,
    ) -> anyhow::Result<Followed> {
        let network = world.network(side);
        let asked =
            Asked { question: question.clone(), expected: expected(scene.state, scene, question), cover: false };
        let packet = scene.setup.packet(question);
        let (before, was_unanswered) = (self.carried, self.unanswered);
        let rules = scene.setup.rules(packet.destination);
        let goes_on = before.is_some_and(|(by, _)| route::fate(scene.state, &rules, &packet, by) == Fate::GoesOn);
        let is_certain = match before {
            Some((by, _)) => packet.protocol == localnet_proto::Protocol::Tcp || scene.serves_throughout(&packet, by),
            None => false,
        };
        let may_be_kept = before.is_some_and(|(by, _)| match side {
            Side::Ours => self.restarted && route::target(scene.state, &rules, &packet).is_none(),
            Side::KubeProxy => kube_proxy_keeps(scene, &packet, by),
        });
        let ends = self.ends(side, question, scene, world);
        let timeout = match asked.expected {
            Outcome::Drop if !goes_on => probe::SILENCE_TIMEOUT,
            _ => probe::ANSWER_TIMEOUT,
        };
        let (began, mut history, mut was_same, mut tries) = (Instant::now(), String::new(), false, 0);
        let deadline = began + PATIENCE;
        let (seen, became) = loop {
            let seen = self.ask(question, network, timeout)?;
            tries += 1;
            let same = before.is_some() && self.carried == before;
            if !same || !was_same {
                history = format!("{history}; after {:.1?} {seen}", began.elapsed());
            }
            // An answer is lost if it is in transit when its flow is removed. Waiting for it may use up the remaining time.
            let is_lost = std::mem::replace(&mut was_same, same) && is_silent(&seen);
            let is_new = judge(&asked, &seen, network.topology()).is_none();
            // Connection tracking keeps the translation of a reset connection for some seconds. A new connection from the same port gets it.
            let as_before = || {
                let sources = before.zip(self.carried).map(|((_, then), (_, now))| then == now);
                sources == Some(true) && judge(&asked.otherwise_masqueraded(), &seen, network.topology()).is_none()
            };
            let became = match (goes_on, same) {
                (true, true) => Became::WentOn,
                (true, false) if side == Side::KubeProxy && is_new && scene.is_ready_only(&packet, before) => {
                    Became::Kept
                }
                (true, false) if (!is_certain || self.cut) && is_new => Became::Anew,
                (true, false)
                    if (is_new || as_before())
                        && let Some(number) = ends =>
                {
                    Became::Ended(number)
                }
                // The first answer shows the end of the flow.
                (true, false) if (self.cut || ends.is_some()) && tries <= TRIES => continue,
                (true, false) if !is_certain && is_silent(&seen) && Instant::now() < deadline => continue,
                (true, false) => Became::Wrong,
                (false, _) if is_new => Became::Anew,
                (false, true) if may_be_kept => {
                    if side == Side::Ours {
                        Became::WentOn
                    } else {
                        Became::Kept
                    }
                }
                (false, false) if side == Side::KubeProxy && was_unanswered && is_untranslated(&seen, question) => {
                    Became::Kept
                }
                (false, _) if is_lost => continue,
                (false, _) if (same || before.is_some() && is_silent(&seen)) && Instant::now() < deadline => {
                    thread::park_timeout(PAUSE);
                    continue;
                }
                (false, _) => Became::Wrong,
            };
            break (seen, became);
        };
        let before = before.map_or_else(|| "nobody".to_owned(), |(by, source)| format!("{by}, which saw {source}"));
        let before = before + &history;
        self.restarted &= became == Became::WentOn;
        self.cut &= became == Became::WentOn;
        self.unanswered = seen.answers.is_empty();
        Ok(Followed { side, asked, seen, became, before })
    }

    fn ask(&mut self, question: &Question, network: &Network, timeout: Duration) -> anyhow::Result<Seen> {
        let began = Instant::now();
        let outcome = self.flow.exchange(question.home(network)?, timeout);
        let outcome =
            outcome.with_context(|| format!("asking {question} again, last answered by {:?}", self.carried))?;
        let mut seen = Seen { connections: 1, span: Some(Span { began, ended: Instant::now() }), ..Seen::default() };
        self.carried = match outcome {
            probe::Outcome::Answer { by, seen_source } => {
                seen.answers.insert((by, seen_source), 1);
                Some((by, seen_source))
            }
            other => {
                seen.others.insert(other);
                None
            }
        };
        Ok(seen)
    }
}

impl Scene<'_> {
    /// Whether the endpoint served throughout the last change, which consists of many writes: neither its slice nor the ports of
    /// the Service were written, and the Service always existed.
    fn serves_throughout(&self, packet: &Packet, by: SocketAddr) -> bool {
        let rules = self.setup.rules(packet.destination);
        let Some(found) = route::target(self.state, &rules, packet) else { return true };
        let named = |cluster: &'_ Cluster| {
            cluster.services.values().find(|service| *service.name == *found.service.key.name).cloned()
        };
        let (Some(old), Some(new)) = (named(self.before), named(self.cluster)) else { return false };
        let has = |slice: &&Slice| slice.endpoints.iter().any(|endpoint| endpoint.address == by.ip());
        let kept = new.slices.iter().filter(has).any(|slice| old.slices.contains(slice));
        // If two slices contain the endpoint, a write of the other one may briefly remove its serving condition.
        let others = |slices: &[Slice]| slices.iter().filter(has).cloned().collect::<Vec<_>>();
        kept && others(&old.slices) == others(&new.slices) && old.ports == new.ports && !must_move(&old, &new)
    }
}

impl Scene<'_> {
    /// Whether the endpoint is ready but not serving, as with `publishNotReadyAddresses`. kube-proxy sends new flows to it, and
    /// ends its UDP flows with each sync.
    fn is_ready_only(&self, packet: &Packet, before: Option<Carried>) -> bool {
        let rules = self.setup.rules(packet.destination);
        let (Some(found), Some((by, _))) = (route::target(self.state, &rules, packet), before) else { return false };
        let mut services = self.cluster.services.values();
        let service = services.find(|service| *service.name == *found.service.key.name);
        let mut endpoints = service.into_iter().flat_map(|service| &service.slices).flat_map(|slice| &slice.endpoints);
        endpoints.any(|endpoint| endpoint.address == by.ip() && endpoint.serving == Some(false))
    }
}

fn is_silent(seen: &Seen) -> bool {
    seen.others.contains(&probe::Outcome::Dropped)
}

/// Whether nobody answers, or only a server at the address itself.
fn is_untranslated(seen: &Seen, question: &Question) -> bool {
    seen.answers.keys().all(|(by, _)| *by == question.to)
}

fn expected(state: &Snapshot, scene: &Scene<'_>, question: &Question) -> Outcome {
    let packet = scene.setup.packet(question);
    route::route(state, &scene.setup.rules(packet.destination), &packet)
}

/// Whether kube-proxy keeps a flow. It ends only UDP flows of Services that have serving endpoints, and identifies endpoints only
/// by address (`CleanStaleEntries` in `pkg/proxy/conntrack/cleanup.go`).
fn kube_proxy_keeps(scene: &Scene<'_>, packet: &Packet, by: SocketAddr) -> bool {
    let keeps = |state: &Snapshot| {
        let rules = scene.setup.rules(packet.destination);
        let Some(found) = route::target(state, &rules, packet) else { return true };
        let family = Family::of(packet.destination);
        let serving = found.service.endpoints_of(found.port, family, |scopes| scopes.established);
        // To kube-proxy, an endpoint that is ready but not serving is not one of the serving endpoints.
        let is_serving = |endpoint: &SocketAddr| !scene.is_ready_only(packet, Some((*endpoint, endpoint.ip())));
        let serving: Vec<IpAddr> = serving.filter(is_serving).map(|endpoint| endpoint.ip()).collect();
        serving.is_empty() || serving.contains(&by.ip())
    };
    packet.protocol == localnet_proto::Protocol::Sctp
        || keeps(scene.state)
        || scene.former.is_some_and(|(_, state)| keeps(state))
        || scene.claimants(packet.destination).len() >= 2
}
