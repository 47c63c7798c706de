//! The feed: the successive states of the node, for any number of readers.
//!
//! ```text
//! publish ──► State: node, services, index by revision, tombstones   (persistent maps: a clone is a pointer)
//!                └─► answer(request) ─► Items: a cursor, and bytes that all readers share
//! ```
//!
//! A reader holds a [`State`] and its own position in it. The feed queues nothing for a reader, however slow the reader
//! is. A full state is encoded like the delta since revision 0. Each Service is encoded once, when it changes, and only
//! its encoded form is kept.

mod counts;
mod health;
mod history;
mod items;
#[cfg(test)]
mod tests;

use std::{
    ops::Bound,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use bytes::Bytes;
use imbl::{OrdMap, OrdSet, ordmap::DiffItem};
use localnet_proto::{
    Change, Digest, Node, Revision, Service, ServiceKey, Snapshot, Update,
    decode::{Assembler, DecodeError},
    encode,
    history::records,
    wire::{NextFilter, NextItem},
};
use prost::Message as _;
use tokio::sync::watch;

use crate::metrics::Metrics;
pub use counts::Counts;
pub use health::{HealthFacts, NodeFacts};
pub(crate) use history::Cursor;
pub use history::History;
pub use items::Items;
use localnet_cluster::localize::Localized;

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
    health: watch::Sender<HealthFacts>,
    metrics: Metrics,
    history: History,
}

impl Feed {
    /// A feed without a state: its revision is 0 until the first [`Feed::publish`]. `instance` is a random number that
    /// identifies this run of the brain.
    pub fn new(instance: u64) -> Self {
        let state = State::new(instance);
        let (revision, _) = watch::channel(state.revision);
        Self(Arc::new(Inner {
            state: Mutex::new(state),
            publishing: Mutex::default(),
            revision,
            health: watch::Sender::default(),
            metrics: Metrics::default(),
            history: History::new(instance),
        }))
    }

    /// Applies the changes and publishes the result as a new state. Returns `None` if nothing has changed. The first
    /// state is published even if it is empty.
    pub fn publish(&self, localized: Localized) -> Option<Revision> {
        self.publish_since(localized, Instant::now())
    }

    /// Does the same as [`publish`](Self::publish). The first of the changes was received at `since`.
    pub(crate) fn publish_since(&self, mut localized: Localized, since: Instant) -> Option<Revision> {
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
        *self.lock() = next.clone();
        self.0.revision.send_replace(revision);
        self.0.history.changed(&served, &next, &changes, since);
        Some(revision)
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

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is replaced in one assignment, so a panic never leaves it incomplete.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A Service of a state, in the encoded form that readers get. The decoded form is not kept, because these entries and
/// the cluster already account for most of the brain's memory.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    /// The revision in which the Service last changed.
    rev: u64,
    items: Box<[Bytes]>,
    counts: Counts,
}

impl Entry {
    fn digest(&self) -> Digest {
        Digest::of_items(&self.items)
    }
}

/// An encoded Service. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Encoded(Arc<Entry>);

impl Encoded {
    /// The serialized `NextItem`s of the Service.
    pub(crate) fn items(&self) -> &[Bytes] {
        &self.0.items
    }

    /// Decodes the Service. `None` if that fails, which would be a bug in the encoder.
    pub(crate) fn service(&self) -> Option<Arc<Service>> {
        let mut assembler = Assembler::default();
        let delta = NextFilter { delta: true, ..NextFilter::default() };
        assembler.push(NextItem { next: Some(delta), ..NextItem::default() }).ok()?;
        for item in self.items() {
            assembler.push_bytes(item.clone()).ok()?;
        }
        match assembler.finish().ok()? {
            Update::Delta { changes, .. } => changes.into_iter().find_map(|change| match change {
                Change::Service(service) => Some(service),
                Change::Node(_) | Change::Removed(_) => None,
            }),
            Update::Full(_) => None,
        }
    }
}

/// The facts about the node in a state.
#[derive(Debug)]
struct NodeEntry {
    rev: u64,
    node: Node,
    encoded: Bytes,
}

impl NodeEntry {
    fn new(rev: u64, node: Node) -> Self {
        let encoded = encode::node_bytes(&node);
        Self { rev, node, encoded }
    }

    fn digest(&self) -> Digest {
        Digest::of_items([&self.encoded])
    }
}

/// An immutable state of the node. Cheap to clone.
#[derive(Clone, Debug)]
pub struct State {
    revision: Revision,
    digest: Digest,
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
    fn new(instance: u64) -> Self {
        let node = Arc::new(NodeEntry::new(0, Node::default()));
        Self {
            revision: Revision { instance, rev: 0 },
            digest: node.digest(),
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
    /// The comparison skips the parts of the maps that both states share.
    pub(crate) fn differing(&self, before: Option<&Self>) -> Vec<(ServiceKey, Option<Encoded>, Option<Encoded>)> {
        let nothing = OrdMap::new();
        let before = before.map_or(&nothing, |before| &before.services);
        let encoded = |entry: &Arc<Entry>| Some(Encoded(Arc::clone(entry)));
        let differing = before.diff(&self.services).map(|differs| match differs {
            DiffItem::Add(key, now) => (key.clone(), None, encoded(now)),
            DiffItem::Update { old: (key, before), new: (_, now) } => (key.clone(), encoded(before), encoded(now)),
            DiffItem::Remove(key, before) => (key.clone(), encoded(before), None),
        });
        differing.collect()
    }

    /// Whether both states have the same facts about the node.
    pub(crate) fn has_node_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.node, &other.node)
    }

    /// The records of the facts about the node, for the history.
    pub(crate) fn node_record(&self) -> Vec<Bytes> {
        records(std::slice::from_ref(&self.node.encoded))
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
            let before = std::mem::replace(&mut self.node, Arc::new(NodeEntry::new(rev, node)));
            self.digest = self.digest.without(before.digest()).and(self.node.digest());
            differs = true;
        }
        for (key, service) in localized.services {
            differs |= match service {
                Some(service) => self.set(rev, key, &service),
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
        let before = self.services.get(&key);
        // The encoding is deterministic, so two Services are equal if and only if their bytes are equal.
        if before.is_some_and(|before| before.items == items) {
            return false;
        }
        self.digest = self.digest.and(Digest::of_items(&items));
        if let Some(before) = before {
            self.digest = self.digest.without(before.digest());
            self.changed.remove(&(before.rev, key.clone()));
        } else if let Some(removed) = self.removed.remove(&key) {
            self.removals.remove(&(removed, key.clone()));
        }
        let entry = Arc::new(Entry { rev, items, counts: Counts::of(service) });
        self.changed.insert((rev, key.clone()), Arc::clone(&entry));
        self.services.insert(key, entry);
        true
    }

    fn remove(&mut self, rev: u64, key: ServiceKey) -> bool {
        let Some(before) = self.services.remove(&key) else { return false };
        self.digest = self.digest.without(before.digest());
        self.changed.remove(&(before.rev, key.clone()));
        self.removed.insert(key.clone(), rev);
        self.removals.insert((rev, key));
        true
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

/// The smallest possible key of an entry that is newer than `since`.
fn first_after(since: u64) -> (u64, ServiceKey) {
    (since.saturating_add(1), ServiceKey::new("", ""))
}
