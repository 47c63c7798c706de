//! Which service an address and port belongs to when two name the same.
//!
//! Kubernetes does not forbid two Services with one external IP and port, or, in a file, with one ClusterIP or NodePort.
//! A packet can go to one of them only. The oldest Service has it, then the one whose name sorts first: the same on every
//! node, whatever the order of events. Services that agree on different ports of one address share it.

use std::{
    collections::{BTreeSet, HashMap},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use localnet_proto::{Family, Protocol, ServiceKey};

use super::object::{Parsed, ServiceObject};
use crate::localize::{self, Lost};

/// An address and port on which packets arrive. NodePorts stand under the unspecified address of their family.
type Front = (IpAddr, Protocol, u16);

/// What one service claims, with its age.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Claimed {
    created: i64,
    fronts: BTreeSet<Front>,
}

impl Claimed {
    /// All that the service claims.
    pub(super) fn by(service: &ServiceObject) -> Self {
        Self { created: service.created, fronts: fronts(service).map(|(front, _)| front).collect() }
    }
}

/// Who claims what.
#[derive(Debug, Default)]
pub(super) struct Claims(HashMap<Front, Claimants>);

/// Nearly every front has one claimant.
#[derive(Debug)]
enum Claimants {
    One(Claimant),
    Many(BTreeSet<Claimant>),
}

/// Ordered by right: age, then name.
type Claimant = (i64, ServiceKey);

impl Claimants {
    fn winner(&self) -> Option<&Claimant> {
        match self {
            Self::One(claimant) => Some(claimant),
            Self::Many(claimants) => claimants.first(),
        }
    }
}

impl Claims {
    /// Notes that `key` claimed `before` and now claims `after`; the other services that may win or lose by it.
    pub(super) fn change(&mut self, key: &ServiceKey, before: Claimed, after: Claimed) -> Vec<ServiceKey> {
        let mut touched = Vec::new();
        if before.created == after.created && before.fronts == after.fronts {
            return touched;
        }
        for front in before.fronts {
            self.remove(front, &(before.created, key.clone()), &mut touched);
        }
        for front in after.fronts {
            self.insert(front, (after.created, key.clone()), &mut touched);
        }
        touched.retain(|other| other != key);
        touched
    }

    fn remove(&mut self, front: Front, claimant: &Claimant, touched: &mut Vec<ServiceKey>) {
        match self.0.get_mut(&front) {
            Some(Claimants::Many(claimants)) => {
                touched.extend(claimants.iter().map(|(_, key)| key.clone()));
                claimants.remove(claimant);
                if claimants.len() == 1
                    && let Some(last) = claimants.pop_first()
                {
                    self.0.insert(front, Claimants::One(last));
                }
            }
            Some(Claimants::One(_)) => {
                self.0.remove(&front);
            }
            None => {}
        }
    }

    fn insert(&mut self, front: Front, claimant: Claimant, touched: &mut Vec<ServiceKey>) {
        match self.0.remove(&front) {
            None => {
                self.0.insert(front, Claimants::One(claimant));
            }
            Some(others) => {
                let mut claimants = match others {
                    Claimants::One(other) => BTreeSet::from([other]),
                    Claimants::Many(others) => others,
                };
                touched.extend(claimants.iter().map(|(_, key)| key.clone()));
                claimants.insert(claimant);
                self.0.insert(front, Claimants::Many(claimants));
            }
        }
    }

    /// What a service claims that belongs to another.
    pub(super) fn lost(&self, service: &ServiceObject) -> Vec<Lost> {
        let key = service.key();
        let lost = fronts(service).filter_map(|(front, field)| {
            let (_, winner) = self.0.get(&front)?.winner()?;
            (*winner != key).then(|| Lost { front, field, to: winner.clone() })
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
        ports(service, |port| port.node_port)
            .map(move |(protocol, port)| ((any, protocol, port), "spec.ports[].nodePort"))
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
