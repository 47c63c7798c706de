//! The userdata of nft 1.0.6. The kernel only stores it. Without userdata, `nft list ruleset` prints no comments, and prints keys
//! as raw numbers that nft cannot load.

use super::comment::printable;
use super::uapi::{meta, userdata as tag};
use super::wire::string;
use super::{FieldType, Set, SetData};

/// The userdata of a rule, a chain or an element with that comment.
pub(super) fn comment(comment: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(comment.len() + 3);
    text(&mut bytes, tag::COMMENT, &printable(comment));
    bytes
}

/// The comment in the userdata of a rule, a chain or an element.
pub(super) fn read_comment(userdata: &[u8]) -> Option<&str> {
    find(userdata, tag::COMMENT).and_then(string)
}

/// The comment in the userdata of a set.
pub(super) fn read_set_comment(userdata: &[u8]) -> Option<&str> {
    find(userdata, tag::SET_COMMENT).and_then(string)
}

/// The value of the first entry of that kind.
fn find(mut userdata: &[u8], kind: u8) -> Option<&[u8]> {
    while let [entry_kind, len, rest @ ..] = userdata {
        let value = rest.get(..usize::from(*len))?;
        if *entry_kind == kind {
            return Some(value);
        }
        userdata = &rest[value.len()..];
    }
    None
}

/// The userdata of a set's declaration.
pub(super) fn set(set: &Set) -> Vec<u8> {
    let by_example = needs_typeof(set);
    let mut bytes = Vec::with_capacity(tag::MAX);
    number(&mut bytes, tag::KEY_BYTE_ORDER, byte_order(&set.key));
    match &set.data {
        SetData::None => {}
        SetData::Verdict => number(&mut bytes, tag::DATA_BYTE_ORDER, 0),
        SetData::Values(fields) => number(&mut bytes, tag::DATA_BYTE_ORDER, byte_order(fields)),
    }
    type_of(&mut bytes, tag::KEY_TYPEOF, &set.key, by_example);
    match &set.data {
        SetData::None => {}
        SetData::Verdict if by_example => {
            nest(&mut bytes, tag::DATA_TYPEOF, |b| expression(b, KIND_VERDICT, |_| ()));
        }
        SetData::Verdict => {}
        SetData::Values(fields) => type_of(&mut bytes, tag::DATA_TYPEOF, fields, by_example),
    }
    if set.is_map() {
        number(&mut bytes, tag::DATA_INTERVAL, 0);
    }
    if let Some(comment) = &set.comment {
        let comment = printable(comment);
        if bytes.len() + comment.len() + 3 <= tag::MAX {
            text(&mut bytes, tag::SET_COMMENT, &comment);
        }
    }
    bytes
}

/// Whether the set must be declared by example expressions (`typeof ip daddr . numgen …`), because nft has no name for the
/// type of an index.
pub(super) fn needs_typeof(set: &Set) -> bool {
    let in_data = matches!(&set.data, SetData::Values(fields) if fields.contains(&FieldType::Index));
    in_data || set.key.contains(&FieldType::Index)
}

// The kinds of expressions, as nft numbers them in userdata.
const KIND_VERDICT: u32 = 1;
const KIND_PAYLOAD: u32 = 7;
const KIND_META: u32 = 9;
const KIND_CONCAT: u32 = 13;
const KIND_NUMGEN: u32 = 23;

/// Writes the type of a key or value as nft does: with example expressions for a declaration with `typeof`. For a declaration
/// with names of types, nft writes only an empty concatenation, or nothing for a single field.
fn type_of(bytes: &mut Vec<u8>, kind: u8, fields: &[FieldType], by_example: bool) {
    match (fields, by_example) {
        ([_], false) | ([], _) => {}
        ([field], true) => nest(bytes, kind, |b| example(b, *field)),
        (_, false) => nest(bytes, kind, |b| expression(b, KIND_CONCAT, |_| ())),
        (_, true) => nest(bytes, kind, |b| {
            let all = (0u8..).zip(fields);
            expression(b, KIND_CONCAT, |b| all.for_each(|(at, field)| nest(b, at, |b| example(b, *field))));
        }),
    }
}

/// Writes an example expression of the type. `text.rs` prints the same example.
fn example(bytes: &mut Vec<u8>, field: FieldType) {
    // Protocol headers and fields, as nft numbers them.
    const PROTO_TRANSPORT: u32 = 11;
    const PROTO_IP: u32 = 12;
    const PROTO_IP6: u32 = 13;
    const IP_DADDR: u32 = 12;
    const IP6_DADDR: u32 = 9;
    const TRANSPORT_DPORT: u32 = 2;
    let (kind, numbers): (u32, &[u32]) = match field {
        FieldType::Ipv4Addr => (KIND_PAYLOAD, &[PROTO_IP, IP_DADDR]),
        FieldType::Ipv6Addr => (KIND_PAYLOAD, &[PROTO_IP6, IP6_DADDR]),
        FieldType::InetService => (KIND_PAYLOAD, &[PROTO_TRANSPORT, TRANSPORT_DPORT]),
        FieldType::InetProto => (KIND_META, &[meta::L4PROTO]),
        FieldType::Mark => (KIND_META, &[meta::MARK]),
        FieldType::Priority => (KIND_META, &[meta::PRIORITY]),
        FieldType::Ifname => (KIND_META, &[meta::IIFNAME]),
        FieldType::Index => (KIND_NUMGEN, &[1, INDEX_EXAMPLE_MODULUS, 0]),
    };
    expression(bytes, kind, |b| (0u8..).zip(numbers).for_each(|(at, value)| number(b, at, *value)));
}

