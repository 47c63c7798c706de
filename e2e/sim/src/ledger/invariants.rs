//! The invariants. Each function `check_…` is one invariant of `docs/simulation.md`, and its first argument to `violated` is the name
//! there.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use localnet_brain::{feed::State, reports::Reports};
use localnet_client::{
    served::{Entry, Expected, Served, To},
    vips::VipKey,
};
use localnet_cluster::objects::Kind;
use localnet_linux::conntrack::Flow;
use localnet_proto::{Digest, Family, Revision, ServiceKey, Snapshot, wire::IpFamily};
use tokio::time::Instant;

use super::{Inner, PATIENCE, Seen, serve_alike};
use crate::{api::Counts, subsystem::Subsystem};

/// How long after [`PATIENCE`] the brain may take to notice it. It counts revisions of one second as published together.
const NOTICE: Duration = Duration::from_secs(5);
/// How long the report of a sync may take. The longest pause between two attempts is 10 s.
const REPORTED: Duration = Duration::from_secs(30);
/// The most requests of one kind within 10 s. Each end of a watch may cause a list.
const MOST_REQUESTS: usize = 100;

impl Inner {
    /// A revision has one content, and the changes that the backend folds give the state that the brain has published.
    pub(super) fn check_one_content(&mut self, revision: Revision, digest: Digest) {
        let before = *self.digests.entry(revision).or_insert(digest);
        if before != digest {
            self.violated("one-content", format!("revision {revision} has two contents"));
        }
    }

    /// A new revision differs from the one before, if only in the records of `localnet.v1`.
    pub(super) fn check_revisions_differ(&mut self, state: &State) {
        let Revision { instance, rev } = state.revision();
        let before = Revision { instance, rev: rev.saturating_sub(1) };
        let records = state.records_digest();
        let same_records = records.is_none_or(|records| self.records.get(&before) == Some(&records));
        self.records.extend(records.map(|records| (state.revision(), records)));
        if same_records && self.digests.get(&before) == Some(&state.digest()) {
            self.violated("revisions-differ", format!("revision {rev} has the content of the one before"));
        }
    }

    /// Revisions of an instance never go back.
    pub(super) fn check_published(&mut self, state: &State) {
        let Revision { instance, rev } = state.revision();
        if rev == 0 {
            return;
        }
        if let Some(before) = self.published.insert(instance, rev).filter(|before| *before > rev) {
            self.violated("revisions-rise", format!("the brain publishes revision {rev} after {before}"));
        }
        self.check_one_content(state.revision(), state.digest());
        self.check_revisions_differ(state);
    }

    /// A state lacks no Service that has existed since before the brain started.
    pub(super) fn check_complete(&mut self, state: &Snapshot) {
        let Some(started) = self.started.get(&state.revision.instance).copied() else { return };
        let has = |key: &str| state.services.keys().any(|service| service.to_string() == key);
        let old = self.truth.services().iter().filter(|(_, standing)| standing.created < started);
        let lacks = old.map(|(key, _)| key.clone()).find(|key| !has(key));
        if let Some(key) = lacks {
            self.violated("complete-states", format!("revision {} lacks Service {key}", state.revision));
        }
    }

    /// Each VIP in the kernel has the content that it has in the last state that was applied, or in a later one whose sync
    /// has not succeeded yet.
    pub(super) fn check_known_plan(&mut self) {
        let has = &self.has;
        let lenient = self.hated || !self.refused.is_empty();
        let mut wrong = None;
        for family in Family::BOTH {
            if self.damage[family] != self.repaired[family] {
                continue;
            }
            let possible = &self.possible[family];
            if possible.iter().any(|plan| serve_alike(plan, has, family)) {
                continue;
            }
            // Before the first load has ended, packets meet no rules. The backend removes Services that the kernel refuses.
            let may_lack = lenient || !self.entered[family];
            let may_mix = !self.profile.is_atomic && (lenient || possible.len() > 1);
            let all: BTreeSet<_> = possible.iter().chain([has]).flat_map(|plan| plan.0.keys()).collect();
            let unknown = all.into_iter().filter(|vip| vip.family() == family).find(|vip| {
                let entry: Option<&Entry> = has.0.get(*vip);
                let is_known = possible.iter().any(|plan| plan.0.get(*vip) == entry);
                let is_mixed = || may_mix && self.mixes(entry, possible, vip, may_lack);
                !(is_known || entry.is_none() && may_lack || is_mixed())
            });
            if let Some(vip) = unknown {
                let expected: Vec<_> = possible.iter().map(|plan| plan.0.get(vip)).collect();
                wrong = Some(format!("{vip} is {:?}, expected one of {expected:?}", has.0.get(vip)));
            }
        }
        if let Some(wrong) = wrong {
            self.violated("known-plan", wrong);
        }
    }

