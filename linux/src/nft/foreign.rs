//! The rules of other programs, and which of them stop a packet.
//!
//! ```text
//!  kernel ──dump──► ForeignRules (chains with a hook, rules) ──stops(packet)──► Stop: table, chain, handle; certain or possible
//! ```
//!
//! This module is for diagnosis and never part of a sync. It reads all tables of the families `ip`, `ip6` and `inet`, except those
//! that the caller excludes. It does not see `bridge` and `netdev` tables, nor the rules of ip_tables (iptables-legacy). A rule
//! may compare something that is unknown here, such as a mark, an interface or a limit. Then it is
//! possible, but not certain, that the rule matches.

mod evaluate;

use std::net::IpAddr;

use super::encode::hook_number;
use super::parse::{RuleDump, parse_rule};
use super::uapi::{chain, msg, rule};
use super::wire::{self, Writer};
use super::{Error, HookPoint, Name, Socket, Verdict, family_name};
use evaluate::Evaluation;
use localnet_core::{Family, Protocol};

/// `NFPROTO_INET`
const INET: u8 = 1;
/// `NF_DROP`
const DROP: u32 = 0;

/// The chains of other programs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForeignRules {
    chains: Vec<ForeignChain>,
}

/// A chain of another program.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ForeignChain {
    family: u8,
    table: Name,
    name: Name,
    /// The hook's number and the priority; `None` for a chain that is only jumped to.
    hook: Option<(u32, i32)>,
    /// Whether the policy drops packets.
    drops: bool,
    rules: Vec<RuleDump>,
}

/// The chains of a hook that a packet passes with one destination. A priority orders the chains of a hook, the lowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All chains.
    Whole,
    /// The chains before this priority, at which another hook function rewrites the packet.
    Before(i32),
    /// The chains after this priority.
    After(i32),
}

impl Part {
    fn contains(self, priority: i32) -> bool {
        match self {
            Self::Whole => true,
            Self::Before(limit) => priority < limit,
            Self::After(limit) => priority > limit,
        }
    }
}

/// The first packet of a flow, at one hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The hook.
    pub point: HookPoint,
    /// The chains of the hook that the packet passes.
    pub part: Part,
    /// The source address, if it is known.
    pub source: Option<IpAddr>,
    /// The destination address.
    pub destination: IpAddr,
    /// The transport protocol.
    pub protocol: Protocol,
    /// The destination port.
    pub port: u16,
}

impl Packet {
    fn family_number(&self) -> u8 {
        wire::family_number(Family::of(self.destination))
    }
}

/// How a packet is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fate {
    /// Dropped silently.
    Dropped,
    /// Rejected with an answer to the sender.
    Rejected,
}

/// A rule of another program, or the policy of its chain, that stops a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stop {
    /// The family of the table: `ip`, `ip6` or `inet`.
    pub family: &'static str,
    /// The table.
    pub table: Name,
    /// The chain of the rule or policy.
    pub chain: Name,
    /// The handle of the rule; `None` for a policy.
    pub handle: Option<u64>,
    /// The comment of the rule.
    pub comment: Option<Name>,
    /// How the packet is stopped.
    pub fate: Fate,
    /// Whether the rule certainly matches. If not, the match depends on something that is unknown here.
    pub certain: bool,
}

impl Socket {
    /// Reads all chains, except those in tables with the names `except`.
    ///
    /// # Errors
    /// Returns an error if the process lacks `CAP_NET_ADMIN`, if the socket fails, or if the rules changed during every attempt.
    pub fn foreign_rules(&mut self, except: &[&str]) -> Result<ForeignRules, Error> {
        self.undisturbed(|socket| socket.read_foreign_rules(except))
    }

