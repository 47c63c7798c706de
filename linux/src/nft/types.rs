//! Names, comparisons and field types: the parts of rules, sets and elements.

use std::sync::Arc;

use localnet_core::Family;

/// The name of a table, chain or set; cheap to clone because elements and rules repeat it.
pub type Name = Arc<str>;

/// nft's keyword for a family and for its address fields: `ip` or `ip6`.
pub fn family_name(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    }
}

/// A comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Equal, or contained in the set.
    Eq,
    /// Not equal, or not contained in the set.
    Ne,
}

impl Op {
    /// The operator in nft's syntax, with a space after it. Equality has none.
    pub(super) fn text(self) -> &'static str {
        match self {
            Op::Eq => "",
            Op::Ne => "!= ",
        }
    }
}

localnet_core::names! {
    /// The type of one field of a key or value, with nft's name.
    FieldType {
        /// An IPv4 address.
        Ipv4Addr = "ipv4_addr",
        /// An IPv6 address.
        Ipv6Addr = "ipv6_addr",
        /// A transport protocol.
        InetProto = "inet_proto",
        /// A port.
        InetService = "inet_service",
        /// The number that a number generator yields: 32 bits in the machine's byte order. nft has no name for
        /// this type, so sets with it are declared with `typeof` and example expressions.
        Index = "integer",
        /// 32 bits in the machine's byte order.
        Mark = "mark",
        /// The type of `meta priority`: 32 bits in the machine's byte order.
        Priority = "classid",
        /// 16 bytes.
        Ifname = "ifname",
    }
}

impl FieldType {
    /// The type of an address of this family.
    pub fn address(family: Family) -> Self {
        match family {
            Family::V4 => Self::Ipv4Addr,
            Family::V6 => Self::Ipv6Addr,
        }
    }

    /// The size of a value in bytes, without padding.
    pub fn byte_len(self) -> usize {
        match self {
            FieldType::InetProto => 1,
            FieldType::InetService => 2,
            FieldType::Ipv4Addr | FieldType::Index | FieldType::Mark | FieldType::Priority => 4,
            FieldType::Ipv6Addr | FieldType::Ifname => 16,
        }
    }

    /// The size of a value in bytes as a field of a concatenation, padded to a multiple of four.
    pub fn padded_len(self) -> usize {
        self.byte_len().next_multiple_of(4)
    }
}
