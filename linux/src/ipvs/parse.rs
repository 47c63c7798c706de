//! Parses the kernel's answers into plain values. Anything that the plain values cannot represent yields `None`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use localnet_core::{Family, Protocol};

use super::uapi::{attribute, control, destination, service, statistics};
use super::{
    Connections, Destination, DestinationState, Flags, Forwarding, Frontend, Persistence, Scheduler, Timeouts,
    VirtualServer,
};
use crate::conntrack::Volume;
use crate::netlink::{Attributes, array, family_of_number};
use crate::traffic::Total;

/// The ID of a generic netlink family.
pub(super) fn family_id(attributes: Attributes<'_>) -> Option<u16> {
    attributes.host_u16(control::FAMILY_ID)
}

/// A virtual server; `None` if it has a firewall mark instead of an address. localnet never adds such a virtual server.
pub(super) fn server(attributes: Attributes<'_>) -> Option<VirtualServer> {
    let attributes = attributes.nested(attribute::SERVICE);
    if attributes.find(service::FIREWALL_MARK).is_some() {
        return None;
    }
    let family = family(attributes.host_u16(service::FAMILY)?)?;
    let protocol = attributes.host_u16(service::PROTOCOL)?;
    let protocol = Protocol::from_number(u8::try_from(protocol).ok()?)?;
    let address = SocketAddr::new(address(attributes, service::ADDRESS, family)?, port(attributes, service::PORT)?);
    let flags = attributes.host_u32(service::FLAGS)?;
    let persistence = if flags & service::PERSISTENT == 0 { None } else { Some(persistence(attributes, family)?) };
    Some(VirtualServer {
        frontend: Frontend::new(protocol, address),
        scheduler: Scheduler::reported(attributes.string(service::SCHEDULER)?),
        flags: Flags::from_bits(flags & !(service::PERSISTENT | service::HASHED)),
        persistence,
    })
}

fn persistence(attributes: Attributes<'_>, family: Family) -> Option<Persistence> {
    let prefix_len = match family {
        Family::V4 => attributes.u32(service::NETMASK)?.leading_ones(),
        Family::V6 => attributes.host_u32(service::NETMASK)?,
    };
    Some(Persistence { timeout: attributes.host_u32(service::TIMEOUT)?, prefix_len: u8::try_from(prefix_len).ok()? })
}

/// A destination of a virtual server of family `of`. A tunneling virtual server may have destinations of the other family.
pub(super) fn destination(attributes: Attributes<'_>, of: Family) -> Option<DestinationState> {
    let attributes = attributes.nested(attribute::DESTINATION);
    // Kernels before 3.18 do not send the family and have no mixed destinations.
    let family = attributes.host_u16(destination::FAMILY).map_or(Some(of), family)?;
    let ip = address(attributes, destination::ADDRESS, family)?;
    let count = |kind| attributes.host_u32(kind).unwrap_or_default();
    Some(DestinationState {
        destination: Destination {
            address: SocketAddr::new(ip, port(attributes, destination::PORT)?),
            weight: attributes.host_u32(destination::WEIGHT)?,
            forwarding: Forwarding(attributes.host_u32(destination::FORWARDING)? & destination::FORWARDING_MASK),
            upper_threshold: count(destination::UPPER_THRESHOLD),
            lower_threshold: count(destination::LOWER_THRESHOLD),
        },
        connections: Connections {
            active: count(destination::ACTIVE_CONNECTIONS),
            inactive: count(destination::INACTIVE_CONNECTIONS),
            persistent: count(destination::PERSISTENT_CONNECTIONS),
        },
    })
}

/// The address of a destination, and its traffic since the kernel has it. Kernels before 4.1 do not send the traffic in this form.
pub(super) fn traffic(attributes: Attributes<'_>, of: Family) -> Option<(SocketAddr, Total)> {
    let DestinationState { destination: Destination { address, .. }, .. } = destination(attributes, of)?;
    let counts = Attributes(attributes.nested(attribute::DESTINATION).find(destination::STATISTICS)?);
    let volume = |packets, bytes| Some(Volume { packets: counts.host_u64(packets)?, bytes: counts.host_u64(bytes)? });
    let total = Total {
        connections: counts.host_u64(statistics::CONNECTIONS)?,
        original: volume(statistics::PACKETS_IN, statistics::BYTES_IN)?,
        reply: volume(statistics::PACKETS_OUT, statistics::BYTES_OUT)?,
    };
    Some((address, total))
}

