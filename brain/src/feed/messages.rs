//! The messages of one answer of `localnet.v1`, produced one by one as they are sent.

use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;
use localnet_proto::v1::{Metadata, encode, raw, wire};
use prost::Message as _;

use super::{
    Entry, State,
    records::Records,
    walk::{Part, Walk},
};

/// A message that has reached this size in bytes gets no further record, and no record is split. The largest message therefore has
/// this size and that of one record: as much as an item of `localnetv1` may have, and what `cluster/src/objects/publish.rs` allows.
const MESSAGE_BYTES: usize = 64 << 10;

/// An upper bound for the bytes of an update, and of a removed endpoint, apart from names and records.
const FEW_BYTES: usize = 64;

/// What a reader of `localnet.v1` gets of a state: it depends on what the reader understands and asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Whether the reader gets every Service, whatever it understands.
    pub observes: bool,
    /// What the reader understands.
    pub source_filters: bool,
    /// The labels and annotations that the reader wants.
    pub metadata: BTreeSet<(Metadata, Arc<str>)>,
    /// Whether the reader wants the details of endpoints.
    pub details: bool,
}

impl Selection {
    fn understands(&self, capability: wire::Capability) -> bool {
        match capability {
            wire::Capability::SourceFilters => self.source_filters,
            wire::Capability::Unspecified => false,
        }
    }

    /// Whether the reader does not get Services that require these capabilities.
    pub(super) fn withholds(&self, requires: &[wire::Capability]) -> bool {
        !self.observes && !requires.iter().all(|capability| self.understands(*capability))
    }

    /// The record of a Service for this reader.
    fn head(&self, records: &Records) -> Bytes {
        let head = &records.head;
        let record = if self.withholds(&head.requires) {
            encode::withheld(&head.record, records.sum)
        } else {
            head.record.bytes.clone()
        };
        let wanted = head.selectable.iter().filter(|of| self.metadata.contains(&(of.kind, Arc::clone(&of.key))));
        extended(record, wanted.map(|of| &of.bytes))
    }

    /// The record of an endpoint for this reader.
    fn endpoint(&self, endpoint: &encode::Tail) -> Bytes {
        let details = Some(&endpoint.details).filter(|details| self.details && !details.is_empty());
        extended(endpoint.record.bytes.clone(), details)
    }
}

/// An iterator over the serialized `NextStateResponse`s of an answer. It holds only the state and a position in it.
#[derive(Debug)]
pub struct Messages {
    walk: Walk,
    selection: Selection,
    /// `None` once it was sent.
    begin: Option<wire::Begin>,
    /// `None` once it was sent.
    commit: Option<wire::Commit>,
    current: Option<Cursor>,
}

/// The Service that is being sent.
#[derive(Debug)]
struct Cursor {
    entry: Arc<Entry>,
    /// How many removed endpoints, and how many endpoints, have been sent or skipped. `None` before the first update.
    place: Option<(usize, usize)>,
}

impl Messages {
    /// The changes of `state` since a revision, or the full state if `since` is `None`. `base` is the token of the request, and
    /// `token` that of the state. Returns `None` if the state has no records.
    pub(super) fn new(
        state: State,
        since: Option<u64>,
        selection: Selection,
        (base, token): (String, String),
    ) -> Option<Self> {
        let digest = state.records_digest()?.0;
        let revision = wire::Revision::from(state.revision());
        let base = since.map_or(String::new(), |_| base);
        Some(Self {
            walk: Walk::new(state, since),
            selection,
            begin: Some(wire::Begin { revision: Some(revision), base }),
            commit: Some(wire::Commit { token, digest }),
            current: None,
        })
    }

    /// The next update of the Service that is being sent, at most about `room` bytes, and its size.
    fn update(&mut self, mut cursor: Cursor, room: usize) -> (raw::ServiceUpdate, usize) {
        let since = self.walk.since();
        // The walk does not continue before the Service was sent.
        let key = self.walk.key().map(wire::ServiceKey::from);
        let mut size = key.as_ref().map_or(0, |key| key.namespace.len() + key.name.len()) + FEW_BYTES;
        let mut update = raw::ServiceUpdate { key, ..raw::ServiceUpdate::default() };
        let entry = Arc::clone(&cursor.entry);
        // A feed that keeps records has them for each Service.
        let Some(records) = &entry.records else { return (update, size) };
        let withheld = self.selection.withholds(&records.head.requires);
        let replace = since > 0 && since < records.floor;
        let newer = if replace { 0 } else { since };
        let (mut gone, mut sent) = match cursor.place {
            Some(place) => place,
            None => {
                update.replace = replace;
                if withheld || records.head_rev > newer {
                    let head = self.selection.head(records);
                    size += head.len();
                    update.service = Some(head);
                }
                // After `replace`, and in a full state, the reader has no endpoints that could be removed.
                let known = if newer == 0 { records.removed.len() } else { 0 };
                (known, 0)
            }
        };
        if withheld {
            return (update, size);
        }
        while size < room
            && let Some((rev, key)) = records.removed.get(gone)
        {
            gone += 1;
            if *rev > newer {
                size += FEW_BYTES;
                update.removed_endpoints.push((*key).into());
            }
        }
        while size < room
            && let Some(endpoint) = records.endpoints.get(sent)
        {
            sent += 1;
            if endpoint.rev > newer {
                let record = self.selection.endpoint(&endpoint.of);
                size += record.len() + 4;
                update.endpoints.push(record);
            }
        }
        let rest = records.endpoints.iter().skip(sent).any(|endpoint| endpoint.rev > newer);
        if gone < records.removed.len() || rest {
            cursor.place = Some((gone, sent));
            self.current = Some(cursor);
        }
        (update, size)
    }
}

impl Iterator for Messages {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        self.commit.as_ref()?;
        let mut message = raw::NextStateResponse { begin: self.begin.take(), ..raw::NextStateResponse::default() };
        let mut size = 0;
        while size < MESSAGE_BYTES {
            if let Some(cursor) = self.current.take() {
                let (update, bytes) = self.update(cursor, MESSAGE_BYTES - size);
                size += bytes;
                message.services.push(update);
                continue;
            }
            match self.walk.next() {
                Some(Part::Service(entry)) => self.current = Some(Cursor { entry, place: None }),
                Some(Part::Removed(key)) => {
                    size += key.namespace.len() + key.name.len() + FEW_BYTES;
                    let key = Some((&key).into());
                    message.services.push(raw::ServiceUpdate { key, removed: true, ..raw::ServiceUpdate::default() });
                }
                Some(Part::Node) => {
                    message.node = self.walk.state().node.record.as_ref().map(|record| record.bytes.clone());
                    size += message.node.as_ref().map_or(0, Bytes::len);
                }
                None => {
                    message.commit = self.commit.take();
                    break;
                }
            }
        }
        Some(message.encode_to_vec().into())
    }
}

/// A record with further fields: protobuf reads a message and the fields that follow it as one message.
fn extended<'a>(record: Bytes, fields: impl IntoIterator<Item = &'a Bytes>) -> Bytes {
    let mut fields = fields.into_iter().map(|field| &field[..]).peekable();
    if fields.peek().is_none() {
        return record;
    }
    std::iter::once(&record[..]).chain(fields).collect::<Vec<_>>().concat().into()
}
