//! Encodes records: model → wire.
//!
//! A record begins with its digest: the hash of its key and its content, and of everything that a reader may select. The digest of
//! a state is the sum of the digests of its records, whatever a reader has selected.

use std::{collections::BTreeMap, hash::Hasher as _, num::NonZeroU32, sync::Arc};

use bytes::Bytes;
use prost::Message;
use twox_hash::XxHash64;

use super::{EndpointKey, Metadata, PUBLISHED, Record, settings, wire};
use crate::{
    digest::Digest,
    model::{
        Endpoint, EndpointPort, Facts, HashBy, Node, Origin, Port, Protocol, Scopes, Service, ServiceKey, Snapshot,
        Verdict, WhenEmpty,
    },
};

/// The key of the field `digest` in each record: number 1, 64 bits. Eight bytes follow.
const DIGEST: u8 = 1 << 3 | 1;

/// The record of a Service without its endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The record without labels and annotations.
    pub record: Record,
    /// What a reader must understand to serve the Service; sorted.
    pub requires: Vec<wire::Capability>,
    /// The labels and annotations that a reader may select, sorted.
    pub selectable: Box<[Selectable]>,
}

/// A label or an annotation that a reader may select.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selectable {
    /// Whether it is a label or an annotation.
    pub kind: Metadata,
    /// The key.
    pub key: Arc<str>,
    /// The bytes to append to the record.
    pub bytes: Bytes,
}

/// The record of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tail {
    /// Identifies the endpoint.
    pub key: EndpointKey,
    /// The record without details.
    pub record: Record,
    /// The details that a reader may select: bytes to append to the record. Empty if there are none.
    pub details: Bytes,
}

/// The record of the facts about the node.
pub fn node(node: &Node) -> Record {
    let text = |cidrs: &[ipnet::IpNet]| cidrs.iter().map(ToString::to_string).collect();
    let content = wire::NodeState {
        name: node.name.clone(),
        zone: node.zone.clone(),
        addresses: node.addresses.iter().map(ToString::to_string).collect(),
        pod_cidrs: text(&node.pod_cidrs),
        service_cidrs: text(&node.service_cidrs),
        traffic: node.settings.as_deref().map(settings::encode),
        ..Default::default()
    };
    record(None, &content, [])
}

/// The record of a Service without its endpoints.
pub fn head(service: &Service) -> Head {
    let requires = requires(service);
    let facts = service.facts.as_deref();
    let content = wire::Service {
        uid: facts.map_or(String::new(), |facts| facts.uid.to_string()),
        r#type: kind(&service.kind).into(),
        requires: requires.iter().map(|capability| (*capability).into()).collect(),
        addresses: addresses(service),
        ports: service.ports.iter().map(|of| port(of, facts)).collect(),
        internal_policy: policy(service.internal_traffic_to_local).into(),
        external_policy: policy(service.external_traffic_to_local).into(),
        client_ip_affinity: service
            .client_ip_affinity
            .map(|affinity| wire::ClientIpAffinity { timeout_seconds: affinity.seconds }),
        health_check_node_port: service.health_check_node_port.map_or(0, u32::from),
        close_connections_after_seconds: service.close_after,
        hash: hash(service.hash).into(),
        source_filters: service.source_filters.iter().map(filter).collect(),
        ..Default::default()
    };
    let selectable = selectable(service);
    let record = record(Some(&service.key), &content, selectable.iter().map(|of| &of.bytes));
    Head { record, requires, selectable }
}

/// The labels and annotations of a Service that a reader may select, sorted.
fn selectable(service: &Service) -> Box<[Selectable]> {
    let mut all: BTreeMap<(Metadata, Arc<str>), &str> = BTreeMap::new();
    if let Some(facts) = &service.facts {
        let labels = facts.labels.iter().map(|label| (Metadata::Label, label));
        let annotations = facts.annotations.iter().map(|annotation| (Metadata::Annotation, annotation));
        all.extend(labels.chain(annotations).map(|(kind, (key, value))| ((kind, Arc::clone(key)), &**value)));
    }
    let values = [service.ipvs_scheduler.as_deref(), service.preserve_destination.then_some("true")];
    let always = PUBLISHED.into_iter().zip(values);
    all.extend(always.filter_map(|(key, value)| Some(((Metadata::Annotation, key.into()), value?))));
    let encoded = all.into_iter().map(|((kind, key), value)| {
        let one = BTreeMap::from([(key.to_string(), value.to_owned())]);
        let service = match kind {
            Metadata::Label => wire::Service { labels: one, ..Default::default() },
            Metadata::Annotation => wire::Service { annotations: one, ..Default::default() },
        };
        Selectable { kind, key, bytes: service.encode_to_vec().into() }
    });
    encoded.collect()
}

