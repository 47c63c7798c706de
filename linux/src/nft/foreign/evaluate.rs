//! Evaluates rules for one packet without sending it. If a rule compares an unknown property of the packet, its match
//! is possible instead of certain. Pure.

use std::net::IpAddr;

use super::super::expression::Expression;
use super::super::parse::RuleDump;
use super::super::uapi::{ct, data, meta, payload, tcp};
use super::{Fate, Find, ForeignChain, ForeignRules, Lookup, Name, Packet, Stop, Verdict, name_of};
use crate::netlink::{array, string};

/// The maximum depth of jumps: the kernel's own limit.
const DEPTH: usize = 16;
/// The evaluation of all foreign rules for one packet.
pub(super) struct Evaluation<'a, 'f> {
    pub(super) rules: &'a ForeignRules,
    pub(super) packet: &'a Packet,
    pub(super) find: &'a mut Find<'f>,
    pub(super) stops: &'a mut Vec<Stop>,
}

/// How the evaluation left a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    /// At its end, or by `return`.
    AtEnd,
    /// With a verdict, so that the hook evaluates no further rule.
    Decided,
}

/// Whether a rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Matches {
    Yes,
    No,
    Maybe,
}

/// The action of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Action {
    Nothing,
    Reject,
    Verdict(Verdict),
}

/// The known bytes of the sixteen registers of four bytes.
type Registers = [Option<u8>; 64];

impl Evaluation<'_, '_> {
    /// Evaluates a base chain and its policy.
    pub(super) fn base(&mut self, chain: &ForeignChain) {
        let mut certain = true;
        if self.walk(chain, &mut certain, 0) == Left::AtEnd && chain.drops {
            self.stops.push(stop(chain, None, Fate::Dropped, certain));
        }
    }

    /// Evaluates a chain. Clears `certain` if a rule may have ended the evaluation, but does not certainly match.
    fn walk(&mut self, chain: &ForeignChain, certain: &mut bool, depth: usize) -> Left {
        if depth > DEPTH {
            return Left::AtEnd;
        }
        for rule in &chain.rules {
            let (matches, action) = self.rule(chain, rule);
            if matches == Matches::No {
                continue;
            }
            let sure = *certain && matches == Matches::Yes;
            match action {
                Action::Nothing => {}
                Action::Verdict(Verdict::Accept | Verdict::Return) if !sure => *certain = false,
                Action::Verdict(Verdict::Accept) => return Left::Decided,
                Action::Verdict(Verdict::Return) => return Left::AtEnd,
                Action::Reject | Action::Verdict(Verdict::Drop) => {
                    let fate = if action == Action::Reject { Fate::Rejected } else { Fate::Dropped };
                    self.stops.push(stop(chain, Some(rule), fate, sure));
                    if sure {
                        return Left::Decided;
                    }
                }
                Action::Verdict(Verdict::Jump(ref name) | Verdict::Goto(ref name)) => {
                    let mut inner = sure;
                    let left = match self.rules.chain(chain, name) {
                        Some(target) => self.walk(target, &mut inner, depth + 1),
                        None => Left::AtEnd,
                    };
                    let is_goto = matches!(action, Action::Verdict(Verdict::Goto(_)));
                    if sure && (left == Left::Decided || is_goto && inner) {
                        return left;
                    }
                    *certain &= inner;
                }
            }
        }
        Left::AtEnd
    }