/// The timeouts; 0 for a protocol that the kernel was built without.
pub(super) fn timeouts(attributes: Attributes<'_>) -> Timeouts {
    let seconds = |kind| attributes.host_u32(kind).unwrap_or_default();
    Timeouts {
        tcp: seconds(attribute::TIMEOUT_TCP),
        tcp_fin: seconds(attribute::TIMEOUT_TCP_FIN),
        udp: seconds(attribute::TIMEOUT_UDP),
    }
}

fn family(number: u16) -> Option<Family> {
    family_of_number(u8::try_from(number).ok()?)
}

/// An address. The kernel sends 16 bytes whatever the family.
fn address(attributes: Attributes<'_>, kind: u16, family: Family) -> Option<IpAddr> {
    let bytes = attributes.find(kind)?;
    Some(match family {
        Family::V4 => Ipv4Addr::from(array::<4>(bytes)?).into(),
        Family::V6 => Ipv6Addr::from(array::<16>(bytes)?).into(),
    })
}

fn port(attributes: Attributes<'_>, kind: u16) -> Option<u16> {
    attributes.find(kind).and_then(array).map(u16::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Change, encode};
    use super::*;
    use crate::netlink::{Writer, messages};

    /// A dump of Linux 6.1, captured on a netlink monitor interface: an IPv4 virtual server (mh-port, persistent for 10800 seconds,
    /// a mask of 24 bits), an IPv6 one (rr, one packet, persistent for 300 seconds, 64 bits), and one of firewall mark 7. The
    /// counters of the last two are cut out.
    const SERVERS: &str = "
        40010000 20000200 7e2c026b 9c00c046 01010000 2c010100 06000100 02000000 06000200 06000000 14000300 0a600001
        00000000 00000000 00000000 06000400 00500000 07000600 6d680000 0c000700 13000000 ffffffff 08000800 302a0000
        08000900 ffffff00 5c000a00 08000100 00000000 08000200 00000000 08000300 00000000 0c000400 00000000 00000000
        0c000500 00000000 00000000 08000600 00000000 08000700 00000000 08000800 00000000 08000900 00000000 08000a00
        00000000 7c000c00 0c000100 00000000 00000000 0c000200 00000000 00000000 0c000300 00000000 00000000 0c000400
        00000000 00000000 0c000500 00000000 00000000 0c000600 00000000 00000000 0c000700 00000000 00000000 0c000800
        00000000 00000000 0c000900 00000000 00000000 0c000a00 00000000 00000000
        68000000 20000200 7e2c026b 9c00c046 01010000 54000100 06000100 0a000000 06000200 11000000 14000300 fd000096
        00000000 00000000 0000000a 06000400 00350000 07000600 72720000 0c000700 07000000 ffffffff 08000800 2c010000
        08000900 40000000
        4c000000 20000200 7e2c026b 9c00c046 01010000 38000100 06000100 02000000 08000500 07000000 07000600 72720000
        0c000700 02000000 ffffffff 08000800 00000000 08000900 ffffffff
        14000000 03000200 7e2c026b 9c00c046 00000000";

    /// A dump of two destinations, without their counters.
    const DESTINATIONS: &str = "
        8c000000 20000200 7e2c026b 9c008069 05010000 78000200 14000100 0af40102 00000000 00000000 00000000 06000200
        1f900000 08000300 00000000 08000400 03000000 05000d00 00000000 06000e00 00000000 06000f00 00000000 08000500
        64000000 08000600 32000000 08000700 05000000 08000800 07000000 08000900 01000000 06000b00 02000000
        8c000000 20000200 7e2c026b 9c00409c 05010000 78000200 14000100 fd000010 00000000 00000000 00000002 06000200
        14e90000 08000300 00000000 08000400 01000000 05000d00 00000000 06000e00 00000000 06000f00 00000000 08000500
        00000000 08000600 00000000 08000700 00000000 08000800 00000000 08000900 00000000 06000b00 0a000000";

    /// What ipvsadm 1.31 sends to add the first virtual server and a destination.
    const FROM_IPVSADM: &str = "
        68000000 20000500 682c026b 85008039 01010000 54000180 06000100 02000000 06000200 06000000 14000300 0a600001
        00000000 00000000 00000000 06000400 00500000 07000600 6d680000 0c000700 11000000 ffffffff 08000800 302a0000
        08000900 ffffff00
        c8000000 20000500 6b2c026b 8b00c043 05010000 54000180 06000100 02000000 06000200 06000000 14000300 0a600001
        00000000 00000000 00000000 06000400 00500000 05000600 00000000 0c000700 00000000 ffffffff 08000800 00000000
        08000900 ffffffff 60000280 06000b00 02000000 14000100 0af40102 00000000 00000000 00000000 06000200 1f900000
        08000300 00000000 08000400 03000000 05000d00 00000000 06000e00 00000000 06000f00 00000000 08000500 64000000
        08000600 32000000";

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        digits.chunks(2).map(byte).collect()
    }

    fn mh() -> VirtualServer {
        VirtualServer {
            flags: Flags::SCHEDULER_2,
            persistence: Some(Persistence { timeout: 10800, prefix_len: 24 }),
            ..VirtualServer::new(Frontend::new(Protocol::Tcp, "10.96.0.1:80".parse().unwrap()), "mh".parse().unwrap())
        }
    }

    fn weighed() -> Destination {
        Destination {
            upper_threshold: 100,
            lower_threshold: 50,
            ..Destination::masqueraded("10.244.1.2:8080".parse().unwrap(), 3)
        }
    }

    #[test]
    fn virtual_servers_of_a_kernel() {
        let bytes = bytes(SERVERS);
        let servers: Vec<_> = messages(&bytes).map(|message| server(message.attributes())).collect();
        let rr = VirtualServer {
            flags: Flags::ONE_PACKET,
            persistence: Some(Persistence { timeout: 300, prefix_len: 64 }),
            ..VirtualServer::new(
                Frontend::new(Protocol::Udp, "[fd00:96::a]:53".parse().unwrap()),
                "rr".parse().unwrap(),
            )
        };
        assert_eq!(servers, [Some(mh()), Some(rr), None, None]);
    }

    #[test]
    fn destinations_of_a_kernel() {
        let bytes = bytes(DESTINATIONS);
        // The family attribute of the destination decides, not that of the virtual server.
        let parsed: Vec<_> = messages(&bytes).map(|message| destination(message.attributes(), Family::V4)).collect();
        let second = Destination::masqueraded("[fd00:10::2]:5353".parse().unwrap(), 1);
        let connections = Connections { active: 5, inactive: 7, persistent: 1 };
        let expected = [(weighed(), connections), (second, Connections::default())];
        assert_eq!(
            parsed,
            expected.map(|(destination, connections)| Some(DestinationState { destination, connections }))
        );
    }

    #[test]
    fn requests_of_ipvsadm_parse_to_the_same_values_as_ours() {
        let bytes = bytes(FROM_IPVSADM);
        let messages: Vec<_> = messages(&bytes).collect();
        assert_eq!(server(messages[0].attributes()), Some(mh()));
        let parsed = destination(messages[1].attributes(), Family::V4).unwrap();
        assert_eq!(parsed.destination, weighed());
    }

    /// A destination with the attributes and the order of Linux 6.1, including `IPVS_DEST_ATTR_STATS64`: 3 connections, 20 and 15 packets, 1,300 and 99,000 bytes.
    #[test]
    fn traffic_of_a_destination() {
        let hex = "
            f0000000 20000200 7e2c026b 9c008069 05010000 dc000200 14000100 0af40102 00000000 00000000 00000000 06000200
            1f900000 08000300 00000000 08000400 03000000 08000500 00000000 08000600 00000000 08000700 00000000 08000800
            00000000 08000900 00000000 06000b00 02000000 7c000c00 0c000100 03000000 00000000 0c000200 14000000 00000000
            0c000300 0f000000 00000000 0c000400 14050000 00000000 0c000500 b8820100 00000000 0c000600 00000000 00000000
            0c000700 00000000 00000000 0c000800 00000000 00000000 0c000900 00000000 00000000 0c000a00 00000000 00000000";
        let bytes = bytes(hex);
        let parsed: Vec<_> = messages(&bytes).map(|message| traffic(message.attributes(), Family::V4)).collect();
        let volume = |packets, bytes| Volume { packets, bytes };
        let total = Total { connections: 3, original: volume(20, 1_300), reply: volume(15, 99_000) };
        assert_eq!(parsed, [Some(("10.244.1.2:8080".parse().unwrap(), total))]);
        let without = self::bytes(DESTINATIONS);
        let mut parsed = messages(&without).map(|message| traffic(message.attributes(), Family::V4));
        assert!(parsed.all(|of| of.is_none()), "no counters");
    }

    #[test]
    fn timeouts_of_a_kernel() {
        let bytes =
            bytes("2c000000 20000000 812c026b 9e000062 0c010000 08000400 84030000 08000500 78000000 08000600 2c010000");
        let parsed: Vec<_> = messages(&bytes).map(|message| timeouts(message.attributes())).collect();
        assert_eq!(parsed, [Timeouts { tcp: 900, tcp_fin: 120, udp: 300 }]);
    }

    fn any_address() -> impl Strategy<Value = SocketAddr> {
        (any::<IpAddr>(), any::<u16>()).prop_map(|(ip, port)| SocketAddr::new(ip, port))
    }

    fn any_server() -> impl Strategy<Value = VirtualServer> {
        let protocol = prop::sample::select(vec![Protocol::Tcp, Protocol::Udp, Protocol::Sctp]);
        let persistence = prop::option::of((any::<u32>(), 1..=128_u8));
        (any_address(), protocol, "[a-z]{1,15}", any::<u32>(), persistence).prop_map(
            |(address, protocol, scheduler, flags, persistence)| VirtualServer {
                frontend: Frontend::new(protocol, address),
                scheduler: scheduler.parse().unwrap(),
                flags: Flags::from_bits(flags),
                persistence: persistence.map(|(timeout, prefix_len)| Persistence {
                    timeout,
                    prefix_len: if address.is_ipv4() { prefix_len.min(32) } else { prefix_len },
                }),
            },
        )
    }

    fn any_destination() -> impl Strategy<Value = Destination> {
        (any_address(), any::<u32>(), 0..=7_u32, any::<u32>(), any::<u32>()).prop_map(
            |(address, weight, forwarding, upper_threshold, lower_threshold)| Destination {
                address,
                weight,
                forwarding: Forwarding(forwarding),
                upper_threshold,
                lower_threshold,
            },
        )
    }

    #[test]
    fn fuzz_a_dump_of_ipvs() {
        let seeds = [SERVERS, DESTINATIONS].map(bytes);
        localnet_fuzz::target("ipvs-dump", &[&seeds[0], &seeds[1]], |bytes| {
            let mut text = String::new();
            for message in messages(bytes).map(|message| message.attributes()).chain([Attributes(bytes)]) {
                for family in [Family::V4, Family::V6] {
                    text += &format!("{:?}", destination(message, family).map(|state| state.destination.forwarding));
                    text += &format!("{:?}", traffic(message, family).is_some());
                }
                text += &format!("{:?}", server(message).map(|server| server.frontend.protocol));
                timeouts(message);
                family_id(message);
            }
            text
        });
    }

    proptest! {
        #[test]
        fn virtual_servers_and_destinations_round_trip(expected in any_server(), of_it in any_destination()) {
            let mut writer = Writer::default();
            encode::change(&mut writer, 33, 0, 1, &Change::AddServer(expected.clone()));
            encode::change(&mut writer, 33, 0, 2, &Change::AddDestination(expected.frontend, of_it));
            let messages: Vec<_> = messages(&writer.bytes).collect();
            prop_assert_eq!(server(messages[0].attributes()), Some(expected.clone()));
            let family = Family::of(expected.frontend.address.ip());
            let connections = Connections::default();
            let state = DestinationState { destination: of_it, connections };
            prop_assert_eq!(destination(messages[1].attributes(), family), Some(state));
        }

        #[test]
        fn any_bytes_parse(mut bytes in prop::collection::vec(any::<u8>(), 0..200), at in 0..200_usize, byte: u8) {
            for hex in [SERVERS, DESTINATIONS] {
                let mut changed = self::bytes(hex);
                let at = at % changed.len();
                changed[at] = byte;
                bytes.extend(changed);
            }
            for message in messages(&bytes).map(|message| message.attributes()).chain([Attributes(&bytes)]) {
                server(message);
                destination(message, Family::V6);
                timeouts(message);
                family_id(message);
            }
        }
    }
}