    /// After a sync, new connections reach exactly the endpoints that the oracle derives from the state. Because the oracle shares code
    /// with the backends, the state itself must say that each endpoint of a ClusterIP is eligible.
    pub(super) fn check_no_gone_endpoint(&mut self, state: &Snapshot) {
        let all = state.services.values().flat_map(|service| service.ports.iter().map(move |port| (service, port)));
        let mut all = all.flat_map(|(service, port)| service.cluster_ips.iter().map(move |ip| (service, port, *ip)));
        let wrong = all.find_map(|(service, port, address)| {
            let vip = VipKey { address, protocol: port.protocol, port: port.port };
            let Some(To::Endpoints(has)) = &self.has.0.get(&vip)?.to else { return None };
            let eligible: BTreeSet<_> =
                service.endpoints_of(port, Family::of(address), |scopes| scopes.internal).collect();
            has.iter().find(|endpoint| !eligible.contains(endpoint)).map(|endpoint| (vip, *endpoint))
        });
        if let Some((vip, endpoint)) = wrong {
            self.violated("no-gone-endpoint", format!("{vip} leads to {endpoint}, which is not eligible"));
        }
        let differences = Expected::without(state, &self.lacks).differences(&self.has);
        if !differences.is_empty() {
            self.violated("no-gone-endpoint", format!("after the sync of revision {}:{differences}", state.revision));
        }
    }

    /// A backend skips no further Service as refused unless the kernel refuses some of its objects.
    pub(super) fn check_true_refusals<S: Subsystem>(
        &mut self,
        refused: &BTreeSet<ServiceKey>,
        state: &Snapshot,
        kernel: &S,
    ) {
        let mut news = refused.iter().filter(|service| !self.refused.contains(*service));
        let is_blameless = |service: &&ServiceKey| {
            let mut alone = state.clone();
            alone.services.retain(|key, _| key == *service);
            !self.hates || !kernel.refuses(&alone)
        };
        if let Some(service) = news.find(is_blameless).cloned() {
            self.violated(
                "true-refusals",
                format!("{service} counts as refused, but the kernel refuses none of its objects"),
            );
        }
    }

    /// The kernel serves no VIP of a Service that it refuses. `plan` is without these Services, and `full` with them.
    pub(super) fn check_refused_whole(&mut self, plan: &Served, full: &Served) {
        let mut refused = full.0.keys().filter(|vip| !plan.0.contains_key(vip));
        let Some(vip) = refused.find(|vip| self.has.0.contains_key(vip)).filter(|_| self.profile.refuses_whole) else {
            return;
        };
        self.violated("refused-whole", format!("{vip} of a refused Service is {:?}", self.has.0.get(vip)));
    }

    /// A flow stays as long as its endpoint is eligible.
    pub(super) fn check_flow_stays(&mut self, flow: &Flow) {
        let (family, destination) = (flow.family(), flow.original.destination);
        // During a sync that has failed, the kernel may be ahead of what the backend knows.
        let is_settled = self.possible[family].len() == 1 && self.damage[family] == self.repaired[family];
        let vip = VipKey { address: destination.ip(), protocol: flow.protocol, port: destination.port() };
        let to = self.has.0.get(&vip).and_then(|entry| entry.to.as_ref());
        let is_eligible = matches!(to, Some(To::Endpoints(endpoints)) if endpoints.contains(&flow.reply.source));
        if is_settled && is_eligible {
            self.violated("flows-stay", format!("the backend deletes {flow}, although the endpoint is eligible"));
        }
    }

