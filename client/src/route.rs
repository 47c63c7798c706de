//! The oracle: predicts the verdict for a packet from the state and the backend's configuration.
//!
//! The oracle follows the rules in `localnetv1.proto` and kube-proxy's table of destinations. It does not use the plan of
//! any backend, so tests can compare backends with it, and tools can explain packets with it. Pure.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use localnet_proto::{Affinity, Family, Port, Protocol, Scopes, Service, Snapshot, Verdict};

use crate::vips::{Hashing, Weights, hashing};

/// The first packet of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The source address.
    pub source: IpAddr,
    /// The destination address, before any translation.
    pub destination: IpAddr,
    /// The transport protocol.
    pub protocol: Protocol,
    /// The destination port.
    pub port: u16,
    /// Where the packet comes from.
    pub origin: Origin,
}

/// Where a packet comes from, as the node sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A pod of this node, according to the detector of local traffic.
    Pod,
    /// The node itself: the source is one of its own addresses.
    Node,
    /// Any other sender.
    Outside,
}

/// The parts of a backend's configuration that affect the verdict for a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Whether to masquerade all traffic to ClusterIPs.
    pub masquerade_all: bool,
    /// Whether a detector of local traffic exists in the packet's family. Without one, no packet has [`Origin::Pod`].
    pub detects_pods: bool,
    /// The addresses that answer NodePorts.
    pub node_port_addresses: BTreeSet<IpAddr>,
}

/// The verdict for a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The packet goes to one of several endpoints.
    Endpoints {
        /// The endpoints from which one is chosen.
        choices: BTreeSet<SocketAddr>,
        /// Whether the packet is masqueraded, whichever endpoint is chosen.
        masquerade: bool,
        /// Endpoints for which the packet is always masqueraded. Such an endpoint is on this node and is itself the
        /// sender of the packet.
        hairpin: BTreeSet<SocketAddr>,
        /// The session affinity of the sender, if there is one.
        affinity: Option<Affinity>,
    },
    /// The sender gets "port unreachable".
    Reject,
    /// The packet is dropped.
    Drop,
    /// No Service claims the packet.
    NotOurs,
}

/// What happens to an existing flow when the state changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The flow keeps its translation.
    GoesOn,
    /// The next packet is treated like the first one of a new flow.
    Anew,
}

/// The Service port that claims a destination.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// The Service that has the destination as a VIP.
    pub service: &'a Service,
    /// The port of the Service.
    pub port: &'a Port,
    /// Whether the address is a ClusterIP. Otherwise it is an external address or an address of the node.
    pub internal: bool,
}

/// The verdict for `packet` in `state` under `rules`.
pub fn route(state: &Snapshot, rules: &Rules, packet: &Packet) -> Outcome {
    let Some(found) = target(state, rules, packet) else { return unclaimed(state, packet) };
    if !admitted(found.service, packet) {
        return Outcome::Drop;
    }
    let family = Family::of(packet.destination);
    let when_empty = found.port.when_empty(family);
    let (scope, masquerade, verdict): (fn(&Scopes) -> bool, bool, Verdict) = if found.internal {
        let foreign = rules.detects_pods && packet.origin != Origin::Pod;
        (|scopes| scopes.internal, rules.masquerade_all || foreign, when_empty.internal)
    } else if !found.service.external_traffic_to_local {
        (|scopes| scopes.external, true, when_empty.external)
    } else {
        match packet.origin {
            Origin::Pod => (|scopes| scopes.short_circuit, false, when_empty.external),
            Origin::Node => (|scopes| scopes.short_circuit, true, when_empty.external),
            Origin::Outside => (|scopes| scopes.external, false, when_empty.external),
        }
    };
    let choices: BTreeSet<_> = found.service.endpoints_of(found.port, family, scope).collect();
    if choices.is_empty() {
        return match verdict {
            Verdict::Reject => Outcome::Reject,
            Verdict::Drop => Outcome::Drop,
        };
    }
    let own = found.service.endpoints.iter().filter(|endpoint| endpoint.local && endpoint.address == packet.source);
    let own = own.filter_map(|endpoint| Some(SocketAddr::new(endpoint.address, endpoint.port(&found.port.name)?)));
    let hairpin = own.filter(|address| choices.contains(address)).collect();
    Outcome::Endpoints { choices, masquerade, hairpin, affinity: found.service.client_ip_affinity }
}

