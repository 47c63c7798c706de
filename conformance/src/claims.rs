//! What a backend claims to support. Pure.
//!
//! A level checks only what a backend claims, so that the kit can also test a simple proxy in user space. The table of results
//! counts the checks for which a claim is missing, so no check is skipped silently.

use std::{collections::BTreeSet, fmt, net::SocketAddr, str::FromStr};

use localnet_lab::{
    Flow, Protocol,
    flow::{Expect, Sender, Source},
    topology::Place,
};
use localnet_proto::{Port, Service, Snapshot};

/// A feature that a backend may support, and that packets can verify.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Claim {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
    /// Serves ClusterIPs.
    ClusterIp,
    /// Serves external IPs and load balancer IPs.
    External,
    /// Serves NodePorts.
    NodePort,
    /// Every eligible endpoint gets a share of the connections.
    Answers,
    /// Endpoints see the expected source address.
    Source,
    /// Endpoints see the expected source address of traffic from the node itself.
    NodeSource,
    /// Rejects traffic to a port without endpoints.
    Reject,
    /// Drops traffic if a policy excludes all endpoints.
    Drop,
    /// Passes packets unchanged if their destination belongs to no Service, and drops packets to unused ServiceCIDR addresses.
    Untouched,
    /// Treats external traffic differently from the traffic of the node and its pods, if a traffic policy requires this.
    Scopes,
    /// If a Service has session affinity, always sends a client to the same endpoint.
    Affinity,
    /// Spreads new connections by the weights of endpoints.
    Weights,
    /// If a Service requests it, chooses endpoints by a consistent hash of the client's address, or of its address and port.
    Hash,
    /// Ends the UDP flows to a removed endpoint, so that the next packet of a flow reaches another endpoint.
    Flows,
    /// Serves clients outside of the node. Without this claim, the backend translates when a process of the node connects.
    Outside,
}

impl Claim {
    /// All claims.
    pub const ALL: [Self; 20] = [
        Self::Tcp,
        Self::Udp,
        Self::Sctp,
        Self::Ipv4,
        Self::Ipv6,
        Self::ClusterIp,
        Self::External,
        Self::NodePort,
        Self::Answers,
        Self::Source,
        Self::NodeSource,
        Self::Reject,
        Self::Drop,
        Self::Untouched,
        Self::Scopes,
        Self::Affinity,
        Self::Weights,
        Self::Hash,
        Self::Flows,
        Self::Outside,
    ];

    /// The name on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
            Self::Ipv4 => "ipv4",
            Self::Ipv6 => "ipv6",
            Self::ClusterIp => "cluster-ip",
            Self::External => "external",
            Self::NodePort => "node-port",
            Self::Answers => "answers",
            Self::Source => "source",
            Self::NodeSource => "node-source",
            Self::Reject => "reject",
            Self::Drop => "drop",
            Self::Untouched => "untouched",
            Self::Scopes => "scopes",
            Self::Affinity => "affinity",
            Self::Weights => "weights",
            Self::Hash => "hash",
            Self::Flows => "flows",
            Self::Outside => "outside",
        }
    }
}

/// The error for a string that is not a [`Claim`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadClaim(String);

impl std::error::Error for BadClaim {}

impl fmt::Display for BadClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<_> = Claim::ALL.map(Claim::as_str).into();
        write!(f, "{:?} is not one of {}; to claim nothing, write only `none`", self.0, all.join(", "))
    }
}

impl FromStr for Claim {
    type Err = BadClaim;

    fn from_str(text: &str) -> Result<Self, BadClaim> {
        Self::ALL.into_iter().find(|claim| claim.as_str() == text).ok_or_else(|| BadClaim(text.to_owned()))
    }
}

/// A set of claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims(BTreeSet<Claim>);

impl Default for Claims {
    /// All claims.
    fn default() -> Self {
        Self(Claim::ALL.into())
    }
}

impl FromIterator<Claim> for Claims {
    fn from_iter<I: IntoIterator<Item = Claim>>(claims: I) -> Self {
        Self(claims.into_iter().collect())
    }
}

/// Parses claims separated by commas; `none` for a backend that does nothing with packets.
impl FromStr for Claims {
    type Err = BadClaim;

    fn from_str(text: &str) -> Result<Self, BadClaim> {
        if text == "none" {
            return Ok(Self(BTreeSet::new()));
        }
        text.split(',').map(str::parse).collect()
    }
}

impl Claims {
    /// No claims.
    pub fn none() -> Self {
        Self(BTreeSet::new())
    }

