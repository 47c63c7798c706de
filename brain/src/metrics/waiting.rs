//! Which revisions wait to be applied, and since when: pure.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Instant,
};

use localnet_proto::{Family, Revision};

/// So many revisions are remembered. More wait only where no backend reports.
const REMEMBERED: usize = 4096;

/// A revision.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Published {
    pub(super) rev: u64,
    /// Services that changed with it.
    pub(super) services: u64,
    /// EndpointSlices that changed with it.
    pub(super) slices: u64,
    /// When the first of its changes came.
    pub(super) since: Instant,
    /// When they were triggered, in microseconds since 1970.
    pub(super) triggered: Vec<i64>,
}

/// The revisions that wait.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    instance: u64,
    published: VecDeque<Published>,
    /// How far the foremost backend has come in each family of which one reports.
    applied: BTreeMap<Family, u64>,
}

impl Waiting {
    /// This is the newest revision.
    pub(super) fn publish(&mut self, revision: Revision, published: Published) {
        self.instance = revision.instance;
        self.published.push_back(published);
        if self.published.len() > REMEMBERED {
            self.published.pop_front();
        }
    }

    /// A backend has come so far in these families; what it is the first to have applied in each.
    pub(super) fn apply(&mut self, instance: u64, families: &[(Family, u64)]) -> Vec<(Family, Instant, Vec<i64>)> {
        let mut first = Vec::new();
        for (family, rev) in families.iter().filter(|(_, rev)| instance == self.instance && *rev > 0) {
            let foremost = self.applied.entry(*family).or_default();
            let new = self.published.iter().filter(|published| *foremost < published.rev && published.rev <= *rev);
            first.extend(new.map(|published| (*family, published.since, published.triggered.clone())));
            // Another backend may be ahead.
            *foremost = (*foremost).max(*rev);
        }
        let everywhere = self.applied.values().copied().min().unwrap_or(0);
        while self.published.front().is_some_and(|published| published.rev <= everywhere) {
            self.published.pop_front();
        }
        first
    }

    /// Changes of Services and EndpointSlices that wait in any family.
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
    fn a_revision_is_applied_once_in_each_family() {
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
        assert_eq!(apply(8, &[(v4, 5)]), (vec![], (5, 50)), "the state of a former brain");
        assert_eq!(apply(7, &[(v4, 1), (v6, 1)]), (vec![(v4, 1), (v6, 1)], (4, 40)));
        assert_eq!(apply(7, &[(v4, 3), (v6, 1)]), (vec![(v4, 2), (v4, 3)], (4, 40)));
        assert_eq!(apply(7, &[(v4, 3), (v6, 2)]), (vec![(v6, 2)], (3, 30)));
        assert_eq!(apply(7, &[(v4, 1)]), (vec![], (3, 30)), "another backend, which is behind");
        assert_eq!(apply(7, &[(v4, 5), (v6, 5)]), (vec![(v4, 4), (v4, 5), (v6, 3), (v6, 4), (v6, 5)], (0, 0)));
    }

    #[test]
    fn memory_is_bounded_without_backends() {
        let mut waiting = Waiting::default();
        (1..=5000).for_each(|rev| publish(&mut waiting, rev));
        assert_eq!(waiting.pending().0, 4096);
    }
}
