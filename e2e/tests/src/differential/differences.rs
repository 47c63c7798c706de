//! The intended differences: entries of `docs/differences.md`, by number.

use std::{collections::BTreeSet, net::SocketAddr, sync::Arc};

use localnet_client::{
    Snapshot,
    route::{self, Origin, Outcome, Packet, Rules},
};
use localnet_lab::{Topology, probe};
use localnet_proto::Service;

use super::{
    ask::{Asked, Seen},
    judge::judge,
    pair::{Pair, Side},
    pools,
    question::Sender,
    scene::{Scene, cannot_return},
};

/// An outcome on one side that differs from the oracle's.
pub(crate) struct Difference<'a> {
    pub(crate) pair: Pair,
    pub(crate) side: Side,
    pub(crate) asked: &'a Asked,
    pub(crate) seen: &'a Seen,
    pub(crate) scene: &'a Scene<'a>,
    pub(crate) topology: &'a Topology,
}

struct Entry {
    number: usize,
    /// Whether only mode iptables differs.
    only_iptables: bool,
    matches: fn(&Difference<'_>) -> bool,
}

const ENTRIES: [Entry; 9] = [
    Entry { number: 1, only_iptables: false, matches: translated_packet_meets_another_service },
    Entry {
        number: 3,
        only_iptables: false,
        matches: |difference| claimant_has_it(difference, |claimants| claimants >= 2),
    },
    Entry {
        number: 4,
        only_iptables: false,
        matches: |difference| claimant_has_it(difference, |claimants| claimants == 1),
    },
    Entry { number: 5, only_iptables: false, matches: node_port_of_link_local_address },
    Entry { number: 7, only_iptables: false, matches: unallocated_address_is_let_through },
    Entry { number: 8, only_iptables: true, matches: node_is_not_refused },
    Entry { number: 9, only_iptables: true, matches: node_port_is_refused_elsewhere },
    Entry { number: 10, only_iptables: true, matches: source_ranges_are_ignored },
    Entry { number: 12, only_iptables: true, matches: external_ip_passes_source_ranges },
];

/// The number of the entry that explains the difference.
pub(crate) fn explain(difference: &Difference<'_>) -> Option<usize> {
    let matching = |difference: &Difference<'_>| {
        let applies = |entry: &&Entry| difference.pair.is_iptables() || !entry.only_iptables;
        ENTRIES.iter().filter(applies).find(|entry| (entry.matches)(difference))
    };
    let number = matching(difference).map(|entry| entry.number);
    number.or_else(|| {
        former_owner_keeps_its_slices(difference, |difference| matching(difference).is_some()).then_some(14)
    })
}

/// Whether kube-proxy behaves as if a slice that moved to another Service still belonged to its former one, too. The consequences
/// may match another entry in turn.
fn former_owner_keeps_its_slices(difference: &Difference<'_>, matches: impl Fn(&Difference<'_>) -> bool) -> bool {
    let Difference { pair, side: Side::KubeProxy, asked, seen, scene, topology } = *difference else { return false };
    let Some((cluster, state)) = scene.former else { return false };
    let packet = scene.setup.packet(&asked.question);
    let expected = route::route(state, &scene.setup.rules(packet.destination), &packet);
    // The original expectation determined the number of packets, so not every endpoint must be seen.
    let asked = &Asked { expected, cover: false, ..asked.clone() };
    let scene = &Scene { cluster, state, former: None, ..*scene };
    is_right(pair, asked, seen, topology) || matches(&Difference { asked, scene, ..*difference })
}

/// Whether the outcome is right. Some of several connections may go to an endpoint whose answer bypasses the node, so silence is
/// right, too. iptables rules masquerade a pod that connects to itself on any node. In nftables mode, only pods of this node are
/// known.
fn is_right(pair: Pair, asked: &Asked, seen: &Seen, topology: &Topology) -> bool {
    let (mut asked, mut heard) = (asked.clone(), seen.clone());
    if cannot_return(&asked.expected, &asked.question) {
        heard.others.remove(&probe::Outcome::Dropped);
    }
    if let (true, Outcome::Endpoints { choices, hairpin, .. }) = (pair.is_iptables(), &mut asked.expected) {
        let source = asked.question.source();
        hairpin.extend(choices.iter().filter(|choice| choice.ip() == source));
    }
    judge(&asked, &heard, topology).is_none()
}

