//! The digests of the last states in both packages. A report of `localnet.v1` has the sum of the records, but the rest of the brain
//! compares the digest of `localnetv1`.

use std::collections::VecDeque;

use localnet_proto::v1::report::{Digests, Known};

use super::Feed;

/// The digests of so many states are kept. They are needed for the states that backends apply now.
const MOST: usize = 4096;

/// The digests of the last states. Their revisions are consecutive.
#[derive(Debug, Default)]
pub(super) struct Recent {
    newest: u64,
    digests: VecDeque<Digests>,
}

impl Recent {
    /// Adds the digests of the next state.
    pub(super) fn push(&mut self, rev: u64, digests: Digests) {
        self.newest = rev;
        self.digests.push_back(digests);
        if self.digests.len() > MOST {
            self.digests.pop_front();
        }
    }

    /// The digests of a state. `None` if they are no longer known.
    pub(super) fn of(&self, rev: u64) -> Option<Digests> {
        let age = usize::try_from(self.newest.checked_sub(rev)?).ok()?;
        self.digests.iter().nth_back(age).copied()
    }
}

impl Feed {
    /// Calls `with` with what is needed to convert reports between both packages.
    pub fn known<T>(&self, with: impl FnOnce(&Known<'_>) -> T) -> T {
        let state = self.state();
        let digests = |rev| self.digests_lock().of(rev);
        with(&Known { newest: state.revision(), node: state.node(), digests: &digests })
    }
}

#[cfg(test)]
mod tests {
    use localnet_proto::Digest;

    use super::*;

    #[test]
    fn the_digests_of_the_last_states_are_known() {
        let mut recent = Recent::default();
        assert_eq!(recent.of(0), None);
        let digests = |rev| Digests { items: Digest(rev), records: Digest(2 * rev) };
        let last = MOST as u64 + 2;
        (1..=last).for_each(|rev| recent.push(rev, digests(rev)));
        for (rev, expected) in [(last + 1, None), (last, Some(last)), (3, Some(3)), (2, None), (0, None)] {
            assert_eq!(recent.of(rev), expected.map(digests), "{rev}");
        }
        assert_eq!(recent.digests.len(), MOST);
    }
}
