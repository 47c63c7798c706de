//! Encodes a transaction as one batch of netlink messages, and maps each message to the change that it came from.

use super::comment::printable;
use super::uapi::{self, chain, data, element, msg, rule, set, table, userdata as tag};
use super::userdata;
use super::wire::{self, Head, Writer};
use super::{
    Chain, Change, Element, ElementData, ElementKey, FieldType, HookPoint, Rule, Set, SetData, Table, Transaction,
    Tuple,
};

/// The maximum size of a list of elements, in bytes. The list is one attribute, and an attribute has a 16-bit length.
const LIST_LIMIT: usize = 60_000;

/// The encoded transaction, ready to be sent.
#[derive(Debug)]
pub(super) struct Batch {
    /// The begin message, the changes, and the end message.
    pub(super) bytes: Vec<u8>,
    /// The origin of each message; message `n` has the sequence number `first + 1 + n`.
    pub(super) messages: Vec<Origin>,
    /// How many elements are added and deleted.
    pub(super) elements: usize,
}

/// The origin of a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    /// The index into the transaction's changes.
    pub(super) change: usize,
    /// The offset of the message in the batch.
    pub(super) start: usize,
}

/// Encodes a transaction; `first` is the sequence number of the batch's first message.
pub(super) fn encode(transaction: &Transaction, first: u32) -> Batch {
    let mut encoder = Encoder {
        writer: Writer::default(),
        messages: Vec::with_capacity(transaction.changes().len()),
        elements: 0,
        sequence: first,
        change: 0,
    };
    encoder.frame(uapi::BATCH_BEGIN);
    for (index, change) in transaction.changes().iter().enumerate() {
        encoder.change = index;
        encoder.change(change);
    }
    encoder.acknowledge_last();
    encoder.frame(uapi::BATCH_END);
    Batch { bytes: encoder.writer.bytes, messages: encoder.messages, elements: encoder.elements }
}

struct Encoder {
    writer: Writer,
    messages: Vec<Origin>,
    elements: usize,
    sequence: u32,
    change: usize,
}

impl Encoder {
    fn frame(&mut self, kind: u16) {
        let head = Head { kind, flags: wire::REQUEST, sequence: self.sequence, family: 0, resource: uapi::SUBSYSTEM };
        self.sequence = self.sequence.wrapping_add(1);
        self.writer.message(head, |_| ());
    }

    fn message(&mut self, table: &Table, kind: u16, flags: u16, fill: impl FnOnce(&mut Writer)) {
        self.messages.push(Origin { change: self.change, start: self.writer.bytes.len() });
        let head = Head {
            kind: uapi::SUBSYSTEM << 8 | kind,
            flags: wire::REQUEST | flags,
            sequence: self.sequence,
            family: wire::family_number(table.family),
            resource: 0,
        };
        self.sequence = self.sequence.wrapping_add(1);
        self.writer.message(head, fill);
    }

    /// Requests an acknowledgement of the last message only, because the kernel always sends errors.
    fn acknowledge_last(&mut self) {
        if let Some(last) = self.messages.last() {
            let at = last.start + 6;
            let flags = u16::from_ne_bytes([self.writer.bytes[at], self.writer.bytes[at + 1]]) | wire::ACK;
            self.writer.bytes[at..at + 2].copy_from_slice(&flags.to_ne_bytes());
        }
    }

