//! Random choice among endpoints: a map assigns an endpoint to each slot, and a chain looks up a random slot.

use std::net::{IpAddr, SocketAddr};

use localnet_core::HashBy;
use twox_hash::XxHash64;

use super::{Chain, Field, Generator, Name, Statement};

/// Up to this number of endpoints, there is exactly one slot for each endpoint.
pub const EXACT_SLOTS: u32 = 16;
/// The number of lookups if slots may be empty. In the worst case, 4 of 9 slots are filled. Then all lookups miss for one
/// packet in 1,156, and slot 0 is used.
const TRIES_OF_SPARSE: usize = 12;
/// The number of lookups if all slots are filled. A lookup can still miss, because a packet may enter the chain before
/// a change and look up its endpoint after it.
const TRIES_OF_EXACT: usize = 2;

/// The number of slots for that many endpoints: the same number up to 16. For more, a power of two, which keeps the number of
/// sizes small. Between 4/9 and 8/9 of these slots are filled.
pub fn slots(endpoints: usize) -> u32 {
    let endpoints = u32::try_from(endpoints).unwrap_or(u32::MAX).min(1 << 30);
    if endpoints <= EXACT_SLOTS { endpoints } else { (endpoints + endpoints / 8).next_power_of_two() }
}

/// The slot of each endpoint, in the order of `endpoints`. Slot 0 is always filled.
///
/// The slots depend only on the set of endpoints, and with more than 16, a new or removed endpoint moves only a few others.
/// So a change of a Service with thousands of endpoints changes a few elements, without a record of earlier slots. Each
/// endpoint takes the first free slot of a sequence that its hash gives, in the order of the hashes. An endpoint that is several
/// times in `endpoints`, one after the other, takes as many slots.
pub fn place(endpoints: &[SocketAddr]) -> Vec<u32> {
    let count = slots(endpoints.len());
    if count <= EXACT_SLOTS {
        return (0..count).collect();
    }
    let mut copy = 0;
    let hashes = endpoints.iter().enumerate().map(|(index, endpoint)| {
        copy = if index > 0 && endpoints[index - 1] == *endpoint { copy + 1 } else { 0 };
        hash(endpoint, copy)
    });
    let mut order: Vec<(u64, usize)> = hashes.zip(0..).collect();
    order.sort_unstable_by_key(|(hash, index)| (*hash, endpoints[*index]));
    let mut taken = vec![false; count as usize];
    let mut placed = vec![0; endpoints.len()];
    for (number, (hash, index)) in order.into_iter().enumerate() {
        // An odd step visits all slots, because their number is a power of two.
        let (start, step) = (hash as u32, (hash >> 32) as u32 | 1);
        let sequence = (0..count).map(|probe| start.wrapping_add(probe.wrapping_mul(step)) & (count - 1));
        let slot =
            if number == 0 { 0 } else { sequence.into_iter().find(|slot| !taken[*slot as usize]).unwrap_or_default() };
        taken[slot as usize] = true;
        placed[index] = slot;
    }
    placed
}

/// The same in each version, because a new process compares its slots with those in the kernel.
fn hash(endpoint: &SocketAddr, copy: u64) -> u64 {
    let address = match endpoint.ip() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    XxHash64::oneshot(copy << 16 | u64::from(endpoint.port()), &address.octets())
}

/// How a chain chooses one of several slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Choice {
    /// What is hashed; `None`: the choice is random.
    pub by: Option<HashBy>,
    /// The number of slots.
    pub slots: u32,
}

/// The bit that stands for the first [`HashBy`] in [`Choice::number`]. The number of slots is below it, unless the choice is random. The
/// number then is a power of two, and no sum of such a bit and a number of slots.
const HASHES: u32 = 1 << 30;

impl Choice {
    /// The random choice among the slots of that many endpoints.
    pub fn random(endpoints: usize) -> Self {
        Self { by: None, slots: slots(endpoints) }
    }

    /// A number that differs from that of each other choice. For a random choice, it is the number of slots.
    pub fn number(self) -> u32 {
        match self.by {
            None => self.slots,
            Some(HashBy::Source) => HASHES + self.slots,
            Some(HashBy::Connection) => 2 * HASHES + self.slots,
        }
    }

    /// The name of the chain: `prefix`, what is hashed, and the number of slots.
    pub fn chain(self, prefix: &str) -> Name {
        let by = self.by.map(|by| format!("{by}-")).unwrap_or_default();
        format!("{prefix}-{by}{}", self.slots).into()
    }
}

/// How many random lookups to make before slot 0 is used.
pub fn tries(slots: u32) -> usize {
    match slots {
        0 | 1 => 0,
        2..=EXACT_SLOTS => TRIES_OF_EXACT,
        _ => TRIES_OF_SPARSE,
    }
}

/// Whether this is the name of a chain that picks an endpoint. Such a chain refers to no other chain.
pub fn is_picking(name: &str) -> bool {
    let Some((prefix, slots)) = name.rsplit_once('-') else { return false };
    let by = |by: &HashBy| prefix.strip_suffix(by.as_str())?.strip_suffix('-');
    let prefix = HashBy::ALL.iter().find_map(by).unwrap_or(prefix);
    ["lb", "lb-local"].contains(&prefix) && slots.parse::<u32>().is_ok()
}

