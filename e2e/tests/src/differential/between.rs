//! The packets of the differential test with two nodes: what the oracles predict, and what was seen.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::{IpAddr, SocketAddr},
    thread,
    time::Instant,
};

use localnet_client::{
    Snapshot,
    route::{self, Outcome, Packet},
};
use localnet_lab::{
    Namespace, Network, Probe, Protocol, Sender, Topology, journey,
    journey::{End, Hop, Verdict},
    probe,
    topology::{CLIENT_TWO, NODE, Place, SERVICE_CIDRS, of_family},
};

use crate::patience;

use super::{
    cluster::Cluster,
    pair::Pair,
    pools,
    question::{self, Question},
    random::Random,
    setup::Setup,
};

const CONNECTIONS: usize = 4;
/// The percentage of packets that are drawn again if no server answers, because there are enough of them.
const REDRAWN: usize = 60;

/// A packet, and all ends that the oracles of both nodes predict.
pub(crate) struct Asked {
    pub(crate) sender: Sender,
    protocol: Protocol,
    pub(crate) to: SocketAddr,
    about: String,
    pub(crate) ends: BTreeSet<End>,
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sender, protocol, to, about, ends } = self;
        write!(f, "{sender} → {} {to} (about {about})\n    expected {ends:?}", protocol.as_lowercase())
    }
}

/// Draws a packet whose answer reaches the sender.
pub(crate) fn draw(
    pair: Pair,
    (cluster, states): (&Cluster, &[Snapshot; 2]),
    setups: &[Setup; 2],
    topology: &Topology,
    random: &mut Random,
) -> Asked {
    loop {
        let Question { sender, protocol, mut to, about } = Question::random(cluster, random);
        let sender = match sender {
            question::Sender::Pod(pod) => Sender::Pod(pod),
            question::Sender::Node if random.percent(50) => Sender::OtherNode,
            question::Sender::Node => Sender::Node,
            question::Sender::Client => Sender::Client(None),
            question::Sender::SecondClient => Sender::Client(Some(of_family(CLIENT_TWO, to.ip()))),
        };
        if NODE.contains(&to.ip()) && random.percent(50) {
            to.set_ip(of_family(Place::Remote.addresses(), to.ip()));
        }
        // kube-proxy programs ServiceCIDRs late (entry 7), and NodePorts at link-local addresses (entry 5).
        if is_unallocated(&states[0], to.ip()) || to.ip() == pools::LINK_LOCAL {
            continue;
        }
        let ends = journey(topology, sender, to, |hop| {
            let at = hop.node as usize;
            verdict(&states[at], &setups[at], protocol, hop)
        });
        if pair.is_iptables() && is_known_of_iptables(sender, to.ip(), &ends, topology) {
            continue;
        }
        let is_answered = ends.iter().any(|end| matches!(end, End::Answer { by, .. } if *by != to));
        if ends.contains(&End::Lost) || !is_answered && random.percent(REDRAWN) {
            continue;
        }
        return Asked { sender, protocol, to, about, ends };
    }
}

/// Whether mode iptables may differ: it does not refuse packets of a node's processes (entry 8), and refuses NodePorts on further
/// addresses of a node (entry 9).
fn is_known_of_iptables(sender: Sender, to: IpAddr, ends: &BTreeSet<End>, topology: &Topology) -> bool {
    let is_answered = ends.iter().any(|end| matches!(end, End::Answer { .. }));
    let by_process = matches!(sender, Sender::Node | Sender::OtherNode);
    let is_further = Place::BOTH.iter().any(|place| topology.is_of(*place, to) && !place.addresses().contains(&to));
    by_process && !is_answered || is_further
}

fn is_unallocated(state: &Snapshot, address: IpAddr) -> bool {
    let in_cidr = |cidr: &str| cidr.parse().is_ok_and(|cidr: ipnet::IpNet| cidr.contains(&address));
    let more = pools::MORE_SERVICE_CIDRS.iter().flat_map(|cidrs| *cidrs);
    let is_cluster_ip = more.chain(&SERVICE_CIDRS).any(|cidr| in_cidr(cidr));
    is_cluster_ip && !state.services.values().any(|service| service.cluster_ips.contains(&address))
}

/// The oracle's verdict for a packet that passes a node.
fn verdict(state: &Snapshot, setup: &Setup, protocol: Protocol, hop: &Hop) -> Verdict {
    let (source, destination, port) = (hop.source, hop.to.ip(), hop.to.port());
    let origin = setup.origin_at(source, &hop.interface);
    let packet = Packet { source, destination, protocol, port, origin };
    match route::route(state, &setup.rules(destination), &packet) {
        Outcome::Endpoints { choices, masquerade, hairpin, .. } => Verdict::Endpoints { choices, masquerade, hairpin },
        Outcome::Reject => Verdict::Reject,
        Outcome::Drop => Verdict::Drop,
        Outcome::NotOurs => Verdict::Untouched,
    }
}

