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
