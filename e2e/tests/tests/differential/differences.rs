//! The intended differences: entries of `docs/differences.md`, matched by number.


use crate::{
    ask::{Asked, Seen},
    world::Side,
};

/// Something that differs from the oracle on one side.
pub(crate) struct Difference<'a> {
    pub(crate) side: Side,
    pub(crate) asked: &'a Asked,
    pub(crate) seen: &'a Seen,
}

struct Entry {
    number: usize,
    matches: fn(&Difference<'_>) -> bool,
}

const ENTRIES: [Entry; 0] = [];

/// The number of the entry that explains it.
pub(crate) fn explain(difference: &Difference<'_>) -> Option<usize> {
    ENTRIES.iter().find(|entry| (entry.matches)(difference)).map(|entry| entry.number)
}
