//! The deliberate differences from kube-proxy: the entries of `docs/differences.md`, by number.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use localnet_client::{
    Snapshot,
    route::{self, Origin, Outcome, Packet, Rules},
};
use localnet_proto::Family;

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
    /// Whether kube-proxy's rules have a Service with the packet's destination.
    pub is_vip: bool,
    /// What the oracle predicts.
    pub ours: &'a Verdicts,
    /// What kube-proxy's rules do.
    pub theirs: &'a Verdicts,
}

/// The number of an entry, the modes to which it applies, and whether it explains a difference.
type Entry = (u8, &'static [Mode], fn(&Case<'_>) -> bool);

const EVERY: &[Mode] = &[Mode::Iptables, Mode::Nftables, Mode::Ipvs];

const ENTRIES: [Entry; 11] = [
    (1, &[Mode::Iptables, Mode::Nftables], meets_another_service),
    (5, EVERY, node_port_of_link_local_address),
    (7, EVERY, unallocated_address_is_let_through),
    (7, &[Mode::Nftables], removed_service_cidr_is_dropped),
    (8, &[Mode::Iptables], node_is_not_refused),
    (9, &[Mode::Iptables], node_port_is_refused_elsewhere),
    (10, &[Mode::Iptables], source_ranges_are_ignored),
    (11, &[Mode::Ipvs], node_and_pods_are_treated_as_outside),
    (12, &[Mode::Iptables], external_ip_passes_source_ranges),
    (16, &[Mode::Ipvs], policy_local_does_not_drop),
    (17, &[Mode::Ipvs], node_is_admitted_by_its_first_address),
];

/// The number of the entry that explains the difference.
pub fn explain(case: &Case<'_>) -> Option<u8> {
    ENTRIES.iter().find(|(_, modes, matches)| modes.contains(&case.mode) && matches(case)).map(|(number, ..)| *number)
}

impl Case<'_> {
    /// Whether the oracle predicts what kube-proxy's rules do, for another state, other rules or another packet.
    fn is_theirs(&self, state: &Snapshot, rules: &Rules, packet: &Packet) -> bool {
        super::expected(state, rules, packet, self.local, self.mode) == *self.theirs
    }

    /// Whether kube-proxy's rules do what the oracle predicts for another state or other rules, apart from the entries about policy Local.
    fn is_theirs_or_of_policy_local(&self, state: &Snapshot, rules: &Rules) -> bool {
        let ours = super::expected(state, rules, self.packet, self.local, self.mode);
        let case = Case { state, rules, ours: &ours, ..*self };
        let of_policy_local = || node_and_pods_are_treated_as_outside(&case) || policy_local_does_not_drop(&case);
        ours == *self.theirs || self.mode == Mode::Ipvs && of_policy_local()
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
    is_link_local && case.with_node_ports().is_some_and(|rules| case.is_theirs_or_of_policy_local(case.state, &rules))
}

/// In mode iptables, the same is true for unused ports of a ClusterIP.
fn unallocated_address_is_let_through(case: &Case<'_>) -> bool {
    let is_unused = route::target(case.state, case.rules, case.packet).is_none();
    let is_dropped = *case.ours == [Verdict::Drop].into();
    is_unused && (is_dropped || case.mode == Mode::Iptables) && *case.theirs == [Verdict::Untouched].into()
}

