//! [`Digest`]: a number that identifies the content of a state. One comparison then shows whether two programs hold the same state.
//!
//! The digest of a state is the sum, modulo 2^64, of the digests of its parts. The parts are the facts about the node, and each
//! Service with its endpoints. The digest of a part is the XXH64 (seed 0) of its serialized `NextItem`s, one after the other.
//! The order of the parts therefore does not matter, and a change costs only as much as the parts that changed.

use std::{fmt, hash::Hasher as _};

use prost::Message as _;
use twox_hash::XxHash64;

use crate::{
    encode::{node_item, service_items},
    model::{Node, Service, Snapshot},
    update::Change,
};

/// The digest of a state or of a part of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Digest(pub u64);

impl Digest {
    /// The digest of a whole state.
    pub fn of(state: &Snapshot) -> Self {
        let services = state.services.values().map(|service| Self::of_service(service));
        services.fold(Self::of_node(&state.node), Self::and)
    }

    /// The digest of the part with these serialized `NextItem`s.
    pub fn of_items(items: impl IntoIterator<Item: AsRef<[u8]>>) -> Self {
        let mut hash = XxHash64::with_seed(0);
        items.into_iter().for_each(|item| hash.write(item.as_ref()));
        Self(hash.finish())
    }

    /// The digest of the facts about the node.
    pub fn of_node(node: &Node) -> Self {
        Self::of_items([node_item(node).encode_to_vec()])
    }

    /// The digest of a Service with its endpoints.
    pub fn of_service(service: &Service) -> Self {
        Self::of_items(service_items(service).iter().map(prost::Message::encode_to_vec))
    }

    /// The digest with a further part.
    #[must_use]
    pub fn and(self, part: Self) -> Self {
        Self(self.0.wrapping_add(part.0))
    }

    /// The digest without one of its parts.
    #[must_use]
    pub fn without(self, part: Self) -> Self {
        Self(self.0.wrapping_sub(part.0))
    }

    /// The digest after a change to `before`, which has this digest.
    #[must_use]
    pub fn after(self, before: &Snapshot, change: &Change) -> Self {
        let gone = |key| before.services.get(key).map_or(self, |service| self.without(Self::of_service(service)));
        match change {
            Change::Node(node) => self.without(Self::of_node(&before.node)).and(Self::of_node(node)),
            Change::Service(service) => gone(&service.key).and(Self::of_service(service)),
            Change::Removed(key) => gone(key),
        }
    }

    /// The digest that a message contains; `None` for 0, which stands for "not reported".
    pub fn reported(digest: u64) -> Option<Self> {
        (digest != 0).then_some(Self(digest))
    }
}

/// 16 hexadecimal digits.
impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}
