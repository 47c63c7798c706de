//! The invariants, and the ledger in which the simulation records what they compare. Each function `check_…` is one
//! invariant of `docs/simulation.md`, and its first argument to [`Ledger::violated`] is the name there.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use localnet_brain::{feed::State, reports::Reports};
use localnet_client::{
    Synced,
    served::{Entry, Expected, Served, To},
    vips::{Config, VipKey},
};
use localnet_cluster::objects::Kind;
use localnet_linux::{
    conntrack::Flow,
    nft::{SetDump, TableDump},
};
use localnet_nft::{
    NftBackend,
    plan::{substitute, table},
    served,
    testing::{FakeKernel, FakeTable},
};
use localnet_proto::{ByFamily, Changes, Digest, Family, Revision, ServiceKey, Snapshot, wire::IpFamily};
use tokio::time::Instant;

use crate::{api::Counts, truth::Truth};

/// The ledger. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Ledger(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    violation: Option<String>,
    truth: Truth,
    /// When each instance of the brain started.
    started: HashMap<u64, Instant>,
    /// The digest of each known revision.
    digests: HashMap<Revision, Digest>,
    /// The newest published revision of each instance.
    published: HashMap<u64, u64>,
    /// The newest revision of each instance that the backend has received.
    received: HashMap<u64, u64>,
    plans: HashMap<(Digest, Vec<ServiceKey>), Arc<Served>>,
    /// The plans that a family's table may hold: that of the last sync that succeeded, and those of later attempts.
    possible: ByFamily<Vec<Arc<Served>>>,
    /// The state and the revision of the last sync that succeeded.
    applied: ByFamily<Revision>,
    refused: BTreeSet<ServiceKey>,
    /// How often another program has damaged the table, and how much of that the backend has repaired.
    damage: ByFamily<u64>,
    seen: ByFamily<u64>,
    repaired: ByFamily<u64>,
    /// What the kernel serves.
    has: Served,
    /// The number of tables that packets of each family enter.
    entered: ByFamily<usize>,
    /// Whether the kernel refuses some elements.
    hates: bool,
    established: BTreeMap<String, (u64, Option<Revision>, bool)>,
    delivered: Option<(Instant, BTreeMap<Kind, Counts>)>,
}

