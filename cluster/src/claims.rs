//! Decides which Service owns an address and port that several Services claim.
//!
//! Kubernetes allows two Services with the same external IP and port. If the brain reads Services from files, they may also
//! share a ClusterIP, NodePort or healthCheckNodePort. A packet can go to only one Service. The Service of the first source is
//! the owner; of several Services of this source, the oldest; of equally old Services, the first by name. Every node therefore
//! chooses the same owner, in whatever order the events arrive. Services may share an address if they use different ports. A
//! Service that is not the owner of all its ports at an address is not served at that address at all. Its other ports there are
//! then free for other Services.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    mem,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use localnet_proto::{Family, Protocol, ServiceKey};

use crate::{
    localize::{self, Lost, Owner},
    objects::{Parsed, ServiceObject, ServicePort},
};

/// An address, protocol and port to which packets are sent. For NodePorts and ports for health checks, the address is the
/// unspecified address of their family.
type Front = (IpAddr, Protocol, u16);

/// A place where a Service is served on all ports that it claims there, or not at all: an address, a NodePort, or a port
/// for health checks.
type Place = (IpAddr, Option<PortKey>);

type PortKey = (Protocol, u16);

fn place((address, protocol, port): Front) -> Place {
    (address, address.is_unspecified().then_some((protocol, port)))
}

/// The number of a Service's source, and the time of its creation. The lower one has precedence.
type Rank = (u16, i64);

/// The claims of one Service, and its rank.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Claimed {
    rank: Rank,
    places: BTreeMap<Place, BTreeSet<PortKey>>,
}

impl Claimed {
    /// All claims of the Service.
    pub(super) fn by(service: &ServiceObject) -> Self {
        let mut places: BTreeMap<Place, BTreeSet<PortKey>> = BTreeMap::new();
        for (front, _) in fronts(service) {
            places.entry(place(front)).or_default().insert((front.1, front.2));
        }
        Self { rank: (service.source, service.created), places }
    }
}

/// The claims of all Services.
#[derive(Debug, Default)]
pub(super) struct Claims(HashMap<Place, Claimants>);

/// The claimants of a place. Nearly every place has only one.
#[derive(Debug)]
enum Claimants {
    One(Claimant, BTreeSet<PortKey>),
    Many(Box<Shared>),
}

/// The rank and the name of a Service. The order is the precedence.
type Claimant = (Rank, ServiceKey);

/// The claims of a [`Place`] with several claimants.
#[derive(Debug, Default)]
struct Shared {
    claimants: BTreeMap<Claimant, BTreeSet<PortKey>>,
    /// The number of claimants of each port.
    ports: HashMap<PortKey, usize>,
    /// The claimants that are not served at the place, each with a port that it claims and the owner of this port.
    losers: BTreeMap<ServiceKey, (PortKey, Owner)>,
}

impl Shared {
    /// Adds a claimant of the [`Place`]. Returns the Services that gain or lose the place as a result.
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

    /// Assigns the ports of the place to claimants in order of precedence. If none of a claimant's ports has an owner yet,
    /// the claimant becomes the owner of all of them. Otherwise the claimant is a loser: it is not served at the place, and
    /// its other ports there stay free for later claimants.
    fn settle(&mut self) -> Vec<ServiceKey> {
        let mut owners: HashMap<PortKey, &Claimant> = HashMap::new();
        let mut losers = BTreeMap::new();
        for (claimant, ports) in &self.claimants {
            let ((source, _), key) = claimant;
            match ports.iter().find_map(|port| Some((*port, owners.get(port)?))) {
                Some((port, ((of_owner, _), owner))) => {
                    let owner = Owner { service: owner.clone(), is_of_earlier_source: of_owner < source };
                    losers.insert(key.clone(), (port, owner));
                }
                None => owners.extend(ports.iter().map(|port| (*port, claimant))),
            }
        }
        let before = mem::replace(&mut self.losers, losers);
        let all: HashSet<&ServiceKey> = before.keys().chain(self.losers.keys()).collect();
        all.into_iter().filter(|key| before.get(key) != self.losers.get(key)).cloned().collect()
    }
}

impl Claims {
    /// Replaces the claims of the Service `key`: `before` with `after`. Returns the other Services that gain or lose a
    /// [`Place`] as a result.
    pub(super) fn change(&mut self, key: &ServiceKey, before: Claimed, mut after: Claimed) -> Vec<ServiceKey> {
        let mut touched = Vec::new();
        for (place, ports) in before.places {
            if before.rank == after.rank && after.places.get(&place) == Some(&ports) {
                after.places.remove(&place);
            } else {
                touched.extend(self.remove(place, &(before.rank, key.clone())));
            }
        }
        for (place, ports) in after.places {
            touched.extend(self.insert(place, (after.rank, key.clone()), ports));
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

    /// The addresses and ports that this Service claims, but that belong to another Service.
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

/// Every address and port that a Service claims, each with the field that contains it.
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
        // A port for health checks is a port of the node, like a NodePort: the API server allocates both from the same range.
        let health_check = localize::health_check_port(service).map(|port| (Protocol::Tcp, port));
        let health_check = health_check.map(|port| (port, localize::HEALTH_CHECK_NODE_PORT));
        node_ports.chain(health_check).map(move |((protocol, port), field)| ((any, protocol, port), field))
    });
    on_addresses.chain(on_node)
}

fn ports(service: &ServiceObject, number: fn(&ServicePort) -> i32) -> impl Iterator<Item = (Protocol, u16)> + '_ {
    service.ports.iter().filter_map(move |port| {
        let Parsed::Good(protocol) = port.protocol else { return None };
        Some((protocol, u16::try_from(number(port)).ok().filter(|number| *number != 0)?))
    })
}
