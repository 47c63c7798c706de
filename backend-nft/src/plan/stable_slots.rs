//! Session affinity: the slot of each endpoint of a Service's port.
//!
//! The kernel remembers the slot of each client of the port. An endpoint therefore keeps its slot while any VIP of the
//! port uses it. A slot that lost its endpoint gets no new endpoint until the kernel has forgotten the slot's clients.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    net::SocketAddr,
};

/// The slots of one port of a Service, in one family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slots {
    number: u32,
    used: BTreeMap<SocketAddr, Used>,
    /// Slots that have no endpoint but may still have clients.
    left: BTreeSet<u32>,
}

/// The slot of an endpoint, and its users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Used {
    slot: u32,
    /// How many VIPs use the endpoint. At 0, the endpoint keeps its slot until the change is applied.
    vips: usize,
}

impl Slots {
    /// Creates an empty set of slots for the port with this ID.
    pub fn new(number: u32) -> Self {
        Self { number, ..Self::default() }
    }

    /// Derives the slots from the kernel. `seen` contains the endpoint and the slot of each element, for all VIPs of
    /// the port. No VIP uses the slots yet.
    pub fn found(number: u32, seen: impl IntoIterator<Item = (SocketAddr, u32)>) -> Self {
        let mut votes: BTreeMap<(SocketAddr, u32), usize> = BTreeMap::new();
        seen.into_iter().for_each(|pair| *votes.entry(pair).or_default() += 1);
        let mut pairs: Vec<_> = votes.into_iter().collect();
        // If the VIPs disagree about an endpoint's slot, another program changed one of them, so the majority counts.
        pairs.sort_by_key(|((_, slot), votes)| (std::cmp::Reverse(*votes), *slot));
        let mut slots = Self::new(number);
        let mut taken = BTreeSet::new();
        for ((endpoint, slot), _) in &pairs {
            if let Entry::Vacant(entry) = slots.used.entry(*endpoint)
                && taken.insert(*slot)
            {
                entry.insert(Used { slot: *slot, vips: 0 });
            }
        }
        slots.left = pairs.into_iter().map(|((_, slot), _)| slot).filter(|slot| !taken.contains(slot)).collect();
        slots
    }

    /// The ID of the port in the kernel.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Records that a slot has clients. Returns whether these must be deleted because the slot has no endpoint.
    pub fn leave(&mut self, slot: u32) -> bool {
        let unused = !self.used.values().any(|used| used.slot == slot);
        if unused {
            self.left.insert(slot);
        }
        unused
    }

    /// Adds one VIP that uses these endpoints.
    pub fn take(&mut self, endpoints: &BTreeSet<SocketAddr>) {
        let taken: BTreeSet<u32> = self.used.values().map(|used| used.slot).chain(self.left.iter().copied()).collect();
        let mut free = (0..).filter(|slot| !taken.contains(slot));
        for endpoint in endpoints {
            match self.used.entry(*endpoint) {
                Entry::Occupied(mut entry) => entry.get_mut().vips += 1,
                Entry::Vacant(entry) => {
                    if let Some(slot) = free.next() {
                        entry.insert(Used { slot, vips: 1 });
                    }
                }
            }
        }
    }

    /// Removes one VIP that used these endpoints.
    pub fn release(&mut self, endpoints: &BTreeSet<SocketAddr>) {
        for endpoint in endpoints {
            if let Some(used) = self.used.get_mut(endpoint) {
                used.vips = used.vips.saturating_sub(1);
            }
        }
    }

    /// The slot of an endpoint.
    pub fn of(&self, endpoint: &SocketAddr) -> Option<u32> {
        self.used.get(endpoint).map(|used| used.slot)
    }

    /// The slots that have endpoints.
    pub fn used(&self) -> impl Iterator<Item = u32> {
        self.used.values().map(|used| used.slot)
    }

    /// Slots that have no endpoint but may have clients.
    pub fn left(&self) -> impl Iterator<Item = u32> {
        self.left.iter().copied()
    }

    /// Records that the kernel holds exactly what the VIPs use now.
    pub fn commit(&mut self) {
        let left = &mut self.left;
        self.used.retain(|_, used| {
            let stays = used.vips > 0;
            if !stays {
                left.insert(used.slot);
            }
            stays
        });
    }

    /// Records that a slot has no clients, so that it may get another endpoint.
    pub fn purged(&mut self, slot: u32) {
        self.left.remove(&slot);
    }