    /// Whether the claim is in the set.
    pub fn has(&self, claim: Claim) -> bool {
        self.0.contains(&claim)
    }

    /// Returns the flow; `None` if the claims do not cover it. Removes the expected source address if the claims do not cover
    /// this address. If the backend serves only the node, endpoints see the sender's own address.
    pub fn of_flow(&self, flow: &Flow, state: &Snapshot) -> Option<Flow> {
        if !needs(flow, state).iter().all(|claim| self.has(*claim)) {
            return None;
        }
        let mut flow = flow.clone();
        if let Expect::Answers { source, .. } = &mut flow.expect {
            let of_node = flow.from == Sender::Node;
            if !self.has(Claim::Source) || of_node && !self.has(Claim::NodeSource) {
                *source = None;
            } else if !self.has(Claim::Outside) {
                // The node may have several addresses, and each of them is its own.
                *source = source.map(|_| if of_node { Source::Masqueraded } else { Source::Kept });
            }
        }
        Some(flow)
    }
}

/// The claims that a flow requires, except the claims about its source address.
fn needs(flow: &Flow, state: &Snapshot) -> Vec<Claim> {
    let protocol = match flow.protocol {
        Protocol::Tcp => Claim::Tcp,
        Protocol::Udp => Claim::Udp,
        Protocol::Sctp => Claim::Sctp,
    };
    let family = if flow.to.is_ipv4() { Claim::Ipv4 } else { Claim::Ipv6 };
    let outcome = match flow.expect {
        Expect::Answers { .. } => Claim::Answers,
        Expect::Reject => Claim::Reject,
        Expect::Drop => Claim::Drop,
        Expect::Untouched => Claim::Untouched,
    };
    let mut needs = vec![protocol, family, outcome];
    needs.push(destination(flow, state));
    // If the Service's external traffic policy is Local, the verdict on a packet depends on the packet's sender.
    let from_outside = matches!(flow.from, Sender::Client(_));
    let policy = state.services.values().any(|service| {
        service.external_traffic_to_local && !service.cluster_ips.contains(&flow.to.ip()) && is_of(service, flow.to)
    });
    if policy && !from_outside {
        needs.push(Claim::Scopes);
    }
    let from_this_node = match flow.from {
        Sender::Node => true,
        Sender::Pod(pod) => pod.place == Place::Local,
        Sender::Client(_) | Sender::OtherNode => false,
    };
    // A socket has no source address before it connects.
    let mut filters = state.services.values().flat_map(|service| &service.source_filters);
    if !from_this_node || filters.any(|filter| filter.targets.contains(&flow.to.ip())) {
        needs.push(Claim::Outside);
    }
    needs
}

fn is_of(service: &localnet_proto::Service, to: SocketAddr) -> bool {
    let external = service.external_ips.iter().chain(&service.load_balancer_ips);
    external.clone().any(|ip| *ip == to.ip()) || service.ports.iter().any(|port| port.node_port == Some(to.port()))
}

/// The claim for the flow's destination. A Service owns all port numbers at its ClusterIPs. At other
/// addresses, the Service owns only the port numbers that it declares.
fn destination(flow: &Flow, state: &Snapshot) -> Claim {
    let (ip, number) = (flow.to.ip(), flow.to.port());
    let any = |of: &dyn Fn(&Service) -> bool| state.services.values().any(|service| of(service));
    let has = |service: &Service, is: &dyn Fn(&Port) -> bool| {
        service.ports.iter().any(|port| port.protocol == flow.protocol && is(port))
    };
    let external = |service: &Service| {
        let address = service.external_ips.contains(&ip) || service.load_balancer_ips.contains(&ip);
        address && has(service, &|port| port.port == number)
    };
    if any(&|service| service.cluster_ips.contains(&ip)) {
        Claim::ClusterIp
    } else if any(&external) {
        Claim::External
    } else if any(&|service| has(service, &|port| port.node_port == Some(number))) {
        Claim::NodePort
    } else {
        // No Service owns the destination, so only a backend that filters packets affects the packet.
        Claim::Untouched
    }
}

#[cfg(test)]
mod tests {
    use localnet_lab::Flows;
    use localnet_proto::SourceFilter;

    use super::*;

    fn state() -> Snapshot {
        let mut service =
            localnet_proto::Service::new(localnet_proto::ServiceKey::new("a", "b"), vec![[172, 30, 0, 1].into()]);
        service.external_ips = vec![[198, 51, 100, 1].into()];
        service.external_traffic_to_local = true;
        service.ports = [Protocol::Tcp, Protocol::Udp].map(port).into();
        let mut state = Snapshot::default();
        state.services.insert(service.key.clone(), service.into());
        state
    }

