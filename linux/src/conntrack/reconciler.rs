//! Drives the clean-up: remembers the changes since the last run, reads the table only if they can have made a flow stale, and
//! repeats until nothing is left to do.
//!
//! A change has no direct effect on flows. It only decides whether a run reads the table. The run then compares every flow with
//! all frontends. So the next run makes up for anything that failed, was lost, or happened while no backend ran.
//!
//! A backend calls `set` and `remove`, commits its rules, and calls `run` after every commit. `run` costs nothing if nothing is
//! due. If `run` fails, the backend calls it again later. If a follow-up is due ([`Due::Later`]), or only TCP changed
//! ([`Due::Soon`]), the backend calls `run` a second after the last run.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

use localnet_core::{ByFamily, Family, Protocol};

use super::{Conntrack, Endpoints, Error, Flow, Frontend, Frontends, Selection, closing::Closing, is_stale};

/// How many stale flows are held in memory before they are deleted.
const BATCH: usize = 16_384;
/// The maximum number of times that one run reads the same flows. It reads them again if it finds more stale flows than fit into
/// a batch.
const MAX_PASSES: usize = 64;

/// The maximum number of follow-ups. A client that sends and receives without a pause nearly always has a packet in
/// flight. As soon as the entry is deleted, that packet creates an entry for the flow again; if the packet is a reply,
/// the new entry is backwards. So follow-ups continue while they find stale flows, but not forever, because a flow of
/// another program may look the same.
const MAX_FOLLOW_UPS: u32 = 10;

/// The state of one backend's clean-up.
#[derive(Clone, Debug)]
pub struct Reconciler {
    frontends: Frontends,
    /// The frontends that changed since the last run, with the endpoints that they had during that run.
    changed: HashMap<Frontend, Before>,
    /// The selections that a failed run did not finish.
    pending: BTreeSet<Selection>,
    /// Whether the next run checks all flows, whatever changed.
    everything: bool,
    /// The selections of the next follow-up. The first follow-up reads the selections of the last run. Each
    /// further follow-up reads the selections in which the previous follow-up found stale flows.
    follow_up: BTreeSet<Selection>,
    /// The number of follow-ups since the last run that was not a follow-up.
    follow_ups: u32,
    /// Former frontends whose flows the last run checked.
    checked_former: HashSet<Frontend>,
    closing: Closing,
}

/// How urgent a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// No run is due, because no flow can be stale.
    Nothing,
    /// A follow-up is due a short time after the last run, such as one second. A packet that was in flight while the rules
    /// changed may have created a stale flow after that run read the table. Further follow-ups are due while they find stale flows.
    Later,
    /// As `Now`, but only TCP connections that have no answer yet can be stale. Their clients repeat the SYN after a second, so a
    /// run each second is enough.
    Soon,
    /// A run is due now: something changed, or the last run failed.
    Now,
}

/// The outcome of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// How many flows were read.
    pub dumped: usize,
    /// How many flows were deleted.
    pub deleted: usize,
    /// The duration of the run.
    pub took: Duration,
    /// The outcome of each family; `None` for a family whose flows were not read.
    pub families: ByFamily<Option<FamilyReport>>,
}

/// The outcome of a run for one family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FamilyReport {
    /// How many flows were deleted.
    pub deleted: usize,
    /// How long the family took.
    pub took: Duration,
}

