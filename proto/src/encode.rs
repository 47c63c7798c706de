//! Encodes states: model → wire.

use bytes::Bytes;
use prost::Message as _;

use crate::{
    model::{Endpoint, Node, Revision, Service, ServiceKey, Snapshot},
    wire,
};

/// The maximum number of endpoints in an item: about 100 KiB if each has one port.
pub const ENDPOINTS_PER_ITEM: usize = 1000;
/// An item that has reached this size in bytes gets no further endpoint.
pub const BYTES_PER_ITEM: usize = 1 << 20;
/// The maximum size of an item in bytes: the default limit of gRPC libraries.
pub const MAX_ITEM_BYTES: usize = 4 << 20;

/// The first item of an answer, which contains the token of the state. `delta` tells whether the answer contains only
/// changes.
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

/// The serialized item with the facts about the node.
pub fn node_bytes(node: &Node) -> Bytes {
    node_item(node).encode_to_vec().into()
}

/// The item that removes a Service.
pub fn removed_item(key: &ServiceKey) -> wire::NextItem {
    wire::NextItem { removed: Some(key.into()), ..Default::default() }
}

/// The items of a Service. If the Service has more than [`ENDPOINTS_PER_ITEM`] endpoints, or if its endpoints need more
/// than [`BYTES_PER_ITEM`] bytes, there are several items: the first item and its continuations.
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

/// The serialized items of a full state, as `Next` sends them.
pub fn state_items(state: &Snapshot) -> Vec<Bytes> {
    let services = state.services.values().flat_map(|service| service_items(service));
    let items = [next_item(state.revision, false), node_item(&state.node)].into_iter().chain(services);
    items.map(|item| item.encode_to_vec().into()).collect()
}

/// The size of the Service's largest item in bytes, if it exceeds [`MAX_ITEM_BYTES`]; otherwise `None`.
pub fn too_large(service: &Service) -> Option<usize> {
    let endpoints = service.endpoints.iter().map(endpoint_bytes);
    // If this upper bound is small enough, as it nearly always is, the Service need not be encoded.
    if endpoints.max().unwrap_or_default().max(head_bytes(service)) + BYTES_PER_ITEM <= MAX_ITEM_BYTES {
        return None;
    }
    let items = service_items(service).into_iter().map(|item| item.encoded_len());
    items.max().filter(|bytes| *bytes > MAX_ITEM_BYTES)
}

/// The number of endpoints, from the first one on, that fit into an item that already has `bytes` bytes.
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

/// An upper bound for the encoded size of a Service without its endpoints, in bytes.
fn head_bytes(service: &Service) -> usize {
    let texts = [&*service.key.namespace, &*service.key.name, &*service.kind].map(str::len);
    let filters = service.source_filters.iter().map(|filter| filter.targets.len() + filter.source_ranges.len() + 1);
    let addresses = service.cluster_ips.len() + service.external_ips.len() + service.load_balancer_ips.len();
    let ports = service.ports.iter().map(|port| port.name.len() + FEW_BYTES);
    let lists = FEW_BYTES * (addresses + filters.sum::<usize>() + 4);
    texts.iter().sum::<usize>() + lists + ports.sum::<usize>()
}

/// The encoded items of a Service.
pub fn service_bytes(service: &Service) -> Vec<bytes::Bytes> {
    service_items(service).iter().map(|item| item.encode_to_vec().into()).collect()
}