    fn rule(&mut self, chain: &ForeignChain, rule: &RuleDump) -> (Matches, Action) {
        let mut registers: Registers = [None; 64];
        let (mut matches, mut action) = (Matches::Yes, Action::Nothing);
        for expression in &rule.expressions {
            let matched = match &*expression.name {
                "payload" if expression.attribute(5).is_none() => {
                    self.load(&mut registers, expression);
                    Matches::Yes
                }
                "meta" if expression.attribute(3).is_none() => {
                    let value = match expression.number(2) {
                        meta::L4PROTO => vec![Some(self.packet.protocol.number())],
                        meta::NFPROTO => vec![Some(self.packet.family_number())],
                        _ => vec![None; 16],
                    };
                    put(&mut registers, expression.number(1), value);
                    Matches::Yes
                }
                "ct" if expression.attribute(4).is_none() => {
                    let value = match expression.number(2) {
                        ct::STATE => ct::STATE_NEW.to_ne_bytes().map(Some).to_vec(),
                        _ => vec![None; 16],
                    };
                    put(&mut registers, expression.number(1), value);
                    Matches::Yes
                }
                "bitwise" => {
                    bitwise(&mut registers, expression);
                    Matches::Yes
                }
                "cmp" => compare(&registers, expression),
                "lookup" => self.lookup(&registers, chain, expression, &mut action),
                "immediate" => {
                    match expression.attribute(1) {
                        None => action = verdict(expression.attribute(2).unwrap_or_default()),
                        Some(_) => {
                            let value = expression.attribute(2).unwrap_or_default().iter().copied().map(Some).collect();
                            put(&mut registers, expression.number(1), value);
                        }
                    }
                    Matches::Yes
                }
                "reject" => {
                    action = Action::Reject;
                    Matches::Yes
                }
                "target" => {
                    match string(expression.attribute(1).unwrap_or_default()) {
                        Some("REJECT") => action = Action::Reject,
                        Some("DROP") => action = Action::Verdict(Verdict::Drop),
                        _ => {}
                    }
                    Matches::Yes
                }
                "match" if string(expression.attribute(1).unwrap_or_default()) == Some("comment") => Matches::Yes,
                "counter" | "log" | "notrack" | "nat" | "masq" | "redir" | "payload" | "meta" | "ct" => Matches::Yes,
                "fib" | "byteorder" | "numgen" | "hash" | "socket" | "osf" | "rt" | "exthdr" | "tunnel" | "xfrm" => {
                    put(&mut registers, expression.number(register_of(&expression.name)), vec![None; 16]);
                    Matches::Yes
                }
                // Ranges, limits, quotas and iptables extensions.
                _ => Matches::Maybe,
            };
            match matched {
                Matches::No => return (Matches::No, Action::Nothing),
                Matches::Maybe => matches = Matches::Maybe,
                Matches::Yes => {}
            }
        }
        (matches, action)
    }

    fn load(&self, registers: &mut Registers, expression: &Expression) {
        let (offset, len) = (expression.number(3) as usize, expression.number(4).min(64) as usize);
        let header = match expression.number(2) {
            payload::NETWORK => self.network_header(),
            payload::TRANSPORT => self.transport_header(),
            _ => Vec::new(),
        };
        let value = (offset..offset.saturating_add(len)).map(|at| header.get(at).copied().flatten()).collect();
        put(registers, expression.number(1), value);
    }

    fn network_header(&self) -> Vec<Option<u8>> {
        let Packet { source, destination, protocol, .. } = self.packet;
        let mut header = vec![None; 40];
        let mut set = |at: usize, bytes: &[u8]| {
            header[at..at + bytes.len()].iter_mut().zip(bytes).for_each(|(place, byte)| *place = Some(*byte));
        };
        match destination {
            IpAddr::V4(address) => {
                set(9, &[protocol.number()]);
                set(16, &address.octets());
            }
            IpAddr::V6(address) => {
                set(6, &[protocol.number()]);
                set(24, &address.octets());
            }
        }
        match source {
            Some(IpAddr::V4(address)) => set(12, &address.octets()),
            Some(IpAddr::V6(address)) => set(8, &address.octets()),
            None => {}
        }
        header
    }

    fn transport_header(&self) -> Vec<Option<u8>> {
        let mut header = vec![None; 20];
        let [high, low] = self.packet.port.to_be_bytes();
        (header[2], header[3]) = (Some(high), Some(low));
        if self.packet.protocol == super::Protocol::Tcp {
            // The first packet of a connection has only SYN set.
            header[tcp::FLAGS as usize] = Some(tcp::SYN);
        }
        header
    }

    fn lookup(
        &mut self,
        registers: &Registers,
        chain: &ForeignChain,
        expression: &Expression,
        action: &mut Action,
    ) -> Matches {
        let set = string(expression.attribute(1).unwrap_or_default()).unwrap_or_default().to_owned();
        // The expression does not contain the key's length, so take all known bytes from that register on.
        let start = place(expression.number(2));
        let key: Vec<u8> = registers.iter().skip(start).map_while(|byte| *byte).collect();
        if key.is_empty() {
            return Matches::Maybe;
        }
        let inverted = expression.number(5) & 1 != 0;
        match (self.find)(chain.family, &chain.table, &set, &key) {
            Lookup::Unknown => Matches::Maybe,
            Lookup::Known(member) if inverted => {
                if member.is_some() {
                    Matches::No
                } else {
                    Matches::Yes
                }
            }
            Lookup::Known(None) => Matches::No,
            Lookup::Known(Some(member)) => {
                if let Some(verdict) = member.verdict {
                    *action = Action::Verdict(verdict);
                }
                Matches::Yes
            }
        }
    }
}

