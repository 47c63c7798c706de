//! The state of one node in types that cannot hold nonsense: addresses are addresses, ports are not zero.
//!
//! Nothing here knows Kubernetes. What a field means to a backend is said in `localnetv1.proto`; the names are the same.

use std::{
    collections::BTreeMap,
    fmt,
    net::{IpAddr, SocketAddr},
    str::FromStr,
    sync::Arc,
};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Family {
    /// IPv4.
    #[serde(rename = "ipv4")]
    V4,
    /// IPv6.
    #[serde(rename = "ipv6")]
    V6,
}

impl Family {
    /// Both, IPv4 first.
    pub const BOTH: [Self; 2] = [Self::V4, Self::V6];

    /// The family of an address.
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// A transport protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl Protocol {
    /// The number in the IP header.
    pub fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }

    /// As Kubernetes writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Names a service. Ordered by namespace, then name; written `namespace/name`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceKey {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name within the namespace.
    pub name: Arc<str>,
}

impl ServiceKey {
    /// Names the service `name` in `namespace`.
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for ServiceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The text was not `namespace/name`.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is not of the form namespace/name")]
pub struct NotAServiceKey(String);

impl FromStr for ServiceKey {
    type Err = NotAServiceKey;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('/') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
                Ok(Self::new(namespace, name))
            }
            _ => Err(NotAServiceKey(text.to_owned())),
        }
    }
}

impl Serialize for ServiceKey {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ServiceKey {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Names one state of one brain: its instance and the count of its states. The default is "nothing yet".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Revision {
    /// Random number of the brain's start.
    pub instance: u64,
    /// Count of its states, from 1.
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
    /// Its name in the cluster.
    pub name: String,
    /// Its addresses; the first of each family is the primary one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
    /// Its zone; empty when unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub zone: String,
    /// CIDRs of its pods.
    #[serde(default, rename = "podCIDRs", skip_serializing_if = "Vec::is_empty")]
    pub pod_cidrs: Vec<IpNet>,
    /// CIDRs of the cluster's ClusterIPs; empty when unknown.
    #[serde(default, rename = "serviceCIDRs", skip_serializing_if = "Vec::is_empty")]
    pub service_cidrs: Vec<IpNet>,
}

impl Node {
    /// The node's primary address of a family.
    pub fn primary_address(&self, family: Family) -> Option<IpAddr> {
        self.addresses.iter().copied().find(|address| Family::of(*address) == family)
    }
}

/// A service with its endpoints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Service {
    /// Its name.
    #[serde(rename = "service")]
    pub key: ServiceKey,
    /// ClusterIP, NodePort or LoadBalancer; for information.
    #[serde(rename = "type")]
    pub kind: String,
    /// Addresses inside the cluster; the service exists in the families of these.
    #[serde(rename = "clusterIPs")]
    pub cluster_ips: Vec<IpAddr>,
    /// External addresses routed to the nodes, sorted.
    #[serde(default, rename = "externalIPs", skip_serializing_if = "Vec::is_empty")]
    pub external_ips: Vec<IpAddr>,
    /// Addresses of load balancers that keep the destination, sorted.
    #[serde(default, rename = "loadBalancerIPs", skip_serializing_if = "Vec::is_empty")]
    pub load_balancer_ips: Vec<IpAddr>,
    /// Its ports, sorted by name.
    pub ports: Vec<Port>,
    /// Internal traffic policy Local; for information.
    #[serde(default, skip_serializing_if = "is_default")]
    pub internal_traffic_to_local: bool,
    /// External traffic policy Local: external traffic keeps its source address.
    #[serde(default, skip_serializing_if = "is_default")]
    pub external_traffic_to_local: bool,
    /// Seconds for which a client keeps its endpoint; `None` without affinity.
    #[serde(default, skip_serializing_if = "is_default")]
    pub client_ip_affinity: Option<u32>,
    /// Who may reach some of its addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub source_filters: Vec<SourceFilter>,
    /// Port of the health answers for load balancers.
    #[serde(default, skip_serializing_if = "is_default")]
    pub health_check_node_port: Option<u16>,
    /// Who chooses endpoints in IPVS, as the service's author wrote it; `None` if that was left open.
    #[serde(default, rename = "ipvsScheduler", skip_serializing_if = "is_default")]
    pub ipvs_scheduler: Option<Arc<str>>,
    /// On Windows, what comes to its load balancers' addresses keeps its destination, and goes to endpoints on this node.
    #[serde(default, skip_serializing_if = "is_default")]
    pub preserve_destination: bool,
    /// Its endpoints, sorted by address, then ports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<Endpoint>,
}

impl Service {
    /// A service of type ClusterIP that has nothing but its addresses.
    pub fn new(key: ServiceKey, cluster_ips: Vec<IpAddr>) -> Self {
        Self {
            key,
            kind: "ClusterIP".to_owned(),
            cluster_ips,
            external_ips: Vec::new(),
            load_balancer_ips: Vec::new(),
            ports: Vec::new(),
            internal_traffic_to_local: false,
            external_traffic_to_local: false,
            client_ip_affinity: None,
            source_filters: Vec::new(),
            health_check_node_port: None,
            ipvs_scheduler: None,
            preserve_destination: false,
            endpoints: Vec::new(),
        }
    }

