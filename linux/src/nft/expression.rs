//! The kernel's expressions: small instructions over sixteen registers of four bytes. [`Expressions`] writes them for a new
//! rule. [`Expression`] is what a dump contains, in a form that can be compared.
//!
//! The expressions are those that nft 1.0.6 writes for the same text, so `nft list` prints this text.

use localnet_core::Family;

use super::uapi::data;
use super::wire::{Attributes, Writer, family_number};
use super::{FieldType, Op};

/// `NFT_REG_VERDICT`: what is written here ends the rule.
pub(super) const VERDICT: u32 = 0;
/// `NFT_REG_1`, the first register.
pub(super) const FIRST: u32 = 1;
/// `NFTA_EXPR_NAME`, `NFTA_EXPR_DATA`
pub(super) const NAME: u16 = 1;
pub(super) const DATA: u16 = 2;
/// `NFTA_COUNTER_PACKETS`
pub(super) const COUNTER_PACKETS: u16 = 2;
/// `NFTA_DYNSET_EXPR`: the expression that each element runs.
const STATEMENT: u16 = 7;
/// `NFT_CMP_EQ`, `NFT_CMP_NEQ`
const CMP_EQ: u32 = 0;
const CMP_NEQ: u32 = 1;

/// The number of the register that starts at that 4-byte word. If a 16-byte register starts at the same word, this is
/// the number of the 16-byte register, as in the kernel.
fn register(word: usize) -> u32 {
    let word = word as u32;
    if word.is_multiple_of(4) { 1 + word / 4 } else { 8 + word }
}

/// Writes expressions, as the value of `NFTA_RULE_EXPRESSIONS`. Methods without a parameter for a register use [`FIRST`].
pub(super) struct Expressions<'a>(pub(super) &'a mut Writer);

impl Expressions<'_> {
    /// Writes any expression; `fill` writes its attributes.
    pub(super) fn expression(&mut self, name: &str, fill: impl FnOnce(&mut Writer)) {
        self.0.nest(1, |w| {
            w.string(NAME, name);
            w.nest(DATA, fill);
        });
    }

    /// Loads `len` bytes of a header. `base` is a constant of [`super::uapi::payload`].
    pub(super) fn payload(&mut self, base: u32, offset: u32, len: u32, word: usize) {
        self.expression("payload", |w| {
            w.u32(1, register(word));
            w.u32(2, base);
            w.u32(3, offset);
            w.u32(4, len);
        });
    }

    /// Loads packet metadata. `key` is a constant of [`super::uapi::meta`].
    pub(super) fn meta(&mut self, key: u32, word: usize) {
        self.expression("meta", |w| {
            w.u32(2, key);
            w.u32(1, register(word));
        });
    }

    /// Sets packet metadata.
    pub(super) fn set_meta(&mut self, key: u32) {
        self.expression("meta", |w| {
            w.u32(2, key);
            w.u32(3, FIRST);
        });
    }

    /// Loads a property of the connection. `key` is a constant of [`super::uapi::ct`]. `direction` selects one of the two
    /// directions that some properties have.
    pub(super) fn ct(&mut self, key: u32, direction: Option<u8>, word: usize) {
        self.expression("ct", |w| {
            w.u32(2, key);
            w.u32(1, register(word));
            if let Some(direction) = direction {
                w.u8(3, direction);
            }
        });
    }

    /// Loads the type of the packet's source or destination address, as the routing table knows it.
    pub(super) fn fib_type(&mut self, of_source: bool) {
        self.expression("fib", |w| {
            // NFTA_FIB_F_SADDR, NFTA_FIB_F_DADDR
            w.u32(3, if of_source { 1 } else { 2 });
            // NFT_FIB_RESULT_ADDRTYPE
            w.u32(2, 3);
            w.u32(1, FIRST);
        });
    }

    /// Loads `offset` plus a number below `modulus`, either random or the next one in a cycle.
    pub(super) fn numgen(&mut self, modulus: u32, is_random: bool, offset: u32, word: usize) {
        self.expression("numgen", |w| {
            w.u32(1, register(word));
            w.u32(2, modulus);
            // NFT_NG_INCREMENTAL, NFT_NG_RANDOM
            w.u32(3, is_random.into());
            w.u32(4, offset);
        });
    }

    /// Loads a number below `modulus`: the hash of `len` bytes that start at the register `from`.
    pub(super) fn jhash(&mut self, from: usize, len: u32, modulus: u32, seed: u32, word: usize) {
        self.expression("hash", |w| {
            w.u32(1, register(from));
            w.u32(2, register(word));
            w.u32(3, len);
            w.u32(4, modulus);
            w.u32(5, seed);
            // NFT_HASH_JENKINS
            w.u32(7, 0);
        });
    }

    /// Loads a constant, which `fill` writes. In the register [`VERDICT`], the constant is the verdict of the rule.
    pub(super) fn immediate(&mut self, register: u32, fill: impl FnOnce(&mut Writer)) {
        self.expression("immediate", |w| {
            w.u32(1, register);
            w.nest(2, fill);
        });
    }

    /// Compares with `value`. If the comparison fails, the rule does not match.
    pub(super) fn cmp(&mut self, op: Op, value: &[u8]) {
        let op = if op == Op::Eq { CMP_EQ } else { CMP_NEQ };
        self.expression("cmp", |w| {
            w.u32(1, FIRST);
            w.u32(2, op);
            w.nest(3, |w| w.bytes(data::VALUE, value));
        });
    }

    /// Replaces a value by `value & mask ^ xor`.
    pub(super) fn bitwise(&mut self, mask: &[u8], xor: &[u8]) {
        self.expression("bitwise", |w| {
            w.u32(1, FIRST);
            w.u32(2, FIRST);
            w.u32(3, mask.len() as u32);
            w.nest(4, |w| w.bytes(data::VALUE, mask));
            w.nest(5, |w| w.bytes(data::VALUE, xor));
        });
    }

    /// Looks up a key, and loads its value in a map into `destination`. If the set does not contain the key, the rule does not
    /// match. [`Op::Ne`] reverses this.
    pub(super) fn lookup(&mut self, set: &str, destination: Option<u32>, op: Op) {
        self.expression("lookup", |w| {
            w.u32(2, FIRST);
            if let Some(register) = destination {
                w.u32(3, register);
            }
            w.string(1, set);
            if op == Op::Ne {
                // NFT_LOOKUP_F_INV
                w.u32(5, 1);
            }
        });
    }

    /// Adds the key to a set. If the set already contains the key, renews the key's timeout. `timeout` is in seconds. `counts`:
    /// whether the element counts the packet. If the set is full, the rule does not match.
    pub(super) fn update(&mut self, set: &str, timeout: Option<u32>, counts: bool) {
        self.expression("dynset", |w| {
            w.u32(4, FIRST);
            // NFT_DYNSET_OP_UPDATE
            w.u32(3, 1);
            if let Some(seconds) = timeout {
                w.u64(6, u64::from(seconds) * 1000);
            }
            w.string(1, set);
            if counts {
                w.nest(STATEMENT, |w| w.string(NAME, "counter"));
            }
        });
    }

    /// Translates to the address and port that a map left in the registers.
    pub(super) fn dnat(&mut self, family: Family) {
        let port = FieldType::address(family).padded_len() / 4;
        self.expression("nat", |w| {
            // NFT_NAT_DNAT
            w.u32(1, 1);
            w.u32(2, family_number(family).into());
            w.u32(3, FIRST);
            w.u32(5, register(port));
        });
    }
}

