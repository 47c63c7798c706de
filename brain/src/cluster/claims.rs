//! Which service an address and port belongs to when two name the same.
//!
//! Kubernetes does not forbid two Services with one external IP and port, or, in a file, with one ClusterIP, NodePort or
//! healthCheckNodePort.
//! A packet can go to one of them only. The oldest Service has it, then the one whose name sorts first: the same on every
//! node, whatever the order of events. Services that agree on different ports of one address share it; one that loses a port of an
//! address is not served on that address at all, and takes none of its ports from others.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    mem,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use localnet_proto::{Family, Protocol, ServiceKey};

use super::object::{Parsed, ServiceObject};
use crate::localize::{self, Lost};

/// An address and port on which packets arrive. NodePorts, and ports for health checks, stand under the unspecified address of their
/// family.
type Front = (IpAddr, Protocol, u16);

/// What is won or lost as a whole: an address, a NodePort, or a port for health checks.
type Place = (IpAddr, Option<PortKey>);

type PortKey = (Protocol, u16);

fn place((address, protocol, port): Front) -> Place {
    (address, address.is_unspecified().then_some((protocol, port)))
}

/// What one service claims, with its age.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Claimed {
    created: i64,
    places: BTreeMap<Place, BTreeSet<PortKey>>,
}

impl Claimed {
    /// All that the service claims.
    pub(super) fn by(service: &ServiceObject) -> Self {
        let mut places: BTreeMap<Place, BTreeSet<PortKey>> = BTreeMap::new();
        for (front, _) in fronts(service) {
            places.entry(place(front)).or_default().insert((front.1, front.2));
        }
        Self { created: service.created, places }
    }
}

/// Who claims what.
#[derive(Debug, Default)]
pub(super) struct Claims(HashMap<Place, Claimants>);

/// Nearly every place has one claimant.
#[derive(Debug)]
enum Claimants {
    One(Claimant, BTreeSet<PortKey>),
    Many(Box<Shared>),
}

/// Ordered by right: age, then name.
type Claimant = (i64, ServiceKey);

/// A place that several claim.
#[derive(Debug, Default)]
struct Shared {
    claimants: BTreeMap<Claimant, BTreeSet<PortKey>>,
    /// By how many each port is claimed.
    ports: HashMap<PortKey, usize>,
    /// Who does not have the place: for which port, and to whom.
    losers: BTreeMap<ServiceKey, (PortKey, ServiceKey)>,
}

impl Shared {
    /// Those who win or lose by it.
    fn insert(&mut self, claimant: Claimant, ports: BTreeSet<PortKey>) -> Vec<ServiceKey> {
        for port in &ports {
            *self.ports.entry(*port).or_default() += 1;
        }
        let contested = ports.iter().any(|port| self.ports[port] > 1);
        self.claimants.insert(claimant, ports);
        if contested { self.settle() } else { Vec::new() }
    }

    fn remove(&mut self, claimant: &Claimant) -> Vec<ServiceKey> {
        let ports = self.claimants.remove(claimant).unwrap_or_default();
        let mut contested = false;
        for port in ports {
            let claimed = self.ports.remove(&port).unwrap_or_default();
            if claimed > 1 {
                contested = true;
                self.ports.insert(port, claimed - 1);
            }
        }
        if contested { self.settle() } else { Vec::new() }
    }

    /// In the order of right each has the place, unless one before it has a port of it. What a loser claims takes nothing from
    /// those after it: it is not served there.
    fn settle(&mut self) -> Vec<ServiceKey> {
        let mut owners: HashMap<PortKey, &ServiceKey> = HashMap::new();
        let mut losers = BTreeMap::new();
        for ((_, key), ports) in &self.claimants {
            match ports.iter().find_map(|port| Some((*port, owners.get(port)?))) {
                Some((port, owner)) => {
                    losers.insert(key.clone(), (port, (*owner).clone()));
                }
                None => owners.extend(ports.iter().map(|port| (*port, key))),
            }
        }
        let before = mem::replace(&mut self.losers, losers);
        let all: HashSet<&ServiceKey> = before.keys().chain(self.losers.keys()).collect();
        all.into_iter().filter(|key| before.get(key) != self.losers.get(key)).cloned().collect()
    }
}

