//! The rules of others, and which of them stop a packet.
//!
//! ```text
//!  kernel ──dump──► Others (chains with a hook, rules) ──stops(packet)──► Stop: table, chain, handle; certain, or possible
//! ```
//!
//! Reads everything but the tables that it is told to leave out, for people who ask; never part of a sync. What a rule
//! compares with something that is not known here (a mark, an interface, a limit) may match or not: then what it does is
//! possible, not certain. Tables of the families `ip`, `ip6` and `inet` are looked at; those of `bridge`, `netdev` and the
//! rules of ip_tables (iptables-legacy) are not seen.

mod evaluate;

use std::net::IpAddr;

use super::kernel::{chain, msg, rule};
use super::parse::{RuleDump, parse_rule};
use super::wire::{self, Writer};
use super::{Error, HookPoint, Name, Protocol, Socket};
use evaluate::Evaluation;

/// `NFPROTO_INET`, `NFPROTO_IPV4`, `NFPROTO_IPV6`
const INET: u8 = 1;
const IPV4: u8 = 2;
const IPV6: u8 = 10;
/// `NF_DROP`
const DROP: u32 = 0;

/// The chains of others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Others {
    chains: Vec<OtherChain>,
}

/// A chain of another's.
#[derive(Clone, Debug, PartialEq, Eq)]
struct OtherChain {
    family: u8,
    table: Name,
    name: Name,
    /// Where the kernel enters it: the hook's number and the priority.
    hook: Option<(u32, i32)>,
    /// What is left at its end is dropped.
    drops: bool,
    rules: Vec<RuleDump>,
}

/// The first packet of a flow, as far as it is known, at one point of its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Where it is.
    pub point: HookPoint,
    /// Its source address, if it is known.
    pub source: Option<IpAddr>,
    /// Its destination address.
    pub destination: IpAddr,
    /// Its protocol.
    pub protocol: Protocol,
    /// Its destination port.
    pub port: u16,
}

/// What becomes of a packet that is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fate {
    /// It vanishes.
    Dropped,
    /// The sender is told.
    Rejected,
}

/// A rule of another's, or the policy of a chain, that stops a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stop {
    /// The family of the table: `ip`, `ip6` or `inet`.
    pub family: &'static str,
    /// The table.
    pub table: Name,
    /// The chain that the rule is in.
    pub chain: Name,
    /// The kernel's number of the rule; none for the policy of the chain.
    pub handle: Option<u64>,
    /// The rule's comment.
    pub comment: Option<Name>,
    /// What becomes of the packet.
    pub fate: Fate,
    /// The rule certainly matches. Otherwise that depends on what is not known here.
    pub certain: bool,
}

impl Socket {
    /// All chains but those of the tables of that name.
    ///
    /// # Errors
    /// The kernel does not show them.
    pub fn others(&mut self, except: &[&str]) -> Result<Others, Error> {
        let mut chains: Vec<OtherChain> = Vec::new();
        self.request_of(
            0,
            msg::GET_CHAIN,
            wire::DUMP,
            |_| (),
            |message| {
                let (attributes, family) = (message.attributes(), message.family().unwrap_or_default());
                let (Some(table), Some(name)) = (attributes.string(chain::TABLE), attributes.string(chain::NAME))
                else {
                    return;
                };
                if except.contains(&table) || ![INET, IPV4, IPV6].contains(&family) {
                    return;
                }
                let hook = attributes.find(chain::HOOK).map(wire::Attributes);
                let hook = hook.and_then(|hook| {
                    Some((
                        hook.u32(chain::HOOK_POINT).unwrap_or_default(),
                        hook.u32(chain::HOOK_PRIORITY)?.cast_signed(),
                    ))
                });
                let drops = hook.is_some() && attributes.u32(chain::POLICY) == Some(DROP);
                let (table, name) = (table.into(), name.into());
                chains.push(OtherChain { family, table, name, hook, drops, rules: Vec::new() });
            },
        )?;
        let fill = |_: &mut Writer| ();
        self.request_of(0, msg::GET_RULE, wire::DUMP, fill, |message| {
            let (attributes, family) = (message.attributes(), message.family().unwrap_or_default());
            let Some(table) = attributes.string(rule::TABLE) else { return };
            let Some((name, dump)) = parse_rule(attributes, table) else { return };
            let mut of = chains.iter_mut();
            let chain = of.find(|of| of.family == family && *of.table == *table && *of.name == *name);
            chain.into_iter().for_each(|chain| chain.rules.push(dump.clone()));
        })?;
        chains.sort_by_key(|chain| chain.hook.map(|(_, priority)| priority));
        Ok(Others { chains })
    }

