//! `localnet shadow`: compares what kube-proxy's rules do with packets with what localnet would do.
//!
//! ```text
//!  state ─► oracle (client::route) ──► verdicts ─┐
//!  probes ─┤                                     ├─► differences: deliberate (an entry of docs/differences.md), or not
//!  kernel ─► iptables-save, nft, ipset, IPVS ─► rules ─► verdicts ─┘
//! ```
//!
//! It evaluates the rules without sending a packet, and changes nothing.

pub mod entries;
pub mod ipset;
pub mod iptables;
pub mod ipvs;
pub mod live;
pub mod nftables;
mod probes;
pub mod read;
mod report;
pub mod verdict;

use std::{
    collections::{BTreeSet, HashMap},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use localnet_client::{
    Snapshot,
    route::{self, Origin, Packet},
};
use localnet_proto::{ByFamily, Family, Revision, Service};
use serde::Serialize;

use crate::{
    diff,
    explain::origin_name,
    flows::FlowRow,
    output::Show,
    question,
    style::{NONE, Style, Tone},
    table::Table,
    world::World,
};
use entries::Case;
use read::Rules;
use verdict::{Verdict, Verdicts, of_outcome};

/// The maximum number of flows in a printed answer.
const MOST_FLOWS: usize = 20;

/// kube-proxy's mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// iptables, with either flavour of the tools.
    Iptables,
    /// nftables.
    Nftables,
    /// ipvs.
    Ipvs,
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Self::Iptables => "iptables",
            Self::Nftables => "nftables",
            Self::Ipvs => "ipvs",
        }
    }
}

/// The result of a comparison.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Shadow {
    /// The revision of the state.
    #[serde(skip)]
    pub revision: Revision,
    /// kube-proxy's mode.
    pub mode: Mode,
    /// The number of compared packets.
    pub compared: usize,
    /// The number of packets with the same verdicts.
    pub equal: usize,
    /// The number of packets with other verdicts for a reason in docs/differences.md.
    pub deliberate: usize,
    /// The packets with other verdicts.
    pub differences: Vec<Difference>,
    /// The number of flows to Services in connection tracking.
    pub flows: usize,
    /// The flows whose endpoint localnet would not use.
    pub flows_elsewhere: Vec<FlowRow>,
}

/// A packet that kube-proxy's rules treat in another way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Difference {
    /// The sender: its address, and whether it is a pod of this node, the node, or outside.
    pub from: IpAddr,
    /// The kind of the sender: `pod`, `node` or `outside`.
    pub origin: &'static str,
    /// The destination.
    pub to: SocketAddr,
    /// The protocol.
    pub protocol: &'static str,
    /// The Service that the packet is sent to, according to the state.
    pub service: Option<String>,
    /// What localnet would do.
    pub localnet: Verdicts,
    /// What kube-proxy's rules do.
    pub kube_proxy: Verdicts,
    /// The entry of docs/differences.md that explains the difference.
    pub entry: Option<u8>,
    /// The rule that this command cannot evaluate. `kube_proxy` is then empty.
    pub unknown: Option<String>,
}

/// Compares the verdicts for packets.
pub fn compare(world: &World, rules: &Rules, packets: impl IntoIterator<Item = Packet>) -> Shadow {
    let revision = world.state.revision;
    let mut shadow = Shadow {
        revision,
        mode: rules.mode,
        compared: 0,
        equal: 0,
        deliberate: 0,
        differences: Vec::new(),
        flows: 0,
        flows_elsewhere: Vec::new(),
    };
    let (claims, oracles) =
        (Claims::of(&world.state), ByFamily::from_fn(|family| question::rules(&world.facts, family)));
    let vips: BTreeSet<IpAddr> = rules.destinations().into_iter().map(|(vip, _)| vip.ip()).collect();
    for packet in packets {
        let Some(found) = rules.verdicts(&packet, &world.local) else { continue };
        shadow.compared += 1;
        let oracle = &oracles[Family::of(packet.destination)];
        let localnet = expected(&claims.on(&packet), oracle, &packet, &world.local, rules.mode);
        let (kube_proxy, unknown) = match found {
            Ok(verdicts) => (effective(verdicts, &packet, &world.local), None),
            Err(unknown) => (Verdicts::new(), Some(unknown.to_string())),
        };
        if localnet == kube_proxy {
            shadow.equal += 1;
            continue;
        }
        let (mode, local) = (rules.mode, world.local.as_slice());
        let case = Case {
            state: &world.state,
            rules: oracle,
            packet: &packet,
            mode,
            local,
            is_vip: vips.contains(&packet.destination),
            ours: &localnet,
            theirs: &kube_proxy,
        };
        let entry = if unknown.is_some() { None } else { entries::explain(&case) };
        shadow.deliberate += usize::from(entry.is_some());
        let target = route::target(&world.state, oracle, &packet);
        shadow.differences.push(Difference {
            from: packet.source,
            origin: origin_name(packet.origin),
            to: SocketAddr::new(packet.destination, packet.port),
            protocol: packet.protocol.as_str(),
            service: target.map(|target| target.service.key.to_string()),
            localnet,
            kube_proxy,
            entry,
            unknown,
        });
    }
    shadow.differences.sort_by_key(|difference| difference.entry.is_some());
    shadow
}

