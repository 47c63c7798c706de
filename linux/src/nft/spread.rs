//! Random choice among endpoints: a map assigns an endpoint to each slot, and a chain looks up a random slot.

use super::{Chain, Field, Generator, Name, Statement};

/// Up to this number of endpoints, there is exactly one slot for each endpoint.
pub const EXACT_SLOTS: u32 = 16;
/// The number of lookups if slots may be empty. In the worst case, half of the slots are filled. Then all eight lookups
/// miss for one packet in 256, and slot 0 is used.
const TRIES_OF_SPARSE: usize = 8;
/// The number of lookups if all slots are filled. A lookup can still miss, because a packet may enter the chain before
/// a change and look up its endpoint after it.
const TRIES_OF_EXACT: usize = 2;

/// The number of slots for that many endpoints: the same number up to 16, and the next power of two for more. So at least half
/// of the slots are filled, and there are few distinct sizes.
pub fn slots(endpoints: usize) -> u32 {
    let endpoints = u32::try_from(endpoints).unwrap_or(u32::MAX >> 1);
    if endpoints <= EXACT_SLOTS { endpoints } else { endpoints.next_power_of_two() }
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
    let parts = name.rsplit_once('-');
    parts.is_some_and(|(prefix, slots)| ["lb", "lb-local"].contains(&prefix) && slots.parse::<u32>().is_ok())
}

/// A chain that sends a packet to the endpoint in a random slot. `map` translates `key` and the number of the slot to the
/// endpoint. Slot 0 must be filled.
pub fn picking(name: Name, key: &[Field], map: &str, slots: u32) -> Chain {
    let pick = |modulus| Statement::dnat([key, &[Field::Index(Generator::Random(modulus))]].concat(), map);
    (0..tries(slots)).fold(Chain::new(name), |chain, _| chain.rule(pick(slots))).rule(pick(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_exact_then_powers_of_two_at_least_half_full() {
        for endpoints in 1..=2000_usize {
            let slots = slots(endpoints) as usize;
            assert!(
                slots >= endpoints && (slots == endpoints || endpoints > 16 && slots < 2 * endpoints),
                "{endpoints}"
            );
        }
        let sizes: std::collections::BTreeSet<u32> = (1..=65_536).map(slots).collect();
        assert_eq!(sizes.len(), 28);
    }
}
