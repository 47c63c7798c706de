//! The ledger: it records what happens in a run, and checks the invariants that hold at any time.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use localnet_brain::{feed::State, health::progress::Health, reports::Reports};
use localnet_client::{
    Synced,
    served::{Lacks, Served},
};
use localnet_cluster::objects::Kind;
use localnet_linux::conntrack::Flow;
use localnet_proto::{ByFamily, Digest, Family, Revision, ServiceKey, Snapshot};
use tokio::time::Instant;

use crate::{
    api::Counts,
    owners::{self, Owners},
    subsystem::Subsystem,
    truth::Truth,
};

mod invariants;

/// How long a backend may take to apply a revision before the node is unhealthy.
pub const PATIENCE: Duration = Duration::from_secs(5);

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
    /// The digest of the records of `localnet.v1` of each published revision, if the brain keeps any.
    records: HashMap<Revision, Digest>,
    /// The newest published revision of each instance.
    published: HashMap<u64, u64>,
    /// The newest revision of each instance that each reader has received.
    received: HashMap<(&'static str, u64), u64>,
    plans: HashMap<(Digest, Vec<ServiceKey>), Arc<Served>>,
    /// What a node serves that has only one Service, by the digests of the node and of the Service.
    alone: BTreeMap<(u64, u64), Served>,
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
    /// How often a change has repaired damage that the backend had not seen.
    accidents: u64,
    /// What the kernel serves.
    has: Arc<Served>,
    /// The families of which packets meet the rules.
    entered: ByFamily<bool>,
    /// The families without hidden damage.
    whole: ByFamily<bool>,
    /// Whether the kernel refuses some objects.
    hates: bool,
    /// Whether it has refused some since the last sync that succeeded. Until the next one, their Services may be missing.
    hated: bool,
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
            records: HashMap::new(),
            published: HashMap::new(),
            received: HashMap::new(),
            plans: HashMap::new(),
            alone: BTreeMap::new(),
            owners: Owners::default(),
            possible: ByFamily::default(),
            applied: ByFamily::default(),
            applied_at: ByFamily::default(),
            refused: BTreeSet::new(),
            damage: ByFamily::default(),
            seen: ByFamily::default(),
            repaired: ByFamily::default(),
            accidents: 0,
            has: Arc::default(),
            entered: ByFamily::default(),
            whole: ByFamily::default(),
            hates: false,
            hated: false,
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

    /// A reader has received a state after it requested one other than `held`.
    pub fn received(&self, reader: &'static str, state: &Snapshot, held: Revision) {
        let mut inner = self.lock();
        if state.revision == held {
            inner.violated("new-states", format!("{reader} receives {held}, which it holds"));
        }
        let Revision { instance, rev } = state.revision;
        if let Some(before) = inner.received.insert((reader, instance), rev).filter(|before| *before > rev) {
            inner.violated("revisions-rise", format!("{reader} receives revision {rev} after {before}"));
        }
        inner.check_one_content(state.revision, Digest::of(state));
        inner.check_complete(state);
    }

    /// A sync of a state starts. Returns the digest of the state.
    pub fn sync_starts(&self, state: &Snapshot) -> Digest {
        let mut inner = self.lock();
        let refused = inner.refused.clone();
        let Profile { is_atomic, has_gaps, .. } = inner.profile;
        inner.owners.add(state);
        let digest = Digest::of(state);
        for plan in [inner.plan(state, digest, &BTreeSet::new()), inner.plan(state, digest, &refused)] {
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
        digest
    }

    /// A sync of a state ends, which has this digest. `is_troubled` is whether a fault or another program has disturbed it.
    pub fn sync_ends<S: Subsystem>(
        &self,
        (state, digest): (&Snapshot, Digest),
        result: &anyhow::Result<Synced>,
        is_troubled: bool,
        kernel: &S,
    ) {
        let mut inner = self.lock();
        let Ok(synced) = result else { return };
        if !is_troubled {
            inner.check_true_refusals(&synced.refused, state, kernel);
        }
        if synced.failed.is_empty() {
            inner.refused.clear();
            inner.hated = inner.hates;
        }
        // A family that fails still lacks what the kernel refused before.
        inner.refused.extend(synced.refused.iter().cloned());
        let plan = inner.plan(state, digest, &synced.refused);
        let full = inner.plan(state, digest, &BTreeSet::new());
        for family in Family::BOTH {
            if synced.failed.iter().any(|(failed, _)| *failed == family) {
                continue;
            }
            inner.possible[family] = inner.possible_after(family, &plan, &full);
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
                false => inner.check_refused_whole(&plan, &full),
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

    /// All faults have ended.
    pub fn healed<S: Subsystem>(&self, kernel: &S) {
        self.lock().see(kernel);
    }

    /// Whether another program has ever damaged objects.
    pub fn was_damaged(&self) -> bool {
        self.lock().damage.values().iter().any(|damage| *damage > 0)
    }

    /// What the kernel serves.
    pub fn served(&self) -> Arc<Served> {
        Arc::clone(&self.lock().has)
    }

    /// The backend deletes a flow.
    pub fn flow_deleted(&self, flow: &Flow) {
        self.lock().check_flow_stays(flow);
    }

    /// Whether the kernel now refuses some objects.
    pub fn hates(&self, hates: bool) {
        let mut inner = self.lock();
        inner.hates = hates;
        inner.hated |= hates;
    }

    /// Whether the kernel may refuse a correct change: it refuses some objects, or another program has damaged others.
    pub fn may_refuse(&self) -> bool {
        let inner = self.lock();
        inner.hates || inner.is_damaged()
    }

    /// How often a change has repaired damage that the backend had not seen. It then does not know that flows may have begun without
    /// rules.
    pub fn accidents(&self) -> u64 {
        self.lock().accidents
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
        (self.has, self.entered) = (Arc::new(kernel.served()), kernel.entered());
        self.whole = ByFamily::from_fn(|family| kernel.is_whole(family));
    }

    fn is_damaged(&self) -> bool {
        Family::BOTH.into_iter().any(|family| self.damage[family] != self.repaired[family])
    }

    /// Damage is repaired if the kernel serves what the last sync that succeeded has made it serve.
    fn find_repairs(&mut self) {
        for family in Family::BOTH.into_iter().filter(|_| !self.profile.names_repairs) {
            let [plan] = &self.possible[family][..] else { continue };
            let is_damaged = self.repaired[family] != self.damage[family];
            if is_damaged && self.entered[family] && self.whole[family] && serve_alike(&self.has, plan, family) {
                self.accidents += u64::from(self.seen[family] != self.damage[family]);
                self.repaired[family] = self.damage[family];
            }
        }
    }

    /// What the kernel may serve after a sync with this plan. `full` is the plan with all Services. Of a Service that the kernel
    /// refuses, it may serve a part. If the backend skips only the VIPs that the kernel refuses, these may also have a content from
    /// before.
    fn possible_after(&self, family: Family, plan: &Arc<Served>, full: &Arc<Served>) -> Vec<Arc<Served>> {
        if self.profile.is_atomic || Arc::ptr_eq(full, plan) || full == plan {
            return vec![Arc::clone(plan)];
        }
        let mut possible = vec![Arc::clone(full), Arc::clone(plan)];
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

    /// What the kernel serves after a sync of a state, which has this digest, without some Services.
    fn plan(&mut self, state: &Snapshot, digest: Digest, without: &BTreeSet<ServiceKey>) -> Arc<Served> {
        let key = (digest, without.iter().cloned().collect::<Vec<_>>());
        if let Some(plan) = self.plans.get(&key) {
            return Arc::clone(plan);
        }
        let plan = if without.is_empty() {
            self.fresh_plan(state)
        } else {
            let mut state = state.clone();
            state.services.retain(|key, _| !without.contains(key));
            self.fresh_plan(&state)
        };
        let plan = Arc::new(plan);
        self.plans.insert(key, Arc::clone(&plan));
        plan
    }

    /// What a new backend makes an empty kernel serve for a state. Plans only the Services that it has not planned before. Services that
    /// share a VIP are planned together.
    fn fresh_plan(&mut self, state: &Snapshot) -> Served {
        if owners::share_vips(state) {
            return (self.fresh)(state);
        }
        let node = Digest::of_node(&state.node).0;
        let mut plan = Served::default();
        for (key, service) in &state.services {
            let alone = self.alone.entry((node, Digest::of_service(service).0)).or_insert_with(|| {
                let services = [(key.clone(), Arc::clone(service))].into();
                (self.fresh)(&Snapshot { services, node: state.node.clone(), ..Snapshot::default() })
            });
            plan.0.extend(alone.0.iter().map(|(vip, entry)| (*vip, entry.clone())));
        }
        plan
    }
}

/// Whether both serve the same VIPs of a family, with the same contents.
fn serve_alike(one: &Served, other: &Served, family: Family) -> bool {
    let [one, other] = [one, other].map(|served| served.0.iter().filter(|(vip, _)| vip.family() == family));
    one.eq(other)
}
