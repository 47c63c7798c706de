//! The state of a node, in types that cannot hold invalid values: an address is not a string, and a port number is not 0.
//!
//! The model does not depend on Kubernetes. `localnetv1.proto` documents the meaning of the fields. Most have the same names there;
//! exceptions are `addresses` (`IPs`), `source_filters` (`IPFilters`), `client_ip_affinity` (`ClientIP`), `close_after`
//! (`CloseConnectionsAfterSeconds`) and the ports of an endpoint (`PortOverrides`). Only the draft `localnet.v1` has `facts` and
//! `settings`.

mod facts;
mod settings;

use std::{
    collections::BTreeMap,
    fmt,
    net::{IpAddr, SocketAddr},
    num::NonZeroU32,
    sync::Arc,
};

use ipnet::IpNet;
pub use localnet_core::{ByFamily, Family, HashBy, InvalidServiceKey, Protocol, ServiceKey};
use serde::{Deserialize, Serialize};

pub use facts::{Facts, Origin, TargetRef};
pub use settings::{ClusterIpMasquerade, LocalPods, TrafficSettings};

/// Identifies a state of a brain. The default stands for "no state yet".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Revision {
    /// A random number that the brain chooses when it starts.
    pub instance: u64,
    /// The sequence number of the state, from 1.
    pub rev: u64,
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.instance, self.rev)
    }
}

/// Facts about the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Node {
    /// The name in the cluster.
    pub name: String,
    /// The addresses; the first of each family is the primary one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
    /// The zone; empty if unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub zone: String,
    /// The CIDRs of the node's pods.
    #[serde(default, rename = "podCIDRs", skip_serializing_if = "Vec::is_empty")]
    pub pod_cidrs: Vec<IpNet>,
    /// The CIDRs of the cluster's ClusterIPs; empty if unknown.
    #[serde(default, rename = "serviceCIDRs", skip_serializing_if = "Vec::is_empty")]
    pub service_cidrs: Vec<IpNet>,
    /// What kube-proxy's configuration means on this node. Only readers of `localnet.v1` get it.
    #[serde(skip)]
    pub settings: Option<Arc<TrafficSettings>>,
}

impl Node {
    /// The primary address of a family, if the node has one.
    pub fn primary_address(&self, family: Family) -> Option<IpAddr> {
        self.addresses.iter().copied().find(|address| Family::of(*address) == family)
    }
}

/// A Service with its endpoints. The default has no name, no address and no port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Service {
    /// The namespace and name.
    #[serde(rename = "service")]
    pub key: ServiceKey,
    /// The type: ClusterIP, NodePort or LoadBalancer; for information only.
    #[serde(rename = "type")]
    pub kind: Box<str>,
    /// The ClusterIPs. The Service exists only in the families of the ClusterIPs.
    #[serde(rename = "clusterIPs")]
    pub cluster_ips: Vec<IpAddr>,
    /// The external IPs, which are routed to the nodes; sorted.
    #[serde(default, rename = "externalIPs", skip_serializing_if = "Vec::is_empty")]
    pub external_ips: Vec<IpAddr>,
    /// The IPs of load balancers that do not change the destination address of packets; sorted.
    #[serde(default, rename = "loadBalancerIPs", skip_serializing_if = "Vec::is_empty")]
    pub load_balancer_ips: Vec<IpAddr>,
    /// The ports, sorted by name.
    pub ports: Vec<Port>,
    /// Whether the internal traffic policy is Local; for information only.
    #[serde(default, skip_serializing_if = "is_default")]
    pub internal_traffic_to_local: bool,
    /// Whether the external traffic policy is Local. If so, external traffic keeps its source address.
    #[serde(default, skip_serializing_if = "is_default")]
    pub external_traffic_to_local: bool,
    /// The session affinity, if there is one.
    #[serde(default, skip_serializing_if = "is_default")]
    pub client_ip_affinity: Option<Affinity>,
    /// The sources that may reach some of the addresses. All sources may reach the other addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub source_filters: Vec<SourceFilter>,
    /// The port of the health check for load balancers.
    #[serde(default, skip_serializing_if = "is_default")]
    pub health_check_node_port: Option<u16>,
    /// The IPVS scheduler that the Service's annotation names; `None` for the default.
    #[serde(default, rename = "ipvsScheduler", skip_serializing_if = "is_default")]
    pub ipvs_scheduler: Option<Arc<str>>,
    /// Whether, on Windows, traffic to the load balancer IPs keeps its destination address and goes to endpoints on this node.
    #[serde(default, skip_serializing_if = "is_default")]
    pub preserve_destination: bool,
    /// How many seconds after an endpoint has stopped serving its established TCP connections are closed; `None`: never.
    #[serde(default, rename = "closeConnectionsAfter", skip_serializing_if = "is_default")]
    pub close_after: Option<u32>,
    /// What backends hash to choose an endpoint; `None`: they choose at random.
    #[serde(default, skip_serializing_if = "is_default")]
    pub hash: Option<HashBy>,
    /// The endpoints, sorted by address, then ports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<Endpoint>,
    /// What only readers of `localnet.v1` get; `None` for all others.
    #[serde(skip)]
    pub facts: Option<Arc<Facts>>,
}

