//! Merges the EndpointSlices of a Service into the endpoints of each of its ports.
//!
//! A port of a slice belongs to the Service port with the same name and protocol. The slice gives the port number, so a
//! named port may have different numbers on different endpoints. Several slices may contain the same address and port, for
//! two reasons: an endpoint moves from one slice to another, or a new pod gets an address before the old pod's endpoint is
//! deleted. Only one of these duplicates is used. Every node chooses the same one, in whatever order the slices arrive. The
//! choice follows the first of these rules that distinguishes the duplicates:
//! - An endpoint that is not terminating precedes one that is. As in kube-proxy, the address belongs to the new pod, even if
//!   that pod is not ready.
//! - A ready endpoint precedes one that is not.
//! - A serving endpoint precedes one that is not.
//! - The endpoint of the slice whose name sorts last precedes the others.
//! - The endpoint that comes first in its slice precedes the others.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashSet, btree_map::Entry},
    net::IpAddr,
};

use localnet_core::Code;
use localnet_proto::{Family, Port};

use super::{
    Here, Skips, special,
    weights::{self, Weights},
};
use crate::objects::{Conditions, Parsed, SliceEndpoint, SliceObject};

/// An endpoint of one port.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Candidate<'a> {
    pub(super) conditions: Conditions,
    /// Whether the endpoint is on this node.
    pub(super) local: bool,
    /// The endpoint in its slice.
    pub(super) of: &'a SliceEndpoint,
    /// The share of new connections relative to other endpoints; 0 if the endpoint gets none as long as others may get them.
    pub(super) weight: u32,
    /// The slice and the position in it, to choose between duplicates.
    source: (&'a str, Reverse<usize>),
}

impl Candidate<'_> {
    fn rank(&self) -> impl Ord {
        (self.conditions.rank(), self.source)
    }

    /// Whether this is the endpoint at `position` of `slice`, and not a duplicate that replaced it.
    pub(super) fn is_of(&self, slice: &str, position: usize) -> bool {
        self.source == (slice, Reverse(position))
    }

    /// The name of the endpoint's slice.
    pub(super) fn slice(&self) -> &str {
        self.source.0
    }
}

/// For each Service port, in the order of the ports: its endpoints, by address and port number.
pub(super) type Candidates<'a> = Vec<BTreeMap<(IpAddr, u16), Candidate<'a>>>;

/// Maximum number of pairs of a port and an endpoint in a Service. Without this maximum, everyone who may create Services
/// could fill the memory of every node: an EndpointSlice may have 20,000 ports and 1000 endpoints, and a Service may have
/// many slices.
pub(super) const MOST: usize = 1 << 20;

/// Merges the slices of a Service. `families`: the families of the Service. Returns `None` if there are too many endpoints.
pub(super) fn merge<'a>(
    ports: &[Port],
    families: &[Family],
    slices: impl IntoIterator<Item = &'a SliceObject>,
    here: &Here,
    skips: &mut Skips<'_>,
) -> Option<Candidates<'a>> {
    let weights = Weights::of(skips);
    let mut candidates: Candidates<'a> = vec![BTreeMap::new(); ports.len()];
    let mut pairs = 0;
    for slice in slices {
        let family = match &slice.family {
            Parsed::Good(family) => *family,
            Parsed::Bad(text) => {
                let problem = format!("endpoints of type {text:?} have no IP addresses");
                skips.slice(slice, Code::EndpointsWithoutAddress, "addressType", problem, "use IPv4 or IPv6");
                continue;
            }
        };
        if slice.headless || !families.contains(&family) {
            continue;
        }
        let joined = join(ports, slice, skips);
        let of_slice = weights::of_slice(slice, skips);
        pairs += joined.len() * slice.endpoints.len();
        if pairs > MOST {
            let problem = format!("its {} ports have more than {MOST} endpoints in total", ports.len());
            skips.service(Code::ServiceTooLarge, "spec.ports", problem, "split it into several Services");
            return None;
        }
        for (address, position, endpoint) in usable(slice, family, skips) {
            let candidate = Candidate {
                conditions: endpoint.conditions,
                local: endpoint.node.as_ref().is_some_and(|node| *node == here.name && !node.is_empty()),
                of: endpoint,
                weight: of_slice * weights.of_zone(endpoint),
                source: (&*slice.name, Reverse(position)),
            };
            for (port, number) in &joined {
                match candidates[*port].entry((address, *number)) {
                    Entry::Vacant(vacant) => {
                        vacant.insert(candidate.clone());
                    }
                    Entry::Occupied(mut other) => {
                        if other.get().rank() < candidate.rank() {
                            other.insert(candidate.clone());
                        }
                    }
                }
            }
        }
    }
    Some(candidates)
}

/// The Service ports that match the slice's ports: for each, its position in `ports` and the port number in the slice.
/// `ports` must be sorted by name.
fn join(ports: &[Port], slice: &SliceObject, skips: &mut Skips<'_>) -> Vec<(usize, u16)> {
    let mut joined = Vec::new();
    for (position, port) in slice.ports.iter().enumerate() {
        let (Some(name), Parsed::Good(protocol)) = (&port.name, &port.protocol) else { continue };
        let Ok(target) = ports.binary_search_by(|of| of.name.cmp(name)) else { continue };
        if ports[target].protocol != *protocol {
            continue;
        }
        match port.port {
            // No service proxy implements "all ports".
            None | Some(0) => {}
            Some(number) => match u16::try_from(number) {
                Ok(number) => joined.push((target, number)),
                Err(_) => skips.slice(
                    slice,
                    Code::PortInvalid,
                    format!("ports[{position}].port"),
                    format!("{number} is not a port"),
                    "use a number from 1 to 65535",
                ),
            },
        }
    }
    joined.sort_unstable();
    joined.dedup();
    joined
}

/// The endpoints with valid addresses, each with its position in the slice.
fn usable<'a>(
    slice: &'a SliceObject,
    family: Family,
    skips: &mut Skips<'_>,
) -> Vec<(IpAddr, usize, &'a SliceEndpoint)> {
    let mut usable = Vec::with_capacity(slice.endpoints.len());
    let mut reported = HashSet::new();
    for (position, endpoint) in slice.endpoints.iter().enumerate() {
        let problem = match &endpoint.address {
            None => continue,
            Some(Parsed::Bad(text)) => format!("{text:?} is not an IP address"),
            Some(Parsed::Good(address)) if Family::of(*address) != family => {
                format!("{address} is not an {family} address, but addressType is {family}")
            }
            Some(Parsed::Good(address)) => match special::reserved_for(*address) {
                Some(reserved) => format!("{address} is {reserved}, which no endpoint may have (CVE-2021-25737)"),
                None => {
                    usable.push((*address, position, endpoint));
                    continue;
                }
            },
        };
        // If all addresses of a slice are invalid for the same reason, one diagnostic is enough.
        if reported.insert(problem.clone()) {
            let field = format!("endpoints[{position}].addresses[0]");
            skips.slice(
                slice,
                Code::EndpointAddressRefused,
                field,
                problem,
                "correct the address; other endpoints are not affected",
            );
        }
    }
    usable
}