fn stop(chain: &ForeignChain, rule: Option<&RuleDump>, fate: Fate, certain: bool) -> Stop {
    Stop {
        family: name_of(chain.family),
        table: chain.table.clone(),
        chain: chain.name.clone(),
        handle: rule.map(|rule| rule.handle),
        comment: rule.and_then(|rule| rule.comment.clone()),
        fate,
        certain,
    }
}

/// The attribute that names the register to which an expression writes.
fn register_of(name: &str) -> u16 {
    match name {
        "byteorder" | "hash" => 2,
        _ => 1,
    }
}

/// The offset of a register: 16-byte registers have the numbers 1 to 4, 4-byte ones 8 to 23.
fn place(register: u32) -> usize {
    match register {
        1..=4 => (register as usize - 1) * 16,
        8..=23 => (register as usize - 8) * 4,
        _ => 64,
    }
}

/// Writes a value to whole registers; the rest of the last one is zero.
fn put(registers: &mut Registers, register: u32, mut value: Vec<Option<u8>>) {
    let start = place(register);
    value.resize(value.len().next_multiple_of(4), Some(0));
    // Bytes after the value belong to another field or are outdated.
    for (at, byte) in registers.iter_mut().enumerate().skip(start) {
        match value.get(at - start) {
            Some(known) => *byte = *known,
            None => break,
        }
    }
}

fn bitwise(registers: &mut Registers, expression: &Expression) {
    let (from, to, len) = (place(expression.number(1)), expression.number(2), expression.number(3).min(64) as usize);
    let (mask, xor) = (expression.attribute(4).unwrap_or_default(), expression.attribute(5).unwrap_or_default());
    let is_mask = expression.number(6) == 0;
    let value = (0..len).map(|at| {
        let mask = mask.get(at).copied().unwrap_or_default();
        let xor = xor.get(at).copied().unwrap_or_default();
        match registers.get(from + at).copied().flatten() {
            Some(byte) if is_mask => Some(byte & mask ^ xor),
            // A mask of zero makes an unknown byte known.
            None if is_mask && mask == 0 => Some(xor),
            _ => None,
        }
    });
    let value = value.collect();
    put(registers, to, value);
}

fn compare(registers: &Registers, expression: &Expression) -> Matches {
    let start = place(expression.number(1));
    let operand = expression.attribute(3).unwrap_or_default();
    let loaded =
        || operand.iter().enumerate().map(|(at, operand)| (registers.get(start + at).copied().flatten(), *operand));
    // One known byte that differs decides the comparison.
    let differs = loaded().any(|(loaded, operand)| loaded.is_some_and(|loaded| loaded != operand));
    let known: Option<Vec<u8>> = loaded().map(|(loaded, _)| loaded).collect();
    let yes = |yes: bool| if yes { Matches::Yes } else { Matches::No };
    // NFT_CMP_EQ, NEQ, LT, LTE, GT, GTE
    match (expression.number(2), known) {
        (0, _) if differs => Matches::No,
        (1, _) if differs => Matches::Yes,
        (0, Some(_)) => Matches::Yes,
        (1, Some(_)) => Matches::No,
        (2, Some(loaded)) => yes(*loaded < *operand),
        (3, Some(loaded)) => yes(*loaded <= *operand),
        (4, Some(loaded)) => yes(*loaded > *operand),
        (5, Some(loaded)) => yes(*loaded >= *operand),
        _ => Matches::Maybe,
    }
}

/// The verdict of an immediate expression: its number, then the chain.
fn verdict(bytes: &[u8]) -> Action {
    let code = array(bytes).map_or(data::ACCEPT, i32::from_be_bytes);
    let chain = bytes.get(4..).and_then(string).filter(|chain| !chain.is_empty());
    Verdict::of(code, chain.map(Name::from)).map_or(Action::Nothing, Action::Verdict)
}
