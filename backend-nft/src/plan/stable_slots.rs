//! Session affinity: which slot each endpoint of a VIP has.
//!
//! The kernel remembers that a client of a VIP belongs to a slot. So an endpoint keeps its slot while it is used, and a slot
//! that lost its endpoint is given to none before the kernel has forgotten the clients that it had.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    net::SocketAddr,
};

/// The slots of one VIP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slots {
    used: BTreeMap<SocketAddr, u32>,
    left: BTreeMap<u32, Left>,
}

/// Who had a slot that may have clients still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Left {
    endpoint: Option<SocketAddr>,
    /// The kernel knows that it left: its clients may belong to others by now.
    known: bool,
}

impl Slots {
    /// As they are in the kernel.
    pub fn found(used: impl IntoIterator<Item = (SocketAddr, u32)>) -> Self {
        let mut slots = Self::default();
        for (endpoint, slot) in used {
            match slots.used.entry(endpoint) {
                Entry::Vacant(entry) => {
                    entry.insert(slot);
                }
                // One endpoint in two slots is none of our doing: clients of the other one are let go.
                Entry::Occupied(_) => _ = slots.left.insert(slot, Left { endpoint: None, known: true }),
            }
        }
        slots
    }

    /// This slot has clients: if nobody has it, they are to be forgotten. Says whether that is so.
    pub fn leave(&mut self, slot: u32) -> bool {
        let unused = !self.used.values().any(|used| *used == slot);
        if unused {
            self.left.entry(slot).or_insert(Left { endpoint: None, known: true });
        }
        unused
    }

    /// These are the endpoints from now on.
    pub fn assign(&mut self, endpoints: &BTreeSet<SocketAddr>) {
        let left = &mut self.left;
        self.used.retain(|endpoint, slot| {
            let stays = endpoints.contains(endpoint);
            if !stays {
                left.insert(*slot, Left { endpoint: Some(*endpoint), known: false });
            }
            stays
        });
        let new: Vec<SocketAddr> =
            endpoints.iter().filter(|endpoint| !self.used.contains_key(endpoint)).copied().collect();
        if new.is_empty() {
            return;
        }
        for endpoint in &new {
            // Nobody has heard that it left.
            let back = self.left.iter().find(|(_, left)| left.endpoint == Some(*endpoint) && !left.known);
            if let Some(slot) = back.map(|(slot, _)| *slot) {
                self.left.remove(&slot);
                self.used.insert(*endpoint, slot);
            }
        }
        let taken: BTreeSet<u32> = self.used.values().chain(self.left.keys()).copied().collect();
        let mut free = (0..).filter(|slot| !taken.contains(slot));
        for endpoint in new {
            if let Entry::Vacant(entry) = self.used.entry(endpoint)
                && let Some(slot) = free.next()
            {
                entry.insert(slot);
            }
        }
    }

    /// The slot of an endpoint.
    pub fn of(&self, endpoint: &SocketAddr) -> Option<u32> {
        self.used.get(endpoint).copied()
    }

    /// Who has which slot.
    pub fn used(&self) -> impl Iterator<Item = (SocketAddr, u32)> {
        self.used.iter().map(|(endpoint, slot)| (*endpoint, *slot))
    }

    /// Slots that may have clients, but no endpoint.
    pub fn left(&self) -> impl Iterator<Item = u32> {
        self.left.keys().copied()
    }

    /// The kernel holds what is used now, and nothing else.
    pub fn commit(&mut self) {
        self.left.values_mut().for_each(|left| left.known = true);
    }

    /// This slot has no clients any more, and may have another endpoint.
    pub fn purged(&mut self, slot: u32) {
        self.left.remove(&slot);
    }

    /// Nothing is used, and nothing is left.
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

    /// Goes to these endpoints, and says `host:slot` of each and which slots were left.
    fn assigned(slots: &mut Slots, hosts: &[u8]) -> String {
        slots.assign(&hosts.iter().map(|host| endpoint(*host)).collect());
        said(slots)
    }

    fn said(slots: &Slots) -> String {
        let host = |endpoint: SocketAddr| endpoint.ip().to_string().rsplit('.').next().unwrap().to_owned();
        let used = slots.used().map(|(endpoint, slot)| format!("{}:{slot}", host(endpoint)));
        let left = slots.left().map(|slot| format!("left {slot}"));
        used.chain(left).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn who_stays_keeps_its_slot_and_who_is_new_gets_the_lowest_that_nobody_had() {
        let mut slots = Slots::default();
        assert_eq!(assigned(&mut slots, &[5, 7, 9]), "5:0 7:1 9:2");
        assert_eq!(assigned(&mut slots, &[1, 5, 9]), "1:3 5:0 9:2 left 1");
        slots.commit();
        assert_eq!(assigned(&mut slots, &[1, 2, 5, 9]), "1:3 2:4 5:0 9:2 left 1");
        slots.purged(1);
        assert_eq!(assigned(&mut slots, &[1, 2, 3, 4, 5, 9]), "1:3 2:4 3:1 4:5 5:0 9:2");
        assert_eq!(assigned(&mut slots, &[]), "left 0 left 1 left 2 left 3 left 4 left 5");
        slots.commit();
        (0..6).for_each(|slot| slots.purged(slot));
        assert!(slots.is_empty());
    }

    #[test]
    fn who_comes_back_gets_its_slot_only_if_nobody_heard_that_it_left() {
        let mut slots = Slots::default();
        assigned(&mut slots, &[5, 7]);
        slots.commit();
        assert_eq!(assigned(&mut slots, &[7]), "7:1 left 0");
        assert_eq!(assigned(&mut slots, &[5, 7]), "5:0 7:1");
        assigned(&mut slots, &[7]);
        slots.commit();
        assert_eq!(assigned(&mut slots, &[5, 7]), "5:2 7:1 left 0");
    }

    #[test]
    fn what_is_in_the_kernel_is_taken_up() {
        let mut slots = Slots::found([(endpoint(5), 4), (endpoint(7), 0), (endpoint(5), 2)]);
        assert_eq!(said(&slots), "5:4 7:0 left 2");
        assert!(!slots.leave(4), "it has an endpoint");
        assert!(slots.leave(1));
        assert_eq!(assigned(&mut slots, &[5, 7, 9]), "5:4 7:0 9:3 left 1 left 2");
    }
}
