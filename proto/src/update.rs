//! What one answer of `Next` says, and how it is folded into a [`Snapshot`].

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::model::{Node, Revision, Service, ServiceKey, Snapshot};

/// One complete answer of `Next`.
#[derive(Clone, Debug, PartialEq)]
pub enum Update {
    /// The full state.
    Full(Snapshot),
    /// What changed since the revision that was asked for.
    Delta {
        /// The state after the changes.
        revision: Revision,
        /// The changes. At most one for each service, and at most one for the node.
        changes: Vec<Change>,
    },
}

impl Update {
    /// The state that the update leads to.
    pub fn revision(&self) -> Revision {
        match self {
            Self::Full(snapshot) => snapshot.revision,
            Self::Delta { revision, .. } => *revision,
        }
    }
}

/// One change of a delta.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// The node's facts are now these.
    Node(Node),
    /// The service is new, or now like this.
    Service(Arc<Service>),
    /// The service is gone.
    Removed(ServiceKey),
}

/// What differs between two states.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Nothing is known of what was there before (a backend's first sync): treat all as changed.
    pub everything: bool,
    /// The node's facts changed.
    pub node: bool,
    /// Services that are new, different or gone. A full state after a restart of the brain names only real differences.
    pub services: BTreeSet<ServiceKey>,
}

impl Changes {
    /// All is to be treated as changed.
    pub fn everything() -> Self {
        Self { everything: true, ..Self::default() }
    }

    /// Nothing differs.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Adds what another step changed.
    pub fn merge(&mut self, other: Self) {
        self.everything |= other.everything;
        self.node |= other.node;
        self.services.extend(other.services);
    }
}

impl Snapshot {
    /// Goes to the state that `update` leads to, and says what differs.
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
    let gone = before.keys().filter(|key| !after.contains_key(key));
    let new = after.iter().filter(|(key, service)| before.get(*key) != Some(*service)).map(|(key, _)| key);
    gone.chain(new).cloned().collect()
}