    /// A report claims no revision that the kernel has not committed, and its digest is that of the revision.
    pub(super) fn check_honest_reports(&mut self, reports: &Reports, instance: u64) {
        let Some(report) = reports.last(self.profile.name).map(|received| received.report) else { return };
        for family in Family::BOTH {
            let number = i32::from(IpFamily::from(family));
            let Some(claim) = report.families.iter().find(|claim| claim.family == number) else { continue };
            let revision = Revision { instance: report.instance_id, rev: claim.applied_rev };
            let applied = self.applied[family];
            if claim.applied_rev == 0 {
                continue;
            }
            if applied.instance != revision.instance {
                if revision.instance == instance {
                    self.violated("honest-reports", format!("{family:?} claims {revision}, but holds {applied}"));
                }
                continue;
            }
            if applied.rev < revision.rev {
                self.violated("honest-reports", format!("{family:?} claims {revision}, but holds {applied}"));
            }
            let digest = self.digests.get(&revision).copied();
            if claim.applied_digest != 0 && digest.is_some_and(|digest| digest.0 != claim.applied_digest) {
                self.violated("honest-reports", format!("{family:?} reports a wrong digest for {revision}"));
            }
        }
    }

    /// The brain's health answers agree with what the backend has applied.
    pub(super) fn check_true_health(&mut self, seen: &Seen<'_>) {
        let Revision { instance, rev } = seen.state.revision();
        let now = Instant::now();
        let reported = seen.reports.last(self.profile.name).map(|received| received.at);
        // A backend that restarts has the whole timeout after its first report.
        self.backend_reported = self.backend_reported.or(reported.filter(|at| Some(*at) >= self.backend_started));
        if rev > 0 {
            self.published_at.entry(rev).or_insert(now);
        }
        for (family, health) in &seen.health.families {
            let family = *family;
            let first_seen = *self.reported_at[family].get_or_insert(now);
            let applied = self.applied[family];
            let held = if applied.instance == instance { applied.rev } else { 0 };
            let pending = self.published_at.range(held + 1..).next().map(|(_, at)| *at);
            let begun = self.backend_started.max(self.backend_reported);
            let begun = begun.max(Some(first_seen)).max(Some(seen.calm_since));
            match pending {
                None if !health.is_healthy()
                    && self.applied_at[family].is_some_and(|at| begun.max(Some(at)) < Some(now - REPORTED)) =>
                {
                    self.violated("true-health", format!("{family:?} counts as late, but holds {applied}"));
                }
                Some(since) if health.is_healthy() && begun.max(Some(since)) < Some(now - PATIENCE - NOTICE) => {
                    self.violated("true-health", format!("{family:?} counts as healthy, but only holds {applied}"));
                }
                _ => {}
            }
        }
    }

    /// A Service that was programmed stays programmed as long as it has an endpoint that is always ready.
    pub(super) fn check_stays_served(&mut self, newest: Option<Revision>, counts: &BTreeMap<Kind, Counts>) {
        let is_damaged = self.damage[Family::V4] != self.repaired[Family::V4];
        let in_gap = self.profile.has_gaps && self.possible[Family::V4].len() != 1;
        if is_damaged || in_gap || self.hated || !self.refused.is_empty() {
            return;
        }
        // What was delivered at an earlier time is in the newest state.
        let past = self.delivered.as_ref().filter(|(at, _)| *at < Instant::now()).map(|(_, counts)| counts);
        let known = [Kind::Service, Kind::Slice].map(|kind| {
            let of = |counts: &BTreeMap<Kind, Counts>| counts.get(&kind).map_or(0, |counts| counts.delivered);
            past.map_or(0, of).min(of(counts))
        });
        let known = known.into_iter().min().unwrap_or_default();
        let has = &self.has;
        let before = std::mem::take(&mut self.established);
        let (mut after, mut lost) = (BTreeMap::new(), None);
        for (key, standing) in self.truth.services() {
            let Some(since) = standing.served_since() else { continue };
            let old = before.get(key).filter(|(before, ..)| *before >= since).copied();
            let (_, mut candidate, mut is_established) = old.unwrap_or((since, None, false));
            let newest = newest.filter(|newest| newest.rev > 0);
            if candidate.map(|candidate| candidate.instance) != newest.map(|newest| newest.instance) {
                candidate = newest.filter(|_| known >= since);
            }
            let entry = standing.vip.and_then(|vip| has.0.get(&vip));
            let is_served = entry.is_some_and(|entry| matches!(entry.to, Some(To::Endpoints(_))));
            let applied = self.applied[Family::V4];
            let is_applied = candidate
                .is_some_and(|candidate| candidate.instance == applied.instance && applied.rev >= candidate.rev);
            if (is_established || is_applied) && !is_served {
                lost.get_or_insert_with(|| format!("{key} ({:?}) is {entry:?}", standing.vip));
            }
            is_established |= is_applied && is_served;
            after.insert(key.clone(), (since, candidate, is_established));
        }
        self.established = after;
        if let Some(lost) = lost {
            self.violated("stays-served", lost);
        }
    }

