//! Parses the kernel's dumps into plain values. Any bytes parse to a value or to `None`.

use std::collections::HashSet;

use localnet_core::Family;

use super::encode::register_len;
use super::expression::{self, Expression};
use super::uapi::{chain, data, element, rule, set};
use super::userdata;
use super::wire::{Attributes, Writer};
use super::{
    Chain, ChainKind, Element, ElementData, ElementKey, Expiry, Hook, HookPoint, Name, Rule, Set, SetData, SetFlags,
    Tuple, Verdict,
};

/// The live state of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainDump {
    /// The name.
    pub name: Name,
    /// The hook; `None` for a chain that is only jumped to, and for every chain of a dormant table.
    pub hook: Option<Hook>,
    /// Whether the hook or policy cannot be represented by [`Hook`]. No chain of ours has such a hook or policy.
    pub foreign: bool,
    /// The comment.
    pub comment: Option<Name>,
    /// The rules, in order.
    pub rules: Vec<RuleDump>,
}

impl ChainDump {
    /// Whether the live chain equals `chain`, rules included.
    pub fn is(&self, family: Family, chain: &Chain) -> bool {
        let same_rules = || self.rules.iter().zip(&chain.rules).all(|(live, desired)| live.is(family, desired));
        self.is_declared(chain) && self.rules.len() == chain.rules.len() && same_rules()
    }

    /// Whether the live chain has the name and hook of `chain`. The comment does not count: only a new table could change it,
    /// and a new table would lose the clients that session affinity remembers.
    pub fn is_declared(&self, chain: &Chain) -> bool {
        !self.foreign && self.name == chain.name && self.hook == chain.hook
    }
}

/// The live state of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleDump {
    /// The kernel's handle of the rule.
    pub handle: u64,
    /// The comment.
    pub comment: Option<Name>,
    pub(super) expressions: Vec<Expression>,
}

impl RuleDump {
    /// Whether the live rule equals `rule`.
    pub fn is(&self, family: Family, rule: &Rule) -> bool {
        let mut writer = Writer::default();
        rule.write(&mut writer, family);
        self.comment == rule.comment && self.expressions == expression::read(Attributes(&writer.bytes))
    }
}

/// Parses a chain of that table, without its rules.
pub(super) fn parse_chain(attributes: Attributes<'_>, table: &str) -> Option<ChainDump> {
    if attributes.string(chain::TABLE)? != table {
        return None;
    }
    let base = attributes.find(chain::HOOK).map(Attributes);
    let hook = base.and_then(|hook| {
        Some(Hook {
            kind: ChainKind::named(attributes.string(chain::TYPE)?)?,
            point: *HookPoint::ALL.get(hook.u32(chain::HOOK_POINT)? as usize)?,
            priority: hook.u32(chain::HOOK_PRIORITY)?.cast_signed(),
        })
    });
    // NF_ACCEPT
    let accepts = attributes.u32(chain::POLICY).is_none_or(|policy| policy == 1);
    Some(ChainDump {
        name: attributes.string(chain::NAME)?.into(),
        hook,
        foreign: base.is_some() && (hook.is_none() || !accepts),
        comment: comment(attributes.find(chain::USERDATA)),
        rules: Vec::new(),
    })
}

/// Parses a rule, and the name of its chain.
pub(super) fn parse_rule<'a>(attributes: Attributes<'a>, table: &str) -> Option<(&'a str, RuleDump)> {
    if attributes.string(rule::TABLE)? != table {
        return None;
    }
    let dump = RuleDump {
        handle: attributes.u64(rule::HANDLE)?,
        comment: comment(attributes.find(rule::USERDATA)),
        expressions: expression::read(attributes.nested(rule::EXPRESSIONS)),
    };
    Some((attributes.string(rule::CHAIN)?, dump))
}

fn comment(userdata: Option<&[u8]>) -> Option<Name> {
    userdata.and_then(userdata::read_comment).map(Name::from)
}

/// Parses a set of that table: its name, and its declaration if [`Set`] can represent it.
pub(super) fn parse_set(attributes: Attributes<'_>, table: &str) -> Option<(Name, Option<Set>)> {
    if attributes.string(set::TABLE)? != table {
        return None;
    }
    let name: Name = attributes.string(set::NAME)?.into();
    Some((name.clone(), declaration(attributes, name)))
}

