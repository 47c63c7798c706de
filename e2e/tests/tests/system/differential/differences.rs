//! The intended differences: entries of `docs/differences.md`, matched by number.

use std::{collections::BTreeSet, net::SocketAddr, sync::Arc};

use localnet_client::{
    Snapshot,
    route::{self, Origin, Outcome, Packet, Rules},
};
use localnet_lab::{Topology, probe};
use localnet_proto::Service;

use crate::kube_proxy::Mode;

use super::{
    ask::{Asked, Seen},
    judge::judge,
    pools,
    question::Sender,
    run::{Scene, cannot_return},
    world::Side,
};

/// Something that differs from the oracle on one side.
pub(crate) struct Difference<'a> {
    pub(crate) mode: Mode,
    pub(crate) side: Side,
    pub(crate) asked: &'a Asked,
    pub(crate) seen: &'a Seen,
    pub(crate) scene: &'a Scene<'a>,
    pub(crate) topology: &'a Topology,
}

struct Entry {
    number: usize,
    matches: fn(&Difference<'_>) -> bool,
}

const ENTRIES: [Entry; 9] = [
    Entry { number: 1, matches: translated_packet_meets_another_service },
    Entry { number: 3, matches: |difference| claimant_has_it(difference, |claimants| claimants >= 2) },
    Entry { number: 4, matches: |difference| claimant_has_it(difference, |claimants| claimants == 1) },
    Entry { number: 5, matches: node_port_of_link_local_address },
    Entry { number: 7, matches: unallocated_address_is_let_through },
    Entry { number: 8, matches: node_is_not_refused },
    Entry { number: 9, matches: node_port_is_refused_elsewhere },
    Entry { number: 10, matches: source_ranges_are_ignored },
    Entry { number: 12, matches: external_ip_passes_source_ranges },
];

/// The number of the entry that explains it.
pub(crate) fn explain(difference: &Difference<'_>) -> Option<usize> {
    let matching = |difference: &Difference<'_>| ENTRIES.iter().find(|entry| (entry.matches)(difference));
    let number = matching(difference).map(|entry| entry.number);
    number.or_else(|| {
        former_owner_keeps_its_slices(difference, |difference| matching(difference).is_some()).then_some(14)
    })
}

/// A slice that has gone to another Service is also with its former one. What follows from that may be another entry as well.
fn former_owner_keeps_its_slices(difference: &Difference<'_>, matches: impl Fn(&Difference<'_>) -> bool) -> bool {
    let Difference { side: Side::KubeProxy, asked, seen, scene, topology, .. } = *difference else { return false };
    let Some(state) = scene.former else { return false };
    let packet = asked.question.packet(scene.setup);
    let expected = route::route(state, &scene.setup.rules(packet.destination), &packet);
    // How often it was asked follows from what was expected.
    let asked = &Asked { expected, cover: false, ..asked.clone() };
    let scene = &Scene { state, former: None, ..*scene };
    is_right(asked, seen, topology) || matches(&Difference { asked, scene, ..*difference })
}

/// Whether that is what was to be seen. Where an answer passes the node by, silence is.
fn is_right(asked: &Asked, seen: &Seen, topology: &Topology) -> bool {
    let is_silent = seen.answers.is_empty() && seen.others == BTreeSet::from([probe::Outcome::Dropped]);
    judge(asked, seen, topology).is_none() || is_silent && cannot_return(&asked.expected, &asked.question)
}