/// The records of a Service's endpoints, sorted by key. The endpoints of the Service must be sorted.
pub fn endpoints(service: &Service) -> impl Iterator<Item = Tail> {
    let mut last: Option<EndpointKey> = None;
    service.endpoints.iter().map(move |endpoint| {
        let key = EndpointKey::after(last, endpoint.address);
        last = Some(key);
        let details = details(origin(service.facts.as_deref(), endpoint));
        let record = record(Some(&service.key), &content(endpoint, key), [&details]);
        Tail { key, record, details }
    })
}

/// A Service that the brain withholds: the addresses and ports of `head`, with the verdict "drop". `sum` is the sum of the
/// digests of `head` and of all endpoints, which this record replaces.
pub fn withheld(head: &Record, sum: Digest) -> Bytes {
    // The record was encoded here, so decoding it does not fail.
    let mut service = wire::Service::decode(head.bytes.clone()).unwrap_or_default();
    let drop = wire::Verdict::Drop.into();
    for port in &mut service.ports {
        let dropped = Some(wire::WhenEmpty { internal: drop, external: drop });
        (port.when_empty_ipv4, port.when_empty_ipv6) = (dropped, dropped);
    }
    let withheld = wire::Service { digest: sum.0, withheld: true, source_filters: Vec::new(), ..service };
    withheld.encode_to_vec().into()
}

/// The digest of a whole state: the sum of the digests of its records.
pub fn digest(state: &Snapshot) -> Digest {
    let of = |service: &Service| {
        endpoints(service).fold(head(service).record.digest, |sum, endpoint| sum.and(endpoint.record.digest))
    };
    state.services.values().fold(node(&state.node).digest, |sum, service| sum.and(of(service)))
}

pub(super) fn record<'a>(
    key: Option<&ServiceKey>,
    content: &impl Message,
    selectable: impl IntoIterator<Item = &'a Bytes>,
) -> Record {
    let content = content.encode_to_vec();
    let mut hash = XxHash64::with_seed(0);
    for name in key.iter().flat_map(|key| [&key.namespace, &key.name]) {
        hash.write(name.as_bytes());
        // No name contains this byte.
        hash.write_u8(b'/');
    }
    hash.write(&content);
    selectable.into_iter().for_each(|bytes| hash.write(bytes));
    let digest = Digest(hash.finish());
    let bytes = [&[DIGEST][..], &digest.0.to_le_bytes(), &content].concat().into();
    Record { digest, bytes }
}

fn requires(service: &Service) -> Vec<wire::Capability> {
    let filtered = !service.source_filters.is_empty();
    filtered.then_some(wire::Capability::SourceFilters).into_iter().collect()
}

pub(super) fn kind(kind: &str) -> wire::ServiceType {
    match kind {
        "ClusterIP" => wire::ServiceType::ClusterIp,
        "NodePort" => wire::ServiceType::NodePort,
        "LoadBalancer" => wire::ServiceType::LoadBalancer,
        "ExternalName" => wire::ServiceType::ExternalName,
        _ => wire::ServiceType::Unspecified,
    }
}

fn policy(local: bool) -> wire::TrafficPolicy {
    if local { wire::TrafficPolicy::Local } else { wire::TrafficPolicy::Cluster }
}

fn hash(hash: Option<HashBy>) -> wire::HashBy {
    match hash {
        None => wire::HashBy::Unspecified,
        Some(HashBy::Source) => wire::HashBy::Source,
        Some(HashBy::Connection) => wire::HashBy::Connection,
    }
}