impl Report {
    fn add(&mut self, family: Family, deleted: usize, took: Duration) {
        let of_family = self.families[family].get_or_insert_default();
        of_family.deleted += deleted;
        of_family.took += took;
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Before {
    Absent,
    Endpoints(Endpoints),
    /// Any flow may be stale: the frontend existed before this process started, and its endpoints at that time are unknown. Or it had
    /// endpoints and was then removed.
    Unknown,
}

impl Before {
    /// Records that the frontend was absent after it had these endpoints.
    fn was_absent(&mut self) {
        match self {
            Before::Endpoints(endpoints) if endpoints.is_empty() => *self = Before::Absent,
            Before::Endpoints(_) => *self = Before::Unknown,
            Before::Absent | Before::Unknown => {}
        }
    }
}

impl Default for Reconciler {
    fn default() -> Self {
        Self::new()
    }
}

impl Reconciler {
    /// A reconciler without frontends. The first run checks all flows, because an earlier process may have left stale ones.
    pub fn new() -> Self {
        Self {
            frontends: Frontends::default(),
            changed: HashMap::new(),
            pending: BTreeSet::new(),
            everything: true,
            follow_up: BTreeSet::new(),
            follow_ups: 0,
            checked_former: HashSet::new(),
            closing: Closing::new(Instant::now()),
        }
    }

    /// Adds a frontend or changes its endpoints. With no endpoints, every flow to it is stale.
    pub fn set(&mut self, frontend: Frontend, endpoints: Endpoints) {
        self.set_closing(frontend, endpoints, None);
    }

    /// As [`Self::set`]. Established TCP connections to other endpoints are closed `after` the endpoint has stopped serving.
    pub fn set_closing(&mut self, frontend: Frontend, endpoints: Endpoints, after: Option<Duration>) {
        let before = self.frontends.endpoints(&frontend);
        if before == Some(&endpoints) && self.closing.after(&frontend) == after {
            return;
        }
        self.closing.set(frontend, before, &endpoints, after, Instant::now());
        let recorded = self.changed.entry(frontend);
        match self.frontends.set(frontend, endpoints) {
            Some(before) => _ = recorded.or_insert(Before::Endpoints(before)),
            // If the frontend was removed since the last run, flows may have begun without rules.
            None => _ = recorded.and_modify(Before::was_absent).or_insert(Before::Absent),
        }
    }

    /// Removes a frontend, because its Service, address or port was deleted.
    pub fn remove(&mut self, frontend: &Frontend) {
        if self.frontends.endpoints(frontend).is_some()
            && let Some(before) = self.frontends.retire(frontend)
        {
            self.checked_former.remove(frontend);
            self.closing.remove(frontend);
            self.changed.entry(*frontend).or_insert(Before::Endpoints(before));
        }
    }

    /// Removes a frontend that another proxy serves from now on, so its flows are none of this backend's.
    pub fn hand_over(&mut self, frontend: &Frontend) {
        self.frontends.hand_over(frontend);
        self.closing.remove(frontend);
        self.checked_former.remove(frontend);
        self.changed.remove(frontend);
    }

    /// Records a frontend that the kernel held before this process started. If it is not desired, its flows are stale.
    pub fn remember(&mut self, frontend: Frontend) {
        self.changed.insert(frontend, Before::Unknown);
        if self.frontends.endpoints(&frontend).is_none() {
            self.frontends.retire(&frontend);
            self.checked_former.remove(&frontend);
        }
    }

    /// Whether the frontend changed since the last run, and `next` lacks one of its current endpoints. The flows to that
    /// endpoint may be unchecked.
    pub fn overwrites_unchecked(&self, frontend: &Frontend, next: Option<&Endpoints>) -> bool {
        let now = self.frontends.endpoints(frontend).filter(|_| self.changed.contains_key(frontend));
        now.is_some_and(|now| now.any_missing_from(next))
    }

    /// Makes the next run check all flows.
    pub fn recheck(&mut self) {
        self.everything = true;
    }

    /// Whether a run is due, and how soon.
    pub fn due(&self) -> Due {
        // Stops at the first change that matters, because this is called after each commit.
        let changed = |tcp: bool| {
            let is = |protocol| (protocol == Protocol::Tcp) == tcp;
            let mut changed = self.changed.iter().filter(|(frontend, _)| is(frontend.protocol));
            self.pending.iter().any(|selection| is(selection.protocol))
                || changed.any(|(frontend, before)| self.matters(frontend, before))
        };
        let all = self.everything && !self.frontends.is_empty();
        if all || !self.everything && changed(false) {
            Due::Now
        } else if !self.everything && changed(true) {
            Due::Soon
        } else if !self.follow_up.is_empty() {
            Due::Later
        } else {
            Due::Nothing
        }
    }

    /// When a run that closes established connections is due, at the earliest.
    pub fn closes_at(&self) -> Option<Instant> {
        self.closing.next()
    }

    /// The current frontends, and the former ones that are still checked.
    pub fn frontends(&self) -> &Frontends {
        &self.frontends
    }

    /// Whether a run is due that is no follow-up.
    pub fn is_due(&self) -> bool {
        matches!(self.due(), Due::Soon | Due::Now)
    }

    /// Reads the flows that can be stale, and deletes the stale ones. Costs nothing if nothing is due; blocks while the kernel
    /// works. Call it after each commit, when the rules for the desired state are in force: the old rules would create a
    /// deleted flow again.
    ///
    /// # Errors
    /// Returns an error if the table cannot be read or changed. The run stays due.
    pub fn run(&mut self, conntrack: &mut impl Conntrack) -> Result<Report, Error> {
        // The earlier endpoints no longer matter, because a run compares flows with the current endpoints.
        self.pending = self.initial_checks();
        self.changed = HashMap::new();
        let started = Instant::now();
        self.pending.extend(self.closing.selections(started));
        let selections: BTreeSet<_> = self.pending.union(&self.follow_up).copied().collect();
        if selections.is_empty() {
            self.finish_run(BTreeSet::new());
            return Ok(Report::default());
        }
        let mut report = Report::default();
        let mut with_stale = BTreeSet::new();
        for selection in selections {
            let (began, before) = (Instant::now(), report.deleted);
            self.clean(conntrack, selection, &mut report)?;
            let deleted = report.deleted - before;
            if deleted > 0 {
                with_stale.insert(selection);
            }
            report.add(selection.family, deleted, began.elapsed());
        }
        report.took = started.elapsed();
        self.closing.done(started);
        self.finish_run(with_stale);
        Ok(report)
    }

    /// Records a run that succeeded and found stale flows in the selections `with_stale`.
    fn finish_run(&mut self, with_stale: BTreeSet<Selection>) {
        // Without frontends, the run compared no flow, so the check of all flows is still due.
        self.everything &= self.frontends.is_empty();
        for frontend in self.checked_former.drain() {
            self.frontends.forget(&frontend);
        }
        self.checked_former.extend(self.frontends.former());
        self.follow_ups = if self.pending.is_empty() { self.follow_ups + 1 } else { 0 };
        self.follow_up = std::mem::take(&mut self.pending);
        if self.follow_ups < MAX_FOLLOW_UPS {
            self.follow_up.extend(with_stale);
        }
    }

    fn clean(&self, conntrack: &mut impl Conntrack, selection: Selection, report: &mut Report) -> Result<(), Error> {
        let now = Instant::now();
        for _ in 0..MAX_PASSES {
            let mut stale: Vec<Flow> = Vec::new();
            let mut more = false;
            conntrack.dump(selection, &mut |flow| {
                report.dumped += 1;
                if is_stale(flow, &self.frontends) || self.closing.closes(flow, &self.frontends, now) {
                    more |= stale.len() == BATCH;
                    if !more {
                        stale.push(*flow);
                    }
                }
            })?;
            for flow in &stale {
                tracing::debug!(%flow, id = flow.id, "deleting a stale flow");
            }
            report.deleted += conntrack.delete(&stale)?;
            if !more {
                return Ok(());
            }
        }
        Err(Error::Interrupted)
    }

    /// The selections in which flows may have become stale since the last successful run.
    fn initial_checks(&self) -> BTreeSet<Selection> {
        if self.everything {
            return self.frontends.current().chain(self.frontends.former()).map(Frontend::selection).collect();
        }
        let changed = self.changed.iter().filter(|(frontend, before)| self.matters(frontend, before));
        changed.map(|(frontend, _)| frontend.selection()).chain(self.pending.iter().copied()).collect()
    }

    /// Whether a change of a frontend can have made flows stale.
    fn matters(&self, frontend: &Frontend, before: &Before) -> bool {
        let after = self.frontends.endpoints(frontend);
        let lost = match before {
            Before::Absent => false,
            Before::Unknown => true,
            Before::Endpoints(before) => !after.map_or(before.is_empty(), |after| before.is_subset(after)),
        };
        lost || frontend.protocol != Protocol::Tcp && gained(before, after)
    }
}

/// Whether the frontend gained rules. Flows that passed untranslated before are then stale. The caller ignores this for TCP:
/// reading the table whenever a Service is created would cost too much, and would only save a client from repeating its SYN
/// for up to a minute.
fn gained(before: &Before, after: Option<&Endpoints>) -> bool {
    match (before, after) {
        (Before::Absent, Some(_)) => true,
        (Before::Endpoints(before), Some(after)) => before.is_empty() && !after.is_empty(),
        (_, None) | (Before::Unknown, _) => false,
    }
}

#[cfg(test)]
mod tests;
