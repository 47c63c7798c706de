//! The progress of the backends, and the resulting health of the node. Pure: the time is an argument.
//!
//! ```text
//! time at which each revision was published   ─┐
//! revision that each backend has applied      ─┴─► pending since ─► late after the timeout ─► Health of each family
//! ```
//!
//! A family is unhealthy if one of its backends has not applied a revision that is older than the timeout. A family has
//! no health until a backend reports on it. A brain that receives no reports is healthy, as kube-proxy is before its
//! first sync.
//!
//! - The slowest backend determines the health, even after it has stopped reporting, because it may have crashed.
//! - A backend counts as replaced if it has been late and silent for [`REPLACED`] while another backend of the family is
//!   up to date. It counts again as soon as it reports. The only backend of a family never counts as replaced.
//! - A backend has the whole timeout to apply its first state if it is new, was restarted, or still has the state of a
//!   former brain.

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant, SystemTime},
};

use localnet_proto::{Family, Revision, wire::BackendReport};

/// How long a late backend must be silent, while another backend is up to date, before it counts as replaced.
pub const REPLACED: Duration = Duration::from_secs(600);

/// To save memory, revisions count as published together if they follow the first of them within this time.
const GRAIN: Duration = Duration::from_secs(1);

/// A point in time, on the monotonic clock and on the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The monotonic time, for durations.
    pub at: Instant,
    /// The wall clock time, for display. It may jump.
    pub wall: SystemTime,
}

/// The revisions that were published, and the reports of the backends.
#[derive(Clone, Debug)]
pub struct Progress {
    timeout: Duration,
    instance: u64,
    published: Published,
    backends: BTreeMap<String, BTreeMap<Family, Applied>>,
}

/// The progress of a backend in one family.
#[derive(Clone, Copy, Debug)]
struct Applied {
    rev: u64,
    /// When the backend was last successful. Before its first success: when its first report arrived.
    updated: SystemTime,
    /// When the backend first appeared. For a revision that was published earlier, the timeout starts at this time.
    since: Instant,
    /// When the last report arrived.
    reported: Instant,
}

/// The health of all families.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// The health of each family that a backend has reported on.
    pub families: BTreeMap<Family, FamilyHealth>,
}

/// The health of one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FamilyHealth {
    /// Each backend has a time at which it was last successful. This is the oldest of these times.
    pub last_updated: SystemTime,
    /// The names of the late backends.
    pub late: Vec<String>,
}

impl FamilyHealth {
    /// Whether no backend is late.
    pub fn is_healthy(&self) -> bool {
        self.late.is_empty()
    }
}

impl Health {
    /// Whether all families are healthy.
    pub fn is_healthy(&self) -> bool {
        self.families.values().all(FamilyHealth::is_healthy)
    }

    /// The latest `last_updated` of all families.
    pub fn last_updated(&self) -> Option<SystemTime> {
        self.families.values().map(|family| family.last_updated).max()
    }
}

impl Progress {
    /// Creates an empty record. A backend is late if it has not applied a revision within `timeout`.
    pub fn new(timeout: Duration) -> Self {
        Self { timeout, instance: 0, published: Published::default(), backends: BTreeMap::new() }
    }

    /// Records the newest revision.
    pub fn publish(&mut self, revision: Revision, now: Instant) {
        self.instance = revision.instance;
        self.published.push(revision.rev, now, self.timeout.max(REPLACED));
    }

    /// Records a report of a backend.
    pub fn report(&mut self, report: &BackendReport, now: Moment) {
        let ours = report.instance_id == self.instance;
        let before = self.backends.remove(&report.backend).unwrap_or_default();
        let families = report.families.iter().filter_map(|reported| {
            let family = reported.family().known()?;
            let rev = if ours { reported.applied_rev } else { 0 };
            let before = before.get(&family).filter(|before| before.rev <= rev);
            let success = ours && reported.error.is_empty();
            let updated = before.filter(|_| !success).map_or(now.wall, |before| before.updated);
            Some((
                family,
                Applied { rev, updated, since: before.map_or(now.at, |before| before.since), reported: now.at },
            ))
        });
        let families = families.collect();
        self.backends.insert(report.backend.clone(), families);
    }

    /// The number of backends that have reported.
    #[cfg(test)]
    pub(super) fn backends(&self) -> usize {
        self.backends.len()
    }

    /// Forgets all backends but these.
    pub fn retain(&mut self, is_known: impl Fn(&str) -> bool) {
        self.backends.retain(|backend, _| is_known(backend));
    }

    /// The health of each family.
    pub fn health(&self, now: Instant) -> Health {
        let of_family = |family| Some((family, self.of_family(family, now)?));
        Health { families: Family::BOTH.into_iter().filter_map(of_family).collect() }
    }

    fn of_family(&self, family: Family, now: Instant) -> Option<FamilyHealth> {
        let backends = self.backends.iter().filter_map(|(name, families)| Some((name, families.get(&family)?)));
        let is_late = |backend: &Applied| self.pending_since(backend).is_some_and(|since| now - since >= self.timeout);
        let (mut late, timely): (Vec<_>, Vec<_>) = backends.partition(|(_, backend)| is_late(backend));
        if !timely.is_empty() {
            late.retain(|(_, backend)| {
                let silent_since = self.pending_since(backend).max(Some(backend.reported));
                silent_since.is_none_or(|since| now - since < REPLACED)
            });
        }
        let last_updated = late.iter().chain(&timely).map(|(_, backend)| backend.updated).min()?;
        Some(FamilyHealth { last_updated, late: late.into_iter().map(|(name, _)| name.clone()).collect() })
    }

    /// When the oldest revision that the backend still has to apply became pending. `None` if the backend is up to date.
    fn pending_since(&self, backend: &Applied) -> Option<Instant> {
        self.published.newer_than(backend.rev).map(|published| published.max(backend.since))
    }
}

/// The times at which revisions were published, grouped by [`GRAIN`]. Times that no longer matter are dropped.
#[derive(Clone, Debug, Default)]
struct Published(VecDeque<Grain>);

/// Revisions that count as published together: all revisions after those of the previous grain, up to `last`.
#[derive(Clone, Copy, Debug)]
struct Grain {
    last: u64,
    first_at: Instant,
}

impl Published {
    fn push(&mut self, rev: u64, now: Instant, window: Duration) {
        match self.0.back_mut() {
            Some(newest) if newest.last >= rev => return,
            Some(newest) if now - newest.first_at < GRAIN => newest.last = rev,
            _ if rev == 0 => return,
            _ => self.0.push_back(Grain { last: rev, first_at: now }),
        }
        // A revision that is older than the window is late in any case, so its exact age does not matter.
        while self.0.get(1).is_some_and(|second| now - second.first_at >= window) {
            self.0.pop_front();
        }
    }

    /// When the first revision after `rev` was published. `None` if `rev` is the newest.
    fn newer_than(&self, rev: u64) -> Option<Instant> {
        let first = self.0.partition_point(|grain| grain.last <= rev);
        self.0.get(first).map(|grain| grain.first_at)
    }
}

#[cfg(test)]
mod tests;
