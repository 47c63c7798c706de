//! The slot of each endpoint, for ports of Services with session affinity, and the pending changes to the clients that
//! the kernel remembers.
//!
//! The slots are the only data of the backend that depends on history. The kernel also holds them, so a new process
//! reads them from the kernel. No I/O.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use localnet_client::vips::{Vip, VipKey};
use localnet_linux::nft::{Element, ElementData, Expiry, FieldType, Name, Set};
use localnet_linux_backend::elements::{read_endpoint, read_numbered, read_vip};
use localnet_proto::{ByFamily, Family, Protocol, ServiceKey};

use crate::plan::{
    affinity::{self, Shape, Uses},
    sets::{SetId, Sets as _, slot_of_clients},
    stable_slots::Slots,
};

/// The slots of both families.
#[derive(Debug, Default)]
pub struct Affinity {
    /// The ports by the IDs that they have in the kernel: the programmed ports, and other ports whose clients the
    /// kernel may still remember.
    ports: BTreeMap<Number, Port>,
    numbers: BTreeMap<PortKey, u32>,
    /// IDs that were read from the kernel and that no port has claimed yet, by family and comment. In the kernel, all VIPs
    /// with one ID have the same comment.
    found: BTreeMap<(Family, Name), u32>,
    /// The ID that was assigned last in each family.
    last: ByFamily<u32>,
    programmed: BTreeSet<VipKey>,
    /// Ports that changed since the last commit.
    touched: BTreeSet<Number>,
    chores: BTreeMap<Place, Chore>,
    uses: ByFamily<Uses>,
    /// Whether the slots in the kernel were adopted.
    adopted: ByFamily<bool>,
    none: Slots,
}

/// The family and the ID of a Service's port in the kernel. The ID is not a port number.
type Number = (Family, u32);

/// A port of a Service in one family. kube-proxy remembers clients by the same key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PortKey {
    family: Family,
    service: ServiceKey,
    name: Arc<str>,
    protocol: Protocol,
}

impl PortKey {
    fn new(key: &VipKey, vip: &Vip) -> Self {
        Self { family: key.family(), service: vip.service.clone(), name: vip.port_name.clone(), protocol: key.protocol }
    }
}

#[derive(Debug, Default)]
struct Port {
    key: Option<PortKey>,
    slots: Slots,
    /// How long clients are remembered, in milliseconds.
    timeout: u64,
    /// Every timeout, in milliseconds, that the kernel may still apply to a client of the port.
    timeouts: BTreeSet<u64>,
}

/// Identifies the set that contains the clients of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The family of the table.
    pub family: Family,
    /// The number of the slot.
    pub slot: u32,
}

/// The pending changes to the clients in a [`Place`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chore {
    /// The IDs of ports whose endpoint left the slot. Their clients are deleted.
    forget: BTreeSet<u32>,
    /// The IDs of ports whose clients get a new timeout, each with the timeout in milliseconds.
    renew: BTreeMap<u32, u64>,
}

/// What happens to a remembered client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The client stays unchanged.
    Stays,
    /// The client is deleted.
    Forgotten,
    /// The client gets this expiry.
    Renewed(Expiry),
}

/// A client with less time left than this is deleted instead of getting a new timeout, because the kernel counts time in
/// jiffies. In milliseconds.
const MOMENT: u64 = 100;

impl Chore {
    /// Returns what happens to a client in the set. A new timeout counts from the client's last connection, not from
    /// now.
    pub fn fate(&self, family: Family, client: &Element) -> Fate {
        let Some(number) = number_of_client(family, client) else { return Fate::Stays };
        if self.forget.contains(&number) {
            return Fate::Forgotten;
        }
        let (Some(&timeout), ElementData::Expires(expiry)) = (self.renew.get(&number), &client.data) else {
            return Fate::Stays;
        };
        let left = timeout.saturating_sub(expiry.timeout.saturating_sub(expiry.left));
        match left {
            _ if timeout == expiry.timeout => Fate::Stays,
            ..MOMENT => Fate::Forgotten,
            _ => Fate::Renewed(Expiry { timeout, left }),
        }
    }
}

