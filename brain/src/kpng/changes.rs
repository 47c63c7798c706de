//! Computes the changes from one state to another, as KPNG's clients receive them.

use std::{iter, sync::Arc};

use bytes::Bytes;
use localnet_proto::{
    ServiceKey,
    wire::{EmptyOp, OpItem, Ref, Set, Value, op_item::Op},
};
use prost::Message as _;

use super::view::View;
use crate::feed::{Encoded, State};

/// The path of the facts about the node.
const NODE_PATH: &str = "node";

/// The first item of a stream.
pub fn reset() -> Bytes {
    item(Op::Reset(EmptyOp {}))
}

/// Serialized `OpItem`s that lead from `before`, or from an empty state, to `now`. Each item is created when it is sent.
/// The items are in the same order as KPNG's:
/// - the facts about the node
/// - Services to set, by path
/// - endpoints to delete, by path in reverse order
/// - endpoints to set
/// - Services to delete
/// - Sync
///
/// KPNG's clients rely on one property of this order: a Service exists for as long as it has endpoints.
pub fn changes(before: Option<&State>, now: &State) -> impl Iterator<Item = Bytes> + Send + use<> {
    let differing = now.differing(before).into_iter();
    let changed: Vec<Changed> = differing.map(|(key, before, now)| Changed { key, before, now }).collect();
    // Services and endpoints may sort differently, because the paths of endpoints are longer: "a/b/" follows "a/b-c/".
    let sorted = |within| {
        let mut changed = changed.clone();
        changed.sort_by(|one, other| path(&one.key, within).cmp(path(&other.key, within)));
        Arc::from(changed)
    };
    let (by_service, by_endpoint): (Arc<[Changed]>, Arc<[Changed]>) = (sorted(false), sorted(true));
    let same_node = before.is_some_and(|before| before.node() == now.node());
    let node = (!same_node).then(|| set(Set::NodeStateSet, NODE_PATH.to_owned(), now.encoded_node()));
    node.into_iter()
        .chain(each(&by_service).filter_map(|changed| changed.set_service()))
        .chain(each(&by_endpoint).rev().flat_map(|changed| changed.delete_endpoints()))
        .chain(each(&by_endpoint).flat_map(|changed| changed.set_endpoints()))
        .chain(each(&by_service).rev().filter_map(|changed| changed.delete_service()))
        .chain(iter::once_with(|| item(Op::Sync(EmptyOp {}))))
}

fn each(changed: &Arc<[Changed]>) -> impl DoubleEndedIterator<Item = Changed> + use<> {
    let changed = Arc::clone(changed);
    (0..changed.len()).map(move |place| changed[place].clone())
}

/// A Service that differs between the states.
#[derive(Clone, Debug)]
struct Changed {
    key: ServiceKey,
    before: Option<Encoded>,
    now: Option<Encoded>,
}

impl Changed {
    fn views(&self) -> [View; 2] {
        [&self.before, &self.now]
            .map(|encoded| encoded.as_ref().map(|encoded| View::of(encoded.items())).unwrap_or_default())
    }

    fn set_service(&self) -> Option<Bytes> {
        let [before, now] = self.views();
        let bytes = now.service.filter(|bytes| before.service.as_ref() != Some(bytes))?;
        Some(set(Set::ServicesSet, self.key.to_string(), bytes))
    }

    fn delete_service(&self) -> Option<Bytes> {
        let [before, now] = self.views();
        (before.service.is_some() && now.service.is_none()).then(|| delete(Set::ServicesSet, self.key.to_string()))
    }

    fn set_endpoints(&self) -> Vec<Bytes> {
        let [before, now] = self.views();
        let new = now.endpoints.into_iter().filter(|(key, endpoint)| before.endpoints.get(key) != Some(endpoint));
        new.map(|(key, (of, bytes))| set(of, format!("{}/{key}", self.key), bytes)).collect()
    }

    fn delete_endpoints(&self) -> Vec<Bytes> {
        let [before, now] = self.views();
        let gone = before.endpoints.iter().rev().filter(|(key, _)| !now.endpoints.contains_key(*key));
        gone.map(|(key, (set, _))| delete(*set, format!("{}/{key}", self.key))).collect()
    }
}

/// The bytes of a Service's path. With `within`, they end with a slash, as in the path of an endpoint within the Service.
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
