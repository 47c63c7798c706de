//! A tracked flow: parses it from ctnetlink messages, and writes the attributes that identify it.
//!
//! Parsing accepts any bytes. A message that is cut off, or whose protocol is not TCP, UDP or SCTP, yields `None`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use localnet_core::{Family, Protocol};

use crate::netlink::{Attributes, Writer, array};

/// `enum ctattr_type` and the nested enums of `linux/netfilter/nfnetlink_conntrack.h`.
pub(super) mod attribute {
    pub(crate) const TUPLE_ORIGINAL: u16 = 1;
    pub(crate) const TUPLE_REPLY: u16 = 2;
    pub(crate) const STATUS: u16 = 3;
    pub(crate) const PROTOCOL_INFO: u16 = 4;
    pub(crate) const COUNTERS_ORIGINAL: u16 = 9;
    pub(crate) const COUNTERS_REPLY: u16 = 10;
    pub(crate) const ID: u16 = 12;
    pub(crate) const ZONE: u16 = 18;
    pub(crate) const FILTER: u16 = 25;
    pub(crate) const STATUS_MASK: u16 = 26;

    pub(crate) const TUPLE_ADDRESSES: u16 = 1;
    pub(crate) const TUPLE_PROTOCOL: u16 = 2;
    pub(crate) const TUPLE_ZONE: u16 = 3;

    pub(crate) const V4_SOURCE: u16 = 1;
    pub(crate) const V4_DESTINATION: u16 = 2;
    pub(crate) const V6_SOURCE: u16 = 3;
    pub(crate) const V6_DESTINATION: u16 = 4;

    pub(crate) const PROTOCOL_NUMBER: u16 = 1;
    pub(crate) const SOURCE_PORT: u16 = 2;
    pub(crate) const DESTINATION_PORT: u16 = 3;

    pub(crate) const INFO_TCP: u16 = 1;
    pub(crate) const TCP_STATE: u16 = 1;

    pub(crate) const COUNTER_PACKETS: u16 = 1;
    pub(crate) const COUNTER_BYTES: u16 = 2;

    pub(crate) const FILTER_ORIGINAL: u16 = 1;
    /// The bit of `CTA_FILTER_ORIG_FLAGS` that makes the kernel compare the protocol.
    pub(crate) const FILTER_PROTOCOL_NUMBER: u32 = 1 << 3;
}

/// A tracked flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// The transport protocol.
    pub protocol: Protocol,
    /// The original direction: the first packet before any translation.
    pub original: Tuple,
    /// The reply direction; its source is the address and port to which the flow really goes, after any translation.
    pub reply: Tuple,
    /// The kernel's status bits.
    pub status: Status,
    /// The state of a TCP connection; `None` for other protocols.
    pub tcp_state: Option<TcpState>,
    /// The zone in which the tuples are unique.
    pub zone: Zone,
    /// The ID that the kernel gave the entry.
    pub id: u32,
}

impl Flow {
    /// Parses the attributes of a message; `None` unless they describe a TCP, UDP or SCTP flow.
    pub(crate) fn parse(attributes: Attributes<'_>) -> Option<Self> {
        let (protocol, original, original_zone) = parse_tuple(attributes.nested(attribute::TUPLE_ORIGINAL))?;
        let (_, reply, reply_zone) = parse_tuple(attributes.nested(attribute::TUPLE_REPLY))?;
        let zone = attributes.find(attribute::ZONE).and_then(be16);
        let tcp_state = attributes
            .nested(attribute::PROTOCOL_INFO)
            .nested(attribute::INFO_TCP)
            .find(attribute::TCP_STATE)
            .and_then(|value| value.first().copied());
        Some(Self {
            protocol,
            original,
            reply,
            status: Status(attributes.u32(attribute::STATUS)?),
            tcp_state: tcp_state.map(TcpState),
            zone: match (original_zone, reply_zone) {
                (Some(id), _) => Zone::Original(id),
                (None, Some(id)) => Zone::Reply(id),
                (None, None) => Zone::Both(zone.unwrap_or_default()),
            },
            id: attributes.u32(attribute::ID)?,
        })
    }

