//! Decodes records: wire → model. Any record yields either a value of the model or an error that names the invalid field.
//!
//! The wire format only grows, so a newer brain may send values that this reader does not know. The comments in the proto files say
//! what each of them means to such a reader.

use std::{collections::BTreeMap, fmt::Display, net::IpAddr, sync::Arc};

use super::{EndpointKey, PUBLISHED, settings, wire};
use crate::{
    convert::{DecodeError, Names, parsed, service_error},
    model::{
        Affinity, Endpoint, EndpointPort, Facts, Family, HashBy, Node, Origin, Port, Protocol, Revision, Scopes,
        Service, ServiceKey, SourceFilter, TargetRef, Verdict, WhenEmpty,
    },
};

/// The revision that a message contains.
///
/// # Errors
/// Returns an error if the instance is not a hexadecimal number.
pub fn revision(revision: &wire::Revision) -> Result<Revision, DecodeError> {
    let instance = u64::from_str_radix(&revision.instance, 16);
    let instance = instance
        .map_err(|error| answer_error("begin.revision.instance", format!("{:?}: {error}", revision.instance)))?;
    Ok(Revision { instance, rev: revision.number })
}

/// The facts about the node.
///
/// # Errors
/// Returns an error if an address, a CIDR or a setting is invalid.
pub fn node(node: &wire::NodeState) -> Result<Node, DecodeError> {
    let error = |field| move |problem| DecodeError { object: format!("node {:?}", node.name), field, problem };
    Ok(Node {
        name: node.name.clone(),
        addresses: parsed(&node.addresses).map_err(error("addresses"))?,
        zone: node.zone.clone(),
        pod_cidrs: parsed(&node.pod_cidrs).map_err(error("pod_cidrs"))?,
        service_cidrs: parsed(&node.service_cidrs).map_err(error("service_cidrs"))?,
        settings: node.traffic.as_ref().map(settings::decode).transpose().map_err(error("traffic"))?.map(Arc::new),
    })
}

/// The key of a Service.
///
/// # Errors
/// Returns an error if the namespace or the name is missing.
pub fn service_key(key: Option<&wire::ServiceKey>) -> Result<ServiceKey, DecodeError> {
    let key = key.ok_or_else(|| answer_error("services.key", "is missing"))?;
    if key.namespace.is_empty() || key.name.is_empty() {
        let problem = format!("{:?}/{:?} lacks its namespace or name", key.namespace, key.name);
        return Err(answer_error("services.key", problem));
    }
    Ok(ServiceKey::new(&*key.namespace, &*key.name))
}

