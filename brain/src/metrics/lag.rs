//! The lag of each backend behind the newest revision. Pure.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Instant,
};

use localnet_proto::{Family, Revision};

/// Maximum number of revisions whose times of publication are remembered.
const REMEMBERED: usize = 4096;

/// A backend and a family.
type Part = (String, Family);

/// The lag of each backend in each family.
#[derive(Debug, Default)]
pub(super) struct Lag {
    newest: Revision,
    published: VecDeque<(u64, Instant)>,
    /// The time of publication of the oldest revision that the backend has not applied. `None` if the backend has applied
    /// all revisions.
    parts: BTreeMap<Part, Option<Instant>>,
}

impl Lag {
    /// Records a new revision.
    pub(super) fn publish(&mut self, revision: Revision, now: Instant) {
        self.newest = revision;
        self.published.push_back((revision.rev, now));
        if self.published.len() > REMEMBERED {
            self.published.pop_front();
        }
        for behind in self.parts.values_mut() {
            behind.get_or_insert(now);
        }
    }

    /// Records that a backend has applied `rev` of `instance` in a family.
    pub(super) fn apply(&mut self, backend: &str, family: Family, instance: u64, rev: u64, now: Instant) {
        let applied = if instance == self.newest.instance { rev } else { 0 };
        let previous = self.parts.get(&(backend.to_owned(), family)).copied();
        let behind = (applied < self.newest.rev).then(|| {
            let first = self.published.iter().find(|(rev, _)| *rev > applied);
            match (first, previous) {
                (Some((rev, at)), _) if *rev == applied + 1 => *at,
                // The oldest revision that the backend has not applied is no longer remembered, so use the time from the
                // previous report.
                (_, Some(Some(since))) => since,
                (Some((_, at)), _) => *at,
                (None, _) => now,
            }
        });
        self.parts.insert((backend.to_owned(), family), behind);
    }

    /// Forgets all backends but these.
    pub(super) fn retain(&mut self, is_known: impl Fn(&str) -> bool) {
        self.parts.retain(|(backend, _), _| is_known(backend));
    }

    /// The lag of each backend in each family, in seconds. 0 if it is up to date.
    pub(super) fn seconds(&self, now: Instant) -> impl Iterator<Item = (&str, Family, f64)> {
        self.parts.iter().map(move |((backend, family), behind)| {
            let behind = behind.map_or(0.0, |since| now.saturating_duration_since(since).as_secs_f64());
            (backend.as_str(), *family, behind)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_lag_counts_from_the_oldest_missing_revision() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut lag = Lag::default();
        let publish = |lag: &mut Lag, rev, seconds| lag.publish(Revision { instance: 7, rev }, at(seconds));
        let apply = |lag: &mut Lag, rev, seconds| lag.apply("nft", Family::V4, 7, rev, at(seconds));
        let age = |lag: &Lag, seconds| lag.seconds(at(seconds)).map(|(.., age)| age).collect::<Vec<_>>();
        publish(&mut lag, 1, 0);
        assert_eq!(age(&lag, 100), [0.0; 0]);
        apply(&mut lag, 1, 100);
        assert_eq!(age(&lag, 100), [0.0], "an old revision that is applied");
        publish(&mut lag, 2, 110);
        publish(&mut lag, 3, 120);
        assert_eq!(age(&lag, 130), [20.0]);
        apply(&mut lag, 2, 130);
        assert_eq!(age(&lag, 130), [10.0]);
        // If each second brings a change that is applied a second later, the lag stays constant.
        for second in 131..1000 {
            publish(&mut lag, second - 127, second);
            apply(&mut lag, second - 128, second);
        }
        assert_eq!(age(&lag, 1000), [1.0]);
        // If the backend stops, its lag grows even after the times of revisions are forgotten.
        for rev in 873..10_000 {
            publish(&mut lag, rev, 1001);
        }
        assert_eq!(age(&lag, 2000), [1001.0]);
        lag.apply("nft", Family::V4, 6, 10_000, at(2000));
        assert_eq!(age(&lag, 2000), [1001.0], "the revision of another brain");
        apply(&mut lag, 9_999, 2000);
        assert_eq!(age(&lag, 2000), [0.0]);
    }
}
