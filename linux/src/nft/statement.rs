//! Rules as lists of small statements: the text and the expressions of each. The statements cover only what a service proxy
//! needs, not everything that nf_tables can express.

use std::net::IpAddr;

use ipnet::IpNet;
use localnet_core::{Family, Protocol};

use super::comment::{comment_text, printable_name};
use super::expression::{Expressions, FIRST, VERDICT};
use super::text_value::{duration, mark_text};
use super::uapi::{ct, data, meta, payload, tcp};
use super::wire::Writer;
use super::{AddressField, Field, Name, Op, Tuple, Verdict, family_name, field};

/// One rule: statements from left to right.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    /// The statements that match packets, followed by the action.
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

    /// The rule on one line, as `nft list` prints it.
    pub fn line(&self, family: Family) -> String {
        let mut words: Vec<String> = self.statements.iter().map(|statement| statement.text(family)).collect();
        words.extend(self.comment.as_deref().map(comment_text));
        words.join(" ")
    }

    /// Writes the rule's expressions, as the value of `NFTA_RULE_EXPRESSIONS`.
    pub(super) fn write(&self, writer: &mut Writer, family: Family) {
        let mut out = Expressions(writer);
        self.statements.iter().for_each(|statement| statement.write(&mut out, family));
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
    /// `update @set { ip daddr . th dport counter }`: counts the packet in the element with its key.
    Count(Vec<Field>, Name),
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
            | Statement::Update(_, set, _)
            | Statement::Count(_, set) => Some(set),
            _ => None,
        }
    }

    /// The statement in nft's syntax.
    fn text(&self, family: Family) -> String {
        let of = |fields: &[Field]| field::text(fields, family);
        match self {
            Statement::ConnectionNew => "ct state new".to_owned(),
            Statement::ConnectionDnat => "ct status dnat".to_owned(),
            Statement::Address(field, op, prefix) => {
                format!("{} {} {}{}", family_name(family), field.word(), op.text(), prefix_text(*prefix))
            }
            Statement::InputInterface(op, InterfacePattern::Exact(name)) => format!("iifname {}\"{name}\"", op.text()),
            Statement::InputInterface(op, InterfacePattern::Prefix(name)) => {
                format!("iifname {}\"{name}*\"", op.text())
            }
            Statement::Local(field, op) => format!("fib {} type {}local", field.word(), op.text()),
            Statement::Protocol(op, protocol) => format!("meta l4proto {}{}", op.text(), protocol.as_lowercase()),
            Statement::TcpOpens => "tcp flags syn / fin,syn,rst,ack".to_owned(),
            Statement::Lookup(fields, op, set) => format!("{} {}@{set}", of(fields), op.text()),
            Statement::VerdictMap(fields, map) => format!("{} vmap @{map}", of(fields)),
            Statement::DnatMap(fields, map) => format!("dnat {} to {} map @{map}", family_name(family), of(fields)),
            Statement::MarkHas(op, bits) => {
                let op = if *op == Op::Eq { "==" } else { "!=" };
                format!("meta mark & {0} {op} {0}", mark_text(*bits))
            }
            Statement::MarkOr(bits) => format!("meta mark set meta mark | {}", mark_text(*bits)),
            Statement::MarkXor(bits) => format!("meta mark set meta mark ^ {}", mark_text(*bits)),
            Statement::PriorityMap(fields, map) => format!("meta priority set {} map @{map}", of(fields)),
            Statement::PriorityNone => "meta priority set none".to_owned(),
            Statement::Update(fields, set, timeout) => {
                let timeout = timeout.map(|seconds| format!(" timeout {}", duration(seconds))).unwrap_or_default();
                format!("update @{set} {{ {}{timeout} }}", of(fields))
            }
            Statement::Count(fields, set) => format!("update @{set} {{ {} counter }}", of(fields)),
            Statement::Masquerade => "masquerade fully-random".to_owned(),
            Statement::Reject => "reject".to_owned(),
            Statement::Verdict(verdict) => verdict.to_string(),
        }
    }

    /// Writes the statement's expressions.
    fn write(&self, out: &mut Expressions<'_>, family: Family) {
        match self {
            Statement::ConnectionNew => connection_has(out, ct::STATE, ct::STATE_NEW),
            Statement::ConnectionDnat => connection_has(out, ct::STATUS, ct::STATUS_DNAT),
            Statement::Address(field, op, prefix) => is_in_prefix(out, *field, *op, *prefix),
            Statement::InputInterface(op, pattern) => {
                out.meta(meta::IIFNAME, 0);
                match pattern {
                    InterfacePattern::Exact(name) => out.cmp(*op, Tuple::new().interface(name).as_bytes()),
                    InterfacePattern::Prefix(start) => out.cmp(*op, start.as_bytes()),
                }
            }
            Statement::Local(field, op) => {
                out.fib_type(*field == AddressField::Source);
                // RTN_LOCAL
                out.cmp(*op, &2u32.to_ne_bytes());
            }
            Statement::Protocol(op, protocol) => {
                out.meta(meta::L4PROTO, 0);
                out.cmp(*op, &[protocol.number()]);
            }
            Statement::TcpOpens => {
                out.meta(meta::L4PROTO, 0);
                out.cmp(Op::Eq, &[Protocol::Tcp.number()]);
                out.payload(payload::TRANSPORT, tcp::FLAGS, 1, 0);
                out.bitwise(&[tcp::FIN_SYN_RST_ACK], &[0]);
                out.cmp(Op::Eq, &[tcp::SYN]);
            }
            Statement::Lookup(fields, op, set) => {
                field::load(fields, out, family);
                out.lookup(set, None, *op);
            }
            Statement::VerdictMap(fields, map) => {
                field::load(fields, out, family);
                out.lookup(map, Some(VERDICT), Op::Eq);
            }
            Statement::DnatMap(fields, map) => {
                field::load(fields, out, family);
                out.lookup(map, Some(FIRST), Op::Eq);
                out.dnat(family);
            }
            Statement::MarkHas(op, bits) => {
                out.meta(meta::MARK, 0);
                out.bitwise(&bits.to_ne_bytes(), &[0; 4]);
                out.cmp(*op, &bits.to_ne_bytes());
            }
            Statement::MarkOr(bits) => change_mark(out, !bits, *bits),
            Statement::MarkXor(bits) => change_mark(out, u32::MAX, *bits),
            Statement::PriorityMap(fields, map) => {
                field::load(fields, out, family);
                out.lookup(map, Some(FIRST), Op::Eq);
                out.set_meta(meta::PRIORITY);
            }
            Statement::PriorityNone => {
                out.immediate(FIRST, |w| w.bytes(data::VALUE, &[0; 4]));
                out.set_meta(meta::PRIORITY);
            }
            Statement::Update(fields, set, timeout) => {
                field::load(fields, out, family);
                out.update(set, *timeout, false);
            }
            Statement::Count(fields, set) => {
                field::load(fields, out, family);
                out.update(set, None, true);
            }
            // NF_NAT_RANGE_PROTO_RANDOM_FULLY
            Statement::Masquerade => out.expression("masq", |w| w.u32(1, 1 << 4)),
            Statement::Reject => {
                // NFT_REJECT_ICMP_UNREACH; port unreachable in ICMP and in ICMPv6.
                let code = if family == Family::V4 { 3 } else { 4 };
                out.expression("reject", |w| {
                    w.u32(1, 0);
                    w.u8(2, code);
                });
            }
            Statement::Verdict(verdict) => out.immediate(VERDICT, |w| verdict.write(w)),
        }
    }
}