/// The packets that a comparison asks about: those to each VIP of the state and of the rules, to an unused port of each ClusterIP, and to
/// an unused address of each ServiceCIDR, from each kind of sender.
pub fn packets(world: &World, rules: &Rules) -> Vec<Packet> {
    let plan = diff::plan(&world.state, &world.configuration.config, &world.local);
    let mut packets = Vec::new();
    let mut known = BTreeSet::new();
    for (_, key, vip) in plan.vips.programmed() {
        packets.extend(probes::of_vip(world, &key, &vip));
        known.insert((key.socket(), key.protocol));
    }
    let others = rules.destinations().into_iter().chain(probes::unused(&world.state)).filter(|to| !known.contains(to));
    packets.extend(others.flat_map(|to| probes::of_destination(world, to, std::iter::empty())));
    packets
}

/// The Services of a state by what they claim. The oracle searches all Services of a state for the one that a packet is sent to.
struct Claims<'a> {
    state: &'a Snapshot,
    by_address: HashMap<IpAddr, Vec<&'a Arc<Service>>>,
    by_node_port: HashMap<u16, Vec<&'a Arc<Service>>>,
}

impl<'a> Claims<'a> {
    fn of(state: &'a Snapshot) -> Self {
        let mut claims = Self { state, by_address: HashMap::new(), by_node_port: HashMap::new() };
        for service in state.services.values() {
            let addresses = [&service.cluster_ips, &service.external_ips, &service.load_balancer_ips];
            for address in addresses.into_iter().flatten() {
                claims.by_address.entry(*address).or_default().push(service);
            }
            for port in service.ports.iter().filter_map(|port| port.node_port) {
                claims.by_node_port.entry(port).or_default().push(service);
            }
        }
        claims
    }

    /// The state with only the Services that can affect the packet.
    fn on(&self, packet: &Packet) -> Snapshot {
        let by_address = self.by_address.get(&packet.destination).into_iter().flatten();
        let services = by_address.chain(self.by_node_port.get(&packet.port).into_iter().flatten());
        let services = services.map(|service| (service.key.clone(), Arc::clone(service))).collect();
        Snapshot { revision: self.state.revision, node: self.state.node.clone(), services }
    }
}

/// What the oracle predicts, in the way of kube-proxy's mode.
fn expected(state: &Snapshot, rules: &route::Rules, packet: &Packet, local: &[IpAddr], mode: Mode) -> Verdicts {
    // In mode ipvs, a VIP that is no address of the node becomes one, on kube-ipvs0.
    let to_bound = mode == Mode::Ipvs && !local.contains(&packet.destination);
    let is_external = || {
        let mut services = state.services.values();
        services.any(|service| {
            service.external_ips.contains(&packet.destination)
                || service.load_balancer_ips.contains(&packet.destination)
        })
    };
    let one = |verdict| match verdict {
        // A packet of a pod to itself gets the node's address in mode iptables whichever node the pod is on.
        Verdict::Endpoint { to, sticky, .. } if mode == Mode::Iptables && to.ip() == packet.source => {
            Verdict::Endpoint { to, sticky, masquerade: true }
        }
        // A packet of the node to a VIP has this VIP as its source, so it is masqueraded even without a detector of pods.
        Verdict::Endpoint { to, sticky, .. } if to_bound && packet.origin == Origin::Node => {
            Verdict::Endpoint { to, sticky, masquerade: true }
        }
        Verdict::Untouched if to_bound && is_external() => Verdict::Reject,
        other => other,
    };
    effective(of_outcome(&route::route(state, rules, packet)).into_iter().map(one), packet, local)
}

/// The verdicts without what has no effect: a packet that arrives and stays on the node does not pass the hook that masquerades.
fn effective(verdicts: impl IntoIterator<Item = Verdict>, packet: &Packet, local: &[IpAddr]) -> Verdicts {
    let one = |verdict| match verdict {
        Verdict::Endpoint { to, sticky, .. } if packet.origin != Origin::Node && local.contains(&to.ip()) => {
            Verdict::Endpoint { to, sticky, masquerade: false }
        }
        // A process of the node that reaches its own address through another one has this address as its source anyway.
        Verdict::Endpoint { to, sticky, .. } if to.ip() == packet.source && local.contains(&packet.destination) => {
            Verdict::Endpoint { to, sticky, masquerade: false }
        }
        other => other,
    };
    verdicts.into_iter().map(one).collect()
}