    fn change(&mut self, change: &Change) {
        match change {
            Change::AddTable(table) => self.message(table, msg::NEW_TABLE, wire::CREATE, |w| {
                w.string(table::NAME, &table.name);
                w.u32(table::FLAGS, 0);
            }),
            Change::DeleteTable(table) => {
                self.message(table, msg::DEL_TABLE, 0, |w| w.string(table::NAME, &table.name));
            }
            Change::AddChain(table, chain) => {
                self.message(table, msg::NEW_CHAIN, wire::CREATE, |w| add_chain(w, table, chain));
            }
            Change::FlushChain(table, chain) => self.message(table, msg::DEL_RULE, 0, |w| {
                w.string(rule::TABLE, &table.name);
                w.string(rule::CHAIN, chain);
            }),
            Change::DeleteChain(table, chain) => self.message(table, msg::DEL_CHAIN, 0, |w| {
                w.string(chain::TABLE, &table.name);
                w.string(chain::NAME, chain);
            }),
            Change::AddRule(table, chain, rule) => {
                self.message(table, msg::NEW_RULE, wire::CREATE | wire::APPEND, |w| add_rule(w, table, chain, rule));
            }
            Change::AddSet(table, set) => {
                let id = self.messages.len() as u32 + 1;
                self.message(table, msg::NEW_SET, wire::CREATE, |w| add_set(w, table, set, id));
            }
            Change::FlushSet(table, set) => {
                self.message(table, msg::DEL_ELEMENTS, 0, |w| name_set(w, table, set));
            }
            Change::DeleteSet(table, set) => self.message(table, msg::DEL_SET, 0, |w| {
                w.string(set::TABLE, &table.name);
                w.string(set::NAME, set);
            }),
            Change::AddElements(table, set, elements) => {
                self.element_lists(table, set, elements, msg::NEW_ELEMENTS, wire::CREATE);
            }
            Change::DeleteElements(table, set, elements) => {
                self.element_lists(table, set, elements, msg::DEL_ELEMENTS, 0);
            }
        }
    }

    fn element_lists(&mut self, table: &Table, set: &Set, elements: &[Element], kind: u16, flags: u16) {
        self.elements += elements.len();
        let mut left = elements;
        while !left.is_empty() {
            self.message(table, kind, flags, |w| {
                name_set(w, table, set);
                let list = w.open(element::LIST_ELEMENTS);
                while let [next, rest @ ..] = left {
                    write_element(w, set, next, kind == msg::NEW_ELEMENTS);
                    left = rest;
                    if w.bytes.len() - list > LIST_LIMIT {
                        break;
                    }
                }
                w.close(list);
            });
        }
    }
}

fn add_chain(w: &mut Writer, table: &Table, chain: &Chain) {
    w.string(chain::TABLE, &table.name);
    w.string(chain::NAME, &chain.name);
    if let Some(hook) = chain.hook {
        w.string(chain::TYPE, hook.kind.as_str());
        w.nest(chain::HOOK, |w| {
            w.u32(chain::HOOK_POINT, hook_number(hook.point));
            w.u32(chain::HOOK_PRIORITY, hook.priority.cast_unsigned());
        });
    }
    if let Some(comment) = &chain.comment {
        w.bytes(chain::USERDATA, &userdata::comment(comment));
    }
}

fn add_rule(w: &mut Writer, table: &Table, chain: &str, rule: &Rule) {
    w.string(rule::TABLE, &table.name);
    w.string(rule::CHAIN, chain);
    w.nest(rule::EXPRESSIONS, |w| rule.write(w, table.family));
    if let Some(comment) = &rule.comment {
        w.bytes(rule::USERDATA, &userdata::comment(comment));
    }
}

fn add_set(w: &mut Writer, table: &Table, set: &Set, id: u32) {
    let concat = set.flags.interval && set.key.len() > 1;
    let flags = [
        (set.flags.interval, set::FLAG_INTERVAL),
        (set.is_map(), set::FLAG_MAP),
        (set.flags.timeout, set::FLAG_TIMEOUT),
        (set.flags.dynamic, set::FLAG_DYNAMIC),
        (concat, set::FLAG_CONCAT),
    ];
    w.string(set::TABLE, &table.name);
    w.string(set::NAME, &set.name);
    w.u32(set::FLAGS, flags.iter().filter(|(on, _)| *on).map(|(_, flag)| flag).sum());
    w.u32(set::KEY_TYPE, userdata::types_number(&set.key));
    w.u32(set::KEY_LEN, register_len(&set.key));
    match &set.data {
        SetData::None => {}
        SetData::Verdict => {
            w.u32(set::DATA_TYPE, set::TYPE_VERDICT);
            w.u32(set::DATA_LEN, 0);
        }
        SetData::Values(fields) => {
            w.u32(set::DATA_TYPE, userdata::types_number(fields));
            w.u32(set::DATA_LEN, register_len(fields));
        }
    }
    w.u32(set::ID, id);
    if set.size.is_some() || concat {
        w.nest(set::DESC, |w| {
            if let Some(size) = set.size {
                w.u32(set::DESC_SIZE, size);
            }
            if concat {
                w.nest(set::DESC_CONCAT, |w| {
                    for field in &set.key {
                        w.nest(element::LIST_ITEM, |w| w.u32(set::FIELD_LEN, field.byte_len() as u32));
                    }
                });
            }
        });
    }
    if let Some(seconds) = set.timeout {
        w.u64(set::TIMEOUT, u64::from(seconds) * 1000);
    }
    w.bytes(set::USERDATA, &userdata::set(set));
}