impl Ledger {
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
        self.lock().started.insert(instance, Instant::now());
    }

    /// The backend has received a state.
    pub fn received(&self, state: &Snapshot) {
        let mut inner = self.lock();
        inner.check_one_content(state.revision, Digest::of(state));
        inner.check_complete(state);
        let Revision { instance, rev } = state.revision;
        if let Some(before) = inner.received.insert(instance, rev).filter(|before| *before > rev) {
            inner.violated("revisions-rise", format!("the backend receives revision {rev} after {before}"));
        }
    }

    /// A sync of a state starts.
    pub fn sync_starts(&self, state: &Snapshot) {
        let mut inner = self.lock();
        let refused = inner.refused.clone();
        for plan in [inner.plan(state, &BTreeSet::new()), inner.plan(state, &refused)] {
            for possible in inner.possible.values_mut() {
                if possible.last() != Some(&plan) {
                    possible.push(Arc::clone(&plan));
                }
            }
        }
    }

    /// A sync of a state ends.
    pub fn sync_ends(&self, state: &Snapshot, result: &anyhow::Result<Synced>) {
        let mut inner = self.lock();
        let Ok(synced) = result else { return };
        inner.refused.clone_from(&synced.refused);
        let plan = inner.plan(state, &synced.refused);
        for family in Family::BOTH {
            if synced.failed.iter().any(|(failed, _)| *failed == family) {
                continue;
            }
            inner.possible[family] = vec![Arc::clone(&plan)];
            inner.applied[family] = state.revision;
            if synced.full.contains(&family) {
                inner.repaired[family] = inner.seen[family];
            }
        }
        if synced.failed.is_empty() && !inner.is_damaged() && synced.refused.is_empty() {
            inner.check_no_gone_endpoint(state);
        }
    }

    /// The backend reads a table.
    pub fn read(&self, family: Family) {
        let mut inner = self.lock();
        inner.seen[family] = inner.damage[family];
    }

    /// Another program has damaged the table of a family.
    pub fn damaged(&self, family: Family, kernel: &FakeKernel) {
        let mut inner = self.lock();
        inner.damage[family] += 1;
        inner.see(kernel);
    }

    /// Whether another program has ever damaged the tables.
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

    /// Whether the kernel now refuses some elements.
    pub fn hates(&self, hates: bool) {
        self.lock().hates = hates;
    }

    /// Whether damage is not repaired yet.
    pub fn is_damaged(&self) -> bool {
        self.lock().is_damaged()
    }

    /// The revision of the last sync that succeeded.
    pub fn applied(&self) -> ByFamily<Revision> {
        self.lock().applied
    }

    /// The kernel has committed a transaction of the backend.
    pub fn committed(&self, kernel: &FakeKernel) {
        let mut inner = self.lock();
        let before = inner.entered;
        inner.see(kernel);
        inner.check_one_table(before);
        inner.check_known_plan();
    }

    /// Checks everything that holds at any time.
    pub fn check(&self, brain: Option<(&State, &Reports)>, counts: BTreeMap<Kind, Counts>) {
        let mut inner = self.lock();
        inner.check_known_plan();
        if let Some((state, reports)) = brain {
            inner.check_published(state);
            inner.check_honest_reports(reports);
        }
        inner.check_stays_served(brain.map(|(state, _)| state.revision()), &counts);
        inner.check_bounded_lists(&counts);
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

    fn see(&mut self, kernel: &FakeKernel) {
        self.has = serves(kernel);
        self.entered = ByFamily::from_fn(|family| tables(kernel, family).count());
    }

    fn is_damaged(&self) -> bool {
        Family::BOTH.into_iter().any(|family| self.damage[family] != self.repaired[family])
    }

    /// What the tables serve after a sync of a state without some Services.
    fn plan(&mut self, state: &Snapshot, without: &BTreeSet<ServiceKey>) -> Arc<Served> {
        let key = (Digest::of(state), without.iter().cloned().collect::<Vec<_>>());
        if let Some(plan) = self.plans.get(&key) {
            return Arc::clone(plan);
        }
        let mut state = state.clone();
        state.services.retain(|key, _| !without.contains(key));
        let plan = Arc::new(serves(&fresh(&state)));
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

    /// Revisions of an instance never go back.
    fn check_published(&mut self, state: &State) {
        let Revision { instance, rev } = state.revision();
        if rev == 0 {
            return;
        }
        self.check_one_content(state.revision(), state.digest());
        if let Some(before) = self.published.insert(instance, rev).filter(|before| *before > rev) {
            self.violated("revisions-rise", format!("the brain publishes revision {rev} after {before}"));
        }
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

    /// Packets of a family enter one table, and never none after the first load.
    fn check_one_table(&mut self, before: ByFamily<usize>) {
        for family in Family::BOTH {
            let entered = self.entered[family];
            if entered > 1 {
                self.violated("one-table", format!("packets of {family:?} enter {entered} tables"));
            }
            if entered == 0 && before[family] > 0 && self.damage[family] == self.repaired[family] {
                self.violated("one-table", format!("packets of {family:?} enter no table"));
            }
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
            // Before the first load has ended, packets enter no table. The backend removes Services that the kernel refuses.
            let may_lack = lenient || self.entered[family] == 0;
            let all = possible.iter().flat_map(|plan| plan.0.keys()).chain(has.0.keys());
            let unknown = all.filter(|vip| vip.family() == family).find(|vip| {
                let entry: Option<&Entry> = has.0.get(*vip);
                let is_known = possible.iter().any(|plan| plan.0.get(*vip) == entry);
                !(is_known || entry.is_none() && may_lack)
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

    /// After a sync, new connections reach exactly the endpoints that the oracle derives from the state.
    fn check_no_gone_endpoint(&mut self, state: &Snapshot) {
        let differences = Expected::of(state).differences(&self.has);
        if !differences.is_empty() {
            self.violated("no-gone-endpoint", format!("after the sync of revision {}:{differences}", state.revision));
        }
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
    fn check_honest_reports(&mut self, reports: &Reports) {
        let Some(report) = reports.last("nft").map(|received| received.report) else { return };
        for family in Family::BOTH {
            let number = i32::from(IpFamily::from(family));
            let Some(claim) = report.families.iter().find(|claim| claim.family == number) else { continue };
            let revision = Revision { instance: report.instance_id, rev: claim.applied_rev };
            let applied = self.applied[family];
            if claim.applied_rev == 0 || applied.instance != revision.instance {
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

    /// A Service that was programmed stays programmed as long as it has an endpoint that is always ready.
    fn check_stays_served(&mut self, newest: Option<Revision>, counts: &BTreeMap<Kind, Counts>) {
        let is_damaged = self.damage[Family::V4] != self.repaired[Family::V4];
        if is_damaged || self.hates || !self.refused.is_empty() {
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

    /// The brain lists a kind only for a reason, and once in a while.
    fn check_bounded_lists(&mut self, counts: &BTreeMap<Kind, Counts>) {
        for (kind, Counts { lists, reasons, .. }) in counts {
            if *lists > reasons + 2 {
                self.violated("bounded-lists", format!("{lists} lists of {kind} for {reasons} reasons"));
            }
        }
    }
}

/// The tables of a family that packets enter.
fn tables(kernel: &FakeKernel, family: Family) -> impl Iterator<Item = &FakeTable> {
    let names = [table(family), substitute(family)];
    let of_family = kernel.tables.iter().filter(move |(name, _)| names.contains(name)).map(|(_, content)| content);
    of_family.filter(|content| content.chains.values().any(|chain| chain.hook.is_some()))
}

/// What the tables serve that packets enter.
pub fn serves(kernel: &FakeKernel) -> Served {
    let mut all = Served::default();
    for content in Family::BOTH.into_iter().flat_map(|family| tables(kernel, family)) {
        let sets = content.sets.values().map(|(set, elements)| SetDump {
            name: set.name.clone(),
            set: Some(Arc::clone(set)),
            elements: elements.values().cloned().collect(),
        });
        let dump = TableDump { chains: Vec::new(), sets: sets.collect(), generation: 0 };
        all.0.append(&mut served::of(&dump).0);
    }
    all
}

/// A kernel to which a new backend has applied a state.
pub fn fresh(state: &Snapshot) -> FakeKernel {
    let mut backend = NftBackend::new(Config::default(), FakeKernel::default());
    // An error leaves the kernel empty, and the comparison shows it.
    _ = backend.apply(state, &Changes::everything());
    backend.kernel().clone()
}