    /// The address family.
    pub fn family(&self) -> Family {
        Family::of(self.original.destination.ip())
    }

    /// Writes the attributes that identify this entry and no other. The ID is not enough: the kernel derives it from
    /// the original tuple and the entry's address in memory, and both are often the same for a client's next flow. If
    /// that flow goes to another endpoint, only its reply tuple differs.
    pub(crate) fn write_name(&self, writer: &mut Writer) {
        writer.nest(attribute::TUPLE_REPLY, |writer| {
            write_tuple(writer, self.protocol, &self.reply);
            if let Zone::Reply(id) = self.zone {
                writer.bytes(attribute::TUPLE_ZONE, &id.to_be_bytes());
            }
        });
        if let Zone::Both(id @ 1..) = self.zone {
            writer.bytes(attribute::ZONE, &id.to_be_bytes());
        }
        writer.u32(attribute::ID, self.id);
    }
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { protocol, original, reply, .. } = self;
        let answered = if self.status.has(Status::SEEN_REPLY) { "" } else { ", unanswered" };
        write!(
            f,
            "{} {} to {} at {}{answered}",
            protocol.as_lowercase(),
            original.source,
            original.destination,
            reply.source
        )
    }
}

/// Packets in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    /// The number of packets.
    pub packets: u64,
    /// The total size of these packets in bytes, IP headers included.
    pub bytes: u64,
}

/// Traffic of a flow since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// From the client.
    pub original: Volume,
    /// To the client.
    pub reply: Volume,
}

impl Counters {
    /// The bytes of both directions together.
    pub fn bytes(&self) -> u64 {
        self.original.bytes.saturating_add(self.reply.bytes)
    }

    /// Parses the attributes of a message; `None` if accounting (`nf_conntrack_acct`) was off when the flow began.
    pub(crate) fn parse(attributes: Attributes<'_>) -> Option<Self> {
        let direction = |kind| {
            let counters = attributes.nested(kind);
            let number = |kind| counters.find(kind).and_then(array).map(u64::from_be_bytes);
            Some(Volume { packets: number(attribute::COUNTER_PACKETS)?, bytes: number(attribute::COUNTER_BYTES)? })
        };
        Some(Self { original: direction(attribute::COUNTERS_ORIGINAL)?, reply: direction(attribute::COUNTERS_REPLY)? })
    }
}

/// Source and destination of one direction of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tuple {
    /// The sender.
    pub source: SocketAddr,
    /// The receiver.
    pub destination: SocketAddr,
}

/// `enum ip_conntrack_status`: a bit field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Status(pub u32);

impl Status {
    /// `IPS_SEEN_REPLY`: packets went in both directions.
    pub const SEEN_REPLY: Self = Self(1 << 1);
    /// `IPS_ASSURED`: the kernel does not drop the entry early when the table is full.
    pub const ASSURED: Self = Self(1 << 2);
    /// `IPS_DST_NAT`: the destination was translated.
    pub const DESTINATION_NAT: Self = Self(1 << 5);

    /// Whether all of these bits are set.
    pub fn has(self, bits: Self) -> bool {
        self.0 & bits.0 == bits.0
    }
}

/// `enum tcp_conntrack`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TcpState(pub u8);

impl TcpState {
    /// `TCP_CONNTRACK_SYN_SENT`: the client sent a SYN that was not answered yet.
    pub const SYN_SENT: Self = Self(1);
    /// `TCP_CONNTRACK_ESTABLISHED`
    pub const ESTABLISHED: Self = Self(3);
}

/// The zone of a flow, and the directions that it applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Zone {
    /// Both directions. 0 is the default, if no rule chose a zone.
    Both(u16),
    /// Only the original direction is in this zone; the reply direction is in zone 0.
    Original(u16),
    /// Only the reply direction is in this zone; the original direction is in zone 0.
    Reply(u16),
}

impl Zone {
    /// Whether the flow is in zone 0 in both directions, because no rule chose another.
    pub fn is_default(self) -> bool {
        self == Self::Both(0)
    }
}

