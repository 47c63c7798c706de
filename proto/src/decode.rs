//! Decodes one answer of `Next`: wire → model. Any bytes yield an [`Update`] or an error that names the field.
//!
//! The wire format only grows, so a newer brain may send values that this reader does not know. It leaves out a port of an
//! unknown protocol, and decodes an unknown verdict as reject, the verdict that informs the client.

use std::{
    collections::BTreeMap,
    fmt::Display,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
    sync::Arc,
};

use ipnet::IpNet;
use prost::Message as _;

use crate::{
    model::{
        Endpoint, EndpointPort, Family, Node, Port, Protocol, Revision, Scopes, Service, ServiceKey, Snapshot,
        SourceFilter, Verdict, WhenEmpty,
    },
    update::{Change, Update},
    wire,
};

/// The error for an answer that is not a valid state.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{object}: {field}: {problem}")]
pub struct DecodeError {
    /// The invalid object: `service ns/name`, `node` or `answer`.
    pub object: String,
    /// The field, named as in the proto.
    pub field: &'static str,
    /// The problem.
    pub problem: String,
}

/// Collects the items of one answer. [`Assembler::finish`] returns the update after the stream ended with OK.
#[derive(Debug, Default)]
pub struct Assembler {
    next: Option<wire::NextFilter>,
    node: Option<Node>,
    services: BTreeMap<ServiceKey, Arc<Service>>,
    removed: Vec<ServiceKey>,
    /// The service of the previous item, which a continuation must name.
    last: Option<ServiceKey>,
    names: Names,
}

impl Assembler {
    /// Adds the next item of the stream, in its encoded form.
    ///
    /// # Errors
    /// Returns an error if the bytes are not an item, or if the item may not follow the previous ones.
    pub fn push_bytes(&mut self, item: bytes::Bytes) -> Result<(), DecodeError> {
        self.push(wire::NextItem::decode(item).map_err(|error| answer_error("NextItem", error))?)
    }

    /// Adds the next item of the stream.
    ///
    /// # Errors
    /// Returns an error if a field has an invalid value, or if the item may not follow the previous ones: for example a second
    /// token, or a continuation without its service.
    pub fn push(&mut self, item: wire::NextItem) -> Result<(), DecodeError> {
        if self.next.is_none() && item.next.is_none() {
            return Err(answer_error("Next", "the first item must name the state"));
        }
        if let Some(next) = item.next
            && self.next.replace(next).is_some()
        {
            return Err(answer_error("Next", "only the first item may name the state"));
        }
        if let Some(node) = &item.node {
            self.node = Some(node.try_into()?);
        }
        if let Some(endpoints) = item.endpoints {
            self.push_service(endpoints)?;
        }
        if let Some(key) = item.removed {
            self.removed.push(service_key(&key.namespace, &key.name)?);
        }
        Ok(())
    }

    fn push_service(&mut self, item: wire::ServiceEndpoints) -> Result<(), DecodeError> {
        let head = item.service.ok_or_else(|| answer_error("Endpoints.Service", "is missing"))?;
        let mut key = service_key(&head.namespace, &head.name)?;
        key.namespace = self.names.shared(&key.namespace);
        let mut endpoints = Vec::with_capacity(item.endpoints.len());
        for endpoint in &item.endpoints {
            endpoints.push(endpoint_of(&key, endpoint, &mut self.names)?);
        }
        if item.continues {
            let service = self.services.get_mut(&key).and_then(Arc::get_mut);
            let service = service.filter(|_| self.last.as_ref() == Some(&key));
            let service =
                service.ok_or_else(|| service_error(&key, "Continues", "does not follow an item of the service"))?;
            service.endpoints.extend(endpoints);
            return Ok(());
        }
        let service = service_of(key.clone(), &head, endpoints, &mut self.names)?;
        if self.services.insert(key.clone(), Arc::new(service)).is_some() {
            return Err(service_error(&key, "Service", "is sent twice"));
        }
        self.last = Some(key);
        Ok(())
    }

    /// Returns the update. Call it only after the stream ended with OK.
    ///
    /// # Errors
    /// Returns an error if the answer is empty, a full state has no node, or a service is both sent and removed.
    pub fn finish(self) -> Result<Update, DecodeError> {
        let next = self.next.ok_or_else(|| answer_error("Next", "the answer is empty"))?;
        let revision = Revision { instance: next.instance_id, rev: next.rev };
        if next.delta {
            if let Some(both) = self.removed.iter().find(|key| self.services.contains_key(*key)) {
                return Err(service_error(both, "Removed", "the same answer also sends it"));
            }
            let services = self.services.into_values().map(Change::Service);
            let changes = self.node.map(Change::Node).into_iter().chain(services);
            let changes = changes.chain(self.removed.into_iter().map(Change::Removed)).collect();
            return Ok(Update::Delta { revision, changes });
        }
        let node = self.node.ok_or_else(|| answer_error("Node", "is missing from a full state"))?;
        if !self.removed.is_empty() {
            return Err(answer_error("Removed", "is not allowed in a full state"));
        }
        Ok(Update::Full(Snapshot { revision, node, services: self.services }))
    }
}

