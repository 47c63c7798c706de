//! The feed: the successive states of the node, for any number of readers.
//!
//! ```text
//! publish ──► State: node, services, index by revision, tombstones   (persistent maps: a clone is a pointer)
//!                └─► answer(request) ─► Items: a cursor, and bytes that all readers share
//! ```
//!
//! A reader holds a [`State`] and its own position in it. The feed queues nothing for a reader, however slow the reader
//! is. A full state is encoded like the delta since revision 0. Each Service is encoded once, when it changes, and only
//! its encoded form is kept. For readers of `localnet.v1`, the feed also keeps records.

mod counts;
mod digests;
mod entry;
mod health;
mod history;
mod items;
mod messages;
mod records;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod v1_tests;
mod walk;

use std::{
    collections::BTreeMap,
    ops::Bound,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use bytes::Bytes;
use imbl::{OrdMap, OrdSet, ordmap::DiffItem};
use localnet_proto::{
    Digest, Node, Revision, Service, ServiceKey, Snapshot, Update,
    decode::{Assembler, DecodeError},
    encode,
    history::records as history_records,
    v1::{self, dns, report::Digests, wire::Capability},
};
use prost::Message as _;
use tokio::sync::watch;

use crate::metrics::Metrics;
pub use counts::Counts;
pub(crate) use entry::Encoded;
use entry::{Entry, NodeEntry};
pub use health::{HealthFacts, NodeFacts};
pub(crate) use history::Cursor;
pub use history::History;
pub use items::Items;
use localnet_cluster::{localize::Localized, objects::Publish};
pub use messages::{Messages, Selection};
use records::Records;

/// Maximum number of removed Services that are remembered for deltas. A reader that has missed older removals gets the
/// full state.
const TOMBSTONES: usize = 4096;

/// The states of the node. Clones share the feed.
#[derive(Clone, Debug)]
pub struct Feed(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    state: Mutex<State>,
    /// Locked while the next state is being built.
    publishing: Mutex<()>,
    revision: watch::Sender<Revision>,
    /// Empty if the feed keeps no records.
    digests: Mutex<digests::Recent>,
    health: watch::Sender<HealthFacts>,
    metrics: Metrics,
    history: History,
    publish: Option<Arc<Publish>>,
    /// The feed of the view for DNS.
    dns: Option<Feed>,
}

impl Feed {
    /// A feed without a state: its revision is 0 until the first [`Feed::publish`]. `instance` is a random number that
    /// identifies this run of the brain.
    pub fn new(instance: u64) -> Self {
        Self::of(instance, None, None)
    }

    /// A feed that also keeps the records for readers of `localnet.v1`, who may select what `publish` lists.
    pub fn with_records(instance: u64, publish: Arc<Publish>) -> Self {
        Self::of(instance, Some(publish), None)
    }

    /// A feed with records that also keeps the view for DNS, in a feed of its own: the revisions of both are independent.
    pub fn with_dns(instance: u64, publish: Arc<Publish>) -> Self {
        // No token or revision of one view is also one of the other.
        Self::of(instance, Some(Arc::clone(&publish)), Some(Self::with_records(!instance, publish)))
    }

    fn of(instance: u64, publish: Option<Arc<Publish>>, dns: Option<Self>) -> Self {
        let state = State::new(instance, publish.is_some());
        let (revision, _) = watch::channel(state.revision);
        Self(Arc::new(Inner {
            state: Mutex::new(state),
            publishing: Mutex::default(),
            revision,
            digests: Mutex::default(),
            health: watch::Sender::default(),
            metrics: Metrics::default(),
            history: History::new(instance),
            publish,
            dns,
        }))
    }

    /// Applies the changes and publishes the result as a new state. Returns `None` if nothing has changed. The first
    /// state is published even if it is empty.
    pub fn publish(&self, localized: Localized) -> Option<Revision> {
        self.publish_since(localized, Instant::now())
    }

    /// Does the same as [`publish`](Self::publish). The first of the changes was received at `since`.
    pub(crate) fn publish_since(&self, mut localized: Localized, since: Instant) -> Option<Revision> {
        let names = std::mem::take(&mut localized.names);
        if let Some(dns) = &self.0.dns {
            dns.publish_names(Localized { node: localized.node.clone(), names, ..Localized::default() });
        }
        let changes = std::mem::take(&mut localized.changes);
        // The health answers change before the new state is published, so that load balancers move their traffic before
        // backends change the rules.
        self.0.health.send_if_modified(|facts| facts.fold(&localized));
        let _turn = self.0.publishing.lock().unwrap_or_else(PoisonError::into_inner);
        let served = self.state();
        // Readers get the current state while the next one is being built.
        let mut next = served.clone();
        next.fold(localized);
        let revision = next.revision;
        if revision == served.revision {
            return None;
        }
        // The metrics must know the revision before a backend can report it.
        self.0.metrics.published(revision, &changes, since);
        if let Some(records) = next.records {
            self.digests_lock().push(revision.rev, Digests { items: next.digest, records });
        }
        *self.lock() = next.clone();
        self.0.revision.send_replace(revision);
        self.0.history.changed(&served, &next, &changes, since);
        Some(revision)
    }

    /// Publishes a state of the view for DNS, which has neither metrics nor a history.
    fn publish_names(&self, names: Localized) {
        let _turn = self.0.publishing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = self.state();
        let before = next.revision;
        next.fold(names);
        let revision = next.revision;
        if revision != before {
            *self.lock() = next;
            self.0.revision.send_replace(revision);
        }
    }

    /// The newest state.
    pub fn state(&self) -> State {
        self.lock().clone()
    }

    /// The revision of the newest state; its `rev` is 0 before the first state. The receiver is notified of each new
    /// revision.
    pub fn subscribe(&self) -> watch::Receiver<Revision> {
        self.0.revision.subscribe()
    }

    /// The metrics of this feed.
    pub fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// The history of this feed.
    pub fn history(&self) -> &History {
        &self.0.history
    }

    /// Records the history also into a file, from its beginning. The file and its predecessor, `FILE.old`, occupy at most
    /// `limit` bytes. If they cannot be written, the log says so, and the history is only kept in memory.
    pub fn record_into(&self, file: PathBuf, limit: u64) {
        let _turn = self.0.publishing.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.history.record_into(file, limit, self.state());
    }

    /// What readers of `localnet.v1` may select. `None` if the feed keeps no records, so that they cannot be served.
    pub fn published(&self) -> Option<&Arc<Publish>> {
        self.0.publish.as_ref()
    }

    /// The feed of the view for DNS. `None` if there is none.
    pub fn dns(&self) -> Option<&Self> {
        self.0.dns.as_ref()
    }

    /// The facts behind the health answers. The receiver is notified of each change.
    pub fn health_facts(&self) -> watch::Receiver<HealthFacts> {
        self.0.health.subscribe()
    }

    /// Waits for a state whose revision is not `held`. This is the long poll.
    pub async fn differing(&self, held: Revision) -> State {
        let mut revision = self.subscribe();
        loop {
            // This cannot fail: the sender lives as long as `self`.
            let _ = revision.wait_for(|revision| revision.rev > 0 && *revision != held).await;
            let state = self.state();
            if state.revision != held {
                return state;
            }
            // `publish` stores the state before it sends the revision, so the caller may already hold a state that is newer
            // than `revision`. In that case, wait until the revision of that state is sent.
            let _ = revision.changed().await;
        }
    }

    fn digests_lock(&self) -> MutexGuard<'_, digests::Recent> {
        // Code that holds the lock does not panic.
        self.0.digests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is replaced in one assignment, so a panic never leaves it incomplete.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An immutable state of the node. Cheap to clone.
#[derive(Clone, Debug)]
pub struct State {
    revision: Revision,
    digest: Digest,
    /// The sum of the digests of all records. `None` if the feed keeps no records.
    records: Option<Digest>,
    /// How many Services require these capabilities. Services that require none are not counted.
    requiring: BTreeMap<Box<[Capability]>, usize>,
    /// The oldest revision from which a delta can start: the tombstones of all later removals still exist.
    floor: u64,
    node: Arc<NodeEntry>,
    services: OrdMap<ServiceKey, Arc<Entry>>,
    changed: OrdMap<(u64, ServiceKey), Arc<Entry>>,
    removed: OrdMap<ServiceKey, u64>,
    removals: OrdSet<(u64, ServiceKey)>,
}

/// An answer to a reader, as serialized `NextItem`s. The first item contains the revision, and the other items contain
/// the content.
#[derive(Debug)]
pub struct Answer {
    /// Whether the items are a delta from the request's revision, and not the full state.
    pub delta: bool,
    /// The serialized items.
    pub items: Items,
}

impl State {
    fn new(instance: u64, keeps_records: bool) -> Self {
        let node = Arc::new(NodeEntry::new(0, Node::default(), keeps_records));
        Self {
            revision: Revision { instance, rev: 0 },
            digest: node.digest(),
            records: node.record.as_ref().map(|record| record.digest),
            requiring: BTreeMap::new(),
            floor: 1,
            node,
            services: OrdMap::new(),
            changed: OrdMap::new(),
            removed: OrdMap::new(),
            removals: OrdSet::new(),
        }
    }

    /// The revision of this state. A state with `rev` 0 must not be served.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The digest of the content of this state.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// The sum of the digests of all records of `localnet.v1`. `None` if the feed keeps no records.
    pub fn records_digest(&self) -> Option<Digest> {
        self.records
    }

    /// The number of Services.
    pub fn len(&self) -> usize {
        self.services.len()
    }

    /// Whether the state has no Services.
    pub fn is_empty(&self) -> bool {
        self.services.is_empty()
    }

    /// The sum of the counts of all Services.
    pub fn counts(&self) -> Counts {
        self.services.values().map(|entry| entry.counts).sum()
    }

    /// The facts about the node.
    pub fn node(&self) -> &Node {
        &self.node.node
    }

    /// The answer to a reader that holds the state `request`. `delta` is whether the reader accepts a delta.
    pub fn answer(&self, request: Revision, delta: bool) -> Answer {
        let since = self.since(request, delta);
        Answer { delta: since.is_some(), items: Items::new(self.clone(), since) }
    }

    /// The answer of `localnet.v1` to a reader that holds the state `request`, or no state. `base` is the reader's token, and `token`
    /// that of this state. `None` if the feed keeps no records.
    pub fn messages(
        &self,
        request: Option<Revision>,
        selection: Selection,
        (base, token): (String, String),
    ) -> Option<Messages> {
        let since = request.and_then(|request| self.since(request, true));
        Messages::new(self.clone(), since, selection, (base, token))
    }

    /// Whether a reader that holds the state `request` gets only what has changed since.
    pub fn continues(&self, request: Revision) -> bool {
        self.since(request, true).is_some()
    }

    /// How many Services are withheld from a reader of `localnet.v1`.
    pub fn withheld(&self, selection: &Selection) -> usize {
        let withheld = self.requiring.iter().filter(|(requires, _)| selection.withholds(requires));
        withheld.map(|(_, services)| services).sum()
    }

    /// These Services, in their order. Finding them costs the time of all Services.
    pub fn withheld_services(&self, selection: &Selection) -> impl Iterator<Item = &ServiceKey> {
        let withholds =
            |entry: &Entry| entry.records.as_ref().is_some_and(|records| selection.withholds(&records.head.requires));
        self.services.iter().filter(move |(_, entry)| withholds(entry)).map(|(key, _)| key)
    }

    /// The decoded [`answer`](Self::answer), for a reader in this process.
    ///
    /// # Errors
    /// Returns an error if an item cannot be decoded, which would be a bug in the encoder.
    pub fn update(&self, request: Revision, delta: bool) -> Result<Update, DecodeError> {
        let mut assembler = Assembler::default();
        for item in self.answer(request, delta).items {
            assembler.push_bytes(item)?;
        }
        assembler.finish()
    }

    /// The decoded full state.
    ///
    /// # Errors
    /// See [`update`](Self::update).
    pub fn snapshot(&self) -> Result<Snapshot, DecodeError> {
        let mut snapshot = Snapshot::default();
        snapshot.apply(self.update(Revision::default(), false)?);
        Ok(snapshot)
    }

    /// The Services that differ between `before` and this state, as `(key, before, now)`. `before` may belong to another node.
    /// The comparison skips the parts of the maps that both states share. Services whose records alone differ are equal.
    pub(crate) fn differing(&self, before: Option<&Self>) -> Vec<(ServiceKey, Option<Encoded>, Option<Encoded>)> {
        let nothing = OrdMap::new();
        let before = before.map_or(&nothing, |before| &before.services);
        let encoded = |entry: &Arc<Entry>| Some(Encoded(Arc::clone(entry)));
        let differing = before.diff(&self.services).filter_map(|differs| match differs {
            DiffItem::Add(key, now) => Some((key.clone(), None, encoded(now))),
            DiffItem::Update { old: (_, before), new: (_, now) }
                if now.records.is_some() && before.items == now.items =>
            {
                None
            }
            DiffItem::Update { old: (key, before), new: (_, now) } => {
                Some((key.clone(), encoded(before), encoded(now)))
            }
            DiffItem::Remove(key, before) => Some((key.clone(), encoded(before), None)),
        });
        differing.collect()
    }

    /// Whether both states have the same facts about the node.
    pub(crate) fn has_node_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.node, &other.node)
    }

    /// The records of the facts about the node, for the history.
    pub(crate) fn node_record(&self) -> Vec<Bytes> {
        history_records(std::slice::from_ref(&self.node.encoded))
    }

    /// The serialized `NodeState`.
    pub(crate) fn encoded_node(&self) -> Vec<u8> {
        localnet_proto::wire::NodeState::from(&self.node.node).encode_to_vec()
    }

    /// The revision from which a delta for this request starts. `None` if the reader needs the full state.
    fn since(&self, request: Revision, delta: bool) -> Option<u64> {
        let is_known =
            request.instance == self.revision.instance && (self.floor..=self.revision.rev).contains(&request.rev);
        (delta && is_known).then_some(request.rev)
    }

    fn changed_since(&self, since: u64) -> impl Iterator<Item = (&(u64, ServiceKey), &Arc<Entry>)> {
        self.changed.range((Bound::Included(first_after(since)), Bound::Unbounded))
    }

    /// Applies the changes, and increments the revision if anything has changed.
    fn fold(&mut self, localized: Localized) {
        let rev = self.revision.rev + 1;
        let mut differs = self.revision.rev == 0;
        if let Some(node) = localized.node.filter(|node| *node != self.node.node) {
            let now = Arc::new(NodeEntry::new(rev, node, self.records.is_some()));
            let before = std::mem::replace(&mut self.node, now);
            self.digest = self.digest.without(before.digest()).and(self.node.digest());
            let digest = |of: &NodeEntry| of.record.as_ref().map(|record| record.digest);
            self.exchange_records(digest(&before), digest(&self.node));
            differs = true;
        }
        for (key, service) in localized.services {
            differs |= match service {
                Some(service) => self.set(rev, key, &service),
                None => self.remove(rev, key),
            };
        }
        for (key, service) in localized.names {
            differs |= match service {
                Some(service) => self.set_names(rev, key, &service),
                None => self.remove(rev, key),
            };
        }
        if differs {
            self.revision.rev = rev;
            self.forget();
        }
    }

    fn set(&mut self, rev: u64, key: ServiceKey, service: &Service) -> bool {
        let items = encode::service_bytes(service).into_boxed_slice();
        let keeps_records = self.records.is_some();
        let records = keeps_records
            .then(|| self.next_records(rev, &key, v1::encode::head(service), v1::encode::endpoints(service)));
        self.store(rev, key, items, Counts::of(service), records)
    }

    /// Does the same for a Service of the view for DNS, which has no readers of `localnetv1`.
    fn set_names(&mut self, rev: u64, key: ServiceKey, service: &dns::Service) -> bool {
        let records = self.next_records(rev, &key, dns::head(service), dns::endpoints(service));
        self.store(rev, key, [].into(), Counts::default(), Some(records))
    }

    /// The records of a Service, given those that the state has of it.
    fn next_records(
        &self,
        rev: u64,
        key: &ServiceKey,
        head: v1::encode::Head,
        tails: impl Iterator<Item = v1::encode::Tail>,
    ) -> Records {
        match self.services.get(key).and_then(|before| before.records.as_deref()) {
            Some(was) => was.changed(rev, head, tails),
            // A reader may still have the Service of this name that was removed.
            None => Records::new(rev, if self.removed.contains_key(key) { rev } else { 0 }, head, tails),
        }
    }

    fn store(
        &mut self,
        rev: u64,
        key: ServiceKey,
        items: Box<[Bytes]>,
        counts: Counts,
        records: Option<Records>,
    ) -> bool {
        let before = self.services.get(&key);
        let was = before.and_then(|before| before.records.as_deref());
        // The encoding is deterministic, so two Services are equal if and only if their bytes are equal.
        let same = before.filter(|before| before.items == items);
        if same.is_some() && was == records.as_ref() {
            return false;
        }
        let items_rev = same.map_or(rev, |same| same.items_rev);
        let digests = (was.map(|was| was.sum), records.as_ref().map(|records| records.sum));
        let required = requirements(was).to_vec();
        self.digest = self.digest.and(Digest::of_items(&items));
        if let Some(before) = before {
            self.digest = self.digest.without(before.digest());
            self.changed.remove(&(before.rev, key.clone()));
        } else if let Some(removed) = self.removed.remove(&key) {
            self.removals.remove(&(removed, key.clone()));
        }
        self.exchange_records(digests.0, digests.1);
        self.exchange_requirements(&required, requirements(records.as_ref()));
        let entry = Arc::new(Entry { rev, items_rev, items, counts, records: records.map(Box::new) });
        self.changed.insert((rev, key.clone()), Arc::clone(&entry));
        self.services.insert(key, entry);
        true
    }

    fn remove(&mut self, rev: u64, key: ServiceKey) -> bool {
        let Some(before) = self.services.remove(&key) else { return false };
        self.digest = self.digest.without(before.digest());
        self.exchange_records(before.records.as_ref().map(|records| records.sum), None);
        self.exchange_requirements(requirements(before.records.as_deref()), &[]);
        self.changed.remove(&(before.rev, key.clone()));
        self.removed.insert(key.clone(), rev);
        self.removals.insert((rev, key));
        true
    }

    /// Adds records to the digest of all records, and subtracts those that they replace.
    fn exchange_records(&mut self, before: Option<Digest>, now: Option<Digest>) {
        let exchanged = |sum: Digest| sum.without(before.unwrap_or_default()).and(now.unwrap_or_default());
        self.records = self.records.map(exchanged);
    }

    /// Counts a Service that requires the capabilities `now` instead of `before`.
    fn exchange_requirements(&mut self, before: &[Capability], now: &[Capability]) {
        if let Some(services) = self.requiring.get_mut(before) {
            *services -= 1;
        }
        if !now.is_empty() {
            *self.requiring.entry(now.into()).or_default() += 1;
        }
    }

    /// Drops the oldest tombstones. A reader of an older state then gets the full state.
    fn forget(&mut self) {
        while self.removals.len() > TOMBSTONES
            && let Some((rev, key)) = self.removals.remove_min()
        {
            self.removed.remove(&key);
            self.floor = rev;
        }
    }
}

fn requirements(records: Option<&Records>) -> &[Capability] {
    records.map_or(&[], |records| &records.head.requires)
}

/// The smallest possible key of an entry that is newer than `since`.
fn first_after(since: u64) -> (u64, ServiceKey) {
    (since.saturating_add(1), ServiceKey::new("", ""))
}
