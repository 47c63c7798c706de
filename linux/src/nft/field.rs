//! The properties of a packet that a rule can look up: the type, text and expression of each.

use localnet_core::{Family, HashBy};

use super::expression::Expressions;
use super::uapi::{ct, meta, payload};
use super::{FieldType, family_name};

/// `IP_CT_DIR_ORIGINAL`
const ORIGINAL: Option<u8> = Some(0);

/// One of a packet's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AddressField {
    /// `saddr`
    Source,
    /// `daddr`
    Destination,
}

impl AddressField {
    pub(super) fn word(self) -> &'static str {
        match self {
            AddressField::Source => "saddr",
            AddressField::Destination => "daddr",
        }
    }

    /// Its offset in the IP header.
    pub(super) fn offset(self, family: Family) -> u32 {
        match (family, self) {
            (Family::V4, AddressField::Source) => 12,
            (Family::V4, AddressField::Destination) => 16,
            (Family::V6, AddressField::Source) => 8,
            (Family::V6, AddressField::Destination) => 24,
        }
    }
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

    /// The field in nft's syntax.
    pub(super) fn text(self, family: Family) -> String {
        match self {
            Field::SourceAddress => format!("{} saddr", family_name(family)),
            Field::DestinationAddress => format!("{} daddr", family_name(family)),
            Field::Protocol => "meta l4proto".to_owned(),
            Field::SourcePort => "th sport".to_owned(),
            Field::DestinationPort => "th dport".to_owned(),
            Field::Mark => "meta mark".to_owned(),
            Field::Priority => "meta priority".to_owned(),
            Field::InputInterface => "iifname".to_owned(),
            Field::OriginalDestinationAddress => format!("ct original {} daddr", family_name(family)),
            Field::OriginalDestinationPort => "ct original proto-dst".to_owned(),
            Field::Index(Generator::Random(modulus)) => format!("numgen random mod {modulus}"),
            Field::Index(Generator::Hash(by, modulus)) => {
                format!("jhash {} mod {modulus} seed {:#x}", text(hashed(by), family), HashBy::SEED)
            }
            Field::Index(Generator::Constant(0)) => "numgen inc mod 1".to_owned(),
            Field::Index(Generator::Constant(value)) => format!("numgen inc mod 1 offset {value}"),
        }
    }

    /// Loads the field into the register `word`.
    fn load(self, out: &mut Expressions<'_>, family: Family, word: usize) {
        let mut address = |field: AddressField| {
            let len = FieldType::address(family).byte_len() as u32;
            out.payload(payload::NETWORK, field.offset(family), len, word);
        };
        match self {
            Field::SourceAddress => address(AddressField::Source),
            Field::DestinationAddress => address(AddressField::Destination),
            Field::Protocol => out.meta(meta::L4PROTO, word),
            Field::SourcePort => out.payload(payload::TRANSPORT, 0, 2, word),
            Field::DestinationPort => out.payload(payload::TRANSPORT, 2, 2, word),
            Field::Mark => out.meta(meta::MARK, word),
            Field::Priority => out.meta(meta::PRIORITY, word),
            Field::InputInterface => out.meta(meta::IIFNAME, word),
            Field::OriginalDestinationAddress if family == Family::V4 => out.ct(ct::DST_IP, ORIGINAL, word),
            Field::OriginalDestinationAddress => out.ct(ct::DST_IP6, ORIGINAL, word),
            Field::OriginalDestinationPort => out.ct(ct::PROTO_DST, ORIGINAL, word),
            Field::Index(Generator::Random(modulus)) => out.numgen(modulus, true, 0, word),
            Field::Index(Generator::Constant(value)) => out.numgen(1, false, value, word),
            Field::Index(Generator::Hash(by, modulus)) => {
                // nft leaves four words free between a key and what is hashed for its last field.
                let from = word + 5;
                let mut end = from;
                for field in hashed(by) {
                    field.load(out, family, end);
                    end += field.field_type(family).padded_len() / 4;
                }
                out.jhash(from, 4 * (end - from) as u32, modulus, HashBy::SEED, word);
            }
        }
    }
}

/// The fields in nft's syntax.
pub(super) fn text(fields: &[Field], family: Family) -> String {
    let names: Vec<String> = fields.iter().map(|field| field.text(family)).collect();
    names.join(" . ")
}

/// Loads the fields side by side, starting with the first register.
pub(super) fn load(fields: &[Field], out: &mut Expressions<'_>, family: Family) {
    let mut word = 0;
    for field in fields {
        field.load(out, family, word);
        word += field.field_type(family).padded_len() / 4;
    }
}

/// The fields that are hashed.
fn hashed(by: HashBy) -> &'static [Field] {
    match by {
        HashBy::Source => &[Field::SourceAddress],
        // For IPv6, these and the key of a VIP with an index fill all registers.
        HashBy::Connection => &[Field::SourceAddress, Field::SourcePort],
    }
}

/// The source of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Generator {
    /// `numgen random mod N`: each number below N with equal probability.
    Random(u32),
    /// `jhash ip saddr mod N seed SEED`: a number below N that depends on these properties of the packet. Only for the last field of the key
    /// of a map.
    Hash(HashBy, u32),
    /// `numgen inc mod 1 offset K`: always K.
    Constant(u32),
}
