//! The parts of a state, in the encoded form that readers get.

use std::sync::Arc;

use bytes::Bytes;
use localnet_proto::{
    Change, Digest, Node, Service, Update,
    decode::Assembler,
    encode,
    v1::{self, Record},
    wire::{NextFilter, NextItem},
};

use super::{counts::Counts, records::Records};

/// A Service of a state, in the encoded form that readers get. The decoded form is not kept, because these entries and
/// the cluster already account for most of the brain's memory.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// The revision in which the Service last changed.
    pub(super) rev: u64,
    /// The revision in which `items` last changed. Older than `rev` if only the records have changed since.
    pub(super) items_rev: u64,
    pub(super) items: Box<[Bytes]>,
    pub(super) counts: Counts,
    /// `None` if the feed keeps no records.
    pub(super) records: Option<Box<Records>>,
}

impl Entry {
    pub(super) fn digest(&self) -> Digest {
        Digest::of_items(&self.items)
    }
}

/// An encoded Service. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Encoded(pub(super) Arc<Entry>);

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
pub(super) struct NodeEntry {
    pub(super) rev: u64,
    pub(super) node: Node,
    pub(super) encoded: Bytes,
    /// `None` if the feed keeps no records.
    pub(super) record: Option<Record>,
}

impl NodeEntry {
    pub(super) fn new(rev: u64, node: Node, keeps_record: bool) -> Self {
        let encoded = encode::node_bytes(&node);
        let record = keeps_record.then(|| v1::encode::node(&node));
        Self { rev, node, encoded, record }
    }

    pub(super) fn digest(&self) -> Digest {
        Digest::of_items([&self.encoded])
    }
}