    /// The service alone.
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
            endpoints: Vec::new(),
        }
    }

    /// Whether the service exists in a family.
    pub fn has_family(&self, family: Family) -> bool {
        self.cluster_ips.iter().any(|ip| Family::of(*ip) == family)
    }

    /// The endpoints of a port in a family that serve a scope: where traffic of that port is sent.
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

/// What may be reached from where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SourceFilter {
    /// Destinations the filter is for, all of one family.
    pub targets: Vec<IpAddr>,
    /// Sources that may pass, of the same family.
    pub source_ranges: Vec<IpNet>,
}

/// One port of a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Port {
    /// Its name; may be empty when it is the only one.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub name: Arc<str>,
    /// Its protocol.
    pub protocol: Protocol,
    /// Its number on the service's addresses.
    pub port: u16,
    /// Its number on the node's addresses.
    #[serde(default, skip_serializing_if = "is_default")]
    pub node_port: Option<u16>,
    /// What happens to IPv4 traffic that no endpoint serves.
    #[serde(default, rename = "whenEmptyIPv4", skip_serializing_if = "is_default")]
    pub when_empty_v4: WhenEmpty,
    /// What happens to IPv6 traffic that no endpoint serves.
    #[serde(default, rename = "whenEmptyIPv6", skip_serializing_if = "is_default")]
    pub when_empty_v6: WhenEmpty,
}

impl Port {
    /// What happens to traffic of a family that no endpoint serves.
    pub fn when_empty(&self, family: Family) -> WhenEmpty {
        match family {
            Family::V4 => self.when_empty_v4,
            Family::V6 => self.when_empty_v6,
        }
    }
}

/// What happens to traffic in a scope in which no endpoint serves it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WhenEmpty {
    /// To ClusterIPs.
    pub internal: Verdict,
    /// To external addresses and NodePorts.
    pub external: Verdict,
}

/// Verdict on a packet that no endpoint serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// "Connection refused": nothing serves anywhere.
    #[default]
    Reject,
    /// Silence: endpoints exist, but a policy keeps this traffic from them.
    Drop,
}

/// One address that answers for some ports of a service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Endpoint {
    /// Its address.
    pub address: IpAddr,
    /// The service's ports that it serves, sorted by name.
    pub ports: Vec<EndpointPort>,
    /// It is on this node.
    #[serde(default, skip_serializing_if = "is_default")]
    pub local: bool,
    /// Its host name, if any.
    #[serde(default, skip_serializing_if = "is_default")]
    pub hostname: Option<Arc<str>>,
    /// Which traffic it serves.
    pub scopes: Scopes,
}

impl Endpoint {
    /// Its number for the service port of that name, if it serves it.
    pub fn port(&self, name: &str) -> Option<u16> {
        self.ports.iter().find(|port| *port.name == *name).map(|port| port.port)
    }
}

/// Number of a service port on an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndpointPort {
    /// Name of the service's port; may be empty.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub name: Arc<str>,
    /// Its number on the endpoint.
    pub port: u16,
}

/// Which traffic an endpoint serves; see `EndpointScopes` in `localnetv1.proto`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Scopes {
    /// Traffic to ClusterIPs.
    #[serde(default, skip_serializing_if = "is_default")]
    pub internal: bool,
    /// Traffic to external addresses and NodePorts; under external policy Local only from outside.
    #[serde(default, skip_serializing_if = "is_default")]
    pub external: bool,
    /// Under external policy Local: the same traffic from this node and its pods.
    #[serde(default, skip_serializing_if = "is_default")]
    pub short_circuit: bool,
    /// Connections that it already has may go on.
    #[serde(default, skip_serializing_if = "is_default")]
    pub established: bool,
}

/// The complete state of one node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Snapshot {
    /// Which state this is. Not part of the text form.
    #[serde(skip)]
    pub revision: Revision,
    /// Facts about the node.
    pub node: Node,
    /// The services, by name.
    #[serde(with = "as_list")]
    pub services: BTreeMap<ServiceKey, Arc<Service>>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Services know their names, so the text form of a snapshot lists them.
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