/// The endpoint that a consistent hash chooses for a packet from this source port; `None` if nothing is hashed: no endpoint may get the
/// packet, its Service does not ask for a hash, or session affinity takes precedence. A backend with a hash of its own, such as
/// IPVS' scheduler `mh`, or without any, chooses otherwise.
pub fn hashed(state: &Snapshot, rules: &Rules, packet: &Packet, source_port: u16) -> Option<SocketAddr> {
    let Outcome::Endpoints { choices, affinity: None, .. } = route(state, rules, packet) else { return None };
    let Target { service, port, .. } = target(state, rules, packet)?;
    let by = service.hash?;
    let weight =
        |of: &localnet_proto::Endpoint| Some((SocketAddr::new(of.address, of.port(&port.name)?), of.weight?.get()));
    let weights: Weights = service.endpoints.iter().filter_map(weight).collect();
    let slots = Hashing::new(by).slots(&choices.into_iter().collect(), &weights);
    let count = u32::try_from(slots.len()).ok()?;
    let slot = hashing::slot(by, SocketAddr::new(packet.source, source_port), count);
    slots.get(usize::try_from(slot).ok()?).copied()
}

/// The fate, in `state`, of an existing flow that began with `packet` and goes to the endpoint `by`.
///
/// A TCP connection lives until one end closes it. A flow of another protocol lives as long as its endpoint may answer
/// existing flows, even if the traffic policies exclude the endpoint for new flows. If the flow was not translated, it
/// lives until a Service claims its address and port.
pub fn fate(state: &Snapshot, rules: &Rules, packet: &Packet, by: SocketAddr) -> Fate {
    let goes_on = packet.protocol == Protocol::Tcp
        || match target(state, rules, packet) {
            Some(Target { service, port, .. }) => {
                let family = Family::of(packet.destination);
                service.endpoints_of(port, family, |scopes| scopes.established).any(|endpoint| endpoint == by)
            }
            None => by == SocketAddr::new(packet.destination, packet.port),
        };
    if goes_on { Fate::GoesOn } else { Fate::Anew }
}

/// The Service port that claims the packet. A Service's own address has precedence over a NodePort. If two Services
/// claim the same destination, the one whose name sorts first owns it.
pub fn target<'a>(state: &'a Snapshot, rules: &Rules, packet: &Packet) -> Option<Target<'a>> {
    let family = Family::of(packet.destination);
    let services = || state.services.values().map(|service| &**service).filter(|service| service.has_family(family));
    let port = |service: &'a Service, is: &dyn Fn(&Port) -> bool| {
        service.ports.iter().find(|port| port.protocol == packet.protocol && is(port))
    };
    let by_address = |service: &'a Service| {
        let internal = service.cluster_ips.contains(&packet.destination);
        let mut external = service.external_ips.iter().chain(&service.load_balancer_ips);
        let reached = internal || external.any(|ip| *ip == packet.destination);
        let port = port(service, &|port| port.port == packet.port).filter(|_| reached)?;
        Some(Target { service, port, internal })
    };
    let by_node_port = |service: &'a Service| {
        let port = port(service, &|port| port.node_port == Some(packet.port))?;
        Some(Target { service, port, internal: false })
    };
    let has_node_ports = rules.node_port_addresses.contains(&packet.destination);
    services().find_map(by_address).or_else(|| services().filter(|_| has_node_ports).find_map(by_node_port))
}

/// Whether the source ranges for the destination admit the packet's source. True if there are no source ranges.
pub fn admitted(service: &Service, packet: &Packet) -> bool {
    let filter = service.source_filters.iter().find(|filter| filter.targets.contains(&packet.destination));
    filter.is_none_or(|filter| filter.source_ranges.iter().any(|range| range.contains(&packet.source)))
}