impl Claims {
    /// Notes that `key` claimed `before` and now claims `after`; the other services that win or lose by it.
    pub(super) fn change(&mut self, key: &ServiceKey, before: Claimed, mut after: Claimed) -> Vec<ServiceKey> {
        let mut touched = Vec::new();
        for (place, ports) in before.places {
            if before.created == after.created && after.places.get(&place) == Some(&ports) {
                after.places.remove(&place);
            } else {
                touched.extend(self.remove(place, &(before.created, key.clone())));
            }
        }
        for (place, ports) in after.places {
            touched.extend(self.insert(place, (after.created, key.clone()), ports));
        }
        touched.retain(|other| other != key);
        touched
    }

    fn remove(&mut self, place: Place, claimant: &Claimant) -> Vec<ServiceKey> {
        let Some(Claimants::Many(shared)) = self.0.get_mut(&place) else {
            self.0.remove(&place);
            return Vec::new();
        };
        let touched = shared.remove(claimant);
        if shared.claimants.len() == 1
            && let Some((last, ports)) = shared.claimants.pop_first()
        {
            self.0.insert(place, Claimants::One(last, ports));
        }
        touched
    }

    fn insert(&mut self, place: Place, claimant: Claimant, ports: BTreeSet<PortKey>) -> Vec<ServiceKey> {
        let mut shared = match self.0.remove(&place) {
            None => {
                self.0.insert(place, Claimants::One(claimant, ports));
                return Vec::new();
            }
            Some(Claimants::One(other, others)) => {
                let mut shared = Box::<Shared>::default();
                shared.insert(other, others);
                shared
            }
            Some(Claimants::Many(shared)) => shared,
        };
        let touched = shared.insert(claimant, ports);
        self.0.insert(place, Claimants::Many(shared));
        touched
    }

    /// What a service claims that belongs to another.
    pub(super) fn lost(&self, service: &ServiceObject) -> Vec<Lost> {
        let key = service.key();
        let lost = fronts(service).filter_map(|(front, field)| {
            let Claimants::Many(shared) = self.0.get(&place(front))? else { return None };
            let (port, to) = shared.losers.get(&key)?;
            (*port == (front.1, front.2)).then(|| Lost { front, field, to: to.clone() })
        });
        lost.collect()
    }
}

/// Every address and port that a service names and would be served on, and the field that names it.
fn fronts(service: &ServiceObject) -> impl Iterator<Item = (Front, &'static str)> + '_ {
    let wanted = localize::wanted(service);
    let family = |family| wanted.iter().any(|(address, _)| Family::of(*address) == family);
    let families: Vec<Family> = Family::BOTH.into_iter().filter(|of| family(*of)).collect();
    let on_addresses = wanted.into_iter().flat_map(|(address, field)| {
        ports(service, |port| port.port).map(move |(protocol, port)| ((address, protocol, port), field))
    });
    let on_node = families.into_iter().flat_map(|family| {
        let any = match family {
            Family::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            Family::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let node_ports = ports(service, |port| port.node_port).map(|port| (port, localize::NODE_PORTS));
        // It is a port of the node like the others: the API server takes it from the same range.
        let health_check = localize::health_check_port(service).map(|port| (Protocol::Tcp, port));
        let health_check = health_check.map(|port| (port, localize::HEALTH_CHECK_NODE_PORT));
        node_ports.chain(health_check).map(move |((protocol, port), field)| ((any, protocol, port), field))
    });
    on_addresses.chain(on_node)
}

fn ports(
    service: &ServiceObject,
    number: fn(&super::ServicePort) -> i32,
) -> impl Iterator<Item = (Protocol, u16)> + '_ {
    service.ports.iter().filter_map(move |port| {
        let Parsed::Good(protocol) = port.protocol else { return None };
        Some((protocol, u16::try_from(number(port)).ok().filter(|number| *number != 0)?))
    })
}
