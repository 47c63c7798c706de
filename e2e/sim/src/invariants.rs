//! The invariants, and the ledger in which the simulation records what they compare. Each function `check_…` is one
//! invariant of `docs/simulation.md`, and its first argument to [`Ledger::violated`] is the name there.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use localnet_brain::{feed::State, health::progress::Health, reports::Reports};
use localnet_client::{
    Synced,
    served::{Entry, Expected, Lacks, Served, To},
    vips::VipKey,
};
use localnet_cluster::objects::Kind;
use localnet_linux::conntrack::Flow;
use localnet_proto::{ByFamily, Digest, Family, Revision, ServiceKey, Snapshot, wire::IpFamily};
use tokio::time::Instant;

use crate::{api::Counts, owners::Owners, subsystem::Subsystem, truth::Truth};

/// How long a backend may take to apply a revision before the node is unhealthy.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// How long after that the brain may take to notice it. It counts revisions of one second as published together.
const NOTICE: Duration = Duration::from_secs(5);
/// How long the report of a sync may take. The longest pause between two attempts is 10 s.
const REPORTED: Duration = Duration::from_secs(30);
/// The most requests of one kind within 10 s. Each end of a watch may cause a list.
const MOST_REQUESTS: usize = 100;

/// What the simulation sees of a running brain.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// The newest state.
    pub state: &'a State,
    /// The reports that it has received.
    pub reports: &'a Reports,
    /// The health of the node.
    pub health: &'a Health,
    /// Since when calls from the backend to the brain have worked.
    pub calm_since: Instant,
}

/// The ledger. Clones share it.
#[derive(Clone, Debug)]
pub struct Ledger(Arc<Mutex<Inner>>);

/// The constants of a [`Subsystem`].
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// The name of the backend.
    pub name: &'static str,
    /// Whether the backend has to delete stale flows.
    pub has_flows: bool,
    /// Whether it sees all flows.
    pub sees_all_flows: bool,
    is_atomic: bool,
    names_repairs: bool,
    has_gaps: bool,
    shares_endpoints: bool,
    refuses_parts: bool,
    refuses_whole: bool,
}

struct Inner {
    profile: Profile,
    lacks: Lacks,
    /// What a new backend makes an empty kernel serve for a state.
    fresh: Box<dyn Fn(&Snapshot) -> Served + Send>,
    violation: Option<String>,
    truth: Truth,
    /// When each instance of the brain started.
    started: HashMap<u64, Instant>,
    /// When the backend last started, and when the brain first received a report of it after that.
    backend_started: Option<Instant>,
    backend_reported: Option<Instant>,
    /// When each revision of the running brain was first seen.
    published_at: BTreeMap<u64, Instant>,
    /// When the running brain first had a health of each family.
    reported_at: ByFamily<Option<Instant>>,
    /// The digest of each known revision.
    digests: HashMap<Revision, Digest>,
    /// The newest published revision of each instance.
    published: HashMap<u64, u64>,
    /// The newest revision of each instance that the backend has received.
    received: HashMap<u64, u64>,
    plans: HashMap<(Digest, Vec<ServiceKey>), Arc<Served>>,
    owners: Owners,
    /// The plans that a family's table may hold: that of the last sync that succeeded, and those of later attempts.
    possible: ByFamily<Vec<Arc<Served>>>,
    /// The state and the revision of the last sync that succeeded.
    applied: ByFamily<Revision>,
    /// When the running backend applied the newest revision.
    applied_at: ByFamily<Option<Instant>>,
    refused: BTreeSet<ServiceKey>,
    /// How often another program has damaged the table, and how much of that the backend has repaired.
    damage: ByFamily<u64>,
    seen: ByFamily<u64>,
    repaired: ByFamily<u64>,
    /// What the kernel serves.
    has: Served,
    /// The families of which packets meet the rules.
    entered: ByFamily<bool>,
    /// The families without hidden damage.
    whole: ByFamily<bool>,
    /// Whether the kernel refuses some objects.
    hates: bool,
    established: BTreeMap<String, (u64, Option<Revision>, bool)>,
    delivered: Option<(Instant, BTreeMap<Kind, Counts>)>,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").field("profile", &self.profile).finish_non_exhaustive()
    }
}

