//! The targets of connections: every address and port of every Service, with the place such traffic comes from.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use localnet_lab::{Namespace, Network, Outcome, Probe, Protocol, topology::CLIENT};
use localnet_proto::{Endpoint, Family, Port, Service, ServiceKey, Snapshot};

/// An address and port of a Service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Target {
    /// The Service.
    pub(crate) service: ServiceKey,
    /// The kind of address.
    pub(crate) kind: Kind,
    /// The transport protocol.
    pub(crate) protocol: Protocol,
    /// The address and port.
    pub(crate) to: SocketAddr,
    /// The endpoints that may answer. If empty, connections must be rejected.
    pub(crate) endpoints: BTreeSet<SocketAddr>,
    /// The weights of the endpoints that have one.
    pub(crate) weights: BTreeMap<IpAddr, u32>,
}

/// The kind of an address, which decides where its traffic comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Contacted by a pod.
    ClusterIp,
    /// Contacted by an external client.
    NodePort,
    /// Contacted by an external client.
    LoadBalancer,
    /// Contacted by an external client.
    ExternalIp,
}

/// How many times each outcome occurred for a target.
pub(crate) type Answers = BTreeMap<Outcome, usize>;

impl Target {
    /// The namespace that the connections come from.
    pub(crate) fn from<'a>(&self, network: &'a Network) -> anyhow::Result<&'a Namespace> {
        match self.kind {
            Kind::ClusterIp => network.pod(IpAddr::from([10, 180, 0, 1])),
            Kind::NodePort | Kind::LoadBalancer | Kind::ExternalIp => network.namespace_of(CLIENT[0]),
        }
    }

    /// Whether the outcome is right.
    pub(crate) fn accepts(&self, outcome: &Outcome) -> bool {
        match outcome {
            Outcome::Answer { by, .. } => self.endpoints.contains(by),
            Outcome::Rejected => self.endpoints.is_empty(),
            Outcome::Dropped | Outcome::NoRoute => false,
        }
    }
}

/// The targets of a state. SCTP is left out, because most kernels have no SCTP sockets.
pub(crate) fn of(state: &Snapshot) -> Vec<Target> {
    let mut targets = Vec::new();
    for service in state.services.values() {
        let weigh = |endpoint: &Endpoint| Some((endpoint.address, endpoint.weight?.get()));
        let weights: BTreeMap<IpAddr, u32> = service.endpoints.iter().filter_map(weigh).collect();
        for port in &service.ports {
            let protocol = port.protocol;
            if protocol == Protocol::Sctp {
                continue;
            }
            for (kind, to) in addresses(state, service, port) {
                let family = Family::of(to.ip());
                let scope = if kind == Kind::ClusterIp { |s: &_| internal(s) } else { |s: &_| external(s) };
                let endpoints = service.endpoints_of(port, family, scope).collect();
                let (service, weights) = (service.key.clone(), weights.clone());
                targets.push(Target { service, kind, protocol, to, endpoints, weights });
            }
        }
    }
    targets
}

fn internal(scopes: &localnet_proto::Scopes) -> bool {
    scopes.internal
}

fn external(scopes: &localnet_proto::Scopes) -> bool {
    scopes.external
}

fn addresses(state: &Snapshot, service: &Service, port: &Port) -> Vec<(Kind, SocketAddr)> {
    let each =
        |kind, ips: &[IpAddr]| ips.iter().map(move |ip| (kind, SocketAddr::new(*ip, port.port))).collect::<Vec<_>>();
    let mut addresses = each(Kind::ClusterIp, &service.cluster_ips);
    if let Some(node_port) = port.node_port {
        let families = Family::BOTH.into_iter().filter(|family| service.has_family(*family));
        let primary = families.filter_map(|family| state.node.primary_address(family));
        addresses.extend(primary.map(|ip| (Kind::NodePort, SocketAddr::new(ip, node_port))));
    }
    addresses.extend(each(Kind::LoadBalancer, &service.load_balancer_ips));
    addresses.extend(each(Kind::ExternalIp, &service.external_ips));
    addresses
}

/// Makes `connections` connections to each target.
pub(crate) fn probe_all(
    network: &Network,
    state: &Snapshot,
    connections: usize,
) -> anyhow::Result<Vec<(Target, Answers)>> {
    let probe = |target: Target| {
        let mut answers = Answers::new();
        target.from(network)?.probe_until(Probe::new(target.protocol, target.to), connections, |outcome| {
            *answers.entry(outcome).or_default() += 1;
            false
        })?;
        Ok((target, answers))
    };
    of(state).into_iter().map(probe).collect()
}