    /// The brain lists a kind only for a reason.
    pub(super) fn check_bounded_lists(&mut self, counts: &BTreeMap<Kind, Counts>) {
        for (kind, Counts { lists, reasons, .. }) in counts {
            if lists > reasons {
                self.violated("bounded-lists", format!("{lists} lists of {kind} for {reasons} reasons"));
            }
        }
    }

    /// The brain has at most one open watch of a kind.
    pub(super) fn check_one_watch(&mut self, counts: &BTreeMap<Kind, Counts>) {
        for (kind, Counts { open, .. }) in counts.iter().filter(|(_, counts)| counts.open > 1) {
            self.violated("one-watch", format!("{open} watches of {kind} are open"));
        }
    }

    /// The brain does not overload the API server.
    pub(super) fn check_bounded_requests(&mut self, counts: &BTreeMap<Kind, Counts>) {
        for (kind, Counts { busiest, .. }) in counts.iter().filter(|(_, counts)| counts.busiest > MOST_REQUESTS) {
            self.violated("bounded-requests", format!("{busiest} requests for {kind} within 10 s"));
        }
    }

    /// Whether each endpoint of a VIP is one that it has in some plan. Unless it `may_lack` them, a VIP has no endpoints only if it has none
    /// in some plan. While a VIP is removed, or if the kernel's VIPs share endpoints, it may have those of another VIP of its Service.
    fn mixes(&self, entry: Option<&Entry>, plans: &[Arc<Served>], vip: &VipKey, may_lack: bool) -> bool {
        let may_lack = may_lack || self.profile.has_gaps;
        let leads = |entry: Option<&Entry>| matches!(entry, Some(Entry { to: Some(To::Endpoints(_)), .. }));
        if !leads(entry) && !may_lack && plans.iter().all(|plan| leads(plan.0.get(vip))) {
            return false;
        }
        let Some(entry) = entry else { return true };
        let of_vip: Vec<_> = plans.iter().filter_map(|plan| plan.0.get(vip)).collect();
        let is_removed = plans.iter().any(|plan| !plan.0.contains_key(vip));
        let all = plans.iter().flat_map(|plan| &plan.0);
        let owner = self.owners.of(vip).filter(|_| self.profile.shares_endpoints);
        let is_sibling = |key: &VipKey| owner.is_some() && self.owners.of(key) == owner;
        let all = all.filter(|(key, _)| is_removed || *key == vip || is_sibling(key));
        let plans: Vec<_> = all.map(|(_, entry)| entry).collect();
        let known: BTreeSet<_> = plans
            .iter()
            .flat_map(|plan| [&plan.to, &plan.outside])
            .filter_map(|to| if let Some(To::Endpoints(endpoints)) = to { Some(endpoints) } else { None })
            .flatten()
            .collect();
        let is_empty = |entry: &Entry| [&entry.to, &entry.outside].iter().any(|to| matches!(to, Some(To::Nothing(_))));
        if is_empty(entry) && !may_lack && !of_vip.is_empty() && !of_vip.into_iter().any(is_empty) {
            return false;
        }
        [&entry.to, &entry.outside].into_iter().all(|to| match to {
            Some(To::Endpoints(endpoints)) => endpoints.iter().all(|endpoint| known.contains(endpoint)),
            _ => true,
        })
    }
}
