//! The items of one answer, produced one by one as they are sent.

use std::sync::Arc;

use bytes::Bytes;
use localnet_proto::encode;
use prost::Message as _;

use super::{
    Entry, State,
    walk::{Part, Walk},
};

/// An iterator over the serialized items of an answer. It holds only the state and a position in it.
#[derive(Debug)]
pub struct Items {
    walk: Walk,
    /// Whether the answer is a delta, while its token has not been sent.
    token: Option<bool>,
    /// The Service that is being sent, and how many of its items were sent.
    current: Option<(Arc<Entry>, usize)>,
}

impl Items {
    /// The changes of `state` since a revision, or the full state if `since` is `None`.
    pub(super) fn new(state: State, since: Option<u64>) -> Self {
        Self { walk: Walk::new(state, since), token: Some(since.is_some()), current: None }
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
        if let Some(delta) = self.token.take() {
            return Some(encode::next_item(self.walk.state().revision, delta).encode_to_vec().into());
        }
        loop {
            if let Some(item) = self.next_of_service() {
                return Some(item);
            }
            match self.walk.next()? {
                Part::Node => return Some(self.walk.state().node.encoded.clone()),
                // Readers of `localnetv1` do not get the records.
                Part::Service(entry) if entry.items_rev <= self.walk.since() => {}
                Part::Service(entry) => self.current = Some((entry, 0)),
                Part::Removed(key) => return Some(encode::removed_item(&key).encode_to_vec().into()),
            }
        }
    }
}