impl Ledger {
    /// An empty ledger for a kernel that is still `empty`.
    pub fn new<S: Subsystem + Sync>(empty: S) -> Self {
        let profile = Profile {
            name: S::NAME,
            has_flows: S::HAS_FLOWS,
            sees_all_flows: S::SEES_ALL_FLOWS,
            is_atomic: S::IS_ATOMIC,
            names_repairs: S::NAMES_REPAIRS,
            has_gaps: S::HAS_GAPS,
            shares_endpoints: S::SHARES_ENDPOINTS,
            refuses_parts: S::REFUSES_PARTS,
            refuses_whole: S::REFUSES_WHOLE,
        };
        Self(Arc::new(Mutex::new(Inner {
            profile,
            lacks: S::LACKS.iter().copied().collect(),
            fresh: Box::new(move |state| empty.clone().after(state).served()),
            violation: None,
            truth: Truth::default(),
            started: HashMap::new(),
            backend_started: None,
            backend_reported: None,
            published_at: BTreeMap::new(),
            reported_at: ByFamily::default(),
            digests: HashMap::new(),
            published: HashMap::new(),
            received: HashMap::new(),
            plans: HashMap::new(),
            owners: Owners::default(),
            possible: ByFamily::default(),
            applied: ByFamily::default(),
            applied_at: ByFamily::default(),
            refused: BTreeSet::new(),
            damage: ByFamily::default(),
            seen: ByFamily::default(),
            repaired: ByFamily::default(),
            has: Served::default(),
            entered: ByFamily::default(),
            whole: ByFamily::default(),
            hates: false,
            established: BTreeMap::new(),
            delivered: None,
        })))
    }