impl Affinity {
    /// The slots of a VIP's port; empty without affinity.
    pub fn slots(&self, key: &VipKey, vip: &Vip) -> &Slots {
        self.port(key, vip).map_or(&self.none, |number| &self.ports[&number].slots)
    }

    fn port(&self, key: &VipKey, vip: &Vip) -> Option<Number> {
        vip.affinity?;
        let key = PortKey::new(key, vip);
        Some((key.family, *self.numbers.get(&key)?)).filter(|number| self.ports.contains_key(number))
    }

    /// Adds a VIP and assigns slots to its endpoints.
    pub fn program(&mut self, key: &VipKey, vip: &Vip) {
        if vip.affinity.is_none() {
            return;
        }
        self.programmed.insert(*key);
        let endpoints = affinity::endpoints_of(vip);
        if endpoints.is_empty() {
            return;
        }
        let number = self.port(key, vip).unwrap_or_else(|| self.claim(PortKey::new(key, vip), vip));
        let port = self.ports.entry(number).or_default();
        port.timeout = u64::from(affinity::timeout(vip)) * 1000;
        port.slots.take(&endpoints);
        self.uses[number.0].add(vip, &port.slots);
        self.touched.insert(number);
    }

    /// Assigns an ID to a port: the ID that the port has in the kernel, or else an unused ID.
    fn claim(&mut self, key: PortKey, vip: &Vip) -> Number {
        let family = key.family;
        let is_free = |number: &u32| self.ports.get(&(family, *number)).is_some_and(|port| port.key.is_none());
        let found = self.found.remove(&(family, vip.comment.clone())).filter(is_free);
        let number = found.unwrap_or_else(|| {
            let last = &mut self.last[family];
            // 0 and the largest number are reserved.
            let next = |number: u32| if number >= u32::MAX - 1 { 1 } else { number + 1 };
            *last = next(*last);
            while self.ports.contains_key(&(family, *last)) {
                *last = next(*last);
            }
            *last
        });
        let port =
            self.ports.entry((family, number)).or_insert_with(|| Port { slots: Slots::new(number), ..Port::default() });
        port.key = Some(key.clone());
        self.numbers.insert(key, number);
        (family, number)
    }

    /// Removes a VIP. Its slots stay until the next commit, because the VIP may be added again before that.
    pub fn unprogram(&mut self, key: &VipKey, vip: &Vip) {
        if vip.affinity.is_none() {
            return;
        }
        self.programmed.remove(key);
        let Some(number) = self.port(key, vip) else { return };
        let Some(port) = self.ports.get_mut(&number) else { return };
        self.uses[number.0].remove(vip, &port.slots);
        port.slots.release(&affinity::endpoints_of(vip));
        self.touched.insert(number);
    }

    /// The pools, sizes and timeouts of a family, on which its chains and sets depend.
    pub fn shape(&self, family: Family) -> Shape {
        self.uses[family].shape()
    }

    /// The programmed VIPs of a family.
    pub fn programmed(&self, family: Family) -> impl Iterator<Item = &VipKey> {
        self.programmed.iter().filter(move |key| key.family() == family)
    }

    /// Records that the kernel holds what was programmed in a family.
    pub fn commit(&mut self, family: Family) {
        let of_family = |number: &Number| number.0 == family;
        self.found.retain(|(of, _), _| *of != family);
        let (touched, others) = std::mem::take(&mut self.touched).into_iter().partition(of_family);
        self.touched = others;
        let touched: BTreeSet<Number> = touched;
        for number in touched {
            let Some(port) = self.ports.get_mut(&number) else { continue };
            port.slots.commit();
            for slot in port.slots.left() {
                let chore = self.chores.entry(Place { family, slot }).or_default();
                chore.forget.insert(number.1);
                chore.renew.remove(&number.1);
            }
            port.timeouts.insert(port.timeout);
            if port.timeouts.len() > 1 {
                for slot in port.slots.used() {
                    self.chores.entry(Place { family, slot }).or_default().renew.insert(number.1, port.timeout);
                }
            }
            self.drop_if_empty(number);
        }
    }