/// The Service of a record, without endpoints and their origins.
///
/// # Errors
/// Returns an error if a field has an invalid value.
pub(super) fn service(key: &ServiceKey, record: &wire::Service, names: &mut Names) -> Result<Service, DecodeError> {
    let error = |field| move |problem: String| service_error(key, field, problem);
    let of = |kind| addresses(&record.addresses, kind).map_err(error("addresses"));
    let cluster_ips = of(wire::AddressKind::ClusterIp)?;
    if cluster_ips.is_empty() {
        return Err(service_error(key, "addresses", "must contain at least one ClusterIP"));
    }
    let ports = record.ports.iter().filter_map(|record| port(record, names).transpose());
    let annotation = |name: &str| record.annotations.get(name).filter(|value| !value.is_empty());
    let [scheduler, preserve] = PUBLISHED.map(annotation);
    Ok(Service {
        key: key.clone(),
        kind: kind(record.r#type).into(),
        cluster_ips,
        external_ips: of(wire::AddressKind::ExternalIp)?,
        load_balancer_ips: of(wire::AddressKind::LoadBalancerIp)?,
        ports: ports.collect::<Result<_, _>>().map_err(error("ports"))?,
        internal_traffic_to_local: record.internal_policy() == wire::TrafficPolicy::Local,
        external_traffic_to_local: record.external_policy() == wire::TrafficPolicy::Local,
        client_ip_affinity: record.client_ip_affinity.as_ref().map(|affinity| Affinity::from(affinity.timeout_seconds)),
        source_filters: filters(&record.source_filters).map_err(error("source_filters"))?,
        health_check_node_port: optional_port(record.health_check_node_port)
            .map_err(error("health_check_node_port"))?,
        ipvs_scheduler: scheduler.map(|value| value.as_str().into()),
        preserve_destination: preserve.is_some_and(|value| value == "true"),
        close_after: record.close_connections_after_seconds,
        hash: hash(record.hash),
        endpoints: Vec::new(),
        facts: facts(record, names).known(),
    })
}

fn facts(record: &wire::Service, names: &mut Names) -> Facts {
    let protocols = record.ports.iter().filter(|port| !port.app_protocol.is_empty());
    let annotations = record.annotations.iter().filter(|(key, _)| !PUBLISHED.contains(&key.as_str()));
    Facts {
        uid: record.uid.as_str().into(),
        app_protocols: protocols.map(|port| (names.shared(&port.name), names.shared(&port.app_protocol))).collect(),
        labels: record.labels.iter().map(|(key, value)| (names.shared(key), value.as_str().into())).collect(),
        annotations: annotations.map(|(key, value)| (names.shared(key), value.as_str().into())).collect(),
        origins: BTreeMap::new(),
    }
}

/// The key of an endpoint.
pub(super) fn endpoint_key(service: &ServiceKey, address: &str, ordinal: u32) -> Result<EndpointKey, DecodeError> {
    let address = ip(address).map_err(|problem| service_error(service, "endpoints.address", problem))?;
    Ok(EndpointKey { address, ordinal })
}

/// The endpoint of a record.
pub(super) fn endpoint(
    service: &ServiceKey,
    record: &wire::Endpoint,
    names: &mut Names,
) -> Result<(EndpointKey, Endpoint), DecodeError> {
    let key = endpoint_key(service, &record.address, record.ordinal)?;
    let port = |port: &wire::EndpointPort| {
        Ok::<_, String>(EndpointPort { name: names.shared(&port.name), port: port_number(port.number)? })
    };
    let ports: Result<_, String> = record.ports.iter().map(port).collect();
    let has = |scope: wire::Scope| record.scopes.contains(&scope.into());
    let endpoint = Endpoint {
        address: key.address,
        ports: ports.map_err(|problem| service_error(service, "endpoints.ports", problem))?,
        local: record.local,
        hostname: (!record.hostname.is_empty()).then(|| record.hostname.as_str().into()),
        scopes: Scopes {
            internal: has(wire::Scope::Internal),
            external: has(wire::Scope::External),
            short_circuit: has(wire::Scope::ShortCircuit),
            established: has(wire::Scope::Established),
        },
        weight: Endpoint::weighing(record.weight.unwrap_or(1)),
    };
    Ok((key, endpoint))
}

/// Where an endpoint comes from. The default if the record has no details.
pub(super) fn origin(record: &wire::Endpoint, names: &mut Names) -> Origin {
    let Some(details) = &record.details else { return Origin::default() };
    let target = details.target_ref.as_ref().map(|target| TargetRef {
        kind: target.kind.as_str().into(),
        namespace: target.namespace.as_str().into(),
        name: target.name.as_str().into(),
        uid: target.uid.as_str().into(),
    });
    Origin { node: names.shared(&details.node_name), zone: names.shared(&details.zone), target: target.map(Arc::new) }
}

pub(super) fn answer_error(field: &'static str, problem: impl Display) -> DecodeError {
    DecodeError { object: "answer".to_owned(), field, problem: problem.to_string() }
}

fn kind(number: i32) -> &'static str {
    match wire::ServiceType::try_from(number) {
        Ok(wire::ServiceType::ClusterIp) => "ClusterIP",
        Ok(wire::ServiceType::NodePort) => "NodePort",
        Ok(wire::ServiceType::LoadBalancer) => "LoadBalancer",
        Ok(wire::ServiceType::ExternalName) => "ExternalName",
        Ok(wire::ServiceType::Unspecified) | Err(_) => "",
    }
}

