//! Random numbers that depend only on the seed, on every machine and with every version of every crate (SplitMix64).

use std::ops::Range;

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Any number.
    pub(crate) fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0 to `end`, exclusive.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        let end = u64::try_from(end.max(1)).expect("a count fits");
        usize::try_from(self.number() % end).expect("it is below a count")
    }

    /// Whether an event with this probability, in percent, occurs.
    pub(crate) fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// One of the values.
    pub(crate) fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }

    /// One of the values, with a probability proportional to its weight.
    pub(crate) fn weighted<T: Copy>(&mut self, of: &[(usize, T)]) -> T {
        let mut left = self.below(of.iter().map(|(weight, _)| weight).sum());
        for (weight, value) in of {
            match left.checked_sub(*weight) {
                None => return *value,
                Some(rest) => left = rest,
            }
        }
        of[of.len() - 1].1
    }

    /// A number of values within `count`, or all if there are fewer, in random order.
    pub(crate) fn some<T: Copy>(&mut self, of: &[T], count: Range<usize>) -> Vec<T> {
        let mut rest = of.to_vec();
        let count = (count.start + self.below(count.len())).min(of.len());
        (0..count).map(|_| rest.swap_remove(self.below(rest.len()))).collect()
    }
}

#[test]
fn the_same_seed_gives_the_same_numbers() {
    // The first outputs of the reference implementation.
    let mut random = Random::new(1_234_567);
    assert_eq!([random.number(), random.number()], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
    assert!((0..1000).all(|_| random.weighted(&[(1, 1), (0, 2), (3, 3)]) != 2));
}