    fn drop_if_empty(&mut self, number: Number) {
        if self.ports.get(&number).is_some_and(|port| port.slots.is_empty()) {
            let port = self.ports.remove(&number);
            if let Some(key) = port.and_then(|port| port.key) {
                self.numbers.remove(&key);
            }
        }
    }

    /// Processes the sets that were read from the kernel. The first call for a family adopts the slots in these sets.
    /// Call [`Self::program`] for the VIPs of the family after this first call, not before. Every call plans to delete the
    /// clients of unused slots, and to update the clients whose timeout differs from their port's.
    pub fn adopt<'a>(&mut self, family: Family, sets: impl Iterator<Item = (&'a Set, &'a [Element])> + Clone) {
        let of =
            |id: SetId| sets.clone().filter(move |(set, _)| *set.name == *id.name()).flat_map(|(_, elements)| elements);
        if !std::mem::replace(&mut self.adopted[family], true) {
            let mut numbers: BTreeMap<VipKey, u32> = BTreeMap::new();
            for element in of(SetId::AffinityVips) {
                let Some((vip, number)) = read_number(element) else { continue };
                numbers.insert(vip, number);
                if let Some(comment) = &element.comment {
                    self.found.entry((family, comment.clone())).or_insert(number);
                }
            }
            let mut seen: BTreeMap<u32, Vec<_>> = numbers.values().map(|number| (*number, Vec::new())).collect();
            for element in of(SetId::AffinityEndpoints) {
                let (vip, endpoint) = (read_numbered(element.key.start()), read_endpoint(&element.data));
                let (Some((vip, slot)), Some(endpoint)) = (vip, endpoint) else { continue };
                if let Some(number) = numbers.get(&vip) {
                    seen.entry(*number).or_default().push((endpoint, slot));
                }
            }
            self.last[family] = 0;
            self.ports.retain(|(of, _), _| *of != family);
            self.numbers.retain(|key, _| key.family != family);
            for (number, seen) in seen {
                self.touched.insert((family, number));
                self.ports.insert((family, number), Port { slots: Slots::found(number, seen), ..Port::default() });
            }
        }
        for (set, clients) in sets {
            let Some(slot) = slot_of_clients(&set.name) else { continue };
            for client in clients {
                let Some(number) = number_of_client(family, client) else { continue };
                let place = (family, number);
                let port =
                    self.ports.entry(place).or_insert_with(|| Port { slots: Slots::new(number), ..Port::default() });
                let mut is_odd = port.slots.leave(slot);
                if let ElementData::Expires(expiry) = &client.data {
                    is_odd |= port.timeouts.insert(expiry.timeout);
                }
                if is_odd {
                    self.touched.insert(place);
                }
            }
        }
    }

    /// The pending changes to the clients that the kernel remembers.
    pub fn chores(&self) -> Vec<(Place, Chore)> {
        self.chores.iter().map(|(place, chore)| (*place, chore.clone())).collect()
    }

    /// Records that the chore at `place` is done.
    pub fn done(&mut self, place: &Place) {
        let Some(chore) = self.chores.remove(place) else { return };
        let number = |number: u32| (place.family, number);
        for forgotten in chore.forget {
            if let Some(port) = self.ports.get_mut(&number(forgotten)) {
                port.slots.purged(place.slot);
                self.drop_if_empty(number(forgotten));
            }
        }
        for renewed in chore.renew.into_keys() {
            let mut others = self.chores.iter().filter(|(other, _)| other.family == place.family);
            if others.any(|(_, chore)| chore.renew.contains_key(&renewed)) {
                continue;
            }
            if let Some(port) = self.ports.get_mut(&number(renewed)) {
                port.timeouts = BTreeSet::from([port.timeout]);
            }
        }
    }
}

/// The ID of a Service's port, from the element of a client.
fn number_of_client(family: Family, client: &Element) -> Option<u32> {
    let number = client.key.start().as_bytes().get(FieldType::address(family).padded_len()..)?;
    Some(u32::from_ne_bytes(number.try_into().ok()?))
}

fn read_number(element: &Element) -> Option<(VipKey, u32)> {
    let ElementData::Value(value) = &element.data else { return None };
    let number = u32::from_ne_bytes(value.as_bytes().try_into().ok()?);
    Some((read_vip(element.key.start())?, number))
}