fn declaration(attributes: Attributes<'_>, name: Name) -> Option<Set> {
    const KNOWN: u32 = set::FLAG_INTERVAL | set::FLAG_MAP | set::FLAG_TIMEOUT | set::FLAG_DYNAMIC | set::FLAG_CONCAT;
    let flags = attributes.u32(set::FLAGS).unwrap_or_default();
    let key = userdata::types_of_number(attributes.u32(set::KEY_TYPE)?)?;
    if flags & !KNOWN != 0 || attributes.u32(set::KEY_LEN)? != register_len(&key) {
        return None;
    }
    let set_data = match attributes.u32(set::DATA_TYPE) {
        _ if flags & set::FLAG_MAP == 0 => SetData::None,
        Some(set::TYPE_VERDICT) => SetData::Verdict,
        number => SetData::Values(userdata::types_of_number(number?)?),
    };
    Some(Set {
        name,
        key,
        data: set_data,
        flags: SetFlags {
            interval: flags & set::FLAG_INTERVAL != 0,
            dynamic: flags & set::FLAG_DYNAMIC != 0,
            timeout: flags & set::FLAG_TIMEOUT != 0,
        },
        timeout: attributes.u64(set::TIMEOUT).and_then(|millis| u32::try_from(millis / 1000).ok()),
        size: attributes.nested(set::DESC).u32(set::DESC_SIZE),
        comment: attributes.find(set::USERDATA).and_then(userdata::read_set_comment).map(Name::from),
    })
}

/// The elements of one message that count packets, each with its key and its packets.
pub(super) fn parse_packets(attributes: Attributes<'_>) -> impl Iterator<Item = (Tuple, u64)> {
    attributes.nested(element::LIST_ELEMENTS).filter_map(|(_, item)| {
        let item = Attributes(item);
        let counter = item.nested(element::EXPRESSION);
        let packets = counter.nested(expression::DATA).u64(expression::COUNTER_PACKETS)?;
        (counter.string(expression::NAME) == Some("counter"))
            .then_some((padded(item.nested(element::KEY).find(data::VALUE)?), packets))
    })
}

/// Collects the elements of a set from the messages of a dump.
#[derive(Debug)]
pub(super) struct Elements<'a> {
    set: &'a Set,
    /// Comments and chain names, each stored once because they repeat.
    names: HashSet<Name>,
    elements: Vec<Element>,
    /// In a set of single-field ranges: the keys at which ranges end. They are not part of these ranges.
    ends: Vec<Tuple>,
}

impl<'a> Elements<'a> {
    pub(super) fn new(set: &'a Set) -> Self {
        Self { set, names: HashSet::new(), elements: Vec::new(), ends: Vec::new() }
    }

    /// Adds the elements of one message.
    pub(super) fn message(&mut self, attributes: Attributes<'_>) {
        for (_, item) in attributes.nested(element::LIST_ELEMENTS) {
            self.item(Attributes(item));
        }
    }

    fn item(&mut self, item: Attributes<'_>) {
        let Some(key) = item.nested(element::KEY).find(data::VALUE) else {
            return;
        };
        let start = padded(key);
        if item.u32(element::FLAGS).unwrap_or_default() & element::FLAG_INTERVAL_END != 0 {
            self.ends.push(start);
            return;
        }
        let key = match item.find(element::KEY_END).and_then(|end| Attributes(end).find(data::VALUE)) {
            Some(end) => ElementKey::range(start, padded(end)),
            None => start.into(),
        };
        let data = match item.find(element::DATA).map(Attributes) {
            Some(data) => self.data(data),
            None => self.expiry(item).map_or(ElementData::None, ElementData::Expires),
        };
        let comment = item.find(element::USERDATA).and_then(userdata::read_comment);
        let comment = comment.map(|comment| self.name(comment));
        self.elements.push(Element { key, data, comment });
    }

    /// The expiry of an element. The kernel omits a timeout that equals the set's default.
    fn expiry(&self, item: Attributes<'_>) -> Option<Expiry> {
        let left = item.u64(element::EXPIRATION)?;
        let of_set = || self.set.timeout.map(|seconds| u64::from(seconds) * 1000);
        Some(Expiry { timeout: item.u64(element::TIMEOUT).or_else(of_set)?, left })
    }

    /// The data of an element. Data that [`ElementData`] cannot represent becomes `None`. The desired data of a map is never
    /// `None`, so the element counts as different.
    fn data(&mut self, attributes: Attributes<'_>) -> ElementData {
        if let Some(value) = attributes.find(data::VALUE) {
            return ElementData::Value(padded(value));
        }
        let verdict = Verdict::read(attributes.nested(data::VERDICT), |chain| self.name(chain));
        verdict.map_or(ElementData::None, ElementData::Verdict)
    }

    fn name(&mut self, text: &str) -> Name {
        if let Some(name) = self.names.get(text) {
            return name.clone();
        }
        let name = Name::from(text);
        self.names.insert(name.clone());
        name
    }

    /// The first element, as the kernel sent it.
    pub(super) fn first(self) -> Option<Element> {
        self.elements.into_iter().next()
    }