fn answer_error(field: &'static str, problem: impl Display) -> DecodeError {
    DecodeError { object: "answer".to_owned(), field, problem: problem.to_string() }
}

fn service_error(key: &ServiceKey, field: &'static str, problem: impl Display) -> DecodeError {
    DecodeError { object: format!("service {key}"), field, problem: problem.to_string() }
}

fn service_key(namespace: &str, name: &str) -> Result<ServiceKey, DecodeError> {
    if namespace.is_empty() || name.is_empty() {
        return Err(answer_error("Service", format!("{namespace:?}/{name:?} lacks its namespace or name")));
    }
    Ok(ServiceKey::new(namespace, name))
}

/// Shares equal names among services and endpoints, because a backend keeps what it has read for its whole life.
#[derive(Debug, Default)]
struct Names(Vec<Arc<str>>);

impl Names {
    /// The maximum number of different names to remember.
    const MOST: usize = 32;

    fn shared(&mut self, name: &str) -> Arc<str> {
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

/// Collects into a list without spare capacity.
fn exact<T>(items: impl Iterator<Item = Result<T, String>>) -> Result<Vec<T>, String> {
    let mut items = items.collect::<Result<Vec<_>, _>>()?;
    items.shrink_to_fit();
    Ok(items)
}

/// Parses each string of a list; the error names the string.
fn parsed<T: FromStr<Err: Display>>(texts: &[String]) -> Result<Vec<T>, String> {
    exact(texts.iter().map(|text| text.parse().map_err(|error| format!("{text:?}: {error}"))))
}

/// The addresses of a set in the order of the message, IPv4 first.
fn ordered_addresses(set: Option<&wire::IpSet>) -> Result<Vec<IpAddr>, String> {
    let Some(set) = set else { return Ok(Vec::new()) };
    let v4 = parsed::<Ipv4Addr>(&set.v4)?.into_iter().map(IpAddr::V4);
    let v6 = parsed::<Ipv6Addr>(&set.v6)?.into_iter().map(IpAddr::V6);
    Ok(v4.chain(v6).collect())
}

/// The addresses of a set, sorted as in the model.
fn addresses(set: Option<&wire::IpSet>) -> Result<Vec<IpAddr>, String> {
    let mut addresses = ordered_addresses(set)?;
    addresses.sort_unstable();
    addresses.dedup();
    Ok(addresses)
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
        })
    }
}

fn service_of(
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
        return Err(service_error(&key, "IPs.ClusterIPs", "a service has at least one"));
    }
    let affinity = head.session_affinity.as_ref();
    let client_ip_affinity = affinity.map(|wire::service::SessionAffinity::ClientIp(client)| {
        u32::try_from(client.timeout_seconds).map_err(|_| format!("{} is negative", client.timeout_seconds))
    });
    Ok(Service {
        kind: head.r#type.clone(),
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
        endpoints,
        key,
    })
}

/// Converts a port; `None` if its protocol is unknown.
fn port_of(port: &wire::PortMapping, names: &mut Names) -> Result<Option<Port>, String> {
    let protocol = match wire::Protocol::try_from(port.protocol) {
        Ok(wire::Protocol::Tcp) => Protocol::Tcp,
        Ok(wire::Protocol::Udp) => Protocol::Udp,
        Ok(wire::Protocol::Sctp) => Protocol::Sctp,
        Ok(wire::Protocol::UnknownProtocol) => return Err("a port without protocol".to_owned()),
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

fn when_empty_of(when_empty: Option<wire::WhenEmpty>) -> WhenEmpty {
    let Some(when_empty) = when_empty else { return WhenEmpty::default() };
    let verdict = |number| match wire::Verdict::try_from(number) {
        Ok(wire::Verdict::Drop) => Verdict::Drop,
        Ok(wire::Verdict::Reject) | Err(_) => Verdict::Reject,
    };
    WhenEmpty { internal: verdict(when_empty.internal), external: verdict(when_empty.external) }
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
    let Some(family) = families.next() else { return Err("a filter without targets".to_owned()) };
    let ranges = source_ranges.iter().map(|range| Family::of(range.addr()));
    if families.chain(ranges).any(|other| other != family) {
        return Err("a filter mixes IPv4 and IPv6".to_owned());
    }
    Ok(SourceFilter { targets, source_ranges })
}

fn endpoint_of(key: &ServiceKey, endpoint: &wire::Endpoint, names: &mut Names) -> Result<Endpoint, DecodeError> {
    let error = |field| move |problem: String| service_error(key, field, problem);
    let addresses = addresses(endpoint.i_ps.as_ref()).map_err(error("Endpoint.IPs"))?;
    let [address] = addresses[..] else {
        let problem = format!("{} addresses instead of one", addresses.len());
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
    })
}

impl From<wire::EndpointScopes> for Scopes {
    fn from(scopes: wire::EndpointScopes) -> Self {
        let wire::EndpointScopes { internal, external, short_circuit, established } = scopes;
        Self { internal, external, short_circuit, established }
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
            (vec![filter(&[], &["10.0.0.0/8"])], Err("a filter without targets")),
        ] {
            assert_eq!(filters_of(&filters).map(|filters| filters.len()), expected.map_err(str::to_owned));
        }
    }
}