fn translated_packet_meets_another_service(difference: &Difference<'_>) -> bool {
    let Difference { side: Side::KubeProxy, asked, seen, scene, .. } = difference else { return false };
    let Outcome::Endpoints { choices, .. } = &asked.expected else { return false };
    let answered = |choice: &SocketAddr| seen.answers.keys().any(|(by, _)| by == choice);
    let meets_in = |state: &Snapshot, choice: &SocketAddr| {
        let asked_for = asked.question.packet(scene.setup);
        // The other Service's policy would let some senders through, were they translated once more.
        [asked_for.origin, Origin::Outside].into_iter().any(|origin| {
            let packet = Packet { destination: choice.ip(), port: choice.port(), origin, ..asked_for };
            let outcome = match route::route(state, &scene.setup.rules(choice.ip()), &packet) {
                Outcome::Reject => probe::Outcome::Rejected,
                Outcome::Drop => probe::Outcome::Dropped,
                Outcome::Endpoints { .. } | Outcome::NotOurs => return false,
            };
            // A client that hears nothing asks again, and may be sent to another endpoint.
            let again = outcome == probe::Outcome::Dropped && seen.others.is_empty();
            !answered(choice) && (again || seen.others == BTreeSet::from([outcome]))
        })
    };
    let meets = |choice: &SocketAddr| {
        meets_in(scene.state, choice) || scene.claimants(choice.ip()).iter().any(|state| meets_in(state, choice))
    };
    seen.answers.keys().all(|(by, _)| choices.contains(by)) && choices.iter().any(meets)
}

/// One of several Services that claim the address has the packet, as if it were alone: one of those that claim its port, too.
fn claimant_has_it(difference: &Difference<'_>, is_number: fn(usize) -> bool) -> bool {
    let Difference { mode, side: Side::KubeProxy, asked, seen, scene, topology, .. } = difference else { return false };
    let to = asked.question.to.ip();
    let claimants = scene.claimants(to);
    let states: Vec<&Snapshot> = scene.claims_of_port(&claimants, asked).collect();
    let (rules, packet) = (scene.setup.rules(to), asked.question.packet(scene.setup));
    let alone = states.iter().map(|state| route::route(state, &rules, &packet));
    // It may be entry 10 or 12 as well.
    let ignores_sources = matches!(mode, Mode::Iptables(_));
    let unguarded = states.iter().filter(|_| ignores_sources).flat_map(|state| {
        [without_sources(state, &rules, &packet), past_sources(state, &rules, &packet)].into_iter().flatten()
    });
    let outcomes: Vec<Outcome> = alone.chain(unguarded).collect();
    // How often it was asked follows from what was expected.
    let asked = |expected| Asked { expected, cover: false, ..(*asked).clone() };
    let is_right = |expected: Outcome| is_right(&asked(expected), seen, topology);
    claimants.len() >= 2 && is_number(states.len()) && outcomes.into_iter().any(is_right)
}

/// The NodePort is answered there, as on the node's other addresses.
fn node_port_of_link_local_address(difference: &Difference<'_>) -> bool {
    let Difference { side: Side::KubeProxy, asked, seen, scene, topology, .. } = difference else { return false };
    let to = asked.question.to.ip();
    let mut rules = scene.setup.rules(to);
    if to != pools::LINK_LOCAL || scene.setup.is_restricted(to) || !rules.node_port_addresses.insert(to) {
        return false;
    }
    // How often it was asked follows from what was expected.
    let expected = route::route(scene.state, &rules, &asked.question.packet(scene.setup));
    judge(&Asked { expected, cover: false, ..(*asked).clone() }, seen, topology).is_none()
}

/// Nothing has the address, and the world outside says that it does not know the port.
fn unallocated_address_is_let_through(difference: &Difference<'_>) -> bool {
    let Difference { side: Side::KubeProxy, asked, seen, scene, topology, .. } = difference else { return false };
    let to = asked.question.to.ip();
    let vips = |service: &Service| service.cluster_ips.contains(&to) || service.external_ips.contains(&to);
    let is_unallocated = scene.state.node.service_cidrs.iter().any(|cidr| cidr.contains(&to))
        && !scene.state.services.values().any(|service| vips(service) || service.load_balancer_ips.contains(&to));
    let only = |outcome| seen.answers.is_empty() && seen.others == BTreeSet::from([outcome]);
    let is_untouched = judge(&Asked { expected: Outcome::NotOurs, ..(*asked).clone() }, seen, topology).is_none();
    let is_let_through = is_unallocated && (only(probe::Outcome::Rejected) || is_untouched);
    // A ServiceCIDR that has gone is also forgotten with the next full sync only.
    let was_in = asked.expected == Outcome::NotOurs && pools::IN_MORE_SERVICE_CIDRS.contains(&to);
    asked.expected == Outcome::Drop && is_let_through || was_in && only(probe::Outcome::Dropped)
}