    /// Whether a set of another's has an element, and what it maps to.
    fn find(&mut self, family: u8, table: &str, set: &str, key: &[u8]) -> Result<Option<Member>, Error> {
        use super::kernel::{data, element};
        let fill = |w: &mut Writer| {
            w.string(element::LIST_TABLE, table);
            w.string(element::LIST_SET, set);
            w.nest(element::LIST_ELEMENTS, |w| {
                w.nest(element::LIST_ITEM, |w| w.nest(element::KEY, |w| w.bytes(data::VALUE, key)));
            });
        };
        let mut found = None;
        self.request_of(family, msg::GET_ELEMENTS, wire::ACK, fill, |message| {
            for (_, item) in message.attributes().nested(element::LIST_ELEMENTS) {
                let verdict = wire::Attributes(item).nested(element::DATA).nested(data::VERDICT);
                let verdict = verdict.u32(data::VERDICT_CODE).map(|code| {
                    (code.cast_signed(), verdict.string(data::VERDICT_CHAIN).unwrap_or_default().to_owned())
                });
                found = Some(Member { verdict });
            }
        })?;
        Ok(found)
    }

    /// The rules of others that stop a packet, the certain ones first.
    pub fn stops(&mut self, others: &Others, packet: &Packet) -> Vec<Stop> {
        others.stops(packet, &mut |family, table, set, key| {
            // A key of another length than the set's is refused; single fields may be shorter than a register.
            let lengths = (1..=key.len() / 4).rev().map(|words| 4 * words).chain([2, 1]);
            let mut answers = lengths.filter_map(|len| self.find(family, table, set, &key[..len.min(key.len())]).ok());
            answers.next().map_or(Lookup::Unknown, Lookup::Known)
        })
    }
}

/// An element of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Member {
    /// Of a verdict map: the verdict's number and its chain.
    verdict: Option<(i32, String)>,
}

/// What is known of an element.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Lookup {
    Known(Option<Member>),
    Unknown,
}

/// Asks for an element: family, table, set, key.
type Find<'a> = dyn FnMut(u8, &str, &str, &[u8]) -> Lookup + 'a;

impl Others {
    /// The names of the tables, each once, with their family: `inet firewall`.
    pub fn tables(&self) -> Vec<String> {
        let mut tables: Vec<String> =
            self.chains.iter().map(|chain| format!("{} {}", family_name(chain.family), chain.table)).collect();
        tables.sort_unstable();
        tables.dedup();
        tables
    }

    fn stops(&self, packet: &Packet, find: &mut Find<'_>) -> Vec<Stop> {
        let family = if packet.destination.is_ipv4() { IPV4 } else { IPV6 };
        let point = match packet.point {
            HookPoint::Prerouting => 0,
            HookPoint::Input => 1,
            HookPoint::Forward => 2,
            HookPoint::Output => 3,
            HookPoint::Postrouting => 4,
        };
        let mut stops = Vec::new();
        for chain in &self.chains {
            let is_entered = chain.hook.is_some_and(|(of, _)| of == point);
            if is_entered && (chain.family == family || chain.family == INET) {
                let mut evaluation = Evaluation { others: self, packet, find: &mut *find, stops: &mut stops };
                evaluation.base(chain);
            }
        }
        stops.sort_by_key(|stop| !stop.certain);
        stops
    }

    fn chain(&self, of: &OtherChain, name: &str) -> Option<&OtherChain> {
        self.chains.iter().find(|chain| chain.family == of.family && chain.table == of.table && *chain.name == *name)
    }
}

fn family_name(family: u8) -> &'static str {
    match family {
        IPV4 => "ip",
        IPV6 => "ip6",
        _ => "inet",
    }
}
