//! Tables, chains and sets as plain values. No I/O, no encoding.

use std::sync::Arc;

use localnet_core::Family;

use super::comment::printable_name;
use super::{Element, FieldType, Name, Rule};

/// Identifies a table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Table {
    /// The family: `ip` or `ip6`.
    pub family: Family,
    /// The name, unique within the family.
    pub name: Name,
}

impl Table {
    /// Combines a family and a name.
    pub fn new(family: Family, name: impl Into<Name>) -> Self {
        Self { family, name: name.into() }
    }
}

/// A chain and its rules, in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Chain {
    /// The name, unique within the table.
    pub name: Name,
    /// The hook of a base chain; `None` for a chain that is only jumped to.
    pub hook: Option<Hook>,
    /// The comment, which `nft list` shows.
    pub comment: Option<Name>,
    /// The rules, in order.
    pub rules: Vec<Rule>,
}

impl Chain {
    /// An empty chain that is only jumped to.
    pub fn new(name: impl Into<Name>) -> Self {
        Self { name: name.into(), hook: None, comment: None, rules: Vec::new() }
    }

    /// An empty base chain with the policy accept.
    pub fn base(name: impl Into<Name>, kind: ChainKind, point: HookPoint, priority: i32) -> Self {
        Self { hook: Some(Hook { kind, point, priority }), ..Self::new(name) }
    }

    /// The same chain with a comment.
    pub fn comment(mut self, comment: impl Into<Name>) -> Self {
        self.comment = Some(printable_name(comment.into()));
        self
    }

    /// The same chain with one more rule at its end.
    pub fn rule(mut self, rule: impl Into<Rule>) -> Self {
        self.rules.push(rule.into());
        self
    }
}

/// Where the kernel enters a base chain. The policy is always accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hook {
    /// The chain's type.
    pub kind: ChainKind,
    /// The hook.
    pub point: HookPoint,
    /// The priority among the chains of the same hook; lower runs earlier.
    pub priority: i32,
}

localnet_core::names! {
    /// The type of a base chain, with the kernel's name.
    ChainKind {
        /// Sees every packet.
        Filter = "filter",
        /// Sees the first packet of a connection.
        Nat = "nat",
    }

    /// The hook of a base chain, in the order of the kernel's `enum nf_inet_hooks`.
    HookPoint {
        /// Packets that were received and are not routed yet.
        Prerouting = "prerouting",
        /// Packets for this node.
        Input = "input",
        /// Packets that are routed to another machine or namespace.
        Forward = "forward",
        /// Packets that this node sends.
        Output = "output",
        /// Packets that are about to leave this node.
        Postrouting = "postrouting",
    }
}

/// The declaration of a set, or of a map (a set with data).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Set {
    /// The name, unique within the table.
    pub name: Name,
    /// The fields of the key, concatenated.
    pub key: Vec<FieldType>,
    /// The type of the elements' data.
    pub data: SetData,
    /// The flags.
    pub flags: SetFlags,
    /// The default timeout of elements, in seconds.
    pub timeout: Option<u32>,
    /// The maximum number of elements. The kernel allocates memory for this number in advance, which makes a full load three
    /// times faster. It refuses any further element with `ENFILE`.
    pub size: Option<u32>,
    /// The comment, which `nft list` shows.
    pub comment: Option<Name>,
}

/// The smallest size that [`Set::size_for`] declares.
const MIN_SIZE: u32 = 4096;

impl Set {
    /// The size to declare for a set with that many elements: twice as many, and at least 4096, so that a small cluster can
    /// grow without a new table. The kernel allocates a few bytes per declared element.
    pub fn size_for(elements: usize) -> u32 {
        let doubled = u32::try_from(elements.saturating_mul(2)).unwrap_or(1 << 31);
        doubled.clamp(MIN_SIZE, 1 << 31).next_power_of_two()
    }

    /// A plain set.
    pub fn new(name: impl Into<Name>, key: impl Into<Vec<FieldType>>) -> Self {
        Self {
            name: name.into(),
            key: key.into(),
            data: SetData::None,
            flags: SetFlags::default(),
            timeout: None,
            size: None,
            comment: None,
        }
    }

    /// A verdict map.
    pub fn verdict_map(name: impl Into<Name>, key: impl Into<Vec<FieldType>>) -> Self {
        Self { data: SetData::Verdict, ..Self::new(name, key) }
    }

    /// A map to a concatenation of values.
    pub fn map(name: impl Into<Name>, key: impl Into<Vec<FieldType>>, values: impl Into<Vec<FieldType>>) -> Self {
        Self { data: SetData::Values(values.into()), ..Self::new(name, key) }
    }

    /// The same set, but its elements may be ranges or prefixes.
    pub fn interval(mut self) -> Self {
        self.flags.interval = true;
        self
    }

    /// The same set, but packets add its elements, and the elements expire. `seconds` is the default timeout.
    pub fn dynamic(mut self, seconds: Option<u32>) -> Self {
        self.flags.dynamic = true;
        self.flags.timeout = true;
        self.timeout = seconds;
        self
    }

    /// The same set with a limit on its elements.
    pub fn size(mut self, size: u32) -> Self {
        self.size = Some(size);
        self
    }

    /// The same set with a comment.
    pub fn comment(mut self, comment: impl Into<Name>) -> Self {
        self.comment = Some(printable_name(comment.into()));
        self
    }

    /// Whether the set is a map, whose elements have data.
    pub fn is_map(&self) -> bool {
        self.data != SetData::None
    }
}

/// The data type of a set's elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SetData {
    /// None: a plain set.
    None,
    /// A verdict: `vmap`.
    Verdict,
    /// A concatenation of values.
    Values(Vec<FieldType>),
}

/// The flags of a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SetFlags {
    /// `interval`: elements may be ranges.
    pub interval: bool,
    /// `dynamic`: packets add elements.
    pub dynamic: bool,
    /// `timeout`: elements may expire.
    pub timeout: bool,
}

/// The content of a table: desired, listed or dumped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableContent {
    /// The table.
    pub table: Table,
    /// The sets and maps with their elements.
    pub sets: Vec<(Arc<Set>, Vec<Element>)>,
    /// The chains with their rules.
    pub chains: Vec<Chain>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_leave_room_to_double() {
        for (elements, size) in [(0, 4096), (2048, 4096), (2049, 8192), (30_000, 65_536), (usize::MAX, 1 << 31)] {
            assert_eq!(Set::size_for(elements), size, "{elements}");
        }
    }
}
