//! Picking one of several by chance: they have numbered slots in a map, and a chain looks a random one up.

use super::{Chain, Field, Generator, Name, Statement};

/// Up to here a size has exactly as many slots as endpoints.
pub const EXACT_SLOTS: u32 = 16;
/// Looked up so often a size that is filled at least by half misses once in 256 times at most, and then takes slot 0.
const TRIES_OF_SPARSE: usize = 8;
/// A packet may find its chain before a change and its endpoint after it: where slots are all filled, one more try.
const TRIES_OF_EXACT: usize = 2;

/// How many slots hold so many endpoints: exactly as many up to 16, beyond that the next power of two, so that at
/// least half of the slots are filled and few sizes exist.
pub fn slots(endpoints: usize) -> u32 {
    let endpoints = u32::try_from(endpoints).unwrap_or(u32::MAX >> 1);
    if endpoints <= EXACT_SLOTS { endpoints } else { endpoints.next_power_of_two() }
}

/// How often to look up one of so many slots before slot 0 is taken.
pub fn tries(slots: u32) -> usize {
    match slots {
        0 | 1 => 0,
        2..=EXACT_SLOTS => TRIES_OF_EXACT,
        _ => TRIES_OF_SPARSE,
    }
}

/// The chain of that name that sends a packet to the endpoint in one of so many slots; `map` leads there from `key` and the
/// number of the slot. Slot 0 is always filled.
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
