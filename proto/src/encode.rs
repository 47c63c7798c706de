//! Model → wire.

use std::{collections::BTreeSet, net::IpAddr};

use prost::Message as _;

use crate::{
    model::{Endpoint, Node, Port, Protocol, Revision, Scopes, Service, ServiceKey, SourceFilter, Verdict, WhenEmpty},
    wire,
};

/// No item carries more endpoints than this: about 100 KiB, far below the 4 MiB that gRPC libraries accept by default.
pub const ENDPOINTS_PER_ITEM: usize = 1000;

/// The first item of an answer.
pub fn next_item(revision: Revision, delta: bool) -> wire::NextItem {
    wire::NextItem { next: Some(next_filter(revision, delta)), ..Default::default() }
}

/// Names a state.
pub fn next_filter(revision: Revision, delta: bool) -> wire::NextFilter {
    wire::NextFilter { instance_id: revision.instance, rev: revision.rev, delta }
}

/// The item that carries the node's facts.
pub fn node_item(node: &Node) -> wire::NextItem {
    wire::NextItem { node: Some(node.into()), ..Default::default() }
}

/// The item that says that a service is gone.
pub fn removed_item(key: &ServiceKey) -> wire::NextItem {
    let removed = wire::ServiceKey { namespace: key.namespace.to_string(), name: key.name.to_string() };
    wire::NextItem { removed: Some(removed), ..Default::default() }
}

/// The items that carry a service: one, and continuations when it has more than [`ENDPOINTS_PER_ITEM`] endpoints.
pub fn service_items(service: &Service) -> Vec<wire::NextItem> {
    let item = |head: wire::Service, endpoints: &[Endpoint], continues: bool| wire::NextItem {
        endpoints: Some(wire::ServiceEndpoints {
            service: Some(head),
            endpoints: endpoints.iter().map(Into::into).collect(),
            continues,
        }),
        ..Default::default()
    };
    let mut chunks = service.endpoints.chunks(ENDPOINTS_PER_ITEM);
    let mut items = vec![item(service.into(), chunks.next().unwrap_or_default(), false)];
    items.extend(chunks.map(|chunk| {
        let name_only = wire::Service {
            namespace: service.key.namespace.to_string(),
            name: service.key.name.to_string(),
            ..Default::default()
        };
        item(name_only, chunk, true)
    }));
    items
}

/// The items of a service, serialized one by one.
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
