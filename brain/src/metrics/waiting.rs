//! The revisions that backends have not applied yet. Pure.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Instant,
};

use localnet_proto::{Family, Revision};

/// Maximum number of revisions that are remembered. Their number reaches this maximum only if no backend reports.
const REMEMBERED: usize = 4096;

/// A published revision.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Published {
    pub(super) rev: u64,
    /// The number of Services that the revision changed.
    pub(super) services: u64,
    /// The number of EndpointSlices that the revision changed.
    pub(super) slices: u64,
    /// When the first of the revision's changes was received.
    pub(super) since: Instant,
    /// The trigger times of the changed EndpointSlices, in microseconds since 1970.
    pub(super) triggered: Vec<i64>,
}

/// The pending revisions.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    instance: u64,
    published: VecDeque<Published>,
    /// The newest revision that any backend has applied, for each reported family.
    applied: BTreeMap<Family, u64>,
}

impl Waiting {
    /// Records a new revision.
    pub(super) fn publish(&mut self, revision: Revision, published: Published) {
        self.instance = revision.instance;
        self.published.push_back(published);
        if self.published.len() > REMEMBERED {
            self.published.pop_front();
        }
    }

    /// Records that a backend has applied revisions. Returns the revisions that no backend had applied before, each with
    /// its family, time and triggers.
    pub(super) fn apply(&mut self, instance: u64, families: &[(Family, u64)]) -> Vec<(Family, Instant, Vec<i64>)> {
        let mut first = Vec::new();
        for (family, rev) in families.iter().filter(|(_, rev)| instance == self.instance && *rev > 0) {
            let foremost = self.applied.entry(*family).or_default();
            let new = self.published.iter().filter(|published| *foremost < published.rev && published.rev <= *rev);
            first.extend(new.map(|published| (*family, published.since, published.triggered.clone())));
            // Another backend may already have applied a newer revision.
            *foremost = (*foremost).max(*rev);
        }
        let everywhere = self.applied.values().copied().min().unwrap_or(0);
        while self.published.front().is_some_and(|published| published.rev <= everywhere) {
            self.published.pop_front();
        }
        first
    }

    /// The number of Service changes, and the number of EndpointSlice changes, that are pending in at least one family.
    pub(super) fn pending(&self) -> (u64, u64) {
        self.published.iter().fold((0, 0), |(services, slices), one| (services + one.services, slices + one.slices))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn publish(waiting: &mut Waiting, rev: u64) {
        let triggered = vec![rev.try_into().unwrap()];
        let published = Published { rev, services: 1, slices: 10, since: Instant::now(), triggered };
        waiting.publish(Revision { instance: 7, rev }, published);
    }

    #[test]
    fn the_first_backend_to_apply_a_revision_counts_in_each_family() {
        let mut waiting = Waiting::default();
        (1..=5).for_each(|rev| publish(&mut waiting, rev));
        let mut apply = |instance, families: &[(Family, u64)]| -> (Vec<(Family, i64)>, (u64, u64)) {
            let applied = waiting.apply(instance, families).into_iter();
            let triggered =
                applied.flat_map(|(family, _, triggered)| triggered.into_iter().map(move |at| (family, at)));
            (triggered.collect(), waiting.pending())
        };
        let (v4, v6) = (Family::V4, Family::V6);
        assert_eq!(apply(7, &[(v4, 0)]), (vec![], (5, 50)));
        assert_eq!(apply(8, &[(v4, 5)]), (vec![], (5, 50)), "a revision of another brain");
        assert_eq!(apply(7, &[(v4, 1), (v6, 1)]), (vec![(v4, 1), (v6, 1)], (4, 40)));
        assert_eq!(apply(7, &[(v4, 3), (v6, 1)]), (vec![(v4, 2), (v4, 3)], (4, 40)));
        assert_eq!(apply(7, &[(v4, 3), (v6, 2)]), (vec![(v6, 2)], (3, 30)));
        assert_eq!(apply(7, &[(v4, 1)]), (vec![], (3, 30)), "a slower backend");
        assert_eq!(apply(7, &[(v4, 5), (v6, 5)]), (vec![(v4, 4), (v4, 5), (v6, 3), (v6, 4), (v6, 5)], (0, 0)));
    }

    #[test]
    fn memory_is_bounded_without_backends() {
        let mut waiting = Waiting::default();
        (1..=5000).for_each(|rev| publish(&mut waiting, rev));
        assert_eq!(waiting.pending().0, 4096);
    }
}