    /// The constants of the subsystem.
    pub fn profile(&self) -> Profile {
        self.lock().profile
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first violation: the name of the invariant, and what violates it.
    pub fn violation(&self) -> Option<String> {
        self.lock().violation.clone()
    }

    /// Records a violation that this module cannot find itself.
    pub fn violated(&self, invariant: &str, what: impl Into<String>) {
        self.lock().violated(invariant, what);
    }

    /// Changes the record of what the API server contains.
    pub fn with_truth(&self, change: impl FnOnce(&mut Truth)) {
        change(&mut self.lock().truth);
    }

    /// Forgets how long Services have existed, because etcd was restored.
    pub fn restored(&self) {
        let mut inner = self.lock();
        inner.truth.restored();
        inner.established.clear();
        inner.delivered = None;
    }

    /// An instance of the brain starts.
    pub fn brain_started(&self, instance: u64) {
        let mut inner = self.lock();
        inner.started.insert(instance, Instant::now());
        inner.published_at.clear();
        inner.reported_at = ByFamily::default();
    }

    /// The backend starts.
    pub fn backend_started(&self) {
        let mut inner = self.lock();
        (inner.backend_started, inner.backend_reported) = (Some(Instant::now()), None);
        inner.applied_at = ByFamily::default();
    }

    /// The backend has received a state after it requested one other than `held`.
    pub fn received(&self, state: &Snapshot, held: Revision) {
        let mut inner = self.lock();
        if state.revision == held {
            inner.violated("new-states", format!("the backend receives {held}, which it holds"));
        }
        let Revision { instance, rev } = state.revision;
        if let Some(before) = inner.received.insert(instance, rev).filter(|before| *before > rev) {
            inner.violated("revisions-rise", format!("the backend receives revision {rev} after {before}"));
        }
        inner.check_one_content(state.revision, Digest::of(state));
        inner.check_complete(state);
    }

    /// A sync of a state starts.
    pub fn sync_starts(&self, state: &Snapshot) {
        let mut inner = self.lock();
        let refused = inner.refused.clone();
        let Profile { is_atomic, has_gaps, .. } = inner.profile;
        inner.owners.add(state);
        for plan in [inner.plan(state, &BTreeSet::new()), inner.plan(state, &refused)] {
            for possible in inner.possible.values_mut() {
                if possible.is_empty() && !is_atomic {
                    // The first load changes an empty kernel step by step.
                    possible.push(Arc::default());
                }
                let is_known = possible.iter().any(|known| Arc::ptr_eq(known, &plan));
                // With gaps, even a VIP that keeps its content may be missing until the sync succeeds.
                if !is_known || has_gaps && possible.len() < 2 {
                    possible.push(Arc::clone(&plan));
                }
            }
        }
    }

    /// A sync of a state ends. `is_troubled` is whether a fault or another program has disturbed it.
    pub fn sync_ends(&self, state: &Snapshot, result: &anyhow::Result<Synced>, is_troubled: bool) {
        let mut inner = self.lock();
        let Ok(synced) = result else { return };
        if !is_troubled {
            inner.check_true_refusals(&synced.refused);
        }
        if synced.failed.is_empty() {
            inner.refused.clear();
        }
        // A family that fails still lacks what the kernel refused before.
        inner.refused.extend(synced.refused.iter().cloned());
        let plan = inner.plan(state, &synced.refused);
        for family in Family::BOTH {
            if synced.failed.iter().any(|(failed, _)| *failed == family) {
                continue;
            }
            inner.possible[family] = inner.possible_after(family, &plan, state);
            if inner.applied[family] != state.revision || inner.applied_at[family].is_none() {
                inner.applied_at[family] = Some(Instant::now());
            }
            inner.applied[family] = state.revision;
            if inner.profile.names_repairs && synced.full.contains(&family) {
                inner.repaired[family] = inner.seen[family];
            }
        }
        inner.find_repairs();
        if synced.failed.is_empty() && !inner.is_damaged() {
            match synced.refused.is_empty() {
                true => inner.check_no_gone_endpoint(state),
                false => inner.check_refused_whole(state, &plan),
            }
        }
    }

    /// The backend reads everything of a family.
    pub fn read(&self, family: Family) {
        let mut inner = self.lock();
        inner.seen[family] = inner.damage[family];
    }

    /// Another program has damaged objects of these families.
    pub fn damaged<S: Subsystem>(&self, families: &BTreeSet<Family>, kernel: &S) {
        let mut inner = self.lock();
        families.iter().for_each(|family| inner.damage[*family] += 1);
        inner.see(kernel);
    }

    /// Whether another program has ever damaged objects.
    pub fn was_damaged(&self) -> bool {
        self.lock().damage.values().iter().any(|damage| *damage > 0)
    }

    /// What the kernel serves.
    pub fn served(&self) -> Served {
        self.lock().has.clone()
    }

    /// The backend deletes a flow.
    pub fn flow_deleted(&self, flow: &Flow) {
        self.lock().check_flow_stays(flow);
    }

    /// Whether the kernel now refuses some objects.
    pub fn hates(&self, hates: bool) {
        self.lock().hates = hates;
    }

    /// Whether the kernel may refuse a correct change: it refuses some objects, or another program has damaged others.
    pub fn may_refuse(&self) -> bool {
        let inner = self.lock();
        inner.hates || inner.is_damaged()
    }

    /// Whether damage is not repaired yet.
    pub fn is_damaged(&self) -> bool {
        self.lock().is_damaged()
    }

    /// The revision of the last sync that succeeded.
    pub fn applied(&self) -> ByFamily<Revision> {
        self.lock().applied
    }

    /// The kernel has committed a change of the backend.
    pub fn committed<S: Subsystem>(&self, kernel: &S) {
        let mut inner = self.lock();
        let before = inner.entered;
        inner.see(kernel);
        let damaged = ByFamily::from_fn(|family| inner.damage[family] != inner.repaired[family]);
        if let Some((invariant, what)) = kernel.check(before, damaged) {
            inner.violated(invariant, what);
        }
        inner.check_known_plan();
    }

    /// Checks everything that holds at any time.
    pub fn check(&self, brain: Option<Seen<'_>>, counts: BTreeMap<Kind, Counts>) {
        let mut inner = self.lock();
        inner.find_repairs();
        inner.check_known_plan();
        if let Some(seen) = brain {
            inner.check_published(seen.state);
            inner.check_honest_reports(seen.reports, seen.state.revision().instance);
            inner.check_true_health(&seen);
        }
        inner.check_stays_served(brain.map(|seen| seen.state.revision()), &counts);
        inner.check_bounded_lists(&counts);
        inner.check_one_watch(&counts);
        inner.check_bounded_requests(&counts);
        if inner.delivered.as_ref().is_none_or(|(at, _)| *at < Instant::now()) {
            inner.delivered = Some((Instant::now(), counts));
        }
    }
}

impl Inner {
    fn violated(&mut self, invariant: &str, what: impl Into<String>) {
        let what = what.into();
        self.violation.get_or_insert_with(|| format!("{invariant}: {what}"));
    }