/// What the node itself sends to an external address that nothing serves leaves it.
fn node_is_not_refused(difference: &Difference<'_>) -> bool {
    let Difference { mode: Mode::Iptables(_), side: Side::KubeProxy, asked, seen, topology, .. } = difference else {
        return false;
    };
    let is_unserved = matches!(asked.expected, Outcome::Reject | Outcome::Drop);
    let untouched = Asked { expected: Outcome::NotOurs, ..(*asked).clone() };
    asked.question.sender == Sender::Node && is_unserved && judge(&untouched, seen, topology).is_none()
}

/// A NodePort that nothing serves is refused, or dropped, on all of the node's addresses.
fn node_port_is_refused_elsewhere(difference: &Difference<'_>) -> bool {
    let Difference { mode: Mode::Iptables(_), side: Side::KubeProxy, asked, seen, scene, topology, .. } = difference
    else {
        return false;
    };
    let to = asked.question.to.ip();
    let mut rules = scene.setup.rules(to);
    let answers_elsewhere = topology.node_has(to) && rules.node_port_addresses.insert(to);
    let asked_for = asked.question.packet(scene.setup);
    // By its address, whoever sends: a policy would let some senders through to endpoints elsewhere.
    let is_unserved = [asked_for.origin, Origin::Outside].into_iter().any(|origin| {
        let expected = route::route(scene.state, &rules, &Packet { origin, ..asked_for });
        let is_unserved = matches!(expected, Outcome::Reject | Outcome::Drop);
        is_unserved && judge(&Asked { expected, ..(*asked).clone() }, seen, topology).is_none()
    });
    answers_elsewhere && is_unserved
}

/// Source ranges of a Service that nothing serves are not looked at: it rejects whoever sends.
fn source_ranges_are_ignored(difference: &Difference<'_>) -> bool {
    let Difference { mode: Mode::Iptables(_), side: Side::KubeProxy, asked, seen, scene, topology, .. } = difference
    else {
        return false;
    };
    let packet = asked.question.packet(scene.setup);
    let unserved = without_sources(scene.state, &scene.setup.rules(packet.destination), &packet);
    unserved.is_some_and(|expected| judge(&Asked { expected, ..(*asked).clone() }, seen, topology).is_none())
}

/// What becomes of a packet that nothing serves if nobody looks at source ranges.
fn without_sources(state: &Snapshot, rules: &Rules, packet: &Packet) -> Option<Outcome> {
    let mut state = state.clone();
    state.services.values_mut().for_each(|service| Arc::make_mut(service).source_filters.clear());
    Some(route::route(&state, rules, packet)).filter(|outcome| matches!(outcome, Outcome::Reject | Outcome::Drop))
}

/// The address is an external IP and a load balancer's of one Service: the first rule that matches is the external IP's.
fn external_ip_passes_source_ranges(difference: &Difference<'_>) -> bool {
    let Difference { mode: Mode::Iptables(_), side: Side::KubeProxy, asked, seen, scene, topology, .. } = difference
    else {
        return false;
    };
    let packet = asked.question.packet(scene.setup);
    let passes = past_sources(scene.state, &scene.setup.rules(packet.destination), &packet);
    // How often it was asked follows from what was expected.
    let is_right =
        |expected: Outcome| judge(&Asked { expected, cover: false, ..(*asked).clone() }, seen, topology).is_none();
    asked.expected == Outcome::Drop && passes.is_some_and(is_right)
}

/// Which endpoints a packet reaches if source ranges do not guard addresses that are external IPs of the same Service as well.
fn past_sources(state: &Snapshot, rules: &Rules, packet: &Packet) -> Option<Outcome> {
    let mut state = state.clone();
    for service in state.services.values_mut() {
        let service = Arc::make_mut(service);
        let external = &service.external_ips;
        service.source_filters.iter_mut().for_each(|filter| filter.targets.retain(|target| !external.contains(target)));
    }
    Some(route::route(&state, rules, packet)).filter(|outcome| matches!(outcome, Outcome::Endpoints { .. }))
}