/// A normalized expression: the attributes are sorted, and those with a default value (zeros and repeated registers) are
/// omitted. In both respects, a dump may differ from the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Expression {
    pub(super) name: String,
    pub(super) attributes: Vec<(u16, Vec<u8>)>,
}

/// The expressions of a rule, except those without effect.
pub(super) fn read(list: Attributes<'_>) -> Vec<Expression> {
    list.map(|(_, item)| {
        let name = Attributes(item).string(NAME).unwrap_or_default().to_owned();
        let attributes = Attributes(item).nested(DATA);
        let mut attributes: Vec<(u16, Vec<u8>)> = attributes
            .filter(|(kind, value)| !is_implied(&name, *kind, value, attributes))
            .map(|(kind, value)| match (name.as_str(), kind) {
                // The kernel adds what the expression has counted, which is nothing.
                ("dynset", STATEMENT) => (kind, Attributes(value).find(NAME).unwrap_or_default().to_vec()),
                _ if is_nested(&name, kind) => (kind, flat(value)),
                _ => (kind, value.to_vec()),
            })
            .collect();
        attributes.sort_unstable();
        Expression { name, attributes }
    })
    .filter(|expression| !expression.is_idle())
    .collect()
}

impl Expression {
    /// The value of an attribute; `None` if the attribute is absent, or if its value is the number 0.
    pub(super) fn attribute(&self, kind: u16) -> Option<&[u8]> {
        self.attributes.iter().find(|(candidate, _)| *candidate == kind).map(|(_, value)| value.as_slice())
    }

    /// A 32-bit number; 0 if the attribute is absent.
    pub(super) fn number(&self, kind: u16) -> u32 {
        self.attribute(kind).and_then(crate::netlink::array).map_or(0, u32::from_be_bytes)
    }

    /// Whether the expression has no effect. Before a lookup in an interval set, nft converts the byte order even of a
    /// protocol, which is a single byte.
    fn is_idle(&self) -> bool {
        self.name == "byteorder" && self.attributes.contains(&(4, 1u32.to_be_bytes().to_vec()))
    }
}

/// Whether the attribute is nested, as the values of comparisons, masks and verdicts are. The kernel does not always set the
/// nested flag.
fn is_nested(name: &str, kind: u16) -> bool {
    matches!((name, kind), ("cmp", 3) | ("bitwise", 4 | 5) | ("immediate", 2))
}

/// The concatenated values of a nested attribute, without headers.
fn flat(nested: &[u8]) -> Vec<u8> {
    let parts = Attributes(nested).map(|(kind, value)| match kind {
        data::VERDICT => Attributes(value).flat_map(|(_, part)| part.to_vec()).collect(),
        _ => value.to_vec(),
    });
    parts.collect::<Vec<Vec<u8>>>().concat()
}

/// Whether the attribute has its default. For a number, this is zero. For the last register of a translation, it is the same
/// register as the first.
fn is_implied(name: &str, kind: u16, value: &[u8], all: Attributes<'_>) -> bool {
    let zero = matches!(value.len(), 4 | 8) && value.iter().all(|byte| *byte == 0) && !is_nested(name, kind);
    let nat = name == "nat"
        && match kind {
            4 => all.find(3) == Some(value),
            6 => all.find(5) == Some(value),
            // NF_NAT_RANGE_MAP_IPS | NF_NAT_RANGE_PROTO_SPECIFIED
            7 => value == 3u32.to_be_bytes() && all.find(3).is_some() && all.find(5).is_some(),
            _ => false,
        };
    zero || nat
}