    /// Whether every slot is free: it has no endpoint, and no clients to be deleted.
    pub fn is_empty(&self) -> bool {
        self.used.is_empty() && self.left.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(host: u8) -> SocketAddr {
        ([10, 0, 0, host], 80).into()
    }

    fn endpoints(hosts: &[u8]) -> BTreeSet<SocketAddr> {
        hosts.iter().map(|host| endpoint(*host)).collect()
    }

    /// Moves a VIP from some endpoints to others. Returns `host:slot` of each endpoint, and the slots that were left.
    fn moved(slots: &mut Slots, from: &[u8], to: &[u8]) -> String {
        slots.release(&endpoints(from));
        slots.take(&endpoints(to));
        listed(slots)
    }

    fn listed(slots: &Slots) -> String {
        let host = |endpoint: &SocketAddr| endpoint.ip().to_string().rsplit('.').next().unwrap().to_owned();
        let used = slots.used.iter().filter(|(_, used)| used.vips > 0);
        let used = used.map(|(endpoint, used)| format!("{}:{}", host(endpoint), used.slot));
        let left = slots.left().map(|slot| format!("left {slot}"));
        used.chain(left).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn endpoints_keep_their_slots_and_new_ones_get_the_lowest_unused_slot() {
        let mut slots = Slots::new(1);
        assert_eq!(moved(&mut slots, &[], &[5, 7, 9]), "5:0 7:1 9:2");
        assert_eq!(moved(&mut slots, &[5, 7, 9], &[1, 5, 9]), "1:3 5:0 9:2");
        slots.commit();
        assert_eq!(moved(&mut slots, &[1, 5, 9], &[1, 2, 5, 9]), "1:3 2:4 5:0 9:2 left 1");
        slots.purged(1);
        assert_eq!(moved(&mut slots, &[1, 2, 5, 9], &[1, 2, 3, 4, 5, 9]), "1:3 2:4 3:1 4:5 5:0 9:2");
        assert_eq!(moved(&mut slots, &[1, 2, 3, 4, 5, 9], &[]), "");
        slots.commit();
        assert_eq!(listed(&slots), "left 0 left 1 left 2 left 3 left 4 left 5");
        (0..6).for_each(|slot| slots.purged(slot));
        assert!(slots.is_empty());
    }

    #[test]
    fn a_returning_endpoint_gets_its_slot_back_only_before_its_removal_was_taken() {
        let mut slots = Slots::new(1);
        moved(&mut slots, &[], &[5, 7]);
        slots.commit();
        assert_eq!(moved(&mut slots, &[5, 7], &[7]), "7:1");
        assert_eq!(moved(&mut slots, &[7], &[5, 7]), "5:0 7:1");
        moved(&mut slots, &[5, 7], &[7]);
        slots.commit();
        assert_eq!(moved(&mut slots, &[7], &[5, 7]), "5:2 7:1 left 0");
    }

    #[test]
    fn an_endpoint_keeps_its_slot_while_any_vip_uses_it() {
        let mut slots = Slots::new(1);
        moved(&mut slots, &[], &[5, 7]);
        moved(&mut slots, &[], &[7, 9]);
        slots.commit();
        assert_eq!(moved(&mut slots, &[5, 7], &[5]), "5:0 7:1 9:2");
        slots.commit();
        assert_eq!(moved(&mut slots, &[7, 9], &[9]), "5:0 9:2");
        slots.commit();
        assert_eq!(listed(&slots), "5:0 9:2 left 1");
    }

    #[test]
    fn slots_in_the_kernel_are_adopted() {
        let mut slots = Slots::found(3, [(endpoint(5), 4), (endpoint(7), 0), (endpoint(5), 4), (endpoint(5), 2)]);
        assert!(!slots.leave(4), "the slot has an endpoint");
        assert!(slots.leave(1));
        assert_eq!(moved(&mut slots, &[], &[5, 7, 9]), "5:4 7:0 9:3 left 1 left 2");
        assert_eq!(slots.number(), 3);
    }

    #[test]
    fn no_slot_has_two_endpoints_even_if_vips_disagree() {
        let mut slots = Slots::found(1, [(endpoint(5), 0), (endpoint(7), 1), (endpoint(9), 0), (endpoint(5), 0)]);
        assert_eq!(moved(&mut slots, &[], &[5, 7, 9]), "5:0 7:1 9:2");
    }
}
