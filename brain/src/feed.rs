//! The states of the node, one after the other, for any number of readers.
//!
//! ```text
//! publish ──► State: node, services, index by revision, tombstones   (persistent maps: a clone is a pointer)
//!                └─► answer(request) ─► Items: a cursor, and bytes that all readers share
//! ```
//!
//! A reader holds a [`State`] and its own place in it; nothing is queued for it, however slow it is. A full state is the
//! changes since revision 0. Each service is encoded once, when it changes, and kept so.

mod counts;
mod health;
mod items;
#[cfg(test)]
mod tests;

use std::{
    ops::Bound,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use bytes::Bytes;
use imbl::{OrdMap, OrdSet, ordmap::DiffItem};
use localnet_proto::{
    Change, Node, Revision, Service, ServiceKey, Snapshot, Update,
    decode::{Assembler, DecodeError},
    encode,
    wire::{NextFilter, NextItem},
};
use prost::Message as _;
use tokio::sync::watch;

use crate::{localize::Localized, metrics::Metrics};
pub use counts::Counts;
pub use health::{HealthFacts, NodeFacts};
pub use items::Items;

/// So many services that are gone are remembered, for deltas. A reader that missed more gets the full state.
const TOMBSTONES: usize = 4096;

/// The states of the node. Clones are the same feed.
#[derive(Clone, Debug)]
pub struct Feed(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    state: Mutex<State>,
    /// Held while the next state is made.
    publishing: Mutex<()>,
    revision: watch::Sender<Revision>,
    health: watch::Sender<HealthFacts>,
    metrics: Metrics,
}

impl Feed {
    /// A feed without any state yet: its revision is 0 until the first [`Feed::publish`]. `instance` is a random number.
    pub fn new(instance: u64) -> Self {
        let state = State::new(instance);
        let (revision, _) = watch::channel(state.revision);
        Self(Arc::new(Inner {
            state: Mutex::new(state),
            publishing: Mutex::default(),
            revision,
            health: watch::Sender::default(),
            metrics: Metrics::default(),
        }))
    }

    /// Makes the changes a new state, unless there is nothing new in them. The first state is one, even when it is empty.
    pub fn publish(&self, localized: Localized) -> Option<Revision> {
        self.publish_since(localized, Instant::now())
    }

    /// The same for changes of which the first came at `since`.
    pub(crate) fn publish_since(&self, mut localized: Localized, since: Instant) -> Option<Revision> {
        let changes = std::mem::take(&mut localized.changes);
        // Load balancers are told first, so that they go before the rules do.
        self.0.health.send_if_modified(|facts| facts.fold(&localized));
        let _turn = self.0.publishing.lock().unwrap_or_else(PoisonError::into_inner);
        let served = self.state();
        // The next state is made beside the one that is served, which readers get meanwhile, and takes its place at once.
        let mut next = served.clone();
        next.fold(localized);
        let revision = next.revision;
        if revision == served.revision {
            return None;
        }
        // Before anybody can report of it.
        self.0.metrics.published(revision, &changes, since);
        *self.lock() = next;
        self.0.revision.send_replace(revision);
        Some(revision)
    }

    /// The newest state.
    pub fn state(&self) -> State {
        self.lock().clone()
    }

    /// Tells of new states. Its value is that of the newest one; `rev` 0 means that there is none yet.
    pub fn subscribe(&self) -> watch::Receiver<Revision> {
        self.0.revision.subscribe()
    }

    /// What is counted of the states, and of those who read them.
    pub fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// What load balancers are told, and a notice of each change of it.
    pub fn health_facts(&self) -> watch::Receiver<HealthFacts> {
        self.0.health.subscribe()
    }

    /// Waits for a state that is not the one `held`: what the long poll does.
    pub async fn differing(&self, held: Revision) -> State {
        let mut revision = self.subscribe();
        loop {
            // The sender lives as long as `self`.
            let _ = revision.wait_for(|revision| revision.rev > 0 && *revision != held).await;
            let state = self.state();
            if state.revision != held {
                return state;
            }
            // What is held is newer than what has been told of: that is about to be.
            let _ = revision.changed().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A state is replaced as a whole: one that a panic left behind is complete.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A service in a state, as all readers get it. Nothing else is kept of it: memory of the brain is mostly this and what the cluster
/// says.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    /// The revision that brought it.
    rev: u64,
    items: Box<[Bytes]>,
    counts: Counts,
}

/// A service as it is sent. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Encoded(Arc<Entry>);

impl Encoded {
    /// The serialized `NextItem`s that carry it.
    pub(crate) fn items(&self) -> &[Bytes] {
        &self.0.items
    }

    /// The Service again as a value; `None` if its bytes cannot be read, which would be a fault of the encoder.
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

/// The node's facts in a state.
#[derive(Debug)]
struct NodeEntry {
    rev: u64,
    node: Node,
    encoded: Bytes,
}

impl NodeEntry {
    fn new(rev: u64, node: Node) -> Self {
        let encoded = encode::node_item(&node).encode_to_vec().into();
        Self { rev, node, encoded }
    }
}

/// A state of the node. Cheap to clone; it does not change.
#[derive(Clone, Debug)]
pub struct State {
    revision: Revision,
    /// Deltas are possible from this revision on: no tombstone after it has been forgotten.
    floor: u64,
    node: Arc<NodeEntry>,
    services: OrdMap<ServiceKey, Arc<Entry>>,
    changed: OrdMap<(u64, ServiceKey), Arc<Entry>>,
    removed: OrdMap<ServiceKey, u64>,
    removals: OrdSet<(u64, ServiceKey)>,
}

/// An answer for a reader: the first item names the state, the others make it up. Serialized `NextItem`s.
#[derive(Debug)]
pub struct Answer {
    /// The items are changes since the request's revision, not a full state.
    pub delta: bool,
    /// The serialized items, one by one.
    pub items: Items,
}

impl State {
    fn new(instance: u64) -> Self {
        Self {
            revision: Revision { instance, rev: 0 },
            floor: 1,
            node: Arc::new(NodeEntry::new(0, Node::default())),
            services: OrdMap::new(),
            changed: OrdMap::new(),
            removed: OrdMap::new(),
            removals: OrdSet::new(),
        }
    }

    /// Which state this is; `rev` 0 is "nothing yet", and must not be served.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// How many services it has.
    pub fn len(&self) -> usize {
        self.services.len()
    }

    /// Whether it has no service.
    pub fn is_empty(&self) -> bool {
        self.services.is_empty()
    }

    /// The sum over all services.
    pub fn counts(&self) -> Counts {
        self.services.values().map(|entry| entry.counts).sum()
    }

    /// The node's facts.
    pub fn node(&self) -> &Node {
        &self.node.node
    }

    /// What to send to a reader that holds the state `request` and can (`delta`) fold changes into it.
    pub fn answer(&self, request: Revision, delta: bool) -> Answer {
        let since = self.since(request, delta);
        Answer { delta: since.is_some(), items: Items::new(self.clone(), since) }
    }

    /// The same for a reader in this process.
    ///
    /// # Errors
    /// A service has been encoded in a way that cannot be read.
    pub fn update(&self, request: Revision, delta: bool) -> Result<Update, DecodeError> {
        let mut assembler = Assembler::default();
        for item in self.answer(request, delta).items {
            assembler.push_bytes(item)?;
        }
        assembler.finish()
    }

    /// The state as a value.
    ///
    /// # Errors
    /// As [`update`](Self::update).
    pub fn snapshot(&self) -> Result<Snapshot, DecodeError> {
        let mut snapshot = Snapshot::default();
        snapshot.apply(self.update(Revision::default(), false)?);
        Ok(snapshot)
    }

    /// The services that differ from those of another state, which need not be an earlier one of this node: what each of
    /// them was there, and what it is here. What both states share is not looked at.
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

    /// The serialized `NodeState`.
    pub(crate) fn encoded_node(&self) -> Vec<u8> {
        localnet_proto::wire::NodeState::from(&self.node.node).encode_to_vec()
    }

    /// The revision that a delta can start from, if there can be one.
    fn since(&self, request: Revision, delta: bool) -> Option<u64> {
        let known =
            request.instance == self.revision.instance && (self.floor..=self.revision.rev).contains(&request.rev);
        (delta && known).then_some(request.rev)
    }

    fn changed_since(&self, since: u64) -> impl Iterator<Item = (&(u64, ServiceKey), &Arc<Entry>)> {
        self.changed.range((Bound::Included(first_after(since)), Bound::Unbounded))
    }

    /// Folds the changes in; the revision moves on if there are any.
    fn fold(&mut self, localized: Localized) {
        let rev = self.revision.rev + 1;
        let mut differs = self.revision.rev == 0;
        if let Some(node) = localized.node.filter(|node| *node != self.node.node) {
            self.node = Arc::new(NodeEntry::new(rev, node));
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
        // Equal bytes are an equal service, and the other way round.
        if before.is_some_and(|before| before.items == items) {
            return false;
        }
        if let Some(before) = before {
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
        self.changed.remove(&(before.rev, key.clone()));
        self.removed.insert(key.clone(), rev);
        self.removals.insert((rev, key));
        true
    }

    /// Forgets the oldest tombstones: whoever holds a state from before them gets a full one.
    fn forget(&mut self) {
        while self.removals.len() > TOMBSTONES
            && let Some((rev, key)) = self.removals.remove_min()
        {
            self.removed.remove(&key);
            self.floor = rev;
        }
    }
}

/// Sorts before everything that is newer than `since`.
fn first_after(since: u64) -> (u64, ServiceKey) {
    (since.saturating_add(1), ServiceKey::new("", ""))
}