/// The flows that a dump covers: one family and protocol. For TCP, usually only unanswered connections are covered, because no
/// other TCP connection can be stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Selection {
    /// The address family.
    pub family: Family,
    /// The transport protocol.
    pub protocol: Protocol,
    /// Whether established TCP connections are covered, too.
    pub established: bool,
}

impl Selection {
    /// Whether the selection covers the flow.
    pub fn admits(self, flow: &Flow) -> bool {
        let answered = flow.status.has(Status::SEEN_REPLY);
        flow.family() == self.family && flow.protocol == self.protocol && !(self.is_unanswered() && answered)
    }

    fn is_unanswered(self) -> bool {
        self.protocol == Protocol::Tcp && !self.established
    }

    /// Writes the selection as a filter for the kernel. The kernel supports `CTA_FILTER` since Linux 5.8, and the
    /// status filter since 5.13. An older kernel ignores the filter that it does not support, and dumps more flows.
    pub(crate) fn write_filter(self, writer: &mut Writer) {
        writer.nest(attribute::TUPLE_ORIGINAL, |writer| {
            writer.nest(attribute::TUPLE_PROTOCOL, |writer| {
                writer.u8(attribute::PROTOCOL_NUMBER, self.protocol.number());
            });
        });
        writer.nest(attribute::FILTER, |writer| {
            writer.bytes(attribute::FILTER_ORIGINAL, &attribute::FILTER_PROTOCOL_NUMBER.to_ne_bytes());
        });
        if self.is_unanswered() {
            write_status_filter(writer, Status(0), Status::SEEN_REPLY);
        }
    }
}

/// Writes a filter for the flows that have this status in the bits of `mask`.
pub(super) fn write_status_filter(writer: &mut Writer, status: Status, mask: Status) {
    writer.u32(attribute::STATUS, status.0);
    writer.u32(attribute::STATUS_MASK, mask.0);
}

fn parse_tuple(tuple: Attributes<'_>) -> Option<(Protocol, Tuple, Option<u16>)> {
    let protocol = tuple.nested(attribute::TUPLE_PROTOCOL);
    let number = *protocol.find(attribute::PROTOCOL_NUMBER)?.first()?;
    let source_port = be16(protocol.find(attribute::SOURCE_PORT)?)?;
    let destination_port = be16(protocol.find(attribute::DESTINATION_PORT)?)?;
    let addresses = tuple.nested(attribute::TUPLE_ADDRESSES);
    let v4 = |kind| addresses.find(kind).and_then(array::<4>).map(|octets| IpAddr::V4(Ipv4Addr::from(octets)));
    let v6 = |kind| addresses.find(kind).and_then(array::<16>).map(|octets| IpAddr::V6(Ipv6Addr::from(octets)));
    let (source, destination) = match (v4(attribute::V4_SOURCE), v4(attribute::V4_DESTINATION)) {
        (Some(source), Some(destination)) => (source, destination),
        _ => (v6(attribute::V6_SOURCE)?, v6(attribute::V6_DESTINATION)?),
    };
    let tuple_of_ports = Tuple {
        source: SocketAddr::new(source, source_port),
        destination: SocketAddr::new(destination, destination_port),
    };
    Some((Protocol::from_number(number)?, tuple_of_ports, tuple.find(attribute::TUPLE_ZONE).and_then(be16)))
}

fn write_tuple(writer: &mut Writer, protocol: Protocol, tuple: &Tuple) {
    writer.nest(attribute::TUPLE_ADDRESSES, |writer| {
        let mut address = |address: IpAddr, v4, v6| match address {
            IpAddr::V4(address) => writer.bytes(v4, &address.octets()),
            IpAddr::V6(address) => writer.bytes(v6, &address.octets()),
        };
        address(tuple.source.ip(), attribute::V4_SOURCE, attribute::V6_SOURCE);
        address(tuple.destination.ip(), attribute::V4_DESTINATION, attribute::V6_DESTINATION);
    });
    writer.nest(attribute::TUPLE_PROTOCOL, |writer| {
        writer.u8(attribute::PROTOCOL_NUMBER, protocol.number());
        writer.bytes(attribute::SOURCE_PORT, &tuple.source.port().to_be_bytes());
        writer.bytes(attribute::DESTINATION_PORT, &tuple.destination.port().to_be_bytes());
    });
}