/// A chain that sends a packet to the endpoint in the chosen slot. `map` translates `key` and the number of the slot to the endpoint. Slot
/// 0 must be filled.
pub fn picking(name: Name, key: &[Field], map: &str, choice: Choice) -> Chain {
    let pick = |generator| Statement::dnat([key, &[Field::Index(generator)]].concat(), map);
    let chain = match choice.by {
        None => (0..tries(choice.slots))
            .fold(Chain::new(name), |chain, _| chain.rule(pick(Generator::Random(choice.slots)))),
        Some(by) => Chain::new(name).rule(pick(Generator::Hash(by, choice.slots))),
    };
    // A packet may enter the chain before a change of the number of slots, and look up its endpoint after it.
    chain.rule(pick(Generator::Random(1)))
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    #[test]
    fn choices_have_different_numbers_and_names_that_are_recognized() {
        let sizes = (1..100).chain([1024, 8192, 65_536, usize::MAX]).map(Choice::random);
        let hashes = HashBy::ALL.into_iter().flat_map(|by| [1024, 8192].map(|slots| Choice { by: Some(by), slots }));
        let all: BTreeSet<Choice> = sizes.chain(hashes).collect();
        let numbers: BTreeSet<u32> = all.iter().map(|choice| choice.number()).collect();
        assert_eq!(numbers.len(), all.len());
        for choice in &all {
            assert!(["lb", "lb-local"].iter().all(|prefix| is_picking(&choice.chain(prefix))), "{choice:?}");
        }
        for name in ["lb", "lb-x", "lb-affinity-3", "lb-affinity-source-3", "source-3", "lb-source-x", "lb-hash-3"] {
            assert!(!is_picking(name), "{name}");
        }
    }

    #[test]
    fn slots_are_exact_then_powers_of_two_with_free_slots() {
        for endpoints in 1..=2000_usize {
            let slots = slots(endpoints) as usize;
            let is_sparse = endpoints > 16 && slots >= endpoints * 9 / 8 && slots * 4 <= endpoints * 9;
            assert!(slots == endpoints && endpoints <= 16 || is_sparse, "{endpoints}: {slots}");
        }
        let sizes: BTreeSet<u32> = (1..=65_536).map(slots).collect();
        assert_eq!(sizes.len(), 29);
        assert_eq!(slots(usize::MAX), 1 << 31);
    }

    fn endpoints(hosts: impl IntoIterator<Item = u32>) -> Vec<SocketAddr> {
        hosts.into_iter().map(|host| SocketAddr::from((std::net::Ipv4Addr::from(0x0a00_0000 + host), 8080))).collect()
    }

    fn placed(endpoints: &[SocketAddr]) -> BTreeMap<u32, SocketAddr> {
        place(endpoints).into_iter().zip(endpoints.iter().copied()).collect()
    }

    #[test]
    fn each_endpoint_has_a_slot_of_its_own_whatever_the_order() {
        for count in [1, 2, 16, 17, 28, 29, 30, 500, 5_000] {
            let mut all = endpoints((0..count).map(|host| host * 7919));
            let slots = placed(&all);
            assert_eq!(slots.len(), all.len(), "{count}");
            assert!(slots.contains_key(&0) && slots.keys().all(|slot| *slot < super::slots(all.len())), "{count}");
            if count > EXACT_SLOTS {
                all.reverse();
                assert_eq!(placed(&all), slots, "{count}");
            }
        }
    }

    #[test]
    fn a_repeated_endpoint_takes_as_many_slots_and_a_changed_number_moves_few() {
        let repeated = |first: usize| {
            let all = endpoints(0..40).into_iter().enumerate();
            let all = all.flat_map(|(index, one)| vec![one; if index == 0 { first } else { 2 }]);
            placed(&all.collect::<Vec<_>>())
        };
        let before = repeated(2);
        assert_eq!(before.len(), 80);
        for count in [1, 3, 10] {
            let after = repeated(count);
            assert_eq!(after.values().filter(|endpoint| **endpoint == endpoints(0..1)[0]).count(), count);
            let keys: BTreeSet<_> = before.keys().chain(after.keys()).collect();
            let moved = keys.into_iter().filter(|slot| before.get(slot) != after.get(slot)).count();
            assert!(moved <= 20 * count.abs_diff(2), "{count}: {moved}");
        }
    }

    /// A change of one endpoint once changed the slots of all endpoints after it, which were half of all on average.
    #[test]
    fn a_replaced_endpoint_moves_few_others() {
        for count in [20, 28, 100, 455, 500, 5_000] {
            let before = placed(&endpoints(0..count));
            let moved = |gone: u32| {
                let after = placed(&endpoints((0..count).filter(|host| *host != gone).chain([count + gone])));
                let keys: BTreeSet<_> = before.keys().chain(after.keys()).collect();
                keys.into_iter().filter(|slot| before.get(slot) != after.get(slot)).count()
            };
            let all: usize = (0..20).map(moved).sum();
            // On average, 20 slots of a replacement.
            assert!(all <= 20 * 20, "{count}: {all}");
        }
    }
}