/// Sends all packets. Those of one sender are sent in sequence, and those that expect silence wait in parallel.
pub(crate) fn ask_all(network: &Network, all: &[Asked]) -> anyhow::Result<Vec<(usize, BTreeSet<probe::Outcome>)>> {
    let mut lanes: BTreeMap<(String, usize), Vec<usize>> = BTreeMap::new();
    for (number, asked) in all.iter().enumerate() {
        let alone = asked.ends == BTreeSet::from([End::Dropped]) && asked.protocol != Protocol::Sctp;
        let lane = (home(network, asked.sender)?.name().to_owned(), if alone { 1 + number } else { 0 });
        lanes.entry(lane).or_default().push(number);
    }
    thread::scope(|scope| {
        let ask = |numbers: Vec<usize>| {
            let one = |number: usize| anyhow::Ok((number, ask(network, &all[number])?));
            numbers.into_iter().map(one).collect::<anyhow::Result<Vec<_>>>()
        };
        let lanes: Vec<_> = lanes.into_values().map(|numbers| scope.spawn(move || ask(numbers))).collect();
        let join = |lane: thread::ScopedJoinHandle<'_, _>| match lane.join() {
            Ok(seen) => seen,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        let seen: Vec<Vec<_>> = lanes.into_iter().map(join).collect::<anyhow::Result<_>>()?;
        Ok(seen.into_iter().flatten().collect())
    })
}

fn ask(network: &Network, asked: &Asked) -> anyhow::Result<BTreeSet<probe::Outcome>> {
    let mut probe = Probe::new(asked.protocol, asked.to);
    if let Sender::Client(_) = asked.sender {
        probe = probe.from(asked.sender.source(asked.to.ip()));
    }
    if asked.ends == BTreeSet::from([End::Dropped]) {
        probe = probe.timeout(probe::SILENCE_TIMEOUT);
    }
    let (mut seen, mut count, began) = (BTreeSet::new(), 0, Instant::now());
    home(network, asked.sender)?.probe_until(probe, CONNECTIONS, |outcome| {
        seen.insert(outcome);
        count += 1;
        outcome == probe::Outcome::Dropped || began.elapsed() > patience()
    })?;
    Ok(seen)
}

fn home(network: &Network, sender: Sender) -> anyhow::Result<&Namespace> {
    match sender {
        Sender::Pod(pod) => network.pod(pod.addresses()[0]),
        Sender::Node => Ok(network.node()),
        Sender::OtherNode => network.other_node(),
        Sender::Client(_) => Ok(network.client()),
    }
}

/// The contradiction between what was seen and the predicted ends, if there is one.
pub(crate) fn judge(asked: &Asked, seen: &BTreeSet<probe::Outcome>, topology: &Topology) -> Option<String> {
    let own = match asked.sender {
        Sender::Node if topology.is_of(Place::Local, asked.to.ip()) => asked.to.ip(),
        Sender::OtherNode if topology.is_of(Place::Remote, asked.to.ip()) => asked.to.ip(),
        sender => sender.source(asked.to.ip()),
    };
    let is_right = |outcome: &probe::Outcome| match outcome {
        probe::Outcome::Rejected => asked.ends.contains(&End::Rejected),
        probe::Outcome::Dropped => asked.ends.contains(&End::Dropped),
        probe::Outcome::NoRoute => false,
        probe::Outcome::Answer { by, seen_source } => asked.ends.iter().any(|end| match end {
            End::Answer { by: expected, masqueraded_by: None } => expected == by && *seen_source == own,
            End::Answer { by: expected, masqueraded_by: Some(node) } => {
                expected == by && topology.is_of(*node, *seen_source)
            }
            End::Rejected | End::Dropped | End::Lost => false,
        }),
    };
    let wrong = seen.iter().find(|outcome| !is_right(outcome))?;
    Some(format!("{wrong} is none of the expected ends"))
}

#[test]
fn what_the_oracles_do_not_say_is_wrong() {
    let topology = Topology { other_node: true, ..pools::topology() };
    let at = |text: &str| text.parse::<SocketAddr>().unwrap();
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    let (remote, to) = (at("10.180.1.1:8080"), at("192.168.0.2:30000"));
    let answer = |seen: &str| probe::Outcome::Answer { by: remote, seen_source: ip(seen) };
    let by = |masqueraded_by| End::Answer { by: remote, masqueraded_by };
    for (end, outcome, right) in [
        (by(None), answer("203.0.113.2"), true),
        (by(None), answer("192.168.0.2"), false),
        (by(Some(Place::Local)), answer("192.168.0.2"), true),
        (by(Some(Place::Local)), answer("192.168.0.3"), false),
        (by(Some(Place::Remote)), answer("10.180.1.254"), true),
        (by(Some(Place::Remote)), answer("203.0.113.2"), false),
        (by(None), probe::Outcome::Dropped, false),
        (End::Answer { by: to, masqueraded_by: None }, answer("203.0.113.2"), false),
        (End::Dropped, probe::Outcome::Dropped, true),
        (End::Dropped, probe::Outcome::Rejected, false),
        (End::Rejected, probe::Outcome::Rejected, true),
        (End::Rejected, answer("203.0.113.2"), false),
    ] {
        let (protocol, about) = (Protocol::Tcp, String::new());
        let asked = Asked { sender: Sender::Client(None), protocol, to, about, ends: BTreeSet::from([end]) };
        let wrong = judge(&asked, &BTreeSet::from([outcome]), &topology);
        assert_eq!(wrong.is_none(), right, "{end:?}: {outcome}: {wrong:?}");
    }
}