    fn see<S: Subsystem>(&mut self, kernel: &S) {
        (self.has, self.entered) = (kernel.served(), kernel.entered());
        self.whole = ByFamily::from_fn(|family| kernel.is_whole(family));
    }

    fn is_damaged(&self) -> bool {
        Family::BOTH.into_iter().any(|family| self.damage[family] != self.repaired[family])
    }

    /// Damage is repaired if the kernel serves what the last sync that succeeded has made it serve.
    fn find_repairs(&mut self) {
        for family in Family::BOTH.into_iter().filter(|_| !self.profile.names_repairs) {
            let [plan] = &self.possible[family][..] else { continue };
            let of = |served: &Served| {
                let of_family = served.0.iter().filter(|(vip, _)| vip.family() == family);
                of_family.map(|(vip, entry)| (*vip, entry.clone())).collect::<Vec<_>>()
            };
            if self.entered[family] && self.whole[family] && of(&self.has) == of(plan) {
                self.repaired[family] = self.damage[family];
            }
        }
    }

    /// What the kernel may serve after a sync with this plan. Of a Service that the kernel refuses, it may serve a part. If the backend
    /// skips only the VIPs that the kernel refuses, these may also have a content from before.
    fn possible_after(&mut self, family: Family, plan: &Arc<Served>, state: &Snapshot) -> Vec<Arc<Served>> {
        let full = self.plan(state, &BTreeSet::new());
        if self.profile.is_atomic || full == *plan {
            return vec![Arc::clone(plan)];
        }
        let mut possible = vec![Arc::clone(&full), Arc::clone(plan)];
        for before in self.possible[family].iter().filter(|_| self.profile.refuses_parts) {
            let mut mixed = Served::clone(plan);
            let refused = full.0.keys().filter(|vip| !plan.0.contains_key(vip));
            mixed.0.extend(refused.filter_map(|vip| Some((*vip, before.0.get(vip)?.clone()))));
            if possible.iter().all(|known| **known != mixed) {
                possible.push(Arc::new(mixed));
            }
        }
        possible
    }

    /// What the kernel serves after a sync of a state without some Services.
    fn plan(&mut self, state: &Snapshot, without: &BTreeSet<ServiceKey>) -> Arc<Served> {
        let key = (Digest::of(state), without.iter().cloned().collect::<Vec<_>>());
        if let Some(plan) = self.plans.get(&key) {
            return Arc::clone(plan);
        }
        let mut state = state.clone();
        state.services.retain(|key, _| !without.contains(key));
        let plan = Arc::new((self.fresh)(&state));
        self.plans.insert(key, Arc::clone(&plan));
        plan
    }

    /// A revision has one content, and the changes that the backend folds give the state that the brain has published.
    fn check_one_content(&mut self, revision: Revision, digest: Digest) {
        let before = *self.digests.entry(revision).or_insert(digest);
        if before != digest {
            self.violated("one-content", format!("revision {revision} has two contents"));
        }
    }

    /// A new revision differs from the one before.
    fn check_revisions_differ(&mut self, Revision { instance, rev }: Revision, digest: Digest) {
        let before = Revision { instance, rev: rev.saturating_sub(1) };
        if self.digests.get(&before) == Some(&digest) {
            self.violated("revisions-differ", format!("revision {rev} has the content of the one before"));
        }
    }

