//! Converts single objects between the model and the wire, in both directions.

use std::{
    collections::BTreeSet,
    error::Error,
    fmt::{self, Display},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    num::NonZeroU32,
    str::FromStr,
    sync::Arc,
};

use ipnet::IpNet;
use localnet_core::Severity;

use crate::{
    model::{
        Affinity, Endpoint, EndpointPort, Family, HashBy, Node, Port, Protocol, Scopes, Service, ServiceKey,
        SourceFilter, Verdict, WhenEmpty,
    },
    wire,
};

/// The error for an answer of the brain that is not a valid state.
#[derive(Debug, PartialEq, Eq)]
pub struct DecodeError {
    /// The invalid object: `service ns/name`, `node` or `answer`.
    pub object: String,
    /// The field, named as in the proto.
    pub field: &'static str,
    /// What is wrong with the field's value.
    pub problem: String,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { object, field, problem } = self;
        write!(f, "{object}: {field}: {problem}")
    }
}

impl Error for DecodeError {}

impl From<&Node> for wire::NodeState {
    fn from(node: &Node) -> Self {
        let text = |v6: bool| node.addresses.iter().filter(|ip| ip.is_ipv6() == v6).map(ToString::to_string).collect();
        Self {
            name: node.name.clone(),
            i_ps: Some(wire::IpSet { v4: text(false), v6: text(true) }),
            zone: node.zone.clone(),
            pod_cid_rs: node.pod_cidrs.iter().map(ToString::to_string).collect(),
            service_cid_rs: node.service_cidrs.iter().map(ToString::to_string).collect(),
        }
    }
}

impl TryFrom<&wire::NodeState> for Node {
    type Error = DecodeError;

    fn try_from(node: &wire::NodeState) -> Result<Self, Self::Error> {
        let error = |field| move |problem| DecodeError { object: format!("node {:?}", node.name), field, problem };
        Ok(Self {
            name: node.name.clone(),
            addresses: ordered_addresses(node.i_ps.as_ref()).map_err(error("IPs"))?,
            zone: node.zone.clone(),
            pod_cidrs: parsed(&node.pod_cid_rs).map_err(error("PodCIDRs"))?,
            service_cidrs: parsed(&node.service_cid_rs).map_err(error("ServiceCIDRs"))?,
            settings: None,
        })
    }
}

impl From<&ServiceKey> for wire::ServiceKey {
    fn from(ServiceKey { namespace, name }: &ServiceKey) -> Self {
        Self { namespace: namespace.to_string(), name: name.to_string() }
    }
}

impl From<&Service> for wire::Service {
    fn from(service: &Service) -> Self {
        Self {
            namespace: service.key.namespace.to_string(),
            name: service.key.name.to_string(),
            r#type: service.kind.to_string(),
            i_ps: Some(wire::ServiceIPs {
                cluster_i_ps: Some(sorted_set(&service.cluster_ips)),
                external_i_ps: some_set(&service.external_ips),
                load_balancer_i_ps: some_set(&service.load_balancer_ips),
                headless: false,
            }),
            ports: service.ports.iter().map(Into::into).collect(),
            external_traffic_to_local: service.external_traffic_to_local,
            internal_traffic_to_local: service.internal_traffic_to_local,
            ip_filters: service.source_filters.iter().map(Into::into).collect(),
            session_affinity: service.client_ip_affinity.map(|Affinity { seconds }| {
                wire::service::SessionAffinity::ClientIp(wire::ClientIpAffinity {
                    timeout_seconds: i32::try_from(seconds).unwrap_or(i32::MAX),
                })
            }),
            health_check_node_port: service.health_check_node_port.map_or(0, i32::from),
            ipvs_scheduler: service.ipvs_scheduler.as_deref().unwrap_or_default().to_owned(),
            preserve_destination: service.preserve_destination,
            close_connections_after_seconds: service.close_after,
            hash: some_hash(service.hash).into(),
            ..Default::default()
        }
    }
}