/// The verdict for a packet that no Service port claims: unused ports of ClusterIPs reject, unassigned ClusterIPs drop.
fn unclaimed(state: &Snapshot, packet: &Packet) -> Outcome {
    if state.services.values().any(|service| service.cluster_ips.contains(&packet.destination)) {
        Outcome::Reject
    } else if state.node.service_cidrs.iter().any(|cidr| cidr.contains(&packet.destination)) {
        Outcome::Drop
    } else {
        Outcome::NotOurs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: &str = "192.168.0.2";
    const POD: &str = "10.0.0.2";
    const CLIENT: &str = "203.0.113.2";

    /// One load balancer Service, as `services` in the text form of a snapshot. The arguments differ between the rows.
    fn state(policy_local: bool, when_empty: &str, endpoints: &str) -> Snapshot {
        let text = format!(
            r#"{{"node": {{"name": "n", "serviceCIDRs": ["172.30.0.0/16"]}}, "services": [{{
                "service": "ns/svc", "type": "LoadBalancer", "clusterIPs": ["172.30.0.41"],
                "externalIPs": ["192.168.99.11"], "loadBalancerIPs": ["1.2.3.4"],
                "externalTrafficToLocal": {policy_local},
                "sourceFilters": [{{"targets": ["1.2.3.4"], "sourceRanges": ["203.0.113.0/25", "10.0.0.0/8", "192.168.0.0/16"]}}],
                "ports": [{{"name": "p", "protocol": "TCP", "port": 80, "nodePort": 3001, "whenEmptyIPv4": {when_empty}}}],
                "endpoints": [{endpoints}]}}]}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    fn endpoint(address: &str, local: bool, scopes: &[&str]) -> String {
        let scopes: Vec<_> = scopes.iter().map(|scope| format!("\"{scope}\": true")).collect();
        let scopes = scopes.join(", ");
        format!(
            r#"{{"address": "{address}", "local": {local}, "ports": [{{"name": "p", "port": 80}}], "scopes": {{{scopes}}}}}"#
        )
    }

    fn outcome(state: &Snapshot, from: &str, to: &str, port: u16) -> String {
        let source: IpAddr = from.parse().unwrap();
        let origin = match from {
            NODE => Origin::Node,
            _ if from.starts_with("10.") => Origin::Pod,
            _ => Origin::Outside,
        };
        let rules =
            Rules { detects_pods: true, node_port_addresses: [NODE.parse().unwrap()].into(), ..Rules::default() };
        let packet = Packet { source, destination: to.parse().unwrap(), protocol: Protocol::Tcp, port, origin };
        match route(state, &rules, &packet) {
            Outcome::Endpoints { choices, masquerade, hairpin, .. } => {
                let choices: Vec<_> = choices.iter().map(|address| address.ip().to_string()).collect();
                let hairpin: Vec<_> = hairpin.iter().map(|address| format!(" hairpin {}", address.ip())).collect();
                format!("{} {}{}", choices.join(","), if masquerade { "Y" } else { "N" }, hairpin.concat())
            }
            other => format!("{other:?}"),
        }
    }

    #[track_caller]
    fn check(state: &Snapshot, rows: &[(&str, &str, u16, &str)]) {
        for (from, to, port, expected) in rows {
            assert_eq!(outcome(state, from, to, *port), *expected, "{from} → {to}:{port}");
        }
    }

    #[test]
    fn external_policy_local_matches_kube_proxys_table() {
        let remote = endpoint("10.180.0.1", false, &["internal", "shortCircuit", "established"]);
        let local = endpoint("10.180.2.1", true, &["internal", "external", "shortCircuit", "established"]);
        let both = "10.180.0.1,10.180.2.1";
        check(
            &state(true, "{\"internal\": \"reject\", \"external\": \"drop\"}", &format!("{remote}, {local}")),
            &[
                (POD, "172.30.0.41", 80, &format!("{both} N")),
                (POD, "192.168.99.11", 80, &format!("{both} N")),
                (POD, "1.2.3.4", 80, &format!("{both} N")),
                (POD, NODE, 3001, &format!("{both} N")),
                (NODE, "1.2.3.4", 80, &format!("{both} Y")),
                (CLIENT, "192.168.99.11", 80, "10.180.2.1 N"),
                (CLIENT, "1.2.3.4", 80, "10.180.2.1 N"),
                (CLIENT, NODE, 3001, "10.180.2.1 N"),
                (CLIENT, "172.30.0.41", 80, &format!("{both} Y")),
                ("203.0.113.130", "1.2.3.4", 80, "Drop"),
                ("203.0.113.130", NODE, 3001, "10.180.2.1 N"),
                ("10.180.2.1", "172.30.0.41", 80, &format!("{both} N hairpin 10.180.2.1")),
            ],
        );
    }

    /// kube-proxy v1.36.3 keeps SCTP flows, and all flows of a Service without any serving endpoint.
    #[test]
    fn a_flow_lives_as_long_as_its_endpoint_is_eligible() {
        let rules = Rules { node_port_addresses: [NODE.parse().unwrap()].into(), ..Rules::default() };
        let draining = endpoint("10.180.0.1", false, &["established"]);
        let unready = endpoint("10.180.0.2", false, &[]);
        let state = |endpoints: &str, protocol: Protocol| {
            let mut state = state(false, "{\"internal\": \"reject\", \"external\": \"reject\"}", endpoints);
            let service = std::sync::Arc::make_mut(state.services.values_mut().next().unwrap());
            service.ports[0].protocol = protocol;
            state
        };
        let both = format!("{draining}, {unready}");
        let (goes_on, anew) = (Fate::GoesOn, Fate::Anew);
        for (endpoints, to, by, datagrams) in [
            (&*both, "172.30.0.41:80", "10.180.0.1:80", goes_on),
            (&both, "192.168.0.2:3001", "10.180.0.1:80", goes_on),
            (&both, "172.30.0.41:80", "10.180.0.2:80", anew),
            (&both, "172.30.0.41:80", "10.180.0.1:81", anew),
            (&both, "1.2.3.4:80", "1.2.3.4:80", anew),
            ("", "172.30.0.41:80", "10.180.0.1:80", anew),
            // No Service claims these.
            (&both, "172.30.0.42:80", "10.180.0.1:80", anew),
            (&both, "1.2.3.5:80", "1.2.3.5:80", goes_on),
        ] {
            let (to, by): (SocketAddr, SocketAddr) = (to.parse().unwrap(), by.parse().unwrap());
            for (protocol, expected) in
                [(Protocol::Tcp, goes_on), (Protocol::Udp, datagrams), (Protocol::Sctp, datagrams)]
            {
                let (source, destination, port) = (CLIENT.parse().unwrap(), to.ip(), to.port());
                let packet = Packet { source, destination, protocol, port, origin: Origin::Outside };
                let fate = fate(&state(endpoints, protocol), &rules, &packet, by);
                assert_eq!(fate, expected, "{protocol:?} {to} by {by} of [{endpoints}]");
            }
        }
    }

    #[test]
    fn external_policy_cluster_masquerades_all_senders() {
        let one = endpoint("10.180.0.1", false, &["internal", "external", "established"]);
        check(
            &state(false, "{\"internal\": \"reject\", \"external\": \"reject\"}", &one),
            &[
                (POD, "172.30.0.41", 80, "10.180.0.1 N"),
                (POD, "1.2.3.4", 80, "10.180.0.1 Y"),
                (CLIENT, NODE, 3001, "10.180.0.1 Y"),
                (NODE, NODE, 3001, "10.180.0.1 Y"),
                (CLIENT, "192.168.1.2", 3001, "NotOurs"),
                (CLIENT, NODE, 80, "NotOurs"),
            ],
        );
    }

    #[test]
    fn vips_without_an_eligible_endpoint_are_rejected_or_dropped() {
        let nowhere = "{\"internal\": \"reject\", \"external\": \"reject\"}";
        let elsewhere = "{\"internal\": \"drop\", \"external\": \"drop\"}";
        let terminating = endpoint("10.180.0.1", false, &["established"]);
        for (when_empty, expected) in [(nowhere, "Reject"), (elsewhere, "Drop")] {
            check(
                &state(true, when_empty, &terminating),
                &[
                    (POD, "172.30.0.41", 80, expected),
                    (CLIENT, "192.168.99.11", 80, expected),
                    (CLIENT, NODE, 3001, expected),
                    (CLIENT, "1.2.3.4", 80, expected),
                    (POD, "172.30.0.41", 443, "Reject"),
                    (POD, "172.30.0.50", 80, "Drop"),
                    (POD, "192.168.99.11", 443, "NotOurs"),
                ],
            );
        }
    }
}