/// Matches the names of interfaces.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum InterfacePattern {
    /// The interface with this name.
    Exact(Name),
    /// Every interface whose name has this prefix; without the `*`.
    Prefix(Name),
}

fn prefix_text(prefix: IpNet) -> String {
    if prefix.prefix_len() == prefix.max_prefix_len() {
        prefix.network().to_string()
    } else {
        prefix.trunc().to_string()
    }
}

/// Compares a prefix. A prefix of whole bytes needs only a shorter load; any other prefix needs a mask.
fn is_in_prefix(out: &mut Expressions<'_>, field: AddressField, op: Op, prefix: IpNet) {
    let (network, bits) = (prefix.network(), prefix.prefix_len());
    let octets = match network {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let offset = field.offset(Family::of(network));
    let bytes = usize::from(bits / 8);
    if bits > 0 && bits.is_multiple_of(8) {
        out.payload(payload::NETWORK, offset, bytes as u32, 0);
        out.cmp(op, &octets[..bytes]);
    } else {
        let mut mask = vec![0; octets.len()];
        mask[..bytes].fill(0xff);
        mask[bytes] = !(0xff_u16 >> (bits % 8)) as u8;
        out.payload(payload::NETWORK, offset, octets.len() as u32, 0);
        out.bitwise(&mask, &vec![0; octets.len()]);
        out.cmp(op, &octets);
    }
}

fn connection_has(out: &mut Expressions<'_>, key: u32, bit: u32) {
    out.ct(key, None, 0);
    out.bitwise(&bit.to_ne_bytes(), &[0; 4]);
    out.cmp(Op::Ne, &[0; 4]);
}

fn change_mark(out: &mut Expressions<'_>, mask: u32, xor: u32) {
    out.meta(meta::MARK, 0);
    out.bitwise(&mask.to_ne_bytes(), &xor.to_ne_bytes());
    out.set_meta(meta::MARK);
}