    /// Revisions of an instance never go back.
    fn check_published(&mut self, state: &State) {
        let Revision { instance, rev } = state.revision();
        if rev == 0 {
            return;
        }
        if let Some(before) = self.published.insert(instance, rev).filter(|before| *before > rev) {
            self.violated("revisions-rise", format!("the brain publishes revision {rev} after {before}"));
        }
        self.check_one_content(state.revision(), state.digest());
        self.check_revisions_differ(state.revision(), state.digest());
    }

    /// A state lacks no Service that has existed since before the brain started.
    fn check_complete(&mut self, state: &Snapshot) {
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
    fn check_known_plan(&mut self) {
        let has = &self.has;
        let lenient = self.hates || !self.refused.is_empty();
        let mut wrong = None;
        for family in Family::BOTH {
            if self.damage[family] != self.repaired[family] {
                continue;
            }
            let possible = &self.possible[family];
            // Before the first load has ended, packets meet no rules. The backend removes Services that the kernel refuses.
            let may_lack = lenient || !self.entered[family];
            let may_mix = !self.profile.is_atomic && (lenient || possible.len() > 1);
            let all = possible.iter().flat_map(|plan| plan.0.keys()).chain(has.0.keys());
            let unknown = all.filter(|vip| vip.family() == family).find(|vip| {
                let entry: Option<&Entry> = has.0.get(*vip);
                let is_known = possible.iter().any(|plan| plan.0.get(*vip) == entry);
                let is_mixed = may_mix && self.mixes(entry, possible, vip, may_lack);
                !(is_known || is_mixed || entry.is_none() && may_lack)
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
    fn check_no_gone_endpoint(&mut self, state: &Snapshot) {
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

    /// A backend skips no further Service as refused unless the kernel refuses some objects.
    fn check_true_refusals(&mut self, refused: &BTreeSet<ServiceKey>) {
        let news = refused.iter().find(|service| !self.refused.contains(*service));
        if let Some(service) = news.filter(|_| !self.hates).cloned() {
            self.violated("true-refusals", format!("{service} counts as refused, but the kernel refuses no object"));
        }
    }

    /// The kernel serves no VIP of a Service that it refuses. `plan` is without these Services.
    fn check_refused_whole(&mut self, state: &Snapshot, plan: &Served) {
        let full = self.plan(state, &BTreeSet::new());
        let mut refused = full.0.keys().filter(|vip| !plan.0.contains_key(vip));
        let Some(vip) = refused.find(|vip| self.has.0.contains_key(vip)).filter(|_| self.profile.refuses_whole) else {
            return;
        };
        self.violated("refused-whole", format!("{vip} of a refused Service is {:?}", self.has.0.get(vip)));
    }

    /// A flow stays as long as its endpoint is eligible.
    fn check_flow_stays(&mut self, flow: &Flow) {
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
    fn check_honest_reports(&mut self, reports: &Reports, instance: u64) {
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
    fn check_true_health(&mut self, seen: &Seen<'_>) {
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
    fn check_stays_served(&mut self, newest: Option<Revision>, counts: &BTreeMap<Kind, Counts>) {
        let is_damaged = self.damage[Family::V4] != self.repaired[Family::V4];
        let in_gap = self.profile.has_gaps && self.possible[Family::V4].len() != 1;
        if is_damaged || in_gap || self.hates || !self.refused.is_empty() {
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
    fn check_bounded_lists(&mut self, counts: &BTreeMap<Kind, Counts>) {
        for (kind, Counts { lists, reasons, .. }) in counts {
            if lists > reasons {
                self.violated("bounded-lists", format!("{lists} lists of {kind} for {reasons} reasons"));
            }
        }
    }

    /// The brain has at most one open watch of a kind.
    fn check_one_watch(&mut self, counts: &BTreeMap<Kind, Counts>) {
        for (kind, Counts { open, .. }) in counts.iter().filter(|(_, counts)| counts.open > 1) {
            self.violated("one-watch", format!("{open} watches of {kind} are open"));
        }
    }

    /// The brain does not overload the API server.
    fn check_bounded_requests(&mut self, counts: &BTreeMap<Kind, Counts>) {
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