/// Writes an expression: its kind and its data.
fn expression(bytes: &mut Vec<u8>, kind: u32, data: impl FnOnce(&mut Vec<u8>)) {
    const KIND: u8 = 0;
    const DATA: u8 = 1;
    number(bytes, KIND, kind);
    nest(bytes, DATA, data);
}

/// `numgen random mod 2` represents an index in a declaration.
pub(super) const INDEX_EXAMPLE_MODULUS: u32 = 2;

/// nft's byte orders: 1 is the machine's, 2 the network's, and 0 means none or several.
fn byte_order(fields: &[FieldType]) -> u32 {
    match fields {
        [FieldType::Index | FieldType::Mark | FieldType::Priority | FieldType::Ifname] => 1,
        [FieldType::InetProto] => 0,
        [_] => 2,
        _ => 0,
    }
}

/// nft's own number for a type. `linux/netfilter/nf_tables.h` does not define these numbers.
pub(super) fn type_number(field: FieldType) -> u32 {
    match field {
        FieldType::Index => 4,
        FieldType::Ipv4Addr => 7,
        FieldType::Ipv6Addr => 8,
        FieldType::InetProto => 12,
        FieldType::InetService => 13,
        FieldType::Mark => 19,
        FieldType::Priority => 23,
        FieldType::Ifname => 41,
    }
}

/// The number of a key's type: six bits for each field. The kernel's 32 bits have room for five fields.
pub(super) fn types_number(fields: &[FieldType]) -> u32 {
    fields.iter().fold(0, |sum, field| sum << 6 | type_number(*field))
}

/// The fields of a type; `None` if one of them is not in [`FieldType`].
pub(super) fn types_of_number(mut number: u32) -> Option<Vec<FieldType>> {
    let mut fields = Vec::new();
    while number != 0 {
        fields.push(FieldType::ALL.into_iter().find(|field| type_number(*field) == number & 0x3f)?);
        number >>= 6;
    }
    fields.reverse();
    (!fields.is_empty()).then_some(fields)
}

fn number(bytes: &mut Vec<u8>, kind: u8, value: u32) {
    bytes.extend_from_slice(&[kind, 4]);
    bytes.extend_from_slice(&value.to_ne_bytes());
}

pub(super) fn element_flags(bytes: &mut Vec<u8>, flags: u32) {
    number(bytes, tag::ELEMENT_FLAGS, flags);
}

pub(super) fn text(bytes: &mut Vec<u8>, kind: u8, value: &str) {
    bytes.extend_from_slice(&[kind, (value.len() + 1) as u8]);
    bytes.extend_from_slice(value.as_bytes());
    bytes.push(0);
}

fn nest(bytes: &mut Vec<u8>, kind: u8, fill: impl FnOnce(&mut Vec<u8>)) {
    bytes.extend_from_slice(&[kind, 0]);
    let start = bytes.len();
    fill(bytes);
    bytes[start - 1] = (bytes.len() - start) as u8;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_set_comment_that_does_not_fit_is_omitted() {
        use FieldType::{Index, InetProto, InetService, Ipv6Addr};
        let map = Set::map("m", [Ipv6Addr, InetProto, InetService, Index], [Ipv6Addr, InetService]);
        let short = set(&map.clone().comment("short"));
        assert_eq!(read_set_comment(&short), Some("short"));
        let long = set(&map.comment("x".repeat(128)));
        assert!(long.len() <= tag::MAX && read_set_comment(&long).is_none());
    }

    #[test]
    fn a_type_number_round_trips() {
        use FieldType::{Ifname, Index, InetProto, InetService, Ipv4Addr, Ipv6Addr, Mark, Priority};
        for fields in [&[Ipv4Addr, InetProto, InetService, Index][..], &[Ipv6Addr], &[Mark, Ifname], &[Priority]] {
            assert_eq!(types_of_number(types_number(fields)).as_deref(), Some(fields));
        }
        // ether_addr, and a number without a type.
        assert_eq!(types_of_number(9), None);
        assert_eq!(types_of_number(0), None);
    }

    proptest! {
        #[test]
        fn any_comment_round_trips(text in ".{0,200}") {
            let clean = printable(&text).into_owned();
            prop_assert_eq!(&printable(&clean), &clean);
            let stored = comment(&text);
            prop_assert_eq!(read_comment(&stored), Some(&*clean));
        }

        #[test]
        fn any_userdata_can_be_read(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let longest = bytes.len();
            prop_assert!(read_comment(&bytes).is_none_or(|comment| comment.len() <= longest));
            prop_assert!(read_set_comment(&bytes).is_none_or(|comment| comment.len() <= longest));
        }
    }
}
