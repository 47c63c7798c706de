//! Rules as lists of small statements: exactly what service proxying needs, no general expression tree.

use std::net::IpAddr;

use ipnet::IpNet;

use super::userdata;
use super::{Family, FieldType, Name};

/// One rule: statements from left to right.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    /// Matches first, then what is done.
    pub statements: Vec<Statement>,
    /// Shown by `nft list`.
    pub comment: Option<Name>,
}

impl Rule {
    /// A rule without a comment.
    pub fn new(statements: impl Into<Vec<Statement>>) -> Self {
        Self { statements: statements.into(), comment: None }
    }

    /// The same rule with a comment.
    pub fn comment(mut self, comment: impl Into<Name>) -> Self {
        self.comment = Some(userdata::comment_name(comment.into()));
        self
    }
}

impl From<Statement> for Rule {
    fn from(statement: Statement) -> Self {
        Rule::new([statement])
    }
}

impl<const N: usize> From<[Statement; N]> for Rule {
    fn from(statements: [Statement; N]) -> Self {
        Rule::new(statements)
    }
}

/// One match or action. What concerns addresses means those of the table's family.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Statement {
    /// `ct state new`
    ConnectionNew,
    /// `ct status dnat`: the connection's destination was translated.
    ConnectionDnat,
    /// `ip saddr 10.0.0.0/8`
    Address(AddressField, Op, IpNet),
    /// `iifname "eth0"`
    InputInterface(Op, InterfacePattern),
    /// `fib daddr type local`: the address belongs to this node (`==`) or not (`!=`).
    Local(AddressField, Op),
    /// `meta l4proto tcp`
    Protocol(Op, Protocol),
    /// `tcp flags syn / fin,syn,rst,ack`: a TCP packet that opens a connection.
    TcpOpens,
    /// `ip daddr . th dport @set`
    Lookup(Vec<Field>, Op, Name),
    /// `ip daddr . th dport vmap @map`; continues with the next rule when there is no such element.
    VerdictMap(Vec<Field>, Name),
    /// `dnat ip addr . port to ip daddr . th dport . numgen random mod 4 map @map`; continues with the next rule when
    /// there is no such element.
    DnatMap(Vec<Field>, Name),
    /// `meta mark & BITS == BITS`, or `!=`
    MarkHas(Op, u32),
    /// `meta mark set meta mark | BITS`
    MarkOr(u32),
    /// `meta mark set meta mark ^ BITS`
    MarkXor(u32),
    /// `meta priority set ip daddr . th dport map @map`; continues with the next rule when there is no such element.
    PriorityMap(Vec<Field>, Name),
    /// `meta priority set none`
    PriorityNone,
    /// `update @set { ip saddr . ip daddr timeout 3h }`; the timeout is in seconds.
    Update(Vec<Field>, Name, Option<u32>),
    /// `masquerade fully-random`
    Masquerade,
    /// `reject`: answers with ICMP port unreachable.
    Reject,
    /// Ends the rule.
    Verdict(Verdict),
}

impl Statement {
    /// `ip saddr ADDRESS`: exactly this source address.
    pub fn source_is(address: IpAddr) -> Self {
        Statement::Address(AddressField::Source, Op::Eq, IpNet::from(address))
    }

    /// `ip daddr ADDRESS`: exactly this destination address.
    pub fn destination_is(address: IpAddr) -> Self {
        Statement::Address(AddressField::Destination, Op::Eq, IpNet::from(address))
    }

    /// `jump CHAIN`
    pub fn jump(chain: impl Into<Name>) -> Self {
        Statement::Verdict(Verdict::Jump(chain.into()))
    }

    /// `goto CHAIN`
    pub fn goto(chain: impl Into<Name>) -> Self {
        Statement::Verdict(Verdict::Goto(chain.into()))
    }

    /// `FIELDS @SET`
    pub fn is_in(fields: impl Into<Vec<Field>>, set: impl Into<Name>) -> Self {
        Statement::Lookup(fields.into(), Op::Eq, set.into())
    }

    /// `FIELDS != @SET`
    pub fn is_not_in(fields: impl Into<Vec<Field>>, set: impl Into<Name>) -> Self {
        Statement::Lookup(fields.into(), Op::Ne, set.into())
    }

    /// `FIELDS vmap @MAP`
    pub fn vmap(fields: impl Into<Vec<Field>>, map: impl Into<Name>) -> Self {
        Statement::VerdictMap(fields.into(), map.into())
    }

    /// `dnat ip addr . port to FIELDS map @MAP`
    pub fn dnat(fields: impl Into<Vec<Field>>, map: impl Into<Name>) -> Self {
        Statement::DnatMap(fields.into(), map.into())
    }
}

/// How a packet's value is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Equal, or contained.
    Eq,
    /// Not equal, or not contained.
    Ne,
}

/// Which address of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AddressField {
    /// `saddr`
    Source,
    /// `daddr`
    Destination,
}

/// A part of a packet, or a number, that can be looked up in a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Field {
    /// `ip saddr`
    SourceAddress,
    /// `ip daddr`
    DestinationAddress,
    /// `meta l4proto`
    Protocol,
    /// `th sport`
    SourcePort,
    /// `th dport`
    DestinationPort,
    /// `meta mark`
    Mark,
    /// `meta priority`
    Priority,
    /// `iifname`
    InputInterface,
    /// `ct original ip daddr`: where the connection's first packet was sent to, whatever became of it since.
    OriginalDestinationAddress,
    /// `ct original proto-dst`; nft up to 1.0.6 prints it, but cannot read it again where it is looked up.
    OriginalDestinationPort,
    /// `numgen …`
    Index(Generator),
}

impl Field {
    /// The type of its value in a table of that family.
    pub fn field_type(self, family: Family) -> FieldType {
        match self {
            Field::SourceAddress | Field::DestinationAddress | Field::OriginalDestinationAddress => {
                family.address_type()
            }
            Field::Protocol => FieldType::InetProto,
            Field::SourcePort | Field::DestinationPort | Field::OriginalDestinationPort => FieldType::InetService,
            Field::Mark => FieldType::Mark,
            Field::Priority => FieldType::Priority,
            Field::InputInterface => FieldType::Ifname,
            Field::Index(_) => FieldType::Index,
        }
    }
}

/// What yields the index of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Generator {
    /// `numgen random mod N`: each number below N alike.
    Random(u32),
    /// `numgen inc mod 1 offset K`: always K.
    Constant(u32),
}

/// Names of interfaces.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum InterfacePattern {
    /// This one.
    Exact(Name),
    /// All whose name starts so; given without the `*`.
    Prefix(Name),
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

    /// The protocol of that number, if it is one that can be proxied.
    pub fn from_number(number: u8) -> Option<Self> {
        match number {
            6 => Some(Protocol::Tcp),
            17 => Some(Protocol::Udp),
            132 => Some(Protocol::Sctp),
            _ => None,
        }
    }

    /// As nft prints it.
    pub fn as_str(self) -> &'static str {
        match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Sctp => "sctp",
        }
    }
}

/// What becomes of a packet, in a rule or in an element of a verdict map.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// This base chain lets it pass.
    Accept,
    /// It is gone.
    Drop,
    /// Back to where the last jump came from.
    Return,
    /// On in that chain, and back here at its end.
    Jump(Name),
    /// On in that chain, and not back here.
    Goto(Name),
}