fn hash(number: i32) -> Option<HashBy> {
    match wire::HashBy::try_from(number) {
        Ok(wire::HashBy::Source) => Some(HashBy::Source),
        Ok(wire::HashBy::Connection) => Some(HashBy::Connection),
        Ok(wire::HashBy::Unspecified) | Err(_) => None,
    }
}

/// The addresses of one kind, sorted. Addresses of unknown kinds are not served.
fn addresses(addresses: &[wire::ServiceAddress], kind: wire::AddressKind) -> Result<Vec<IpAddr>, String> {
    let of_kind = addresses.iter().filter(|address| address.kind == i32::from(kind));
    let mut of_kind = of_kind.map(|address| ip(&address.address)).collect::<Result<Vec<_>, _>>()?;
    of_kind.sort_unstable();
    of_kind.dedup();
    Ok(of_kind)
}

/// Converts a port. Returns `None` if this version does not know the port's protocol.
fn port(port: &wire::ServicePort, names: &mut Names) -> Result<Option<Port>, String> {
    let protocol = match wire::Protocol::try_from(port.protocol) {
        Ok(wire::Protocol::Tcp) => Protocol::Tcp,
        Ok(wire::Protocol::Udp) => Protocol::Udp,
        Ok(wire::Protocol::Sctp) => Protocol::Sctp,
        Ok(wire::Protocol::Unspecified) => return Err("a port has no protocol".to_owned()),
        Err(_) => return Ok(None),
    };
    Ok(Some(Port {
        name: names.shared(&port.name),
        protocol,
        port: port_number(port.number)?,
        node_port: optional_port(port.node_port)?,
        when_empty_v4: when_empty(port.when_empty_ipv4),
        when_empty_v6: when_empty(port.when_empty_ipv6),
    }))
}

fn when_empty(when_empty: Option<wire::WhenEmpty>) -> WhenEmpty {
    let verdict = |number| match wire::Verdict::try_from(number) {
        Ok(wire::Verdict::Drop) => Verdict::Drop,
        Ok(wire::Verdict::Reject | wire::Verdict::Unspecified) | Err(_) => Verdict::Reject,
    };
    when_empty.map_or(WhenEmpty::default(), |empty| WhenEmpty {
        internal: verdict(empty.internal),
        external: verdict(empty.external),
    })
}

fn filters(filters: &[wire::SourceFilter]) -> Result<Vec<SourceFilter>, String> {
    let filters: Vec<_> = filters.iter().map(filter).collect::<Result<_, _>>()?;
    let mut targets: Vec<_> = filters.iter().flat_map(|filter| &filter.targets).collect();
    targets.sort_unstable();
    match targets.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(format!("{} is in two filters", pair[0])),
        None => Ok(filters),
    }
}

fn filter(filter: &wire::SourceFilter) -> Result<SourceFilter, String> {
    let targets: Vec<IpAddr> = parsed(&filter.addresses)?;
    let source_ranges: Vec<ipnet::IpNet> = parsed(&filter.source_ranges)?;
    let mut families = targets.iter().map(|ip| Family::of(*ip));
    let Some(family) = families.next() else { return Err("a filter has no addresses".to_owned()) };
    let ranges = source_ranges.iter().map(|range| Family::of(range.addr()));
    if families.chain(ranges).any(|other| other != family) {
        return Err("a filter mixes IPv4 and IPv6".to_owned());
    }
    Ok(SourceFilter { targets, source_ranges })
}

fn ip(text: &str) -> Result<IpAddr, String> {
    text.parse::<IpAddr>().map_err(|error| format!("{text:?}: {error}"))
}

fn port_number(number: u32) -> Result<u16, String> {
    match u16::try_from(number) {
        Ok(port) if port != 0 => Ok(port),
        _ => Err(format!("{number} is not a port (1-65535)")),
    }
}

/// Converts a port number; 0 becomes `None`.
fn optional_port(number: u32) -> Result<Option<u16>, String> {
    if number == 0 { Ok(None) } else { port_number(number).map(Some) }
}
