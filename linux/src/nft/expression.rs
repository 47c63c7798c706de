//! Encodes statements as the kernel's expressions: small instructions over sixteen registers of four bytes.
//!
//! nft 1.0.6 produces the same expressions for the same text, so that `nft list` recognizes its own patterns.

use std::net::IpAddr;

use localnet_core::{Family, Protocol};

use super::uapi::data;
use super::wire::{Writer, family_number};
use super::{AddressField, Field, FieldType, Generator, InterfacePattern, Op, Rule, Statement, Verdict};

/// Writes the expressions of a rule, as the value of `NFTA_RULE_EXPRESSIONS`.
pub(super) fn write(writer: &mut Writer, family: Family, rule: &Rule) {
    let mut expressions = Expressions { writer, family };
    for statement in &rule.statements {
        expressions.statement(statement);
    }
}

struct Expressions<'a> {
    writer: &'a mut Writer,
    family: Family,
}

/// `NFT_REG_VERDICT`
const VERDICT: u32 = 0;
/// `NFT_CMP_EQ`, `NFT_CMP_NEQ`
const CMP_EQ: u32 = 0;
const CMP_NEQ: u32 = 1;
/// `NFT_PAYLOAD_NETWORK_HEADER`, `NFT_PAYLOAD_TRANSPORT_HEADER`
const NETWORK_HEADER: u32 = 1;
const TRANSPORT_HEADER: u32 = 2;
/// The offset of the flags in the TCP header, and some flags.
const TCP_FLAGS: u32 = 13;
const SYN: u8 = 0x02;
const FIN_SYN_RST_ACK: u8 = 0x17;
/// `NFT_META_PRIORITY`, `NFT_META_MARK`, `NFT_META_IIFNAME`, `NFT_META_L4PROTO`
const META_PRIORITY: u32 = 2;
const META_MARK: u32 = 3;
const META_IIFNAME: u32 = 6;
const META_L4PROTO: u32 = 16;
/// `NFT_CT_STATE`, `NFT_CT_STATUS`
const CT_STATE: u32 = 0;
const CT_STATUS: u32 = 2;
/// `NFT_CT_PROTO_DST`, `NFT_CT_DST_IP`, `NFT_CT_DST_IP6`
const CT_PROTO_DST: u32 = 12;
const CT_DST_IP: u32 = 20;
const CT_DST_IP6: u32 = 22;
/// `NF_CT_STATE_BIT(IP_CT_NEW)`, `IPS_DST_NAT`
const STATE_NEW: u32 = 1 << 3;
const STATUS_DNAT: u32 = 1 << 5;

/// The number of the register that starts at that 4-byte word. If a 16-byte register starts at the same word, this is
/// the number of the 16-byte register, as in the kernel.
fn register(word: usize) -> u32 {
    let word = word as u32;
    if word.is_multiple_of(4) { 1 + word / 4 } else { 8 + word }
}