fn translated_packet_meets_another_service(difference: &Difference<'_>) -> bool {
    let Difference { side: Side::KubeProxy, asked, seen, scene, .. } = difference else { return false };
    let Outcome::Endpoints { choices, .. } = &asked.expected else { return false };
    let answered = |choice: &SocketAddr| seen.answers.keys().any(|(by, _)| by == choice);
    let meets_in = |state: &Snapshot, choice: &SocketAddr| {
        let asked_for = scene.setup.packet(&asked.question);
        // The other Service's policy would forward packets of some senders, after another translation.
        [asked_for.origin, Origin::Outside].into_iter().any(|origin| {
            let packet = Packet { destination: choice.ip(), port: choice.port(), origin, ..asked_for };
            let outcome = match route::route(state, &scene.setup.rules(choice.ip()), &packet) {
                Outcome::Reject => probe::Outcome::Rejected,
                Outcome::Drop => probe::Outcome::Dropped,
                Outcome::Endpoints { .. } | Outcome::NotOurs => return false,
            };
            // A client without an answer retries, and may be sent to another endpoint.
            let again = outcome == probe::Outcome::Dropped && seen.others.is_empty();
            !answered(choice) && (again || seen.others == BTreeSet::from([outcome]))
        })
    };
    let meets = |choice: &SocketAddr| {
        meets_in(scene.state, choice) || scene.claimants(choice.ip()).iter().any(|state| meets_in(state, choice))
    };
    seen.answers.keys().all(|(by, _)| choices.contains(by)) && choices.iter().any(meets)
}

/// Whether one of several claimants of the address gets the packet, as if it were alone. It must also claim the port, if any
/// claimant does.
fn claimant_has_it(difference: &Difference<'_>, is_number: fn(usize) -> bool) -> bool {
    let Difference { pair, side: Side::KubeProxy, asked, seen, scene, topology, .. } = difference else { return false };
    let to = asked.question.to.ip();
    let claimants = scene.claimants(to);
    let states: Vec<&Snapshot> = scene.claims_of_port(&claimants, asked).collect();
    let (rules, packet) = (scene.setup.rules(to), scene.setup.packet(&asked.question));
    let alone = states.iter().map(|state| route::route(state, &rules, &packet));
    // The difference may match entry 10 or 12 as well.
    let ignores_sources = pair.is_iptables();
    let unguarded = states.iter().filter(|_| ignores_sources).flat_map(|state| {
        [without_sources(state, &rules, &packet), past_sources(state, &rules, &packet)].into_iter().flatten()
    });
    let outcomes: Vec<Outcome> = alone.chain(unguarded).collect();
    // The original expectation determined the number of packets, so not every endpoint must be seen.
    let asked = |expected| Asked { expected, cover: false, ..(*asked).clone() };
    let is_right = |asked: &Asked| is_right(*pair, asked, seen, topology);
    // The packet that a claimant translates may meet another Service in turn.
    let meets = |asked: &Asked| translated_packet_meets_another_service(&Difference { asked, ..*difference });
    let has_it = |asked: Asked| is_right(&asked) || meets(&asked);
    claimants.len() >= 2 && is_number(states.len()) && outcomes.into_iter().map(asked).any(has_it)
}

/// Whether the NodePort answers at a link-local address, as on the node's other addresses. The packet may meet another Service in
/// turn.
fn node_port_of_link_local_address(difference: &Difference<'_>) -> bool {
    let Difference { pair, side: Side::KubeProxy, asked, seen, scene, topology, .. } = difference else { return false };
    let to = asked.question.to.ip();
    let mut rules = scene.setup.rules(to);
    if to != pools::LINK_LOCAL || scene.setup.is_restricted(to) || !rules.node_port_addresses.insert(to) {
        return false;
    }
    // The original expectation determined the number of packets, so not every endpoint must be seen.
    let expected = route::route(scene.state, &rules, &scene.setup.packet(&asked.question));
    let asked = &Asked { expected, cover: false, ..(*asked).clone() };
    is_right(*pair, asked, seen, topology)
        || translated_packet_meets_another_service(&Difference { asked, ..*difference })
}

/// Whether a packet to an unallocated address leaves the node, and the network outside rejects the port.
fn unallocated_address_is_let_through(difference: &Difference<'_>) -> bool {
    let Difference { side: Side::KubeProxy, asked, seen, scene, topology, .. } = difference else { return false };
    let to = asked.question.to.ip();
    let vips = |service: &Service| service.cluster_ips.contains(&to) || service.external_ips.contains(&to);
    let is_unallocated = scene.state.node.service_cidrs.iter().any(|cidr| cidr.contains(&to))
        && !scene.state.services.values().any(|service| vips(service) || service.load_balancer_ips.contains(&to));
    let only = |outcome| seen.answers.is_empty() && seen.others == BTreeSet::from([outcome]);
    let is_untouched = judge(&Asked { expected: Outcome::NotOurs, ..(*asked).clone() }, seen, topology).is_none();
    let is_let_through = is_unallocated && (only(probe::Outcome::Rejected) || is_untouched);
    // kube-proxy removes a deleted ServiceCIDR only with its next full sync, too.
    let was_in = asked.expected == Outcome::NotOurs && pools::IN_MORE_SERVICE_CIDRS.contains(&to);
    asked.expected == Outcome::Drop && is_let_through || was_in && only(probe::Outcome::Dropped)
}

