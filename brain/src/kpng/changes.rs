//! The steps from one state to another.

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use localnet_proto::{
    ServiceKey,
    wire::{EmptyOp, OpItem, Ref, Set, Value, op_item::Op},
};
use prost::Message as _;

use super::view::View;
use crate::feed::{Encoded, State};

/// The path of the node's facts.
const NODE_PATH: &str = "node";

/// The first item of a stream.
pub fn reset() -> Bytes {
    item(Op::Reset(EmptyOp {}))
}

/// Serialized `OpItem`s that lead from one state to another. Each is created when it is sent. The order is KPNG's: the node's
/// facts; Services that are set, in order of their paths; deleted endpoints, in reverse order; endpoints that are set; deleted
/// Services; Sync. KPNG's clients rely on one property of this order: a Service exists as long as it has endpoints.
#[derive(Debug)]
pub struct ChangeSet {
    node: Option<Bytes>,
    changed: Vec<Changed>,
    stage: Stage,
    /// The position in `changed`.
    at: usize,
    /// The views of the most recent Service. Changes usually concern few Services.
    views: Option<(usize, Arc<(View, View)>)>,
    queue: VecDeque<Bytes>,
}

/// A Service that differs between the states.
#[derive(Debug)]
struct Changed {
    key: ServiceKey,
    before: Option<Encoded>,
    now: Option<Encoded>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Services,
    LostEndpoints,
    Endpoints,
    LostServices,
    Sync,
    End,
}

impl ChangeSet {
    /// The changes from `before`, or from an empty state, to `now`.
    pub fn new(before: Option<&State>, now: &State) -> Self {
        let differing = now.differing(before).into_iter();
        let mut changed: Vec<Changed> = differing.map(|(key, before, now)| Changed { key, before, now }).collect();
        changed.sort_by(|one, other| path(&one.key, false).cmp(path(&other.key, false)));
        let same_node = before.is_some_and(|before| before.node() == now.node());
        let node = (!same_node).then(|| set(Set::NodeStateSet, NODE_PATH.to_owned(), now.encoded_node()));
        Self { node, changed, stage: Stage::Services, at: 0, views: None, queue: VecDeque::new() }
    }

    fn step(&mut self) {
        if self.stage == Stage::Sync {
            self.queue.push_back(item(Op::Sync(EmptyOp {})));
            self.stage = Stage::End;
            return;
        }
        if self.at == self.changed.len() {
            self.at = 0;
            self.stage = match self.stage {
                Stage::Services => {
                    self.views = None;
                    // A longer path may sort differently: "a/b/" follows "a/b-c/".
                    self.changed.sort_by(|one, other| path(&one.key, true).cmp(path(&other.key, true)));
                    Stage::LostEndpoints
                }
                Stage::LostEndpoints => Stage::Endpoints,
                Stage::Endpoints => {
                    self.views = None;
                    self.changed.sort_by(|one, other| path(&one.key, false).cmp(path(&other.key, false)));
                    Stage::LostServices
                }
                Stage::LostServices | Stage::Sync | Stage::End => Stage::Sync,
            };
            return;
        }
        let place = match self.stage {
            Stage::LostEndpoints | Stage::LostServices => self.changed.len() - 1 - self.at,
            _ => self.at,
        };
        self.at += 1;
        let views = self.views(place);
        let (before, now) = &*views;
        let service = self.changed[place].key.to_string();
        match self.stage {
            Stage::Services => {
                if let Some(bytes) = now.service.as_ref().filter(|bytes| before.service.as_ref() != Some(bytes)) {
                    self.queue.push_back(set(Set::ServicesSet, service, bytes.clone()));
                }
            }
            Stage::LostEndpoints => {
                let gone = before.endpoints.iter().rev().filter(|(key, _)| !now.endpoints.contains_key(*key));
                self.queue.extend(gone.map(|(key, (set, _))| delete(*set, format!("{service}/{key}"))));
            }
            Stage::Endpoints => {
                let new = now.endpoints.iter().filter(|(key, endpoint)| before.endpoints.get(*key) != Some(endpoint));
                self.queue.extend(new.map(|(key, (of, bytes))| set(*of, format!("{service}/{key}"), bytes.clone())));
            }
            Stage::LostServices => {
                if before.service.is_some() && now.service.is_none() {
                    self.queue.push_back(delete(Set::ServicesSet, service));
                }
            }
            Stage::Sync | Stage::End => {}
        }
    }

    fn views(&mut self, place: usize) -> Arc<(View, View)> {
        if let Some((of, views)) = &self.views
            && *of == place
        {
            return Arc::clone(views);
        }
        let view = |encoded: &Option<Encoded>| encoded.as_ref().map(|encoded| View::of(encoded.items()));
        let changed = &self.changed[place];
        let views = Arc::new((view(&changed.before).unwrap_or_default(), view(&changed.now).unwrap_or_default()));
        self.views = Some((place, Arc::clone(&views)));
        views
    }
}

impl Iterator for ChangeSet {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        if let Some(node) = self.node.take() {
            return Some(node);
        }
        loop {
            if let Some(item) = self.queue.pop_front() {
                return Some(item);
            }
            if self.stage == Stage::End {
                return None;
            }
            self.step();
        }
    }
}

/// The bytes of a Service's path. `within`: whether the path of an endpoint follows it.
fn path(key: &ServiceKey, within: bool) -> impl Iterator<Item = u8> {
    let slash = || std::iter::once(b'/');
    key.namespace.bytes().chain(slash()).chain(key.name.bytes()).chain(slash().filter(move |_| within))
}

fn set(of: Set, path: String, bytes: Vec<u8>) -> Bytes {
    item(Op::Set(Value { r#ref: Some(Ref { set: of.into(), path }), bytes }))
}

fn delete(of: Set, path: String) -> Bytes {
    item(Op::Delete(Ref { set: of.into(), path }))
}

fn item(op: Op) -> Bytes {
    OpItem { op: Some(op) }.encode_to_vec().into()
}
