//! The size of a loss: how many Services or endpoints a list suddenly lacks (docs/decisions/0021-shrink-guard.md).

/// A loss of fewer Services or endpoints than this is never suspicious.
const MIN_LOSS: usize = 20;

/// The size of a loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lack {
    /// How many Services or endpoints are missing.
    pub lost: usize,
    /// How many Services or endpoints existed before.
    pub of: usize,
}

impl Lack {
    /// Whether the loss is probably a mistake: at least `MIN_LOSS` are missing, and more than half of what existed
    /// before.
    pub fn is_suspicious(self) -> bool {
        self.lost >= MIN_LOSS && self.lost > self.of / 2
    }
}