/// Whether a packet of the node itself to an external address without endpoints leaves the node.
fn node_is_not_refused(difference: &Difference<'_>) -> bool {
    let Difference { side: Side::KubeProxy, asked, seen, topology, .. } = difference else { return false };
    let is_unserved = matches!(asked.expected, Outcome::Reject | Outcome::Drop);
    let untouched = Asked { expected: Outcome::NotOurs, ..(*asked).clone() };
    asked.question.sender == Sender::Node && is_unserved && judge(&untouched, seen, topology).is_none()
}

/// Whether a NodePort without endpoints is rejected or dropped on all of the node's addresses.
fn node_port_is_refused_elsewhere(difference: &Difference<'_>) -> bool {
    let Difference { side: Side::KubeProxy, asked, seen, scene, topology, .. } = difference else { return false };
    let to = asked.question.to.ip();
    let mut rules = scene.setup.rules(to);
    let answers_elsewhere = topology.node_has(to) && rules.node_port_addresses.insert(to);
    let asked_for = scene.setup.packet(&asked.question);
    // The verdict for the address applies to all senders. A policy would forward some senders' packets to remote endpoints.
    let is_unserved = [asked_for.origin, Origin::Outside].into_iter().any(|origin| {
        let expected = route::route(scene.state, &rules, &Packet { origin, ..asked_for });
        let is_unserved = matches!(expected, Outcome::Reject | Outcome::Drop);
        is_unserved && judge(&Asked { expected, ..(*asked).clone() }, seen, topology).is_none()
    });
    answers_elsewhere && is_unserved
}

/// Whether a Service without endpoints rejects packets from all senders, regardless of its source ranges.
fn source_ranges_are_ignored(difference: &Difference<'_>) -> bool {
    let Difference { side: Side::KubeProxy, asked, seen, scene, topology, .. } = difference else { return false };
    let packet = scene.setup.packet(&asked.question);
    let unserved = without_sources(scene.state, &scene.setup.rules(packet.destination), &packet);
    unserved.is_some_and(|expected| judge(&Asked { expected, ..(*asked).clone() }, seen, topology).is_none())
}

/// The verdict for a packet without eligible endpoints, if source ranges are ignored.
fn without_sources(state: &Snapshot, rules: &Rules, packet: &Packet) -> Option<Outcome> {
    let mut state = state.clone();
    state.services.values_mut().for_each(|service| Arc::make_mut(service).source_filters.clear());
    Some(route::route(&state, rules, packet)).filter(|outcome| matches!(outcome, Outcome::Reject | Outcome::Drop))
}

/// Whether an address that is both an external IP and a load balancer IP of one Service bypasses the source ranges. The rule of
/// the external IP matches first.
fn external_ip_passes_source_ranges(difference: &Difference<'_>) -> bool {
    let Difference { side: Side::KubeProxy, asked, seen, scene, topology, .. } = difference else { return false };
    let packet = scene.setup.packet(&asked.question);
    let passes = past_sources(scene.state, &scene.setup.rules(packet.destination), &packet);
    // The original expectation determined the number of packets, so not every endpoint must be seen.
    let is_right =
        |expected: Outcome| judge(&Asked { expected, cover: false, ..(*asked).clone() }, seen, topology).is_none();
    asked.expected == Outcome::Drop && passes.is_some_and(is_right)
}

/// The endpoints of a packet, if source ranges do not apply to addresses that are also external IPs of the same Service.
fn past_sources(state: &Snapshot, rules: &Rules, packet: &Packet) -> Option<Outcome> {
    let mut state = state.clone();
    for service in state.services.values_mut() {
        let service = Arc::make_mut(service);
        let external = &service.external_ips;
        service.source_filters.iter_mut().for_each(|filter| filter.targets.retain(|target| !external.contains(target)));
    }
    Some(route::route(&state, rules, packet)).filter(|outcome| matches!(outcome, Outcome::Endpoints { .. }))
}