    /// All elements, with ranges reassembled from their start and end.
    pub(super) fn finish(mut self) -> Vec<Element> {
        if !self.set.flags.interval || self.set.key.len() != 1 {
            return self.elements;
        }
        self.elements.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        self.ends.sort_unstable();
        let len = register_len(&self.set.key) as usize;
        let starts: Vec<Tuple> = self.elements.iter().skip(1).map(|element| element.key.start().clone()).collect();
        let mut starts = starts.into_iter();
        let mut ends = self.ends.iter().peekable();
        for element in &mut self.elements {
            let start = element.key.start().clone();
            while ends.next_if(|end| **end <= start).is_some() {}
            // A range extends to its end element, to the start of the next range, or to the last possible key.
            let after = [ends.peek().map(|end| (*end).clone()), starts.next()].into_iter().flatten().min();
            element.key = ElementKey::range(start, last_before(after.as_ref(), len));
        }
        self.elements
    }
}

/// The key before `after`, or the last possible key if `after` is `None`.
fn last_before(after: Option<&Tuple>, len: usize) -> Tuple {
    let mut bytes = after.map_or_else(|| vec![0; len], |after| after.as_bytes().to_vec());
    bytes.truncate(len);
    for byte in bytes.iter_mut().rev() {
        *byte = byte.wrapping_sub(1);
        if *byte != 0xff {
            break;
        }
    }
    padded(&bytes)
}

/// Pads to a multiple of four bytes. The kernel does not pad single fields.
fn padded(bytes: &[u8]) -> Tuple {
    if bytes.len().is_multiple_of(4) {
        return Tuple::from_bytes(bytes);
    }
    let mut padded = bytes.to_vec();
    padded.resize(bytes.len().next_multiple_of(4), 0);
    Tuple::from_bytes(&padded)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::nft::FieldType;
    use crate::nft::wire::messages;
    use std::net::Ipv4Addr;

    fn sets() -> [Set; 3] {
        let ranges = Set::new("r", [FieldType::Ipv4Addr]).interval();
        let map = Set::map("m", [FieldType::Ipv4Addr, FieldType::InetService], [FieldType::Ipv4Addr]);
        [ranges, map, Set::verdict_map("v", [FieldType::InetProto])]
    }

    /// A textual form of everything that parses.
    fn parse_all(bytes: &[u8]) -> String {
        let all = messages(bytes).map(|message| {
            let attributes = message.attributes();
            let elements = sets().map(|set| {
                let mut elements = Elements::new(&set);
                elements.message(attributes);
                elements.finish()
            });
            let (chain, rule) = (parse_chain(attributes, "t"), parse_rule(attributes, "t"));
            format!("{chain:?} {rule:?} {:?} {elements:?}\n", parse_set(attributes, "t"))
        });
        all.collect()
    }

    fn a_batch() -> Vec<u8> {
        use crate::nft::{Statement, Table, Transaction};
        let table = Table::new(Family::V4, "t");
        let mut transaction = Transaction::new();
        let chain = Chain::base("c", ChainKind::Nat, HookPoint::Output, 1).comment("x").rule([
            Statement::ConnectionNew,
            Statement::MarkOr(1),
            Statement::jump("c"),
        ]);
        transaction.add_chain(&table, &chain.into());
        for (set, data) in sets().into_iter().zip([
            ElementData::None,
            ElementData::Value(Tuple::new().port(1)),
            ElementData::Verdict(Verdict::Goto("c".into())),
        ]) {
            let set = std::sync::Arc::new(set);
            let key = Tuple::new().address(Ipv4Addr::LOCALHOST.into()).port(9);
            let element = Element { key: key.into(), data, comment: Some("y".into()) };
            transaction.add_set(&table, &set).add_elements(&table, &set, vec![element]);
        }
        crate::nft::encode::encode(&transaction, 1).bytes
    }

    #[test]
    fn encoded_values_parse() {
        let text = parse_all(&a_batch());
        for (what, least) in [("ChainDump", 1), ("RuleDump", 1), ("Set {", 3), ("Element {", 3)] {
            assert!(text.matches(what).count() >= least, "{what} in {text}");
        }
    }

    #[test]
    fn fuzz_a_dump_of_nf_tables() {
        localnet_fuzz::target("nft-dump", &[&a_batch()], parse_all);
    }

    proptest! {
        #[test]
        fn any_bytes_parse(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            parse_all(&bytes);
            let mut framed = (bytes.len() as u32 + 20).to_ne_bytes().to_vec();
            framed.extend([0; 16]);
            framed.extend(bytes);
            parse_all(&framed);
        }

        #[test]
        fn a_damaged_dump_parses(changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
            let mut bytes = a_batch();
            for (at, value) in changes {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            parse_all(&bytes);
        }
    }
}