    fn read_foreign_rules(&mut self, except: &[&str]) -> Result<ForeignRules, Error> {
        let mut chains: Vec<ForeignChain> = Vec::new();
        let fill = |_: &mut Writer| ();
        self.request_of(0, msg::GET_CHAIN, wire::DUMP, fill, |message| {
            let (attributes, family) = (message.attributes(), message.family().unwrap_or_default());
            let names = attributes.string(chain::TABLE).zip(attributes.string(chain::NAME));
            let Some((table, name)) = names.filter(|(table, _)| !except.contains(table) && is_ip(family)) else {
                return;
            };
            let hook = attributes.find(chain::HOOK).map(wire::Attributes).and_then(|hook| {
                let point = hook.u32(chain::HOOK_POINT).unwrap_or_default();
                Some((point, hook.u32(chain::HOOK_PRIORITY)?.cast_signed()))
            });
            let drops = hook.is_some() && attributes.u32(chain::POLICY) == Some(DROP);
            let (table, name) = (table.into(), name.into());
            chains.push(ForeignChain { family, table, name, hook, drops, rules: Vec::new() });
        })?;
        self.request_of(0, msg::GET_RULE, wire::DUMP, fill, |message| {
            let (attributes, family) = (message.attributes(), message.family().unwrap_or_default());
            let Some(table) = attributes.string(rule::TABLE) else { return };
            let Some((name, dump)) = parse_rule(attributes, table) else { return };
            let mut of = chains.iter_mut();
            let chain = of.find(|of| of.family == family && *of.table == *table && *of.name == *name);
            chain.into_iter().for_each(|chain| chain.rules.push(dump.clone()));
        })?;
        chains.sort_by_key(|chain| chain.hook.map(|(_, priority)| priority));
        Ok(ForeignRules { chains })
    }

    /// Looks up an element in a set of another program.
    fn find(&mut self, family: u8, table: &str, set: &str, key: &[u8]) -> Result<Option<Member>, Error> {
        use super::uapi::{data, element};
        let fill = |w: &mut Writer| {
            w.string(element::LIST_TABLE, table);
            w.string(element::LIST_SET, set);
            w.nest(element::LIST_ELEMENTS, |w| {
                w.nest(element::LIST_ITEM, |w| w.nest(element::KEY, |w| w.bytes(data::VALUE, key)));
            });
        };
        let mut member = None;
        self.request_of(family, msg::GET_ELEMENTS, wire::ACK, fill, |message| {
            for (_, item) in message.attributes().nested(element::LIST_ELEMENTS) {
                let verdict = wire::Attributes(item).nested(element::DATA).nested(data::VERDICT);
                let verdict = Verdict::read(verdict, |chain| chain.into());
                member = Some(Member { verdict });
            }
        })?;
        Ok(member)
    }

    /// The foreign rules that stop a packet, the certain ones first.
    pub fn stops(&mut self, rules: &ForeignRules, packet: &Packet) -> Vec<Stop> {
        rules.stops(packet, &mut |family, table, set, key| {
            // The kernel refuses a key of the wrong length. Single fields may be shorter than a register.
            let lengths = (1..=key.len() / 4).rev().map(|words| 4 * words).chain([2, 1]);
            let mut answers = lengths.filter_map(|len| self.find(family, table, set, &key[..len.min(key.len())]).ok());
            answers.next().map_or(Lookup::Unknown, Lookup::Known)
        })
    }
}

/// An element of a foreign set.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Member {
    /// The verdict, in a verdict map.
    verdict: Option<Verdict>,
}

/// The result of a lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Lookup {
    Known(Option<Member>),
    Unknown,
}

/// Looks up an element by family, table, set and key.
type Find<'a> = dyn FnMut(u8, &str, &str, &[u8]) -> Lookup + 'a;

impl ForeignRules {
    /// The names of the tables with their family, sorted and without duplicates: `inet firewall`.
    pub fn tables(&self) -> Vec<String> {
        let mut tables: Vec<String> =
            self.chains.iter().map(|chain| format!("{} {}", name_of(chain.family), chain.table)).collect();
        tables.sort_unstable();
        tables.dedup();
        tables
    }

    fn stops(&self, packet: &Packet, find: &mut Find<'_>) -> Vec<Stop> {
        let family = packet.family_number();
        let point = hook_number(packet.point);
        let mut stops = Vec::new();
        for chain in &self.chains {
            let is_entered = chain.hook.is_some_and(|(of, priority)| of == point && packet.part.contains(priority));
            if is_entered && (chain.family == family || chain.family == INET) {
                let mut evaluation = Evaluation { rules: self, packet, find: &mut *find, stops: &mut stops };
                evaluation.base(chain);
            }
        }
        stops.sort_by_key(|stop| !stop.certain);
        stops
    }

    fn chain(&self, of: &ForeignChain, name: &str) -> Option<&ForeignChain> {
        self.chains.iter().find(|chain| chain.family == of.family && chain.table == of.table && *chain.name == *name)
    }
}

/// Whether tables of the family see IP packets.
fn is_ip(family: u8) -> bool {
    family == INET || wire::family_of_number(family).is_some()
}

fn name_of(family: u8) -> &'static str {
    wire::family_of_number(family).map_or("inet", family_name)
}
