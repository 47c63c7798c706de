//! The content of one answer of `Next`, and how to apply it to a [`Snapshot`].

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::model::{Node, Revision, Service, ServiceKey, Snapshot};

/// A complete answer of `Next`.
#[derive(Clone, Debug, PartialEq)]
pub enum Update {
    /// The full state.
    Full(Snapshot),
    /// The changes since the revision in the request.
    Delta {
        /// The revision after the changes.
        revision: Revision,
        /// The changes: at most one for each Service, and at most one for the node.
        changes: Vec<Change>,
    },
}

impl Update {
    /// The revision of the state after the update.
    pub fn revision(&self) -> Revision {
        match self {
            Self::Full(snapshot) => snapshot.revision,
            Self::Delta { revision, .. } => *revision,
        }
    }
}

/// A change in a delta.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// The facts about the node have changed.
    Node(Node),
    /// The Service was added or changed.
    Service(Arc<Service>),
    /// The Service was removed.
    Removed(ServiceKey),
}

/// The difference between two states.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Whether everything counts as changed, because the previous state is unknown (a backend's first sync).
    pub everything: bool,
    /// Whether the facts about the node changed.
    pub node: bool,
    /// The Services that were added, changed or removed. After a restart, the brain sends a full state. Even then, this
    /// set contains only the Services that really differ.
    pub services: BTreeSet<ServiceKey>,
}

impl Changes {
    /// Changes in which everything counts as changed.
    pub fn everything() -> Self {
        Self { everything: true, ..Self::default() }
    }

    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Adds the changes of a later update.
    pub fn merge(&mut self, other: Self) {
        self.everything |= other.everything;
        self.node |= other.node;
        self.services.extend(other.services);
    }
}

impl Snapshot {
    /// Applies an update, and returns the changes.
    pub fn apply(&mut self, update: Update) -> Changes {
        match update {
            Update::Full(next) => {
                let changes = Changes {
                    everything: false,
                    node: self.node != next.node,
                    services: differing(&self.services, &next.services),
                };
                *self = next;
                changes
            }
            Update::Delta { revision, changes } => {
                self.revision = revision;
                let mut changed = Changes::default();
                for change in changes {
                    self.fold(change, &mut changed);
                }
                changed
            }
        }
    }

    fn fold(&mut self, change: Change, changed: &mut Changes) {
        match change {
            Change::Node(node) => {
                changed.node |= self.node != node;
                self.node = node;
            }
            Change::Service(service) => {
                if self.services.get(&service.key) != Some(&service) {
                    changed.services.insert(service.key.clone());
                    self.services.insert(service.key.clone(), service);
                }
            }
            Change::Removed(key) => {
                if self.services.remove(&key).is_some() {
                    changed.services.insert(key);
                }
            }
        }
    }
}

fn differing(
    before: &BTreeMap<ServiceKey, Arc<Service>>,
    after: &BTreeMap<ServiceKey, Arc<Service>>,
) -> BTreeSet<ServiceKey> {
    let removed = before.keys().filter(|key| !after.contains_key(key));
    let new = after.iter().filter(|(key, service)| before.get(*key) != Some(*service)).map(|(key, _)| key);
    removed.chain(new).cloned().collect()
}
