//! How far the backends have come, and whether that is far enough: pure, the time is passed in.
//!
//! ```text
//! published: when each revision came      ─┐
//! reports: what each backend has applied  ─┴─► pending since when? ─► late after the timeout ─► Health of each family
//! ```
//!
//! A family is healthy unless a revision that one of its backends has not applied is older than the timeout. Families of
//! which no backend ever spoke have no health, and a brain without any is healthy, as kube-proxy is before its first sync.
//!
//! - The slowest backend counts, and it counts on when it falls silent: that is what a dead one looks like.
//! - One that has been late and silent for [`GONE`] while another one of the family keeps up is taken to be replaced, and
//!   counts no more until it speaks again. Without another one it counts for as long as the brain runs.
//! - A backend that is new, or that has lost what it had (it was restarted, or it still holds the state of a former brain),
//!   has the whole timeout for its first state.

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant, SystemTime},
};

use localnet_proto::{
    Family, Revision,
    wire::{BackendReport, IpFamily},
};

use super::clock::Moment;

/// After so long a silence, a late backend beside one that keeps up is taken to be gone.
pub const GONE: Duration = Duration::from_secs(600);

/// Revisions that came within this time share the time of the first.
const GRAIN: Duration = Duration::from_secs(1);

/// What is known of the revisions and the backends.
#[derive(Clone, Debug)]
pub struct Progress {
    timeout: Duration,
    instance: u64,
    published: Published,
    backends: BTreeMap<String, BTreeMap<Family, Applied>>,
}

/// How far a backend has come in a family.
#[derive(Clone, Copy, Debug)]
struct Applied {
    rev: u64,
    /// Last success, or when it was first heard of.
    updated: SystemTime,
    /// Not measured from before this: then it was new.
    since: Instant,
    reported: Instant,
}

/// The health of all families.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Each family that a backend has reported of.
    pub families: BTreeMap<Family, FamilyHealth>,
}

/// The health of a family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FamilyHealth {
    /// When its slowest backend was last successful.
    pub last_updated: SystemTime,
    /// The backends that are late.
    pub late: Vec<String>,
}

impl FamilyHealth {
    /// Whether none of its backends is late.
    pub fn is_healthy(&self) -> bool {
        self.late.is_empty()
    }
}

impl Health {
    /// Whether all families are healthy.
    pub fn is_healthy(&self) -> bool {
        self.families.values().all(FamilyHealth::is_healthy)
    }

    /// The newest of the families' updates.
    pub fn last_updated(&self) -> Option<SystemTime> {
        self.families.values().map(|family| family.last_updated).max()
    }
}

impl Progress {
    /// Nothing is known yet. A revision that waits for `timeout` is late.
    pub fn new(timeout: Duration) -> Self {
        Self { timeout, instance: 0, published: Published::default(), backends: BTreeMap::new() }
    }

    /// This is the newest revision.
    pub fn publish(&mut self, revision: Revision, now: Instant) {
        self.instance = revision.instance;
        self.published.push(revision.rev, now, self.timeout.max(GONE));
    }

    /// A backend says how far it is.
    pub fn report(&mut self, report: &BackendReport, now: Moment) {
        let ours = report.instance_id == self.instance;
        let before = self.backends.remove(&report.backend).unwrap_or_default();
        let families = report.families.iter().filter_map(|said| {
            let family = match said.family() {
                IpFamily::IPv4 => Family::V4,
                IpFamily::IPv6 => Family::V6,
                IpFamily::UnknownFamily => return None,
            };
            let rev = if ours { said.applied_rev } else { 0 };
            let before = before.get(&family).filter(|before| before.rev <= rev);
            let success = ours && said.error.is_empty();
            let updated = before.filter(|_| !success).map_or(now.wall, |before| before.updated);
            Some((
                family,
                Applied { rev, updated, since: before.map_or(now.at, |before| before.since), reported: now.at },
            ))
        });
        let families = families.collect();
        self.backends.insert(report.backend.clone(), families);
    }

    /// The health of each family.
    pub fn health(&self, now: Instant) -> Health {
        let of_family = |family| Some((family, self.of_family(family, now)?));
        Health { families: Family::BOTH.into_iter().filter_map(of_family).collect() }
    }

    fn of_family(&self, family: Family, now: Instant) -> Option<FamilyHealth> {
        let backends = self.backends.iter().filter_map(|(name, families)| Some((name, families.get(&family)?)));
        let is_late = |backend: &Applied| self.waits_since(backend).is_some_and(|since| now - since >= self.timeout);
        let (mut late, timely): (Vec<_>, Vec<_>) = backends.partition(|(_, backend)| is_late(backend));
        if !timely.is_empty() {
            late.retain(|(_, backend)| {
                let silent_since = self.waits_since(backend).max(Some(backend.reported));
                silent_since.is_none_or(|since| now - since < GONE)
            });
        }
        let last_updated = late.iter().chain(&timely).map(|(_, backend)| backend.updated).min()?;
        Some(FamilyHealth { last_updated, late: late.into_iter().map(|(name, _)| name.clone()).collect() })
    }

    /// Since when a revision waits to be applied.
    fn waits_since(&self, backend: &Applied) -> Option<Instant> {
        self.published.newer_than(backend.rev).map(|published| published.max(backend.since))
    }
}

/// When revisions came: in grains, and no longer back than matters.
#[derive(Clone, Debug, Default)]
struct Published(VecDeque<Grain>);

/// Revisions that came at about the same time: those after the grain before, up to `last`.
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
        // Of what is older than this, it matters no more how old it is.
        while self.0.get(1).is_some_and(|second| now - second.first_at >= window) {
            self.0.pop_front();
        }
    }

    /// When the first revision after `rev` came, if there is one.
    fn newer_than(&self, rev: u64) -> Option<Instant> {
        let first = self.0.partition_point(|grain| grain.last <= rev);
        self.0.get(first).map(|grain| grain.first_at)
    }
}

#[cfg(test)]
mod tests;
