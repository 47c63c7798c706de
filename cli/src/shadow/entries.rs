//! The deliberate differences from kube-proxy: the entries of `docs/differences.md`, by number.

use std::{net::IpAddr, sync::Arc};

use localnet_client::{
    Snapshot,
    route::{self, Origin, Outcome, Packet, Rules},
};

use super::{
    Mode,
    verdict::{Verdict, Verdicts, of_outcome},
};

/// A packet that kube-proxy treats in another way.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    /// The state of the node.
    pub state: &'a Snapshot,
    /// The parts of the configuration that affect the oracle.
    pub rules: &'a Rules,
    /// The packet.
    pub packet: &'a Packet,
    /// kube-proxy's mode.
    pub mode: Mode,
    /// The addresses of the node's interfaces.
    pub local: &'a [IpAddr],
    /// What the oracle predicts.
    pub ours: &'a Verdicts,
    /// What kube-proxy's rules do.
    pub theirs: &'a Verdicts,
}

/// The number of an entry, whether it applies only to mode iptables, and whether it explains a difference.
type Entry = (u8, bool, fn(&Case<'_>) -> bool);

/// The number of the entry that explains the difference.
pub fn explain(case: &Case<'_>) -> Option<u8> {
    let all: [Entry; 7] = [
        (1, false, meets_another_service),
        (5, false, node_port_of_link_local_address),
        (7, false, unallocated_address_is_let_through),
        (8, true, node_is_not_refused),
        (9, true, node_port_is_refused_elsewhere),
        (10, true, source_ranges_are_ignored),
        (12, true, external_ip_passes_source_ranges),
    ];
    let applies = |only_iptables: bool| !only_iptables || case.mode == Mode::Iptables;
    all.into_iter()
        .find(|(_, only_iptables, matches)| applies(*only_iptables) && matches(case))
        .map(|(number, ..)| number)
}

impl Case<'_> {
    /// Whether the oracle predicts what kube-proxy's rules do, for another state, other rules or another packet.
    fn is_theirs(&self, state: &Snapshot, rules: &Rules, packet: &Packet) -> bool {
        super::expected(state, rules, packet, self.local, self.mode) == *self.theirs
    }

    /// The rules with one more address that answers NodePorts. `None` if it answers already.
    fn with_node_ports(&self) -> Option<Rules> {
        let mut rules = self.rules.clone();
        rules.node_port_addresses.insert(self.packet.destination).then_some(rules)
    }
}

fn is_refusal(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Reject | Verdict::Drop)
}

/// kube-proxy checks translated packets, too: the endpoint's address and port may be a VIP without endpoints.
fn meets_another_service(case: &Case<'_>) -> bool {
    let (refused, served): (Verdicts, Verdicts) = case.theirs.iter().partition(|verdict| is_refusal(verdict));
    let missing = case.ours.difference(&served);
    let mut meets = missing.map(|verdict| {
        let Verdict::Endpoint { to, .. } = verdict else { return false };
        [case.packet.origin, Origin::Outside].into_iter().any(|origin| {
            let packet = Packet { destination: to.ip(), port: to.port(), origin, ..*case.packet };
            of_outcome(&route::route(case.state, case.rules, &packet)).is_subset(&refused)
        })
    });
    !refused.is_empty() && served.is_subset(case.ours) && meets.all(|meets| meets)
}

fn node_port_of_link_local_address(case: &Case<'_>) -> bool {
    let is_link_local = match case.packet.destination {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    is_link_local && case.with_node_ports().is_some_and(|rules| case.is_theirs(case.state, &rules, case.packet))
}

/// In mode iptables, the same is true for unused ports of a ClusterIP.
fn unallocated_address_is_let_through(case: &Case<'_>) -> bool {
    let is_unused = route::target(case.state, case.rules, case.packet).is_none();
    let is_dropped = *case.ours == [Verdict::Drop].into();
    is_unused && (is_dropped || case.mode == Mode::Iptables) && *case.theirs == [Verdict::Untouched].into()
}

/// The node's own packets pass no chain that refuses external addresses.
fn node_is_not_refused(case: &Case<'_>) -> bool {
    let is_node = case.packet.origin == Origin::Node;
    is_node && case.ours.iter().all(is_refusal) && *case.theirs == [Verdict::Untouched].into()
}

/// The chain that refuses NodePorts does not look at the address.
fn node_port_is_refused_elsewhere(case: &Case<'_>) -> bool {
    let Some(rules) = case.with_node_ports().filter(|_| case.local.contains(&case.packet.destination)) else {
        return false;
    };
    let is_theirs = |origin| case.is_theirs(case.state, &rules, &Packet { origin, ..*case.packet });
    case.theirs.iter().all(is_refusal) && [case.packet.origin, Origin::Outside].into_iter().any(is_theirs)
}

fn source_ranges_are_ignored(case: &Case<'_>) -> bool {
    let mut state = case.state.clone();
    state.services.values_mut().for_each(|service| Arc::make_mut(service).source_filters.clear());
    case.theirs.iter().all(is_refusal) && case.is_theirs(&state, case.rules, case.packet)
}

/// The rule of the external IP stands before the rule that checks the source.
fn external_ip_passes_source_ranges(case: &Case<'_>) -> bool {
    let mut state = case.state.clone();
    for service in state.services.values_mut() {
        let service = Arc::make_mut(service);
        let external = &service.external_ips;
        service.source_filters.iter_mut().for_each(|filter| filter.targets.retain(|target| !external.contains(target)));
    }
    matches!(route::route(&state, case.rules, case.packet), Outcome::Endpoints { .. })
        && case.is_theirs(&state, case.rules, case.packet)
}
