//! The items of one answer, produced one by one as they are sent.

use std::{collections::BTreeMap, ops::Bound, sync::Arc, vec};

use bytes::Bytes;
use localnet_proto::{ServiceKey, encode};
use prost::Message as _;

use super::{Entry, State};

/// A delta with at most this many Services is sorted in memory. For a larger delta, the iterator walks over all Services
/// of the state.
pub(super) const FEW: usize = 256;

/// An iterator over the serialized items of an answer. It holds only the state and a position in it.
#[derive(Debug)]
pub struct Items {
    state: State,
    /// Only changes after this revision are sent.
    since: u64,
    stage: Stage,
    /// The Service that is being sent, and how many of its items were sent.
    current: Option<(Arc<Entry>, usize)>,
}

#[derive(Debug)]
enum Stage {
    Token {
        delta: bool,
    },
    Node,
    /// The Services to send, sorted by name.
    Few(vec::IntoIter<Arc<Entry>>),
    /// The Services after this key that have changed after `since`.
    All(Option<ServiceKey>),
    /// The removed Services, starting at this key.
    Removed((u64, ServiceKey)),
    End,
}

impl Items {
    /// The changes of `state` since a revision, or the full state if `since` is `None`.
    pub(super) fn new(state: State, since: Option<u64>) -> Self {
        let stage = Stage::Token { delta: since.is_some() };
        Self { state, since: since.unwrap_or(0), stage, current: None }
    }

    fn services(&self) -> Stage {
        if self.since > 0 && self.state.changed_since(self.since).take(FEW + 1).count() <= FEW {
            let changed = self.state.changed_since(self.since);
            let few: BTreeMap<_, _> = changed.map(|((_, key), entry)| (key, Arc::clone(entry))).collect();
            Stage::Few(few.into_values().collect::<Vec<_>>().into_iter())
        } else {
            Stage::All(None)
        }
    }

    fn removals(&self) -> Stage {
        // A full state contains no removals.
        if self.since == 0 { Stage::End } else { Stage::Removed(super::first_after(self.since)) }
    }

    fn next_of_service(&mut self) -> Option<Bytes> {
        let (entry, sent) = self.current.as_mut()?;
        let item = entry.items.get(*sent).cloned();
        *sent += 1;
        if item.is_none() {
            self.current = None;
        }
        item
    }
}

impl Iterator for Items {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(item) = self.next_of_service() {
                return Some(item);
            }
            match &mut self.stage {
                Stage::Token { delta } => {
                    let token = encode::next_item(self.state.revision, *delta);
                    self.stage = Stage::Node;
                    return Some(token.encode_to_vec().into());
                }
                Stage::Node => {
                    self.stage = self.services();
                    // A full state always contains the facts about the node, even before the Node object was received.
                    if self.since == 0 || self.state.node.rev > self.since {
                        return Some(self.state.node.encoded.clone());
                    }
                }
                Stage::Few(entries) => match entries.next() {
                    Some(entry) => self.current = Some((entry, 0)),
                    None => self.stage = self.removals(),
                },
                Stage::All(after) => {
                    let from = after.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
                    let mut rest = self.state.services.range::<_, ServiceKey>((from, Bound::Unbounded));
                    match rest.find(|(_, entry)| entry.rev > self.since) {
                        Some((key, entry)) => {
                            self.current = Some((Arc::clone(entry), 0));
                            *after = Some(key.clone());
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
                    let item = encode::removed_item(&key).encode_to_vec();
                    // The smallest string that sorts after the name.
                    *from = (rev, ServiceKey::new(key.namespace, format!("{}\0", key.name)));
                    return Some(item.into());
                }
                Stage::End => return None,
            }
        }
    }
}