/// Session affinity: a client, identified by its source address, keeps its endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Affinity {
    /// How long a client keeps its endpoint after its last connection, in seconds.
    pub seconds: u32,
}

impl From<u32> for Affinity {
    fn from(seconds: u32) -> Self {
        Self { seconds }
    }
}

impl fmt::Display for Affinity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}s", self.seconds)
    }
}

impl Service {
    /// A Service of type ClusterIP that has only a key and ClusterIPs.
    pub fn new(key: ServiceKey, cluster_ips: Vec<IpAddr>) -> Self {
        Self { key, kind: "ClusterIP".into(), cluster_ips, ..Self::default() }
    }

    /// A copy without endpoints.
    pub fn without_endpoints(&self) -> Self {
        Self {
            key: self.key.clone(),
            kind: self.kind.clone(),
            cluster_ips: self.cluster_ips.clone(),
            external_ips: self.external_ips.clone(),
            load_balancer_ips: self.load_balancer_ips.clone(),
            ports: self.ports.clone(),
            internal_traffic_to_local: self.internal_traffic_to_local,
            external_traffic_to_local: self.external_traffic_to_local,
            client_ip_affinity: self.client_ip_affinity,
            source_filters: self.source_filters.clone(),
            health_check_node_port: self.health_check_node_port,
            ipvs_scheduler: self.ipvs_scheduler.clone(),
            preserve_destination: self.preserve_destination,
            close_after: self.close_after,
            hash: self.hash,
            endpoints: Vec::new(),
            facts: self.facts.clone(),
        }
    }

    /// Whether the Service exists in a family.
    pub fn has_family(&self, family: Family) -> bool {
        self.cluster_ips.iter().any(|ip| Family::of(*ip) == family)
    }

    /// The endpoints that are eligible for a port, a family and a scope.
    pub fn endpoints_of<'a>(
        &'a self,
        port: &'a Port,
        family: Family,
        scope: fn(&Scopes) -> bool,
    ) -> impl Iterator<Item = SocketAddr> + 'a {
        self.endpoints
            .iter()
            .filter(move |endpoint| Family::of(endpoint.address) == family && scope(&endpoint.scopes))
            .filter_map(move |endpoint| Some(SocketAddr::new(endpoint.address, endpoint.port(&port.name)?)))
    }
}

/// Restricts the sources that may reach some addresses of a Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SourceFilter {
    /// The restricted destinations, all of one family.
    pub targets: Vec<IpAddr>,
    /// The permitted sources, of the same family.
    pub source_ranges: Vec<IpNet>,
}

/// A port of a Service. The default is TCP, and has neither name nor number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Port {
    /// The name; may be empty if the Service has only one port.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub name: Arc<str>,
    /// The transport protocol.
    pub protocol: Protocol,
    /// The port number on the Service's addresses.
    pub port: u16,
    /// The NodePort: the port number on the node's addresses.
    #[serde(default, skip_serializing_if = "is_default")]
    pub node_port: Option<u16>,
    /// The verdicts for IPv4 traffic without an eligible endpoint.
    #[serde(default, rename = "whenEmptyIPv4", skip_serializing_if = "is_default")]
    pub when_empty_v4: WhenEmpty,
    /// The verdicts for IPv6 traffic without an eligible endpoint.
    #[serde(default, rename = "whenEmptyIPv6", skip_serializing_if = "is_default")]
    pub when_empty_v6: WhenEmpty,
}

impl Port {
    /// The verdicts for traffic of this family if no endpoint is eligible for it.
    pub fn when_empty(&self, family: Family) -> WhenEmpty {
        match family {
            Family::V4 => self.when_empty_v4,
            Family::V6 => self.when_empty_v6,
        }
    }
}

/// The verdicts for traffic without an eligible endpoint, by scope.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WhenEmpty {
    /// For traffic to ClusterIPs.
    pub internal: Verdict,
    /// For traffic to external addresses and NodePorts.
    pub external: Verdict,
}