/// kube-proxy removes a ServiceCIDR from its rules only in the next full sync.
fn removed_service_cidr_is_dropped(case: &Case<'_>) -> bool {
    let destination = &case.packet.destination;
    !case.is_vip
        && !case.local.contains(destination)
        && !case.state.node.service_cidrs.iter().any(|cidr| cidr.contains(destination))
        && *case.ours == [Verdict::Untouched].into()
        && *case.theirs == [Verdict::Drop].into()
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

/// A virtual server has one list of destinations, for all senders.
fn node_and_pods_are_treated_as_outside(case: &Case<'_>) -> bool {
    let found = route::target(case.state, case.rules, case.packet);
    let is_external_local = found.is_some_and(|found| !found.internal && found.service.external_traffic_to_local);
    let from = |origin| Packet { origin, ..*case.packet };
    // Without an endpoint on the node, the list has all endpoints, as for pods.
    let has_local = matches!(route::route(case.state, case.rules, &from(Origin::Outside)), Outcome::Endpoints { .. });
    let like = if has_local { Origin::Outside } else { Origin::Pod };
    is_external_local && case.packet.origin != Origin::Outside && case.is_theirs(case.state, case.rules, &from(like))
}

/// Without an endpoint on the node, the virtual server has the endpoints of other nodes, or none.
fn policy_local_does_not_drop(case: &Case<'_>) -> bool {
    let Some(found) = route::target(case.state, case.rules, case.packet) else { return false };
    let family = Family::of(case.packet.destination);
    let everywhere: Vec<SocketAddr> =
        found.service.endpoints_of(found.port, family, |scopes| scopes.external || scopes.short_circuit).collect();
    let is_elsewhere = |verdict: &Verdict| match verdict {
        Verdict::Endpoint { to, .. } => everywhere.contains(to),
        Verdict::Reject => found.internal,
        Verdict::Drop | Verdict::Untouched => false,
    };
    *case.ours == [Verdict::Drop].into()
        && route::admitted(found.service, case.packet)
        && !case.theirs.is_empty()
        && case.theirs.iter().all(is_elsewhere)
}

/// A packet of the node has the VIP as its source, so the Node's first address stands for the node.
fn node_is_admitted_by_its_first_address(case: &Case<'_>) -> bool {
    let Some(found) = route::target(case.state, case.rules, case.packet) else { return false };
    let family = Family::of(case.packet.destination);
    let mut addresses = case.state.node.addresses.iter().filter(|address| Family::of(**address) == family);
    let Some(first) = addresses.next().filter(|_| case.packet.origin == Origin::Node) else { return false };
    let [admitted, first_admitted] =
        [case.packet.source, *first].map(|source| route::admitted(found.service, &Packet { source, ..*case.packet }));
    let mut state = case.state.clone();
    state.services.values_mut().for_each(|service| Arc::make_mut(service).source_filters.clear());
    admitted != first_admitted
        && match first_admitted {
            true => case.is_theirs_or_of_policy_local(&state, case.rules),
            false => *case.theirs == [Verdict::Drop].into(),
        }
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

#[cfg(test)]
mod tests {
    use localnet_proto::Protocol;

    use super::*;
    use crate::shadow::{effective, expected, verdict::testing::short};

    const NODE: &str = "192.168.0.2";
    const OTHER_OF_NODE: &str = "192.168.1.2";

    /// Services with policy Local: with an endpoint on the node, without one, with an internal policy, and with source ranges.
    fn state() -> Snapshot {
        let service = |name: &str, number: u8, policy: &str, local: &str, remote: &str| {
            format!(
                "- {{service: shop/{name}, type: LoadBalancer, clusterIPs: [10.96.0.{number}], loadBalancerIPs: [192.0.2.{number}],
   {policy}: true, ports: [{{name: a, protocol: TCP, port: 80, nodePort: 3008{number}, whenEmptyIPv4: {{internal: drop, external: drop}}}}],
   endpoints: [{{address: 10.180.0.1, local: true, ports: [{{name: a, port: 80}}], scopes: {{{local}}}}},
     {{address: 10.180.1.1, ports: [{{name: a, port: 80}}], scopes: {{{remote}}}}}]}}
"
            )
        };
        let text = [
            "node: {name: n, addresses: [192.168.0.2], serviceCIDRs: [10.96.0.0/16]}\nservices:\n".to_owned(),
            service(
                "both",
                1,
                "externalTrafficToLocal",
                "internal: true, external: true, shortCircuit: true",
                "internal: true, shortCircuit: true",
            ),
            service("remote", 2, "externalTrafficToLocal", "established: true", "internal: true, shortCircuit: true"),
            service("internal", 3, "internalTrafficToLocal", "established: true", "external: true"),
            service(
                "guarded",
                4,
                "sourceFilters: [{targets: [192.0.2.4], sourceRanges: [192.168.1.0/24]}], internalTrafficToLocal",
                "established: true",
                "external: true",
            ),
        ];
        crate::source::read(&text.concat()).unwrap()
    }

    #[test]
    fn an_address_of_a_removed_service_cidr_is_still_dropped() {
        let (state, rules, local) = (state(), Rules::default(), [NODE.parse().unwrap()]);
        let entry = |to: &str, mode, is_vip, theirs| {
            let (source, destination) = ("203.0.113.1".parse().unwrap(), to.parse().unwrap());
            let packet = Packet { source, destination, protocol: Protocol::Tcp, port: 9, origin: Origin::Outside };
            let ours = expected(&state, &rules, &packet, &local, mode);
            let theirs = [theirs].into();
            explain(&Case {
                state: &state,
                rules: &rules,
                packet: &packet,
                mode,
                local: &local,
                is_vip,
                ours: &ours,
                theirs: &theirs,
            })
        };
        assert_eq!(entry("172.31.0.5", Mode::Nftables, false, Verdict::Drop), Some(7));
        assert_eq!(entry("172.31.0.5", Mode::Nftables, true, Verdict::Drop), None, "a Service that localnet lacks");
        assert_eq!(entry("172.31.0.5", Mode::Nftables, false, Verdict::Reject), None);
        assert_eq!(entry("172.31.0.5", Mode::Iptables, false, Verdict::Drop), None);
        assert_eq!(entry(NODE, Mode::Nftables, false, Verdict::Drop), None, "a NodePort");
    }

    #[test]
    fn mode_ipvs_has_differences_of_its_own() {
        let (state, rules) = (state(), Rules { detects_pods: true, ..Rules::default() });
        let local: [IpAddr; 1] = [NODE.parse().unwrap()];
        let endpoint = |ip: &str, masquerade| Verdict::Endpoint {
            to: SocketAddr::new(ip.parse().unwrap(), 80),
            masquerade,
            sticky: false,
        };
        let (here, there) =
            (|masquerade| endpoint("10.180.0.1", masquerade), |masquerade| endpoint("10.180.1.1", masquerade));
        for (from, to, ours, theirs, entry) in [
            ("10.180.0.9", "192.0.2.1:80", "10.180.0.1, 10.180.1.1", vec![here(false)], Some(11)),
            ("10.180.0.9", "192.0.2.1:80", "10.180.0.1, 10.180.1.1", vec![there(false)], None),
            (NODE, "192.0.2.1:80", "10.180.0.1 M, 10.180.1.1 M", vec![here(false)], Some(11)),
            (NODE, "192.0.2.1:80", "10.180.0.1 M, 10.180.1.1 M", vec![here(true)], None),
            ("203.0.113.1", "192.0.2.1:80", "10.180.0.1", vec![here(true)], None),
            ("203.0.113.1", "192.0.2.2:80", "drop", vec![there(false)], Some(16)),
            ("203.0.113.1", "192.0.2.2:80", "drop", vec![Verdict::Reject], None),
            (NODE, "192.0.2.2:80", "10.180.1.1 M", vec![there(false)], Some(11)),
            ("10.180.0.9", "10.96.0.3:80", "drop", vec![there(false)], Some(16)),
            ("10.180.0.9", "10.96.0.3:80", "drop", vec![Verdict::Reject], Some(16)),
            ("10.180.0.9", "10.96.0.99:80", "drop", vec![Verdict::Untouched], Some(7)),
            // Regression (SEED=1990647663 after 4 changes): a link-local NodePort with policy Local, without an endpoint on the node.
            ("203.0.113.1", "169.254.1.2:30082", "untouched", vec![there(false)], Some(5)),
            ("203.0.113.1", "169.254.1.2:30082", "untouched", vec![here(false)], None),
            // Regression (after 6 changes): the ranges admit the address that the node uses, and not the Node's first one.
            (OTHER_OF_NODE, "192.0.2.4:80", "10.180.1.1 M", vec![Verdict::Drop], Some(17)),
            (NODE, "192.0.2.4:80", "drop", vec![there(true)], None),
            // The address is the node's own, on kube-ipvs0.
            ("203.0.113.1", "192.0.2.1:81", "reject", vec![Verdict::Untouched], None),
            ("203.0.113.1", "192.0.2.99:81", "untouched", vec![Verdict::Reject], None),
        ] {
            let (source, at): (IpAddr, SocketAddr) = (from.parse().unwrap(), to.parse().unwrap());
            let origin = match from {
                NODE | OTHER_OF_NODE => Origin::Node,
                _ if from.starts_with("10.180.") => Origin::Pod,
                _ => Origin::Outside,
            };
            let packet = Packet { source, destination: at.ip(), protocol: Protocol::Tcp, port: at.port(), origin };
            let of = |mode| expected(&state, &rules, &packet, &local, mode);
            let (ours_now, theirs): (Verdicts, Verdicts) = (of(Mode::Ipvs), theirs.into_iter().collect());
            assert_eq!(short(&ours_now), ours, "{from} {to}");
            let case = Case {
                state: &state,
                rules: &rules,
                packet: &packet,
                mode: Mode::Ipvs,
                local: &local,
                is_vip: true,
                ours: &ours_now,
                theirs: &theirs,
            };
            assert_eq!(explain(&case), entry, "{from} {to} {theirs:?}");
        }
        let packet = Packet {
            source: local[0],
            destination: [10, 96, 0, 1].into(),
            protocol: Protocol::Tcp,
            port: 80,
            origin: Origin::Node,
        };
        let masqueraded = |mode| short(&expected(&state, &Rules::default(), &packet, &local, mode));
        assert_eq!(masqueraded(Mode::Nftables), "10.180.0.1, 10.180.1.1");
        assert_eq!(masqueraded(Mode::Ipvs), "10.180.0.1 M, 10.180.1.1 M");
        // Regression (SEED=1990647663 after 5 changes): kube-proxy masquerades a packet of the node to itself, which changes nothing.
        let (to_itself, at_node) = (Packet { destination: local[0], ..packet }, endpoint(NODE, true));
        assert_eq!(short(&effective([at_node], &to_itself, &local)), "192.168.0.2");
        assert_eq!(short(&effective([at_node], &packet, &local)), "192.168.0.2 M");
    }
}
