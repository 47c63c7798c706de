//! The parts of a state that an answer contains, in their order. Each is found when it is needed.

use std::{collections::BTreeMap, ops::Bound, sync::Arc, vec};

use localnet_proto::ServiceKey;

use super::{Entry, State};

/// A delta with at most this many Services is sorted in memory. For a larger delta, the iterator walks over all Services
/// of the state.
pub(super) const FEW: usize = 256;

/// An iterator over the parts of an answer. It holds only the state and a position in it.
#[derive(Debug)]
pub(super) struct Walk {
    state: State,
    /// Only changes after this revision are found. 0 for a full state.
    since: u64,
    stage: Stage,
    /// The key of the last Service that was found.
    key: Option<ServiceKey>,
}

/// A part of an answer.
#[derive(Debug)]
pub(super) enum Part {
    Node,
    /// [`Walk::key`] returns its key.
    Service(Arc<Entry>),
    Removed(ServiceKey),
}

#[derive(Debug)]
enum Stage {
    Node,
    /// The Services to send, sorted by name.
    Few(vec::IntoIter<(ServiceKey, Arc<Entry>)>),
    /// The Services after the last one that have changed after `since`.
    All,
    /// The removed Services, starting at this key.
    Removed((u64, ServiceKey)),
    End,
}

impl Walk {
    /// The changes of `state` since a revision, or the full state if `since` is `None`.
    pub(super) fn new(state: State, since: Option<u64>) -> Self {
        Self { state, since: since.unwrap_or(0), stage: Stage::Node, key: None }
    }

    pub(super) fn state(&self) -> &State {
        &self.state
    }

    /// The revision from which the changes lead to the state. 0 for a full state.
    pub(super) fn since(&self) -> u64 {
        self.since
    }

    /// The key of the last Service that was found, until the next call of [`next`](Self::next).
    pub(super) fn key(&self) -> Option<&ServiceKey> {
        self.key.as_ref()
    }

    fn services(&self) -> Stage {
        if self.since > 0 && self.state.changed_since(self.since).take(FEW + 1).count() <= FEW {
            let changed = self.state.changed_since(self.since);
            let few: BTreeMap<_, _> = changed.map(|((_, key), entry)| (key.clone(), Arc::clone(entry))).collect();
            Stage::Few(few.into_iter().collect::<Vec<_>>().into_iter())
        } else {
            Stage::All
        }
    }

    fn removals(&self) -> Stage {
        // A full state contains no removals.
        if self.since == 0 { Stage::End } else { Stage::Removed(super::first_after(self.since)) }
    }
}

impl Iterator for Walk {
    type Item = Part;

    fn next(&mut self) -> Option<Part> {
        loop {
            match &mut self.stage {
                Stage::Node => {
                    self.stage = self.services();
                    // A full state always contains the facts about the node, even before the Node object was received.
                    if self.since == 0 || self.state.node.rev > self.since {
                        return Some(Part::Node);
                    }
                }
                Stage::Few(entries) => match entries.next() {
                    Some((key, entry)) => {
                        self.key = Some(key);
                        return Some(Part::Service(entry));
                    }
                    None => self.stage = self.removals(),
                },
                Stage::All => {
                    let from = self.key.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
                    let mut rest = self.state.services.range::<_, ServiceKey>((from, Bound::Unbounded));
                    match rest.find(|(_, entry)| entry.rev > self.since) {
                        Some((key, entry)) => {
                            let (key, entry) = (key.clone(), Arc::clone(entry));
                            self.key = Some(key);
                            return Some(Part::Service(entry));
                        }
                        None => self.stage = self.removals(),
                    }
                }
                Stage::Removed(from) => {
                    let next = self
                        .state
                        .removals
                        .range::<_, (u64, ServiceKey)>((Bound::Included(&*from), Bound::Unbounded))
                        .next();
                    let Some((rev, key)) = next.cloned() else {
                        self.stage = Stage::End;
                        continue;
                    };
                    // The smallest string that sorts after the name.
                    *from = (rev, ServiceKey::new(Arc::clone(&key.namespace), format!("{}\0", key.name)));
                    return Some(Part::Removed(key));
                }
                Stage::End => return None,
            }
        }
    }
}