fn be16(bytes: &[u8]) -> Option<u16> {
    array(bytes).map(u16::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn flows() -> impl Strategy<Value = Flow> {
        let protocol = prop_oneof![Just(Protocol::Tcp), Just(Protocol::Udp), Just(Protocol::Sctp)];
        let addresses = prop_oneof![
            any::<[[u8; 4]; 4]>().prop_map(|all| all.map(IpAddr::from)),
            any::<[[u8; 16]; 4]>().prop_map(|all| all.map(IpAddr::from)),
        ];
        let zone = prop_oneof![
            any::<u16>().prop_map(Zone::Both),
            any::<u16>().prop_map(Zone::Original),
            any::<u16>().prop_map(Zone::Reply)
        ];
        (protocol, addresses, any::<[u16; 4]>(), any::<[u32; 2]>(), zone, any::<u8>()).prop_map(
            |(protocol, addresses, ports, [status, id], zone, state)| {
                let [a, b, c, d] = std::array::from_fn(|at| SocketAddr::new(addresses[at], ports[at]));
                Flow {
                    protocol,
                    original: Tuple { source: a, destination: b },
                    reply: Tuple { source: c, destination: d },
                    status: Status(status),
                    tcp_state: (protocol == Protocol::Tcp).then_some(TcpState(state)),
                    zone,
                    id,
                }
            },
        )
    }

    /// Writes a flow as the kernel dumps it.
    fn write(flow: &Flow, writer: &mut Writer) {
        for (kind, tuple, zone) in [
            (attribute::TUPLE_ORIGINAL, flow.original, matches!(flow.zone, Zone::Original(_))),
            (attribute::TUPLE_REPLY, flow.reply, matches!(flow.zone, Zone::Reply(_))),
        ] {
            writer.nest(kind, |writer| {
                write_tuple(writer, flow.protocol, &tuple);
                if let (true, Zone::Original(id) | Zone::Reply(id)) = (zone, flow.zone) {
                    writer.bytes(attribute::TUPLE_ZONE, &id.to_be_bytes());
                }
            });
        }
        writer.u32(attribute::STATUS, flow.status.0);
        if let Some(TcpState(state)) = flow.tcp_state {
            writer.nest(attribute::PROTOCOL_INFO, |writer| {
                writer.nest(attribute::INFO_TCP, |writer| writer.u8(attribute::TCP_STATE, state));
            });
        }
        if let Zone::Both(id @ 1..) = flow.zone {
            writer.bytes(attribute::ZONE, &id.to_be_bytes());
        }
        writer.u32(attribute::ID, flow.id);
    }

    #[test]
    fn a_deletion_always_names_one_entry() {
        // The kernel takes a deletion without a tuple as a flush.
        let mut writer = Writer::default();
        let flow = Flow {
            protocol: Protocol::Udp,
            original: Tuple { source: "10.0.0.1:1".parse().unwrap(), destination: "10.0.0.2:2".parse().unwrap() },
            reply: Tuple { source: "10.0.0.2:2".parse().unwrap(), destination: "10.0.0.1:1".parse().unwrap() },
            status: Status(0),
            tcp_state: None,
            zone: Zone::Both(0),
            id: 9,
        };
        flow.write_name(&mut writer);
        let written = Attributes(&writer.bytes);
        assert_eq!(parse_tuple(written.nested(attribute::TUPLE_REPLY)), Some((Protocol::Udp, flow.reply, None)));
        assert_eq!(written.u32(attribute::ID), Some(9));
        assert_eq!(written.find(attribute::ZONE), None);
    }

    #[test]
    fn a_selection_covers_one_family_and_protocol_and_only_unanswered_tcp() {
        use super::super::testing::{Stage, address, flow};
        let at = [(Family::V4, "10.0.0.1:1"), (Family::V6, "[fd00::1]:1")];
        let protocols = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
        for (family, protocol) in Family::BOTH.into_iter().flat_map(|family| protocols.map(|one| (family, one))) {
            for ((of, text), stage) in at.into_iter().flat_map(|at| [(at, Stage::Unanswered), (at, Stage::Answered)]) {
                for other in protocols {
                    let expected =
                        (of, other) == (family, protocol) && (other, stage) != (Protocol::Tcp, Stage::Answered);
                    let flow = flow(other, stage, address(text), address(text));
                    assert_eq!(Selection { family, protocol, established: false }.admits(&flow), expected, "{flow:?}");
                }
            }
        }
    }

    #[test]
    fn fuzz_a_dump_of_conntrack() {
        let mut writer = Writer::default();
        let flow = Flow {
            protocol: Protocol::Tcp,
            original: Tuple { source: "10.0.0.1:1".parse().unwrap(), destination: "10.0.0.2:2".parse().unwrap() },
            reply: Tuple { source: "[fd00::2]:2".parse().unwrap(), destination: "[fd00::1]:1".parse().unwrap() },
            status: Status(0x18e),
            tcp_state: None,
            zone: Zone::Both(7),
            id: 9,
        };
        write(&flow, &mut writer);
        localnet_fuzz::target("conntrack-dump", &[&writer.bytes], |bytes| {
            let attributes = Attributes(bytes);
            let tuple = |kind| {
                let (protocol, tuple, zone) = parse_tuple(attributes.nested(kind))?;
                Some((protocol, tuple.source.is_ipv4(), zone))
            };
            // Parts of the message, which may parse even if the whole does not.
            let (original, reply) = (tuple(attribute::TUPLE_ORIGINAL), tuple(attribute::TUPLE_REPLY));
            let has = |kind| attributes.u32(kind).is_some();
            let flow = Flow::parse(attributes).map(|flow| (flow.protocol, flow.tcp_state, flow.zone));
            format!("{flow:?} {original:?} {reply:?} {} {}", has(attribute::STATUS), has(attribute::ID))
        });
    }

    proptest! {
        #[test]
        fn dumped_flows_parse(flow in flows()) {
            let mut writer = Writer::default();
            write(&flow, &mut writer);
            prop_assert_eq!(Flow::parse(Attributes(&writer.bytes)), Some(flow));
        }

        #[test]
        fn a_name_consists_of_reply_tuple_zone_and_id(flow in flows()) {
            let mut writer = Writer::default();
            flow.write_name(&mut writer);
            let written = Attributes(&writer.bytes);
            let (protocol, reply, tuple_zone) = parse_tuple(written.nested(attribute::TUPLE_REPLY)).unwrap();
            prop_assert_eq!((protocol, reply), (flow.protocol, flow.reply));
            let zone = written.find(attribute::ZONE).and_then(be16);
            match flow.zone {
                Zone::Both(id) => prop_assert_eq!((zone.unwrap_or(0), tuple_zone), (id, None)),
                Zone::Original(_) => prop_assert_eq!((zone, tuple_zone), (None, None)),
                Zone::Reply(id) => prop_assert_eq!((zone, tuple_zone), (None, Some(id))),
            }
            prop_assert_eq!(written.u32(attribute::ID), Some(flow.id));
        }

        #[test]
        fn any_bytes_can_be_parsed(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            round_trips(&bytes)?;
        }

        #[test]
        fn damaged_and_truncated_flows_can_be_parsed(
            flow in flows(), at in any::<prop::sample::Index>(), byte in any::<u8>(), len in any::<prop::sample::Index>(),
        ) {
            let mut writer = Writer::default();
            write(&flow, &mut writer);
            let mut bytes = writer.bytes;
            // The id comes last, so a truncated flow has none.
            prop_assert_eq!(Flow::parse(Attributes(&bytes[..len.index(bytes.len())])), None);
            let at = at.index(bytes.len());
            bytes[at] = byte;
            round_trips(&bytes)?;
        }
    }

    /// Checks that any bytes that parse as a flow survive encoding and parsing.
    fn round_trips(bytes: &[u8]) -> Result<(), TestCaseError> {
        if let Some(flow) = Flow::parse(Attributes(bytes)) {
            let mut writer = Writer::default();
            write(&flow, &mut writer);
            prop_assert_eq!(Flow::parse(Attributes(&writer.bytes)), Some(flow));
        }
        Ok(())
    }
}
