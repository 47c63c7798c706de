//! One service as KPNG's clients see it.

use std::{collections::BTreeMap, hash::Hasher as _};

use bytes::Bytes;
use localnet_proto::{
    encode::LARGEST_ITEM,
    wire::{Endpoint, NextItem, PortMapping, Set},
};
use prost::Message as _;
use twox_hash::XxHash64;

/// The most that names and numbers add to an object in an `OpItem`, beside its path.
const AROUND: usize = 64;

/// A service and its endpoints, serialized.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct View {
    /// The service; `None` if there is none, or if it is too large for KPNG's clients.
    pub(super) service: Option<Vec<u8>>,
    /// Its endpoints by the last part of their paths.
    pub(super) endpoints: BTreeMap<String, (Set, Vec<u8>)>,
}

impl View {
    /// Reads the items that carry a service in an answer of `Next`.
    pub(super) fn of(items: &[Bytes]) -> Self {
        // What the feed has encoded can be read.
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
        // KPNG's Go code reads both lists without a look whether they are there, and crashes on one that is not.
        let addresses = service.i_ps.get_or_insert_default();
        addresses.cluster_i_ps.get_or_insert_default();
        addresses.external_i_ps.get_or_insert_default();
        let path = service.namespace.len() + 1 + service.name.len();
        if service.encoded_len() + path + AROUND > LARGEST_ITEM {
            return Self::default();
        }
        Self { service: Some(service.encode_to_vec()), endpoints: by_key(&endpoints) }
    }
}

/// KPNG's clients find an endpoint's number for a port by the port's name; for one without a name they use the service's.
fn target_port(port: &PortMapping, endpoints: &[Endpoint]) -> i32 {
    if !port.name.is_empty() {
        return 0;
    }
    let overrides = endpoints.iter().flat_map(|endpoint| &endpoint.port_overrides);
    let mut numbers = overrides.filter(|number| number.name.is_empty()).map(|number| number.port);
    let first = numbers.next().unwrap_or_default();
    // Where they differ such a client could only be wrong about some of them; so it says that it cannot serve the port.
    if numbers.all(|number| number == first) { first } else { 0 }
}

/// KPNG's key of endpoints that it knows no pod of: the hash of what is said of them. It differs for the addresses of a pod
/// in two families, which KPNG's key of pods does not.
fn by_key(endpoints: &[Endpoint]) -> BTreeMap<String, (Set, Vec<u8>)> {
    let mut by_key = BTreeMap::new();
    for endpoint in endpoints {
        let bytes = endpoint.encode_to_vec();
        let mut hasher = XxHash64::with_seed(0);
        hasher.write(&bytes);
        let hash = format!("{:x}", hasher.finish());
        // Whoever writes EndpointSlices could find two endpoints with one hash.
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