pub(super) fn name_set(w: &mut Writer, table: &Table, set: &Set) {
    w.string(element::LIST_TABLE, &table.name);
    w.string(element::LIST_SET, &set.name);
}

/// The size of the fields in registers, in bytes. A single field is not padded; the fields of a concatenation are.
pub(super) fn register_len(fields: &[FieldType]) -> u32 {
    match fields {
        [field] => field.byte_len() as u32,
        _ => fields.iter().map(|field| field.padded_len() as u32).sum(),
    }
}

/// For the kernel, a range of a single field is two elements: its first key, and the key after its end. A range of a
/// concatenation is one element with a closing key.
fn write_element(w: &mut Writer, set: &Set, element: &Element, with_data: bool) {
    let concat = set.key.len() > 1;
    let split = set.flags.interval && !concat;
    let after = split.then(|| after(&element.key, register_len(&set.key) as usize));
    let item = w.open(element::LIST_ITEM);
    write_key(w, element::KEY, element.key.start(), set);
    if set.flags.interval && concat {
        write_key(w, element::KEY_END, element.key.end().unwrap_or(element.key.start()), set);
    }
    if with_data {
        match &element.data {
            ElementData::None => {}
            ElementData::Verdict(verdict) => {
                let nest = w.open(element::DATA);
                verdict.write(w);
                w.close(nest);
            }
            ElementData::Value(value) => {
                let nest = w.open(element::DATA);
                let fields = if let SetData::Values(fields) = &set.data { fields.as_slice() } else { &[] };
                w.bytes(data::VALUE, unpadded(value, fields));
                w.close(nest);
            }
            ElementData::Expires(expiry) => {
                w.u64(element::TIMEOUT, expiry.timeout);
                w.u64(element::EXPIRATION, expiry.left);
            }
        }
        let has_no_end = after == Some(None);
        if element.comment.is_some() || has_no_end {
            let start = w.open_bytes(element::USERDATA);
            if let Some(comment) = &element.comment {
                userdata::text(&mut w.bytes, tag::COMMENT, &printable(comment));
            }
            if has_no_end {
                userdata::element_flags(&mut w.bytes, tag::INTERVAL_OPEN);
            }
            w.close_bytes(start);
        }
    }
    w.close(item);
    if let Some(Some(end)) = after {
        let item = w.open(element::LIST_ITEM);
        w.u32(element::FLAGS, element::FLAG_INTERVAL_END);
        let nest = w.open(element::KEY);
        w.bytes(data::VALUE, &end);
        w.close(nest);
        w.close(item);
    }
}

pub(super) fn write_key(w: &mut Writer, kind: u16, key: &Tuple, set: &Set) {
    let nest = w.open(kind);
    w.bytes(data::VALUE, unpadded(key, &set.key));
    w.close(nest);
}

/// The bytes of a tuple as the kernel expects them: a single field has no padding.
fn unpadded<'a>(tuple: &'a Tuple, fields: &[FieldType]) -> &'a [u8] {
    let bytes = tuple.as_bytes();
    match fields {
        [field] => bytes.get(..field.byte_len()).unwrap_or(bytes),
        _ => bytes,
    }
}

/// The first key after a range, in the order of the bytes; `None` if the range ends at the largest key.
fn after(key: &ElementKey, len: usize) -> Option<Vec<u8>> {
    let last = key.end().unwrap_or(key.start()).as_bytes();
    let mut next = last.get(..len).unwrap_or(last).to_vec();
    for byte in next.iter_mut().rev() {
        *byte = byte.wrapping_add(1);
        if *byte != 0 {
            return Some(next);
        }
    }
    None
}

/// `enum nf_inet_hooks`
pub(super) fn hook_number(point: HookPoint) -> u32 {
    point as u32
}
