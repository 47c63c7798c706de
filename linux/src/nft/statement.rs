//! Rules as lists of small statements. The statements cover only what a service proxy needs, not everything that nf_tables can
//! express.

use ipnet::IpNet;
use localnet_core::{Family, Protocol};

use super::comment::printable_name;
use super::{FieldType, Name};

/// One rule: statements from left to right.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    /// Matches first, then the action.
    pub statements: Vec<Statement>,
    /// The comment, which `nft list` shows.
    pub comment: Option<Name>,
}

impl Rule {
    /// A rule without a comment.
    pub fn new(statements: impl Into<Vec<Statement>>) -> Self {
        Self { statements: statements.into(), comment: None }
    }

    /// The same rule with a comment.
    pub fn comment(mut self, comment: impl Into<Name>) -> Self {
        self.comment = Some(printable_name(comment.into()));
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

/// One match or action. Addresses are those of the table's family.
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
    /// `ip daddr . th dport vmap @map`; the next rule follows if there is no such element.
    VerdictMap(Vec<Field>, Name),
    /// `dnat ip addr . port to ip daddr . th dport . numgen random mod 4 map @map`; the next rule follows if there is no such
    /// element.
    DnatMap(Vec<Field>, Name),
    /// `meta mark & BITS == BITS`, or `!=`
    MarkHas(Op, u32),
    /// `meta mark set meta mark | BITS`
    MarkOr(u32),
    /// `meta mark set meta mark ^ BITS`
    MarkXor(u32),
    /// `meta priority set ip daddr . th dport map @map`; the next rule follows if there is no such element.
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

    /// The set or map that the statement reads or updates.
    pub fn set(&self) -> Option<&Name> {
        match self {
            Statement::Lookup(_, _, set)
            | Statement::VerdictMap(_, set)
            | Statement::DnatMap(_, set)
            | Statement::PriorityMap(_, set)
            | Statement::Update(_, set, _) => Some(set),
            _ => None,
        }
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

/// One of a packet's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AddressField {
    /// `saddr`
    Source,
    /// `daddr`
    Destination,
}

/// A property of a packet, or a number, that can be looked up in a set.
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
    /// `ct original ip daddr`: the destination of the connection's first packet before translation.
    OriginalDestinationAddress,
    /// `ct original proto-dst`. Up to version 1.0.6, nft prints it in lookups, but cannot parse it there.
    OriginalDestinationPort,
    /// `numgen …`
    Index(Generator),
}

impl Field {
    /// The type of the field's value in a table of that family.
    pub fn field_type(self, family: Family) -> FieldType {
        match self {
            Field::SourceAddress | Field::DestinationAddress | Field::OriginalDestinationAddress => {
                FieldType::address(family)
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

/// The source of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Generator {
    /// `numgen random mod N`: each number below N with equal probability.
    Random(u32),
    /// `numgen inc mod 1 offset K`: always K.
    Constant(u32),
}

/// Matches the names of interfaces.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum InterfacePattern {
    /// The interface with this name.
    Exact(Name),
    /// Every interface whose name has this prefix; without the `*`.
    Prefix(Name),
}

/// How the evaluation continues or ends after a rule matches, or after a lookup finds an element of a verdict map.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// The base chain accepts the packet.
    Accept,
    /// The packet is dropped.
    Drop,
    /// The evaluation returns to the rule after the last jump.
    Return,
    /// The evaluation continues in that chain and returns at its end.
    Jump(Name),
    /// The evaluation continues in that chain and does not return.
    Goto(Name),
}
