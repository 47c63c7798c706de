//! Merges the endpoints of all ports of a Service. An address has one entry for all of its ports that are eligible for the
//! same scopes.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    net::IpAddr,
    num::NonZeroU32,
    sync::Arc,
};

use localnet_proto::{Endpoint, EndpointPort, Family, Port, Scopes};

use super::{
    Here,
    candidates::{Candidate, Candidates},
    categorize::{self, Policy},
    front::Front,
};

/// The properties that two ports of an address must share to be in one entry. The last property is a counter: if an
/// address has two port numbers for one Service port, it needs two entries.
type Group<'a> = (IpAddr, bool, Option<&'a Arc<str>>, Scopes, Option<NonZeroU32>, usize);

/// Returns the ports of a Service, with the verdicts for traffic without an eligible endpoint, and the Service's endpoints.
/// Both are sorted.
pub(super) fn endpoints(
    mut ports: Vec<Port>,
    families: &[Family],
    front: &Front,
    policy: Policy,
    candidates: &Candidates<'_>,
    here: &Here,
) -> (Vec<Port>, Vec<Endpoint>) {
    let mut groups: BTreeMap<Group<'_>, Vec<EndpointPort>> = BTreeMap::new();
    for (port, candidates) in ports.iter_mut().zip(candidates) {
        for family in families {
            let of_family = candidates.iter().filter(|((address, _), _)| Family::of(*address) == *family);
            let external = port.node_port.is_some() || front.is_external(*family);
            let usage =
                categorize::categorize(of_family.clone().map(|(_, candidate)| candidate), policy, external, here);
            match family {
                Family::V4 => port.when_empty_v4 = usage.when_empty(),
                Family::V6 => port.when_empty_v6 = usage.when_empty(),
            }
            for ((address, number), candidate) in of_family {
                let scopes = usage.scopes(candidate, here);
                if scopes != Scopes::default() {
                    let port = EndpointPort { name: Arc::clone(&port.name), port: *number };
                    insert(&mut groups, *address, candidate, scopes, port);
                }
            }
        }
    }
    let endpoints = groups.into_iter().map(|((address, local, hostname, scopes, weight, _), ports)| Endpoint {
        address,
        ports,
        local,
        hostname: hostname.cloned(),
        scopes,
        weight,
    });
    let mut endpoints: Vec<Endpoint> = endpoints.collect();
    endpoints.sort_unstable();
    (ports, endpoints)
}

/// Adds a port to an entry. Ports arrive sorted by name and number, so the ports of each entry are also sorted. Therefore
/// only the last port of an entry can have the same name as the new port.
fn insert<'a>(
    groups: &mut BTreeMap<Group<'a>, Vec<EndpointPort>>,
    address: IpAddr,
    candidate: &Candidate<'a>,
    scopes: Scopes,
    port: EndpointPort,
) {
    let weight = Endpoint::weighing(candidate.weight);
    for count in 0.. {
        match groups.entry((address, candidate.local, candidate.of.hostname.as_ref(), scopes, weight, count)) {
            Entry::Vacant(vacant) => {
                vacant.insert(vec![port]);
                return;
            }
            Entry::Occupied(mut ports) if ports.get().last().is_none_or(|last| last.name != port.name) => {
                ports.get_mut().push(port);
                return;
            }
            Entry::Occupied(_) => {}
        }
    }
}