    fn port(protocol: Protocol) -> Port {
        Port { name: "p".into(), protocol, port: 80, ..Port::default() }
    }

    fn flow(text: &str) -> Flow {
        Flows::parse(&format!("flows: [{{{text}}}]")).expect("a flow").flows.remove(0)
    }

    #[test]
    fn a_flow_is_checked_only_if_all_required_claims_are_made() {
        let to_cluster =
            flow("from: client, proto: tcp, to: 172.30.0.1, port: 80, answers: [10.180.0.1:80], source: kept");
        let to_external = flow("from: node, proto: udp, to: 198.51.100.1, port: 80, outcome: reject");
        let claims = |text: &str| -> Claims { text.split(' ').map(|word| word.parse().expect("a claim")).collect() };
        assert_eq!(Claims::default().of_flow(&to_cluster, &state()), Some(to_cluster.clone()));
        let some = claims("tcp ipv4 cluster-ip answers outside").of_flow(&to_cluster, &state());
        assert!(matches!(some, Some(Flow { expect: Expect::Answers { source: None, .. }, .. })), "{some:?}");
        assert_eq!(claims("udp ipv4 cluster-ip answers outside").of_flow(&to_cluster, &state()), None);
        assert_eq!(claims("udp ipv4 external reject").of_flow(&to_external, &state()), None, "it requires scopes");
        assert!(claims("udp ipv4 external reject scopes").of_flow(&to_external, &state()).is_some());
        let elsewhere = flow("from: client, proto: tcp, to: 198.51.100.1, port: 81, outcome: drop");
        assert_eq!(
            claims("tcp ipv4 external drop outside").of_flow(&elsewhere, &state()),
            None,
            "no Service owns the port"
        );
        let from_node =
            flow("from: node, proto: tcp, to: 172.30.0.1, port: 80, answers: [10.180.0.1:80], source: kept");
        let checked = |words: &str| match claims(words).of_flow(&from_node, &state()) {
            Some(Flow { expect: Expect::Answers { source, .. }, .. }) => source.is_some(),
            other => panic!("{other:?}"),
        };
        assert!(!checked("tcp ipv4 cluster-ip answers source outside"));
        assert!(checked("tcp ipv4 cluster-ip answers source node-source outside"));
    }

    #[test]
    fn a_backend_without_clients_outside_serves_the_node_and_keeps_the_addresses_of_senders() {
        let mut state = state();
        let connects: Claims = Claim::ALL.into_iter().filter(|claim| *claim != Claim::Outside).collect();
        for (from, to, source, expected) in [
            ("pod:10.180.0.2", "172.30.0.1", "masqueraded", Some(Source::Kept)),
            ("node", "172.30.0.1", "kept", Some(Source::Masqueraded)),
            ("client", "172.30.0.1", "kept", None),
            ("remote-pod:10.180.1.2", "172.30.0.1", "kept", None),
            ("pod:10.180.0.2", "198.51.100.1", "masqueraded", Some(Source::Kept)),
            ("pod:10.180.0.2", "198.51.100.2", "masqueraded", None),
        ] {
            let flow = flow(&format!(
                "from: {from}, proto: tcp, to: {to}, port: 80, answers: [10.180.0.1:80], source: {source}"
            ));
            let mut service = (*state.services.values().next().expect("a Service").clone()).clone();
            service.load_balancer_ips = vec![[198, 51, 100, 2].into()];
            service.source_filters =
                vec![SourceFilter { targets: service.load_balancer_ips.clone(), source_ranges: Vec::new() }];
            state.services.insert(service.key.clone(), service.into());
            let found = connects.of_flow(&flow, &state).map(|flow| match flow.expect {
                Expect::Answers { source, .. } => source,
                other => panic!("{other}"),
            });
            assert_eq!(found, expected.map(Some), "{flow}");
        }
    }

    #[test]
    fn valid_claims_are_parsed_and_others_are_refused() {
        for claim in Claim::ALL {
            assert_eq!(claim.as_str().parse(), Ok(claim));
        }
        assert_eq!("udp,tcp".parse(), Ok([Claim::Tcp, Claim::Udp].into_iter().collect::<Claims>()));
        assert_eq!("none".parse(), Ok(Claims::none()));
        assert!("tcp,".parse::<Claims>().is_err());
        assert!("quic".parse::<Claim>().unwrap_err().to_string().starts_with("\"quic\" is not one of tcp, udp"));
    }
}
