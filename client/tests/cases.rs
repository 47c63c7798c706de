//! Compares the oracle with `flows.yaml` of every Case.

use std::{collections::BTreeSet, net::IpAddr};

use localnet_client::route::{Origin, Outcome, Packet, Rules, route};
use localnet_lab::{
    Case, DetectLocal, Flow, Flows, Pod, Protocol, Sender, Topology, cases,
    flow::{Expect, Source},
    journey,
    journey::{Hop, Verdict},
    topology::{LOOPBACK, Place},
};
use localnet_proto::{Family, Snapshot};

/// The interface on which a node receives the sender's packets; empty for its own.
fn interface(sender: Sender) -> String {
    match sender {
        Sender::Pod(pod) if pod.place == Place::Local => format!("pod{}", pod.number),
        Sender::Pod(_) | Sender::Client(_) | Sender::OtherNode => "uplink".to_owned(),
        Sender::Node => String::new(),
    }
}

/// Whether the detector of local traffic considers the sender a pod; `None` if this family has no detector.
fn detected(flows: &Flows, state: &Snapshot, interface: &str, source: IpAddr) -> Option<bool> {
    let first = |cidrs: &[ipnet::IpNet]| {
        let of_family = |cidr: &&ipnet::IpNet| cidr.addr().is_ipv4() == source.is_ipv4();
        cidrs.iter().find(of_family).map(|cidr| cidr.contains(&source))
    };
    match flows.node.detect_local.as_ref()? {
        DetectLocal::ClusterCidr(cidrs) => first(cidrs),
        DetectLocal::NodeCidr => first(&state.node.pod_cidrs),
        DetectLocal::BridgeInterface(name) => Some(interface == name),
        DetectLocal::InterfaceNamePrefix(prefix) => Some(interface.starts_with(prefix.as_str())),
    }
}

/// The addresses of a family that answer NodePorts.
fn node_ports(flows: &Flows, state: &Snapshot, family: Family) -> Vec<IpAddr> {
    let of_family = |address: &IpAddr| Family::of(*address) == family;
    let own = flows.local_addresses().into_iter().filter(|address| of_family(address) && !address.is_loopback());
    let (given, primary) = match &flows.node.node_port_addresses {
        Some(given) => (given.iter().filter(|given| of_family(&given.addr())).collect(), None),
        None => (Vec::new(), state.node.primary_address(family)),
    };
    let mut addresses = match primary {
        Some(primary) => vec![primary],
        None if given.is_empty() => own.collect(),
        None => own.filter(|address| given.iter().any(|given| given.contains(address))).collect(),
    };
    addresses.extend(Some(LOOPBACK[0]).filter(|_| flows.node.localhost && family == Family::V4));
    addresses
}

fn outcome(flows: &Flows, state: &Snapshot, flow: &Flow) -> Outcome {
    let to = flow.to.ip();
    let on_node = |address: IpAddr| state.node.addresses.contains(&address) || flows.node.addresses.contains(&address);
    let source = if flow.from == Sender::Node && on_node(to) { to } else { flow.from.source(to) };
    let hop = Hop { node: flows.place, interface: interface(flow.from), source, to: flow.to };
    outcome_at(flows, state, flow.protocol, &hop)
}

/// The verdict of a node for a packet that passes it.
fn outcome_at(flows: &Flows, state: &Snapshot, protocol: Protocol, hop: &Hop) -> Outcome {
    let detected = detected(flows, state, &hop.interface, hop.source);
    let origin = match detected {
        _ if hop.interface.is_empty() => Origin::Node,
        Some(true) => Origin::Pod,
        _ => Origin::Outside,
    };
    let rules = Rules {
        masquerade_all: flows.node.masquerade_all,
        detects_pods: detected.is_some(),
        node_port_addresses: Family::BOTH.into_iter().flat_map(|family| node_ports(flows, state, family)).collect(),
    };
    let (source, destination, port) = (hop.source, hop.to.ip(), hop.to.port());
    route(state, &rules, &Packet { source, destination, protocol, port, origin })
}

/// How the oracle's answer differs from the expected one; `None` if it does not.
fn differs(flows: &Flows, state: &Snapshot, flow: &Flow) -> Option<String> {
    let outcome_is = outcome(flows, state, flow);
    let right = match (&flow.expect, &outcome_is) {
        (Expect::Answers { by, .. }, Outcome::NotOurs) => *by == BTreeSet::from([flow.to]),
        (Expect::Answers { by, source }, Outcome::Endpoints { choices, masquerade, hairpin, .. }) => {
            // A packet to the node itself is never masqueraded, whatever was requested.
            let leaves = by.iter().any(|endpoint| Pod::at(endpoint.ip()).is_some());
            by == choices
                && match source {
                    Some(Source::Kept) => !leaves || !masquerade && hairpin.is_empty(),
                    Some(Source::Masqueraded | Source::MasqueradedByOtherNode) => {
                        !leaves || *masquerade || hairpin == by
                    }
                    None => true,
                }
        }
        (Expect::Reject, Outcome::Reject) | (Expect::Drop, Outcome::Drop) | (Expect::Untouched, Outcome::NotOurs) => {
            true
        }
        // No process listens on that port of the pod.
        (Expect::Reject, Outcome::NotOurs) => Pod::at(flow.to.ip()).is_some(),
        _ => false,
    };
    (!right).then(|| format!("{flow}\n    expected {}\n    got {outcome_is:?}", flow.expect))
}

#[test]
fn the_oracle_agrees_with_the_flows() {
    let mut wrong = Vec::new();
    for case in cases() {
        let state: Snapshot = case.read_state().unwrap();
        let differ = case.flows.flows.iter().filter_map(|flow| differs(&case.flows, &state, flow));
        wrong.extend(differ.map(|text| format!("{}: {text}", case.name)));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// How the verdicts of both nodes differ from the expected ones.
fn differ_between_nodes(case: &Case, other: &Case) -> Vec<String> {
    let of_node = [case, other].map(|of| (&of.flows, of.read_state::<Snapshot>().expect("read the state of the Case")));
    let endpoints = other.endpoints().expect("read the endpoints of the Case");
    let topology = Topology { other_node: true, ..other.flows.topology(&endpoints) };
    let differs = |flow: &Flow| {
        let ends = journey(&topology, flow.from, flow.to, |hop| {
            let (flows, state) = &of_node[hop.node as usize];
            match outcome_at(flows, state, flow.protocol, hop) {
                Outcome::Endpoints { choices, masquerade, hairpin, .. } => {
                    Verdict::Endpoints { choices, masquerade, hairpin }
                }
                Outcome::Reject => Verdict::Reject,
                Outcome::Drop => Verdict::Drop,
                Outcome::NotOurs => Verdict::Untouched,
            }
        });
        let is_right = flow.expect.allows(&ends, flow.to);
        (!is_right).then(|| format!("{}: {flow}\n    expected {}\n    got {ends:?}", case.name, flow.expect))
    };
    other.flows.flows.iter().filter_map(differs).collect()
}

#[test]
fn the_oracles_of_both_nodes_agree_with_the_flows() {
    let both = cases().into_iter().filter_map(|case| Some((case.on_other_node()?, case)));
    let wrong: Vec<_> = both.flat_map(|(other, case)| differ_between_nodes(&case, &other)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