fn addresses(service: &Service) -> Vec<wire::ServiceAddress> {
    let kinds = [
        (&service.cluster_ips, wire::AddressKind::ClusterIp),
        (&service.external_ips, wire::AddressKind::ExternalIp),
        (&service.load_balancer_ips, wire::AddressKind::LoadBalancerIp),
    ];
    let of = kinds.into_iter().flat_map(|(addresses, kind)| addresses.iter().map(move |address| (*address, kind)));
    let mut all: Vec<_> = of.collect();
    all.sort_unstable();
    all.into_iter()
        .map(|(address, kind)| wire::ServiceAddress { address: address.to_string(), kind: kind.into() })
        .collect()
}

fn filter(filter: &crate::model::SourceFilter) -> wire::SourceFilter {
    wire::SourceFilter {
        addresses: filter.targets.iter().map(ToString::to_string).collect(),
        source_ranges: filter.source_ranges.iter().map(ToString::to_string).collect(),
    }
}

fn port(port: &Port, facts: Option<&Facts>) -> wire::ServicePort {
    wire::ServicePort {
        name: port.name.to_string(),
        protocol: protocol(port.protocol).into(),
        number: port.port.into(),
        node_port: port.node_port.map_or(0, u32::from),
        app_protocol: facts
            .and_then(|facts| facts.app_protocols.get(&port.name))
            .map_or(String::new(), ToString::to_string),
        when_empty_ipv4: when_empty(port.when_empty_v4),
        when_empty_ipv6: when_empty(port.when_empty_v6),
    }
}

pub(super) fn protocol(protocol: Protocol) -> wire::Protocol {
    match protocol {
        Protocol::Tcp => wire::Protocol::Tcp,
        Protocol::Udp => wire::Protocol::Udp,
        Protocol::Sctp => wire::Protocol::Sctp,
    }
}

fn when_empty(when_empty: WhenEmpty) -> Option<wire::WhenEmpty> {
    let verdict = |verdict| match verdict {
        Verdict::Reject => wire::Verdict::Reject.into(),
        Verdict::Drop => wire::Verdict::Drop.into(),
    };
    (when_empty != WhenEmpty::default())
        .then(|| wire::WhenEmpty { internal: verdict(when_empty.internal), external: verdict(when_empty.external) })
}

fn content(endpoint: &Endpoint, key: EndpointKey) -> wire::Endpoint {
    let port = |port: &EndpointPort| wire::EndpointPort {
        name: port.name.to_string(),
        number: port.port.into(),
        ..Default::default()
    };
    wire::Endpoint {
        address: key.address.to_string(),
        ordinal: key.ordinal,
        ports: endpoint.ports.iter().map(port).collect(),
        scopes: scopes(endpoint.scopes),
        local: endpoint.local,
        hostname: endpoint.hostname.as_deref().unwrap_or_default().to_owned(),
        weight: endpoint.weight.map(NonZeroU32::get),
        ..Default::default()
    }
}

/// What the origins of an endpoint's ports agree on.
fn origin(facts: Option<&Facts>, endpoint: &Endpoint) -> Origin {
    let origin = |port| facts?.origins.get(&(endpoint.address, EndpointPort::clone(port)));
    let known = endpoint.ports.iter().map(|port| origin(port).cloned().unwrap_or_default());
    known.reduce(|common, other| common.common(&other)).unwrap_or_default()
}

/// The details of an endpoint.
pub(super) fn details(origin: Origin) -> Bytes {
    if origin == Origin::default() {
        return Bytes::new();
    }
    let target_ref = origin.target.map(|target| wire::TargetRef {
        kind: target.kind.to_string(),
        namespace: target.namespace.to_string(),
        name: target.name.to_string(),
        uid: target.uid.to_string(),
    });
    let details =
        wire::EndpointDetails { node_name: origin.node.to_string(), zone: origin.zone.to_string(), target_ref };
    wire::Endpoint { details: Some(details), ..Default::default() }.encode_to_vec().into()
}

pub(super) fn scopes(Scopes { internal, external, short_circuit, established }: Scopes) -> Vec<i32> {
    let all = [
        (internal, wire::Scope::Internal),
        (external, wire::Scope::External),
        (short_circuit, wire::Scope::ShortCircuit),
        (established, wire::Scope::Established),
    ];
    all.into_iter().filter(|(on, _)| *on).map(|(_, scope)| scope.into()).collect()
}