impl Expressions<'_> {
    fn statement(&mut self, statement: &Statement) {
        match statement {
            Statement::ConnectionNew => self.ct_bit(CT_STATE, STATE_NEW),
            Statement::ConnectionDnat => self.ct_bit(CT_STATUS, STATUS_DNAT),
            Statement::Address(field, op, prefix) => {
                self.prefix(*field, *op, prefix.network(), prefix.prefix_len());
            }
            Statement::InputInterface(op, pattern) => {
                self.meta(META_IIFNAME, 0);
                match pattern {
                    InterfacePattern::Exact(name) => self.cmp(*op, super::Tuple::new().interface(name).as_bytes()),
                    InterfacePattern::Prefix(start) => self.cmp(*op, start.as_bytes()),
                }
            }
            Statement::Local(field, op) => self.fib_local(*field, *op),
            Statement::Protocol(op, protocol) => {
                self.meta(META_L4PROTO, 0);
                self.cmp(*op, &[protocol.number()]);
            }
            Statement::TcpOpens => {
                self.meta(META_L4PROTO, 0);
                self.cmp(Op::Eq, &[Protocol::Tcp.number()]);
                self.payload(TRANSPORT_HEADER, TCP_FLAGS, 1, 0);
                self.bitwise(&[FIN_SYN_RST_ACK], &[0]);
                self.cmp(Op::Eq, &[SYN]);
            }
            Statement::Lookup(fields, op, set) => {
                self.load(fields);
                self.lookup(set, None, *op);
            }
            Statement::VerdictMap(fields, map) => {
                self.load(fields);
                self.lookup(map, Some(VERDICT), Op::Eq);
            }
            Statement::DnatMap(fields, map) => {
                self.load(fields);
                self.lookup(map, Some(register(0)), Op::Eq);
                self.dnat();
            }
            Statement::MarkHas(op, bits) => {
                self.meta(META_MARK, 0);
                self.bitwise(&bits.to_ne_bytes(), &[0; 4]);
                self.cmp(*op, &bits.to_ne_bytes());
            }
            Statement::MarkOr(bits) => self.change_mark(!bits, *bits),
            Statement::MarkXor(bits) => self.change_mark(u32::MAX, *bits),
            Statement::PriorityMap(fields, map) => {
                self.load(fields);
                self.lookup(map, Some(register(0)), Op::Eq);
                self.set_meta(META_PRIORITY);
            }
            Statement::PriorityNone => {
                self.expression("immediate", |w| {
                    w.u32(1, register(0));
                    w.nest(2, |w| w.bytes(data::VALUE, &[0; 4]));
                });
                self.set_meta(META_PRIORITY);
            }
            Statement::Update(fields, set, timeout) => {
                self.load(fields);
                self.update(set, *timeout);
            }
            // NF_NAT_RANGE_PROTO_RANDOM_FULLY
            Statement::Masquerade => self.expression("masq", |w| w.u32(1, 1 << 4)),
            Statement::Reject => {
                // NFT_REJECT_ICMP_UNREACH; port unreachable in ICMP and in ICMPv6.
                let code = if self.family == Family::V4 { 3 } else { 4 };
                self.expression("reject", |w| {
                    w.u32(1, 0);
                    w.u8(2, code);
                });
            }
            Statement::Verdict(verdict) => self.expression("immediate", |w| {
                w.u32(1, VERDICT);
                w.nest(2, |w| write_verdict(w, verdict));
            }),
        }
    }

    fn expression(&mut self, name: &str, fill: impl FnOnce(&mut Writer)) {
        self.writer.nest(1, |w| {
            w.string(1, name);
            w.nest(2, fill);
        });
    }

    fn payload(&mut self, base: u32, offset: u32, len: u32, word: usize) {
        self.expression("payload", |w| {
            w.u32(1, register(word));
            w.u32(2, base);
            w.u32(3, offset);
            w.u32(4, len);
        });
    }

    fn meta(&mut self, key: u32, word: usize) {
        self.expression("meta", |w| {
            w.u32(2, key);
            w.u32(1, register(word));
        });
    }

    fn cmp(&mut self, op: Op, value: &[u8]) {
        let op = if op == Op::Eq { CMP_EQ } else { CMP_NEQ };
        self.expression("cmp", |w| {
            w.u32(1, register(0));
            w.u32(2, op);
            w.nest(3, |w| w.bytes(data::VALUE, value));
        });
    }

    fn bitwise(&mut self, mask: &[u8], xor: &[u8]) {
        self.expression("bitwise", |w| {
            w.u32(1, register(0));
            w.u32(2, register(0));
            w.u32(3, mask.len() as u32);
            w.nest(4, |w| w.bytes(data::VALUE, mask));
            w.nest(5, |w| w.bytes(data::VALUE, xor));
        });
    }

    fn ct_bit(&mut self, key: u32, bit: u32) {
        self.expression("ct", |w| {
            w.u32(2, key);
            w.u32(1, register(0));
        });
        self.bitwise(&bit.to_ne_bytes(), &[0; 4]);
        self.cmp(Op::Ne, &[0; 4]);
    }

    fn ct_original(&mut self, key: u32, word: usize) {
        self.expression("ct", |w| {
            w.u32(2, key);
            w.u32(1, register(word));
            // IP_CT_DIR_ORIGINAL
            w.u8(3, 0);
        });
    }

    /// Compares a prefix. A prefix of whole bytes needs only a shorter load; any other prefix needs a mask.
    fn prefix(&mut self, field: AddressField, op: Op, network: IpAddr, bits: u8) {
        let octets = match network {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        let offset = address_offset(Family::of(network), field);
        let bytes = usize::from(bits / 8);
        if bits > 0 && bits.is_multiple_of(8) {
            self.payload(NETWORK_HEADER, offset, bytes as u32, 0);
            self.cmp(op, &octets[..bytes]);
        } else {
            let mut mask = vec![0; octets.len()];
            mask[..bytes].fill(0xff);
            mask[bytes] = !(0xff_u16 >> (bits % 8)) as u8;
            self.payload(NETWORK_HEADER, offset, octets.len() as u32, 0);
            self.bitwise(&mask, &vec![0; octets.len()]);
            self.cmp(op, &octets);
        }
    }

    fn fib_local(&mut self, field: AddressField, op: Op) {
        // NFTA_FIB_F_SADDR, NFTA_FIB_F_DADDR
        let flag = if field == AddressField::Source { 1 } else { 2 };
        self.expression("fib", |w| {
            w.u32(3, flag);
            // NFT_FIB_RESULT_ADDRTYPE
            w.u32(2, 3);
            w.u32(1, register(0));
        });
        // RTN_LOCAL
        self.cmp(op, &2u32.to_ne_bytes());
    }

    /// Loads the fields side by side, starting with the first register.
    fn load(&mut self, fields: &[Field]) {
        let mut word = 0;
        for field in fields {
            let kind = field.field_type(self.family);
            match field {
                Field::SourceAddress => self.address(AddressField::Source, word),
                Field::DestinationAddress => self.address(AddressField::Destination, word),
                Field::Protocol => self.meta(META_L4PROTO, word),
                Field::SourcePort => self.payload(TRANSPORT_HEADER, 0, 2, word),
                Field::DestinationPort => self.payload(TRANSPORT_HEADER, 2, 2, word),
                Field::Mark => self.meta(META_MARK, word),
                Field::Priority => self.meta(META_PRIORITY, word),
                Field::InputInterface => self.meta(META_IIFNAME, word),
                Field::OriginalDestinationAddress if self.family == Family::V4 => self.ct_original(CT_DST_IP, word),
                Field::OriginalDestinationAddress => self.ct_original(CT_DST_IP6, word),
                Field::OriginalDestinationPort => self.ct_original(CT_PROTO_DST, word),
                Field::Index(generator) => self.numgen(*generator, word),
            }
            word += kind.padded_len() / 4;
        }
    }

    fn address(&mut self, field: AddressField, word: usize) {
        let len = FieldType::address(self.family).byte_len() as u32;
        self.payload(NETWORK_HEADER, address_offset(self.family, field), len, word);
    }

    fn numgen(&mut self, generator: Generator, word: usize) {
        // NFT_NG_INCREMENTAL, NFT_NG_RANDOM
        let (modulus, kind, offset) = match generator {
            Generator::Random(modulus) => (modulus, 1, 0),
            Generator::Constant(value) => (1, 0, value),
        };
        self.expression("numgen", |w| {
            w.u32(1, register(word));
            w.u32(2, modulus);
            w.u32(3, kind);
            w.u32(4, offset);
        });
    }

    fn lookup(&mut self, set: &str, destination: Option<u32>, op: Op) {
        self.expression("lookup", |w| {
            w.u32(2, register(0));
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

    /// Translates to the address and port that the lookup left in the registers.
    fn dnat(&mut self) {
        let port = FieldType::address(self.family).padded_len() / 4;
        let family = family_number(self.family);
        self.expression("nat", |w| {
            // NFT_NAT_DNAT
            w.u32(1, 1);
            w.u32(2, family.into());
            w.u32(3, register(0));
            w.u32(5, register(port));
        });
    }

    fn change_mark(&mut self, mask: u32, xor: u32) {
        self.meta(META_MARK, 0);
        self.bitwise(&mask.to_ne_bytes(), &xor.to_ne_bytes());
        self.set_meta(META_MARK);
    }

    /// Sets packet metadata to the value of the first register.
    fn set_meta(&mut self, key: u32) {
        self.expression("meta", |w| {
            w.u32(2, key);
            w.u32(3, register(0));
        });
    }

    fn update(&mut self, set: &str, timeout: Option<u32>) {
        self.expression("dynset", |w| {
            w.u32(4, register(0));
            // NFT_DYNSET_OP_UPDATE
            w.u32(3, 1);
            if let Some(seconds) = timeout {
                w.u64(6, u64::from(seconds) * 1000);
            }
            w.string(1, set);
        });
    }
}

/// Writes a verdict, as the value of an immediate or of an element.
pub(super) fn write_verdict(writer: &mut Writer, verdict: &Verdict) {
    let (code, chain) = match verdict {
        Verdict::Accept => (data::ACCEPT, None),
        Verdict::Drop => (data::DROP, None),
        Verdict::Return => (data::RETURN, None),
        Verdict::Jump(chain) => (data::JUMP, Some(chain)),
        Verdict::Goto(chain) => (data::GOTO, Some(chain)),
    };
    let nest = writer.open(data::VERDICT);
    writer.u32(data::VERDICT_CODE, code.cast_unsigned());
    if let Some(chain) = chain {
        writer.string(data::VERDICT_CHAIN, chain);
    }
    writer.close(nest);
}

/// The offset of an address in the IP header.
fn address_offset(family: Family, field: AddressField) -> u32 {
    match (family, field) {
        (Family::V4, AddressField::Source) => 12,
        (Family::V4, AddressField::Destination) => 16,
        (Family::V6, AddressField::Source) => 8,
        (Family::V6, AddressField::Destination) => 24,
    }
}
