//! Families, protocols, names and field types: what rules, sets and elements are made of.

use std::net::IpAddr;
use std::sync::Arc;

/// The name of a table, chain or set; cheap to clone because elements and rules repeat it.
pub type Name = Arc<str>;

/// The family of a table: `ip` or `ip6`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// `ip`
    V4,
    /// `ip6`
    V6,
}

impl Family {
    /// Both families, IPv4 first.
    pub const ALL: [Family; 2] = [Family::V4, Family::V6];

    /// The family of an address.
    pub fn of(address: &IpAddr) -> Self {
        if address.is_ipv4() { Family::V4 } else { Family::V6 }
    }

    /// What nft calls the family, and its address fields: `ip`, `ip6`.
    pub fn as_str(self) -> &'static str {
        match self {
            Family::V4 => "ip",
            Family::V6 => "ip6",
        }
    }

    /// The type of an address of this family.
    pub fn address_type(self) -> FieldType {
        match self {
            Family::V4 => FieldType::Ipv4Addr,
            Family::V6 => FieldType::Ipv6Addr,
        }
    }
}

/// A transport protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// 6
    Tcp,
    /// 17
    Udp,
    /// 132
    Sctp,
}

impl Protocol {
    /// The number in the IP header.
    pub fn number(self) -> u8 {
        match self {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
            Protocol::Sctp => 132,
        }
    }

    /// The protocol with that number, if localnet proxies it.
    pub fn from_number(number: u8) -> Option<Self> {
        match number {
            6 => Some(Protocol::Tcp),
            17 => Some(Protocol::Udp),
            132 => Some(Protocol::Sctp),
            _ => None,
        }
    }

    /// The name that nft uses.
    pub fn as_str(self) -> &'static str {
        match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Sctp => "sctp",
        }
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
