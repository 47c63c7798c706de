//! [`Weights`]: how often each endpoint of a VIP is chosen.

use std::{borrow::Cow, collections::BTreeMap, iter, net::SocketAddr, sync::Arc};

/// A VIP with weights has at most this number of slots, or [`SLOTS_PER_ENDPOINT`] for each endpoint if that is more.
const MAX_SLOTS: u64 = 2048;
/// See [`MAX_SLOTS`].
const SLOTS_PER_ENDPOINT: u64 = 16;

/// The weights of a VIP's endpoints. By default, each endpoint has weight 1. Cloning is cheap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Weights(Option<Arc<BTreeMap<SocketAddr, u32>>>);

impl Weights {
    /// The weight of an endpoint; at least 1.
    pub fn of(&self, endpoint: &SocketAddr) -> u32 {
        self.0.as_ref().and_then(|weights| weights.get(endpoint)).map_or(1, |weight| (*weight).max(1))
    }

    /// Whether some of these endpoints should get more connections than others.
    pub fn differ(&self, endpoints: &[SocketAddr]) -> bool {
        self.0.is_some() && endpoints.windows(2).any(|pair| self.of(&pair[0]) != self.of(&pair[1]))
    }

    /// The endpoints in the same order, each as often as its weight requires: a random choice among the slots then follows the
    /// weights.
    ///
    /// The weights are divided by their greatest common divisor. If the slots are still too many, the weights are scaled. The
    /// share of an endpoint then differs from its weight's share by at most 1/1984, plus 1/15 of itself.
    pub fn slots<'a>(&self, endpoints: &'a [SocketAddr]) -> Cow<'a, [SocketAddr]> {
        let Some(counts) = self.counts(endpoints) else { return Cow::Borrowed(endpoints) };
        let repeated = endpoints.iter().zip(counts).flat_map(|(endpoint, count)| iter::repeat_n(*endpoint, count));
        Cow::Owned(repeated.collect())
    }

    /// The number of slots.
    pub fn count(&self, endpoints: &[SocketAddr]) -> usize {
        self.counts(endpoints).map_or(endpoints.len(), |counts| counts.iter().sum())
    }

    /// How often each endpoint is repeated; `None` if each endpoint has one slot.
    fn counts(&self, endpoints: &[SocketAddr]) -> Option<Vec<usize>> {
        if !self.differ(endpoints) {
            return None;
        }
        let weights: Vec<u64> = endpoints.iter().map(|endpoint| self.of(endpoint).into()).collect();
        let divisor = weights.iter().copied().fold(0, gcd);
        let sum = weights.iter().sum::<u64>() / divisor;
        let most = MAX_SLOTS.max(SLOTS_PER_ENDPOINT * weights.len() as u64);
        let scaled = |weight: u64| match weight / divisor {
            weight if sum <= most => weight,
            weight => ((weight * most + sum / 2) / sum).max(1),
        };
        Some(weights.into_iter().map(|weight| usize::try_from(scaled(weight)).unwrap_or(1)).collect())
    }
}

impl FromIterator<(SocketAddr, u32)> for Weights {
    /// Endpoints without a weight have weight 1.
    fn from_iter<T: IntoIterator<Item = (SocketAddr, u32)>>(weights: T) -> Self {
        let weights: BTreeMap<_, _> = weights.into_iter().collect();
        Self((!weights.is_empty()).then(|| weights.into()))
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn endpoints(count: usize) -> Vec<SocketAddr> {
        (0..count).map(|host| SocketAddr::from(([10, 0, (host >> 8) as u8, host as u8], 80))).collect()
    }

    fn counts(of: &[u32]) -> Vec<usize> {
        let endpoints = endpoints(of.len());
        let weights: Weights = endpoints.iter().copied().zip(of.iter().copied()).collect();
        let slots = weights.slots(&endpoints);
        assert!(slots.is_sorted());
        assert_eq!(slots.len(), weights.count(&endpoints));
        endpoints.iter().map(|endpoint| slots.iter().filter(|slot| *slot == endpoint).count()).collect()
    }

    #[test]
    fn endpoints_have_as_many_slots_as_their_reduced_weights() {
        let rows: [(&[u32], &[usize]); 9] = [
            (&[], &[]),
            (&[7], &[1]),
            (&[5, 5, 5], &[1, 1, 1]),
            (&[3, 1], &[3, 1]),
            (&[90, 10], &[9, 1]),
            (&[6, 4, 2], &[3, 2, 1]),
            (&[99, 1, 1, 1], &[99, 1, 1, 1]),
            (&[10_000, 9_999], &[1_024, 1_024]),
            (&[10_000, 1], &[2_048, 1]),
        ];
        for (weights, expected) in rows {
            assert_eq!(counts(weights), expected, "{weights:?}");
        }
        let some = endpoints(3);
        let weights: Weights = [(some[1], 2)].into_iter().collect();
        assert_eq!(weights.slots(&some)[..], [some[0], some[1], some[1], some[2]]);
        assert!(matches!(weights.slots(&some[..1]), Cow::Borrowed(_)), "the weights in use are equal");
    }

    proptest! {
        #[test]
        fn shares_follow_the_weights_and_slots_are_bounded(
            weights in prop::collection::vec(prop_oneof![1..4_u32, 1..=10_000_u32, Just(10_000)], 1..300),
        ) {
            let counts = counts(&weights);
            let slots: usize = counts.iter().sum();
            prop_assert!(slots <= 17 * weights.len().max(128));
            let sum = f64::from(weights.iter().sum::<u32>());
            for (count, weight) in counts.iter().zip(&weights) {
                let (share, wanted) = (*count as f64 / slots as f64, f64::from(*weight) / sum);
                prop_assert!(*count > 0 && (share - wanted).abs() <= 1.0 / 1984.0 + wanted / 15.0, "{share} {wanted}");
            }
        }
    }
}