/// Regression (SEED=3151295560 after 4 changes): kube-proxy sends a remote pod to a claimant's three endpoints. The answer of one
/// comes through the node, the answer of another bypasses it, and the third is the pod itself.
#[test]
fn of_several_connections_some_may_be_answered_past_the_node() {
    use super::question::Question;
    const DROPPED: [probe::Outcome; 1] = [probe::Outcome::Dropped];
    let address = |text: &str| text.parse::<SocketAddr>().unwrap();
    let (foreign, pod) = (address("[2001:db8:0:f::1]:8081"), address("[fd00:10:180:1::2]:8081"));
    let itself = address("[fd00:10:180:1::1]:8081");
    let sender = Sender::Pod(pools::pod(localnet_lab::topology::Place::Remote, 1));
    let to = address("[2001:db8:ffff:1::5]:53");
    let question = Question { sender, protocol: localnet_lab::Protocol::Tcp, to, about: String::new() };
    let (source, node) = (question.source(), pools::SECOND[1]);
    let asked = |choices| Asked {
        question: question.clone(),
        expected: Outcome::Endpoints { choices, masquerade: false, hairpin: BTreeSet::new(), affinity: None },
        cover: false,
    };
    let seen = |answers: &[(SocketAddr, std::net::IpAddr)], others: &[probe::Outcome]| Seen {
        answers: answers.iter().map(|answer| (*answer, 1)).collect(),
        others: others.iter().copied().collect(),
        ..Seen::default()
    };
    let (all, one) = (asked(BTreeSet::from([foreign, pod, itself])), asked(BTreeSet::from([foreign])));
    let iptables = Pair::IPTABLES[0];
    for (pair, asked, seen, right) in [
        (iptables, &all, seen(&[(foreign, source)], &DROPPED), true),
        (iptables, &all, seen(&[], &DROPPED), true),
        (iptables, &all, seen(&[(foreign, source), (itself, node)], &[]), true),
        (iptables, &all, seen(&[(foreign, node)], &[]), false),
        (iptables, &all, seen(&[(foreign, source)], &[probe::Outcome::Rejected]), false),
        (iptables, &all, seen(&[(to, source)], &DROPPED), false),
        (iptables, &one, seen(&[(foreign, source)], &DROPPED), false),
        (Pair::NFT, &all, seen(&[(foreign, source)], &DROPPED), true),
        (Pair::NFT, &all, seen(&[(foreign, source), (itself, node)], &[]), false),
    ] {
        assert_eq!(is_right(pair, asked, &seen, &pools::topology()), right, "{pair} {asked:?}: {seen}");
    }
}

/// Regression (SEED=1406059117 after 6 changes): kube-proxy translates a NodePort at a link-local address to the node's own address,
/// which is an external IP of a Service without endpoints.
#[test]
fn a_node_port_of_a_link_local_address_may_meet_another_service() {
    use super::{cluster::Cluster, question::Question, setup::Setup};
    let state: Snapshot = serde_json::from_value(serde_json::json!({
        "node": { "name": "node-a" },
        "services": [
            {
                "service": "diff/one", "type": "NodePort", "clusterIPs": ["172.30.1.19"],
                "ports": [{ "name": "", "protocol": "TCP", "port": 53, "nodePort": 30054 }],
                "endpoints": [{ "address": "192.168.0.2", "ports": [{ "name": "", "port": 8080 }], "scopes": { "external": true } }],
            },
            {
                "service": "diff/two", "type": "ClusterIP", "clusterIPs": ["172.30.1.20"], "externalIPs": ["192.168.0.2"],
                "ports": [{ "name": "", "protocol": "TCP", "port": 8080 }],
            },
        ],
    }))
    .unwrap();
    let setup = Setup { node_port_addresses: &["0.0.0.0/0", "::/0"], ..Setup::USUAL };
    let (cluster, topology) = (Cluster::default(), pools::topology());
    let scene =
        Scene { seed: 0, changes: 0, cluster: &cluster, before: &cluster, state: &state, setup: &setup, former: None };
    for (to, outcome, entry) in [
        ("169.254.1.2:30054", probe::Outcome::Rejected, Some(5)),
        ("169.254.1.2:30054", probe::Outcome::NoRoute, None),
        ("169.254.1.2:30055", probe::Outcome::Rejected, None),
    ] {
        let (to, sender) = (to.parse().unwrap(), Sender::Client);
        let question = Question { sender, protocol: localnet_lab::Protocol::Tcp, to, about: String::new() };
        let asked = &Asked { question, expected: Outcome::NotOurs, cover: false };
        let seen = &Seen { others: BTreeSet::from([outcome]), ..Seen::default() };
        let (pair, side) = (Pair::NFT, Side::KubeProxy);
        let difference = Difference { pair, side, asked, seen, scene: &scene, topology: &topology };
        assert_eq!(explain(&difference), entry, "{}: {seen}", asked.question);
    }
}
