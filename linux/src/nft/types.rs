//! Names and field types: the parts of rules, sets and elements.

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

/// The type of one field of a key or value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FieldType {
    /// `ipv4_addr`
    Ipv4Addr,
    /// `ipv6_addr`
    Ipv6Addr,
    /// `inet_proto`
    InetProto,
    /// `inet_service`: a port.
    InetService,
    /// The number that a number generator yields: 32 bits in the machine's byte order.
    Index,
    /// `mark`: 32 bits in the machine's byte order.
    Mark,
    /// `classid`, the type of `meta priority`: 32 bits in the machine's byte order.
    Priority,
    /// `ifname`: 16 bytes.
    Ifname,
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