pub(crate) fn service_of(
    key: ServiceKey,
    head: &wire::Service,
    endpoints: Vec<Endpoint>,
    names: &mut Names,
) -> Result<Service, DecodeError> {
    let error = |field| {
        let key = &key;
        move |problem: String| service_error(key, field, problem)
    };
    let ips = head.i_ps.as_ref();
    let cluster_ips = addresses(ips.and_then(|ips| ips.cluster_i_ps.as_ref())).map_err(error("IPs.ClusterIPs"))?;
    if cluster_ips.is_empty() {
        return Err(service_error(&key, "IPs.ClusterIPs", "must contain at least one address"));
    }
    let affinity = head.session_affinity.as_ref();
    let client_ip_affinity = affinity.map(|wire::service::SessionAffinity::ClientIp(client)| {
        let seconds = u32::try_from(client.timeout_seconds);
        seconds.map(Affinity::from).map_err(|_| format!("{} is negative", client.timeout_seconds))
    });
    Ok(Service {
        kind: head.r#type.as_str().into(),
        cluster_ips,
        external_ips: addresses(ips.and_then(|ips| ips.external_i_ps.as_ref())).map_err(error("IPs.ExternalIPs"))?,
        load_balancer_ips: addresses(ips.and_then(|ips| ips.load_balancer_i_ps.as_ref()))
            .map_err(error("IPs.LoadBalancerIPs"))?,
        ports: exact(head.ports.iter().filter_map(|port| port_of(port, names).transpose())).map_err(error("Ports"))?,
        internal_traffic_to_local: head.internal_traffic_to_local,
        external_traffic_to_local: head.external_traffic_to_local,
        client_ip_affinity: client_ip_affinity.transpose().map_err(error("ClientIP.TimeoutSeconds"))?,
        source_filters: filters_of(&head.ip_filters).map_err(error("IPFilters"))?,
        health_check_node_port: optional_port(head.health_check_node_port).map_err(error("HealthCheckNodePort"))?,
        ipvs_scheduler: (!head.ipvs_scheduler.is_empty()).then(|| head.ipvs_scheduler.as_str().into()),
        preserve_destination: head.preserve_destination,
        close_after: head.close_connections_after_seconds,
        hash: hash_of(head.hash),
        endpoints,
        facts: None,
        key,
    })
}

fn some_hash(hash: Option<HashBy>) -> wire::HashBy {
    match hash {
        None => wire::HashBy::HashNothing,
        Some(HashBy::Source) => wire::HashBy::HashSource,
        Some(HashBy::Connection) => wire::HashBy::HashConnection,
    }
}

/// Converts what is hashed. A value that only newer versions know means nothing.
fn hash_of(number: i32) -> Option<HashBy> {
    match wire::HashBy::try_from(number) {
        Ok(wire::HashBy::HashSource) => Some(HashBy::Source),
        Ok(wire::HashBy::HashConnection) => Some(HashBy::Connection),
        Ok(wire::HashBy::HashNothing) | Err(_) => None,
    }
}

impl From<&Port> for wire::PortMapping {
    fn from(port: &Port) -> Self {
        Self {
            name: port.name.to_string(),
            protocol: wire::Protocol::from(port.protocol).into(),
            port: port.port.into(),
            node_port: port.node_port.map_or(0, i32::from),
            when_empty_v4: some_when_empty(port.when_empty_v4),
            when_empty_v6: some_when_empty(port.when_empty_v6),
            ..Default::default()
        }
    }
}

/// Converts a port. Returns `None` if this version does not know the port's protocol.
fn port_of(port: &wire::PortMapping, names: &mut Names) -> Result<Option<Port>, String> {
    let protocol = match wire::Protocol::try_from(port.protocol) {
        Ok(wire::Protocol::Tcp) => Protocol::Tcp,
        Ok(wire::Protocol::Udp) => Protocol::Udp,
        Ok(wire::Protocol::Sctp) => Protocol::Sctp,
        Ok(wire::Protocol::UnknownProtocol) => return Err("a port has no protocol".to_owned()),
        Err(_) => return Ok(None),
    };
    Ok(Some(Port {
        name: names.shared(&port.name),
        protocol,
        port: port_number(port.port)?,
        node_port: optional_port(port.node_port)?,
        when_empty_v4: when_empty_of(port.when_empty_v4),
        when_empty_v6: when_empty_of(port.when_empty_v6),
    }))
}

fn some_when_empty(when_empty: WhenEmpty) -> Option<wire::WhenEmpty> {
    (when_empty != WhenEmpty::default()).then(|| wire::WhenEmpty {
        internal: wire::Verdict::from(when_empty.internal).into(),
        external: wire::Verdict::from(when_empty.external).into(),
    })
}

fn when_empty_of(when_empty: Option<wire::WhenEmpty>) -> WhenEmpty {
    let Some(when_empty) = when_empty else { return WhenEmpty::default() };
    let verdict = |number| match wire::Verdict::try_from(number) {
        Ok(wire::Verdict::Drop) => Verdict::Drop,
        Ok(wire::Verdict::Reject) | Err(_) => Verdict::Reject,
    };
    WhenEmpty { internal: verdict(when_empty.internal), external: verdict(when_empty.external) }
}