/// The verdict on a packet without an eligible endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Reject with an error to the client, because the Service has no endpoint anywhere.
    #[default]
    Reject,
    /// Drop silently, because the Service has endpoints, but a policy excludes them for this traffic.
    Drop,
}

/// An address that serves some ports of a Service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Endpoint {
    /// The address that packets are sent to.
    pub address: IpAddr,
    /// The Service's ports that the endpoint serves, sorted by name.
    pub ports: Vec<EndpointPort>,
    /// Whether the endpoint is on this node.
    #[serde(default, skip_serializing_if = "is_default")]
    pub local: bool,
    /// The host name, if there is one.
    #[serde(default, skip_serializing_if = "is_default")]
    pub hostname: Option<Arc<str>>,
    /// The traffic that the endpoint is eligible for.
    pub scopes: Scopes,
    /// The share of new connections relative to other endpoints, from 2 to [`Endpoint::MAX_WEIGHT`]; `None`: 1.
    #[serde(default, skip_serializing_if = "is_default")]
    pub weight: Option<NonZeroU32>,
}

impl Endpoint {
    /// The greatest weight.
    pub const MAX_WEIGHT: u32 = 10_000;

    /// `weight` in the form in which an endpoint has it.
    pub fn weighing(weight: u32) -> Option<NonZeroU32> {
        NonZeroU32::new(weight.min(Self::MAX_WEIGHT)).filter(|weight| weight.get() > 1)
    }

    /// The endpoint's port number for the Service's port `name`; `None` if the endpoint does not serve that port.
    pub fn port(&self, name: &str) -> Option<u16> {
        self.ports.iter().find(|port| *port.name == *name).map(|port| port.port)
    }
}

/// The port number of an endpoint for one of the Service's ports.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndpointPort {
    /// The name of the Service's port; may be empty.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub name: Arc<str>,
    /// The port number on the endpoint.
    pub port: u16,
}

/// The traffic that an endpoint is eligible for; see `EndpointScopes` in `localnetv1.proto`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Scopes {
    /// Whether the endpoint serves traffic to ClusterIPs.
    #[serde(default, skip_serializing_if = "is_default")]
    pub internal: bool,
    /// Whether the endpoint serves traffic to external addresses and NodePorts. If the external traffic policy is Local,
    /// `short_circuit` replaces this value for traffic from this node and its pods.
    #[serde(default, skip_serializing_if = "is_default")]
    pub external: bool,
    /// Whether the endpoint serves traffic from this node and its pods to external addresses and NodePorts. Always false
    /// unless the external traffic policy is Local.
    #[serde(default, skip_serializing_if = "is_default")]
    pub short_circuit: bool,
    /// Whether existing connections to the endpoint may continue.
    #[serde(default, skip_serializing_if = "is_default")]
    pub established: bool,
}

impl Scopes {
    /// Whether the endpoint serves new flows of at least one scope.
    pub fn is_eligible(self) -> bool {
        self.internal || self.external || self.short_circuit
    }

    /// Whether there is a scope in which both endpoints serve new flows.
    pub fn overlaps(self, other: Self) -> bool {
        let Self { internal, external, short_circuit, .. } = self;
        internal && other.internal || external && other.external || short_circuit && other.short_circuit
    }
}

/// The complete state of one node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Snapshot {
    /// The revision, which is not serialized.
    #[serde(skip)]
    pub revision: Revision,
    /// Facts about the node.
    pub node: Node,
    /// The Services by key.
    #[serde(with = "as_list")]
    pub services: BTreeMap<ServiceKey, Arc<Service>>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Serializes the Services as a list, because each Service contains its key.
mod as_list {
    use super::{Arc, BTreeMap, Deserialize, Service, ServiceKey};

    pub(super) fn serialize<S: serde::Serializer>(
        services: &BTreeMap<ServiceKey, Arc<Service>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(services.values())
    }

    pub(super) fn deserialize<'de, D: serde::Deserializer<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<ServiceKey, Arc<Service>>, D::Error> {
        let list = Vec::<Service>::deserialize(deserializer)?;
        Ok(list.into_iter().map(|service| (service.key.clone(), Arc::new(service))).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::Service;

    /// The next size of jemalloc is 320 bytes, which would cost 0.6 MiB for 10,000 Services.
    #[test]
    fn a_shared_service_needs_at_most_256_bytes() {
        let counts = 2 * size_of::<usize>();
        assert!(size_of::<Service>() + counts <= 256, "{} bytes", size_of::<Service>() + counts);
    }
}
