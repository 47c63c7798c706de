//! One Service as KPNG's clients see it.

use std::{collections::BTreeMap, hash::Hasher as _};

use bytes::Bytes;
use localnet_proto::{
    encode::MAX_ITEM_BYTES,
    wire::{Endpoint, NextItem, PortMapping, Set},
};
use prost::Message as _;
use twox_hash::XxHash64;

/// Maximum number of bytes that an `OpItem` contains in addition to its object and the object's path.
const AROUND: usize = 64;

/// A Service and its endpoints, serialized.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct View {
    /// The Service. `None` if there is none, or if it is too large for KPNG's clients.
    pub(super) service: Option<Vec<u8>>,
    /// The endpoints of the Service, by the last part of their paths.
    pub(super) endpoints: BTreeMap<String, (Set, Vec<u8>)>,
}

impl View {
    /// Decodes the items of an answer of `Next` that contain one Service.
    pub(super) fn of(items: &[Bytes]) -> Self {
        // The feed has encoded these items, so decoding them does not fail.
        let items = items.iter().filter_map(|item| NextItem::decode(item.clone()).ok()?.endpoints);
        let mut service = None;
        let mut endpoints = Vec::new();
        for item in items {
            service = service.or(item.service);
            endpoints.extend(item.endpoints);
        }
        let Some(mut service) = service else { return Self::default() };
        for port in &mut service.ports {
            port.target_port = target_port(port, &endpoints);
        }
        // KPNG's Go code reads both lists without a check for nil, and crashes if one is missing.
        let addresses = service.i_ps.get_or_insert_default();
        addresses.cluster_i_ps.get_or_insert_default();
        addresses.external_i_ps.get_or_insert_default();
        let path = service.namespace.len() + 1 + service.name.len();
        if service.encoded_len() + path + AROUND > MAX_ITEM_BYTES {
            return Self::default();
        }
        Self { service: Some(service.encode_to_vec()), endpoints: by_key(&endpoints) }
    }
}

/// The target port of a Service's port. To find the port number of an endpoint, KPNG's clients use the name of the port.
/// If the port has no name, they use this target port.
fn target_port(port: &PortMapping, endpoints: &[Endpoint]) -> i32 {
    if !port.name.is_empty() {
        return 0;
    }
    let overrides = endpoints.iter().flat_map(|endpoint| &endpoint.port_overrides);
    let mut numbers = overrides.filter(|number| number.name.is_empty()).map(|number| number.port);
    let first = numbers.next().unwrap_or_default();
    // If the endpoints have different numbers, any single number would be wrong for some of them. 0 tells the client that
    // it cannot serve the port.
    if numbers.all(|number| number == first) { first } else { 0 }
}

/// The endpoints by their key. KPNG uses this key, the hash of the content, for endpoints whose pod is unknown. Unlike
/// KPNG's key for pods, it differs between the two addresses of a dual-stack pod.
fn by_key(endpoints: &[Endpoint]) -> BTreeMap<String, (Set, Vec<u8>)> {
    let mut by_key = BTreeMap::new();
    for endpoint in endpoints {
        let bytes = endpoint.encode_to_vec();
        let mut hasher = XxHash64::with_seed(0);
        hasher.write(&bytes);
        let hash = format!("{:x}", hasher.finish());
        // The key must be unique, because everyone who may write EndpointSlices could create two endpoints with the same
        // hash.
        let mut key = hash.clone();
        for count in 2.. {
            if !by_key.contains_key(&key) {
                break;
            }
            key = format!("{hash}-{count}");
        }
        by_key.insert(key, (set_of(endpoint), bytes));
    }
    by_key
}

fn set_of(endpoint: &Endpoint) -> Set {
    match endpoint.scopes {
        Some(scopes) if scopes.internal || scopes.external => Set::EndpointsSet,
        _ => Set::OtherEndpointsSet,
    }
}
