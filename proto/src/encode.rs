//! Encodes states: model → wire.

use std::{collections::BTreeSet, net::IpAddr};

use localnet_core::Severity;
use prost::Message as _;

use crate::{
    model::{
        Endpoint, Family, Node, Port, Protocol, Revision, Scopes, Service, ServiceKey, SourceFilter, Verdict, WhenEmpty,
    },
    wire,
};

/// The maximum number of endpoints in an item: about 100 KiB if each has one port.
pub const ENDPOINTS_PER_ITEM: usize = 1000;
/// An item that has reached this size in bytes gets no further endpoint.
pub const BYTES_PER_ITEM: usize = 1 << 20;
/// The maximum size of an item in bytes: the default limit of gRPC libraries.
pub const MAX_ITEM_BYTES: usize = 4 << 20;

/// The first item of an answer: the token of its state. `delta`: whether the other items are changes.
pub fn next_item(revision: Revision, delta: bool) -> wire::NextItem {
    wire::NextItem { next: Some(next_filter(revision, delta)), ..Default::default() }
}

/// The token of a state, as in [`next_item`].
pub fn next_filter(revision: Revision, delta: bool) -> wire::NextFilter {
    wire::NextFilter { instance_id: revision.instance, rev: revision.rev, delta }
}

/// The item with the facts about the node.
pub fn node_item(node: &Node) -> wire::NextItem {
    wire::NextItem { node: Some(node.into()), ..Default::default() }
}

/// The item that removes a service.
pub fn removed_item(key: &ServiceKey) -> wire::NextItem {
    wire::NextItem { removed: Some(key.into()), ..Default::default() }
}

impl From<&ServiceKey> for wire::ServiceKey {
    fn from(ServiceKey { namespace, name }: &ServiceKey) -> Self {
        Self { namespace: namespace.to_string(), name: name.to_string() }
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

/// The items of a service: one, and continuations if it has more than [`ENDPOINTS_PER_ITEM`] endpoints, or more than
/// [`BYTES_PER_ITEM`] bytes of them.
pub fn service_items(service: &Service) -> Vec<wire::NextItem> {
    let item = |head: wire::Service, endpoints: &[Endpoint], continues: bool| wire::NextItem {
        endpoints: Some(wire::ServiceEndpoints {
            service: Some(head),
            endpoints: endpoints.iter().map(Into::into).collect(),
            continues,
        }),
        ..Default::default()
    };
    let (first, mut rest) = service.endpoints.split_at(fitting_endpoints(&service.endpoints, head_bytes(service)));
    let mut items = vec![item(service.into(), first, false)];
    while !rest.is_empty() {
        let (next, others) = rest.split_at(fitting_endpoints(rest, 0).max(1));
        rest = others;
        let name_only = wire::Service {
            namespace: service.key.namespace.to_string(),
            name: service.key.name.to_string(),
            ..Default::default()
        };
        items.push(item(name_only, next, true));
    }
    items
}

/// The size of the service's largest item in bytes, if it exceeds [`MAX_ITEM_BYTES`]; otherwise `None`.
pub fn too_large(service: &Service) -> Option<usize> {
    let endpoints = service.endpoints.iter().map(endpoint_bytes);
    // This estimate avoids encoding nearly all services.
    if endpoints.max().unwrap_or_default().max(head_bytes(service)) + BYTES_PER_ITEM <= MAX_ITEM_BYTES {
        return None;
    }
    let items = service_items(service).into_iter().map(|item| item.encoded_len());
    items.max().filter(|bytes| *bytes > MAX_ITEM_BYTES)
}

/// How many of the endpoints fit into an item that already has `bytes` bytes.
fn fitting_endpoints(endpoints: &[Endpoint], mut bytes: usize) -> usize {
    let fits = |endpoint: &&Endpoint| {
        bytes += endpoint_bytes(endpoint);
        bytes <= BYTES_PER_ITEM
    };
    endpoints.iter().take(ENDPOINTS_PER_ITEM).take_while(fits).count()
}

/// An upper bound for the encoded size of an address, a CIDR or a small message, in bytes.
const FEW_BYTES: usize = 64;

/// An upper bound for the encoded size of an endpoint, in bytes.
fn endpoint_bytes(endpoint: &Endpoint) -> usize {
    let ports = endpoint.ports.iter().map(|port| port.name.len() + FEW_BYTES);
    endpoint.hostname.as_ref().map_or(0, |hostname| hostname.len()) + 2 * FEW_BYTES + ports.sum::<usize>()
}

/// An upper bound for the encoded size of a service without its endpoints, in bytes.
fn head_bytes(service: &Service) -> usize {
    let texts = [&*service.key.namespace, &*service.key.name, &*service.kind].map(str::len);
    let filters = service.source_filters.iter().map(|filter| filter.targets.len() + filter.source_ranges.len() + 1);
    let addresses = service.cluster_ips.len() + service.external_ips.len() + service.load_balancer_ips.len();
    let ports = service.ports.iter().map(|port| port.name.len() + FEW_BYTES);
    let lists = FEW_BYTES * (addresses + filters.sum::<usize>() + 4);
    texts.iter().sum::<usize>() + lists + ports.sum::<usize>()
}

/// Encodes each `NextItem` of a Service.
pub fn service_bytes(service: &Service) -> Vec<bytes::Bytes> {
    service_items(service).iter().map(|item| item.encode_to_vec().into()).collect()
}

/// Addresses as a wire set: sorted by text, without duplicates.
fn sorted_set(addresses: &[IpAddr]) -> wire::IpSet {
    let unique: BTreeSet<String> = addresses.iter().map(ToString::to_string).collect();
    let (v6, v4) = unique.into_iter().partition(|text| text.contains(':'));
    wire::IpSet { v4, v6 }
}

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

impl From<&Service> for wire::Service {
    fn from(service: &Service) -> Self {
        Self {
            namespace: service.key.namespace.to_string(),
            name: service.key.name.to_string(),
            r#type: service.kind.clone(),
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
            session_affinity: service.client_ip_affinity.map(|seconds| {
                wire::service::SessionAffinity::ClientIp(wire::ClientIpAffinity {
                    timeout_seconds: i32::try_from(seconds).unwrap_or(i32::MAX),
                })
            }),
            health_check_node_port: service.health_check_node_port.map_or(0, i32::from),
            ipvs_scheduler: service.ipvs_scheduler.as_deref().unwrap_or_default().to_owned(),
            preserve_destination: service.preserve_destination,
            ..Default::default()
        }
    }
}

fn some_set(addresses: &[IpAddr]) -> Option<wire::IpSet> {
    (!addresses.is_empty()).then(|| sorted_set(addresses))
}

impl From<&SourceFilter> for wire::IpFilter {
    fn from(filter: &SourceFilter) -> Self {
        Self {
            target_i_ps: Some(sorted_set(&filter.targets)),
            source_ranges: filter.source_ranges.iter().map(ToString::to_string).collect(),
        }
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

fn some_when_empty(when_empty: WhenEmpty) -> Option<wire::WhenEmpty> {
    (when_empty != WhenEmpty::default()).then(|| wire::WhenEmpty {
        internal: wire::Verdict::from(when_empty.internal).into(),
        external: wire::Verdict::from(when_empty.external).into(),
    })
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
        }
    }
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