impl From<&SourceFilter> for wire::IpFilter {
    fn from(filter: &SourceFilter) -> Self {
        Self {
            target_i_ps: Some(sorted_set(&filter.targets)),
            source_ranges: filter.source_ranges.iter().map(ToString::to_string).collect(),
        }
    }
}

fn filters_of(filters: &[wire::IpFilter]) -> Result<Vec<SourceFilter>, String> {
    let filters: Vec<_> = filters.iter().map(filter_of).collect::<Result<_, _>>()?;
    let mut targets: Vec<_> = filters.iter().flat_map(|filter| &filter.targets).collect();
    targets.sort_unstable();
    match targets.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(format!("{} is the target of two filters", pair[0])),
        None => Ok(filters),
    }
}

fn filter_of(filter: &wire::IpFilter) -> Result<SourceFilter, String> {
    let targets = addresses(filter.target_i_ps.as_ref())?;
    let source_ranges: Vec<IpNet> = parsed(&filter.source_ranges)?;
    let mut families = targets.iter().map(|ip| Family::of(*ip));
    let Some(family) = families.next() else { return Err("a filter has no targets".to_owned()) };
    let ranges = source_ranges.iter().map(|range| Family::of(range.addr()));
    if families.chain(ranges).any(|other| other != family) {
        return Err("a filter mixes IPv4 and IPv6".to_owned());
    }
    Ok(SourceFilter { targets, source_ranges })
}

impl From<&Endpoint> for wire::Endpoint {
    fn from(endpoint: &Endpoint) -> Self {
        let ports = endpoint.ports.iter();
        Self {
            hostname: endpoint.hostname.as_deref().unwrap_or_default().to_owned(),
            i_ps: Some(sorted_set(&[endpoint.address])),
            local: endpoint.local,
            port_overrides: ports
                .map(|port| wire::PortName { name: port.name.to_string(), port: port.port.into() })
                .collect(),
            scopes: Some(endpoint.scopes.into()),
            weight: endpoint.weight.map_or(0, NonZeroU32::get),
        }
    }
}

pub(crate) fn endpoint_of(
    key: &ServiceKey,
    endpoint: &wire::Endpoint,
    names: &mut Names,
) -> Result<Endpoint, DecodeError> {
    let error = |field| move |problem: String| service_error(key, field, problem);
    let addresses = addresses(endpoint.i_ps.as_ref()).map_err(error("Endpoint.IPs"))?;
    let [address] = addresses[..] else {
        let problem = format!("has {} addresses instead of one", addresses.len());
        return Err(service_error(key, "Endpoint.IPs", problem));
    };
    let ports: Result<_, String> = exact(
        endpoint
            .port_overrides
            .iter()
            .map(|port| Ok(EndpointPort { name: names.shared(&port.name), port: port_number(port.port)? })),
    );
    let scopes = endpoint.scopes.unwrap_or_default();
    Ok(Endpoint {
        address,
        ports: ports.map_err(error("Endpoint.PortOverrides"))?,
        local: endpoint.local,
        hostname: (!endpoint.hostname.is_empty()).then(|| endpoint.hostname.as_str().into()),
        scopes: scopes.into(),
        weight: Endpoint::weighing(endpoint.weight),
    })
}

impl From<Scopes> for wire::EndpointScopes {
    fn from(scopes: Scopes) -> Self {
        Self {
            internal: scopes.internal,
            external: scopes.external,
            short_circuit: scopes.short_circuit,
            established: scopes.established,
        }
    }
}

impl From<wire::EndpointScopes> for Scopes {
    fn from(scopes: wire::EndpointScopes) -> Self {
        let wire::EndpointScopes { internal, external, short_circuit, established } = scopes;
        Self { internal, external, short_circuit, established }
    }
}

impl From<Protocol> for wire::Protocol {
    fn from(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Tcp => Self::Tcp,
            Protocol::Udp => Self::Udp,
            Protocol::Sctp => Self::Sctp,
        }
    }
}

impl From<Family> for wire::IpFamily {
    fn from(family: Family) -> Self {
        match family {
            Family::V4 => Self::IPv4,
            Family::V6 => Self::IPv6,
        }
    }
}

impl wire::IpFamily {
    /// The family; `None` if it is unknown.
    pub fn known(self) -> Option<Family> {
        Family::BOTH.into_iter().find(|family| Self::from(*family) == self)
    }
}

impl From<Severity> for wire::Severity {
    fn from(severity: Severity) -> Self {
        match severity {
            Severity::Error => Self::Error,
            Severity::Warning => Self::Warning,
        }
    }
}

