//! [`Tally`]: the increases of counters that the kernel keeps. Pure.

use std::{collections::HashMap, hash::Hash};

/// Remembers the kernel's counters, and returns by how much they have grown. A counter that the kernel has deleted and created again
/// counts from zero.
#[derive(Debug)]
pub struct Tally<K, const N: usize> {
    seen: HashMap<K, Seen<N>>,
}

#[derive(Clone, Copy, Debug)]
struct Seen<const N: usize> {
    counts: [u64; N],
    /// How many readings in a row have lacked the counter.
    missed: u8,
}

impl<K, const N: usize> Default for Tally<K, N> {
    fn default() -> Self {
        Self { seen: HashMap::new() }
    }
}

impl<K: Hash + Eq + Clone, const N: usize> Tally<K, N> {
    /// Takes a complete reading of all counters. Returns those that have grown, each with its increase. While packets add counters, a
    /// reading may contain one twice, or miss one, so a counter is forgotten only if two readings in a row lack it.
    pub fn read(&mut self, reading: impl IntoIterator<Item = (K, [u64; N])>) -> Vec<(K, [u64; N])> {
        self.seen.retain(|_, seen| {
            seen.missed += 1;
            // The reading that begins now may contain it.
            seen.missed <= 2
        });
        let mut grown = Vec::new();
        for (key, counts) in reading {
            let seen = self.seen.entry(key.clone()).or_insert(Seen { counts: [0; N], missed: 0 });
            let began_anew = counts.iter().zip(seen.counts).any(|(now, before)| *now < before);
            let before = if began_anew { [0; N] } else { seen.counts };
            *seen = Seen { counts, missed: 0 };
            let more = std::array::from_fn(|at| counts[at] - before[at]);
            if more != [0; N] {
                grown.push((key, more));
            }
        }
        grown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn increases_add_up_to_what_was_counted() {
        // Each row: a reading of the counters a and b, and the increases.
        type Reading<'a> = &'a [(&'a str, [u64; 2])];
        let rows: [(Reading<'_>, Reading<'_>); 10] = [
            (&[("a", [3, 30])], &[("a", [3, 30])]),
            (&[("a", [3, 30])], &[]),
            (&[("a", [5, 50]), ("a", [5, 50]), ("b", [0, 0])], &[("a", [2, 20])]),
            // One reading misses a.
            (&[("b", [1, 10])], &[("b", [1, 10])]),
            (&[("a", [6, 60]), ("b", [1, 10])], &[("a", [1, 10])]),
            // The kernel creates b again.
            (&[("a", [6, 60]), ("b", [1, 4])], &[("b", [1, 4])]),
            // Two readings miss a, so it is a new counter.
            (&[("b", [1, 4])], &[]),
            (&[("b", [1, 4])], &[]),
            (&[("a", [7, 70]), ("b", [1, 4])], &[("a", [7, 70])]),
            (&[], &[]),
        ];
        let mut tally = Tally::default();
        for (at, (reading, expected)) in rows.into_iter().enumerate() {
            assert_eq!(tally.read(reading.iter().copied()), expected, "reading {at}");
        }
    }
}