impl Shadow {
    /// The number of packets with other verdicts for no reason in docs/differences.md.
    pub fn unexplained(&self) -> usize {
        self.differences.len() - self.deliberate
    }

    /// Keeps only the differences that another comparison found, too. A proxy may have been busy with a change.
    pub fn retain(&mut self, again: &Self) {
        self.differences.retain(|difference| again.differences.contains(difference));
        self.deliberate = self.differences.iter().filter(|difference| difference.entry.is_some()).count();
        self.equal = self.compared - self.differences.len();
        self.flows_elsewhere.retain(|flow| again.flows_elsewhere.contains(flow));
    }

    fn flows_text(&self, style: Style) -> String {
        let elsewhere = self.flows_elsewhere.len();
        let text =
            format!("{} flows to Services: {elsewhere} reach an endpoint that localnet would not use\n", self.flows);
        if elsewhere == 0 {
            return text;
        }
        let mut table = Table::new(["FROM", "TO", "ENDPOINT"]);
        for flow in self.flows_elsewhere.iter().take(MOST_FLOWS) {
            table.add(|row| _ = row.cell(flow.from).cell(flow.to).cell(flow.endpoint));
        }
        text + &table.text(style, 0)
    }
}

impl Show for Shadow {
    fn human(&self, style: Style) -> String {
        let text = format!(
            "{} packets compared with kube-proxy's rules (mode {}): {} equal, {} differ deliberately, {} differ\n",
            self.compared,
            self.mode.name(),
            self.equal,
            self.deliberate,
            self.unexplained()
        );
        let text = text + &self.flows_text(style);
        if self.differences.is_empty() {
            return text;
        }
        let mut table = Table::new(["FROM", "TO", "SERVICE", "LOCALNET", "KUBE-PROXY", "ENTRY"]);
        for one in &self.differences {
            table.add(|row| {
                row.cell(format_args!("{} {}", one.origin, one.from));
                row.cell(format_args!("{}/{}", one.to, one.protocol));
                row.cell(one.service.as_deref().unwrap_or(NONE)).cell(told(&one.localnet));
                let kube_proxy = one.unknown.clone().unwrap_or_else(|| told(&one.kube_proxy));
                row.toned(kube_proxy, one.entry.is_none().then_some(Tone::Bad));
                row.cell(one.entry.map_or_else(|| NONE.to_owned(), |entry| entry.to_string()));
            });
        }
        text + &table.text(style, 0)
    }

    fn names(&self) -> Vec<String> {
        self.differences.iter().map(|one| format!("{} {}/{}", one.from, one.to, one.protocol)).collect()
    }
}

/// The verdicts in words: `10.0.0.1:80, 10.0.0.2:80 masqueraded`.
fn told(verdicts: &Verdicts) -> String {
    const MOST: usize = 3;
    let mut words: Vec<String> = verdicts.iter().take(MOST).map(ToString::to_string).collect();
    if verdicts.len() > MOST {
        words.push(format!("{} more", verdicts.len() - MOST));
    }
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use localnet_proto::Protocol;

    use super::*;

    #[test]
    fn the_oracle_needs_only_the_services_that_claim_a_packet() {
        let state = crate::source::read(
            "node: {name: n, serviceCIDRs: [10.96.0.0/16]}
services:
- {service: shop/a, type: NodePort, clusterIPs: [10.96.0.1], ports: [{name: p, protocol: TCP, port: 80, nodePort: 30080}]}
- {service: shop/b, type: NodePort, clusterIPs: [10.96.0.2], externalIPs: [192.0.2.1], ports: [{name: p, protocol: UDP, port: 53, nodePort: 30080}]}
- {service: shop/c, type: ClusterIP, clusterIPs: [10.96.0.3], externalIPs: [192.0.2.1], ports: [{name: p, protocol: TCP, port: 443}]}
",
        )
        .unwrap();
        let node = IpAddr::from([192, 168, 0, 2]);
        let rules = route::Rules { node_port_addresses: [node].into(), ..route::Rules::default() };
        let claims = Claims::of(&state);
        let mut outcomes = BTreeSet::new();
        for destination in ["10.96.0.1", "10.96.0.2", "10.96.0.3", "10.96.0.4", "192.0.2.1", "192.168.0.2", "1.1.1.1"] {
            for (port, protocol) in
                [80, 53, 443, 30080].into_iter().flat_map(|port| Protocol::ALL.map(|protocol| (port, protocol)))
            {
                let source = IpAddr::from([203, 0, 113, 1]);
                let packet = Packet {
                    source,
                    destination: destination.parse().unwrap(),
                    protocol,
                    port,
                    origin: Origin::Outside,
                };
                let expected = route::route(&state, &rules, &packet);
                assert_eq!(route::route(&claims.on(&packet), &rules, &packet), expected, "{packet:?}");
                outcomes.insert(format!("{expected:?}"));
            }
        }
        assert_eq!(outcomes.len(), 3, "{outcomes:?}");
    }
}