impl From<Verdict> for wire::Verdict {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Reject => Self::Reject,
            Verdict::Drop => Self::Drop,
        }
    }
}

/// Converts addresses to a wire set: sorted strings without duplicates.
fn sorted_set(addresses: &[IpAddr]) -> wire::IpSet {
    let unique: BTreeSet<String> = addresses.iter().map(ToString::to_string).collect();
    let (v6, v4) = unique.into_iter().partition(|text| text.contains(':'));
    wire::IpSet { v4, v6 }
}

fn some_set(addresses: &[IpAddr]) -> Option<wire::IpSet> {
    (!addresses.is_empty()).then(|| sorted_set(addresses))
}

/// The addresses of a set, sorted as in the model.
fn addresses(set: Option<&wire::IpSet>) -> Result<Vec<IpAddr>, String> {
    let mut addresses = ordered_addresses(set)?;
    addresses.sort_unstable();
    addresses.dedup();
    Ok(addresses)
}

/// The addresses of a set in the order of the message, IPv4 first.
fn ordered_addresses(set: Option<&wire::IpSet>) -> Result<Vec<IpAddr>, String> {
    let Some(set) = set else { return Ok(Vec::new()) };
    let v4 = parsed::<Ipv4Addr>(&set.v4)?.into_iter().map(IpAddr::V4);
    let v6 = parsed::<Ipv6Addr>(&set.v6)?.into_iter().map(IpAddr::V6);
    Ok(v4.chain(v6).collect())
}

/// Parses each string of a list. The error contains the invalid string.
pub(crate) fn parsed<T: FromStr<Err: Display>>(texts: &[String]) -> Result<Vec<T>, String> {
    exact(texts.iter().map(|text| text.parse().map_err(|error| format!("{text:?}: {error}"))))
}

/// Collects the items, or the first error, into a list without spare capacity.
fn exact<T>(items: impl Iterator<Item = Result<T, String>>) -> Result<Vec<T>, String> {
    let mut items = items.collect::<Result<Vec<_>, _>>()?;
    items.shrink_to_fit();
    Ok(items)
}

/// Converts a port number that must not be 0.
fn port_number(number: i32) -> Result<u16, String> {
    match u16::try_from(number) {
        Ok(port) if port != 0 => Ok(port),
        _ => Err(format!("{number} is not a port (1-65535)")),
    }
}

/// Converts a port number; 0 becomes `None`.
fn optional_port(number: i32) -> Result<Option<u16>, String> {
    if number == 0 { Ok(None) } else { port_number(number).map(Some) }
}

pub(crate) fn service_error(key: &ServiceKey, field: &'static str, problem: impl Display) -> DecodeError {
    DecodeError { object: format!("service {key}"), field, problem: problem.to_string() }
}

/// Lets Services and endpoints share one copy of equal names, because a backend keeps these names in memory as long as
/// the backend runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names(Vec<Arc<str>>);

impl Names {
    /// The maximum number of different names to share.
    const MOST: usize = 32;

    pub(crate) fn shared(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.0.iter().find(|known| ***known == *name) {
            return Arc::clone(known);
        }
        let new: Arc<str> = name.into();
        if self.0.len() < Self::MOST {
            self.0.push(Arc::clone(&new));
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradictory_filters_are_refused() {
        let filter = |targets: &[&str], ranges: &[&str]| {
            let (v6, v4) = targets.iter().map(|ip| (*ip).to_owned()).partition(|ip| ip.contains(':'));
            let source_ranges = ranges.iter().map(|range| (*range).to_owned()).collect();
            wire::IpFilter { target_i_ps: Some(wire::IpSet { v4, v6 }), source_ranges }
        };
        let ten = filter(&["192.0.2.1"], &["10.0.0.0/8"]);
        for (filters, expected) in [
            (vec![ten.clone(), filter(&["192.0.2.2"], &["11.0.0.0/8"])], Ok(2)),
            (
                vec![ten.clone(), filter(&["192.0.2.2", "192.0.2.1"], &[])],
                Err("192.0.2.1 is the target of two filters"),
            ),
            (vec![filter(&["192.0.2.1"], &["fd00::/8"])], Err("a filter mixes IPv4 and IPv6")),
            (vec![filter(&["192.0.2.1", "2001:db8::1"], &[])], Err("a filter mixes IPv4 and IPv6")),
            (vec![filter(&[], &["10.0.0.0/8"])], Err("a filter has no targets")),
        ] {
            assert_eq!(filters_of(&filters).map(|filters| filters.len()), expected.map_err(str::to_owned));
        }
    }
}
