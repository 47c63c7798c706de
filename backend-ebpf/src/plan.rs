//! Plans one VIP: its elements in the eBPF maps. Pure.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use localnet_client::vips::{self, Exposure};
use localnet_core::Protocol;
use localnet_proto::Verdict;
use sha2::{Digest as _, Sha256};

use crate::{
    decide::{TCP, UDP},
    layout::{DROP, EXTERNAL, INTERNAL, PortId, REJECT, Socket, Vip, VipKey},
};

/// The key and the value of a VIP; `None` if this backend leaves the VIP to the rules of the node. It does so if the VIP
/// - uses SCTP, because the kernel runs no eBPF programs when an SCTP socket connects
/// - has source ranges, because most sockets have no source address yet when they connect
/// - is a loopback address, because each pod has this address, too
pub fn vip(key: &vips::VipKey, vip: &vips::Vip) -> Option<(VipKey, Vip)> {
    let protocol = match key.protocol {
        Protocol::Tcp => TCP,
        Protocol::Udp => UDP,
        Protocol::Sctp => return None,
    };
    if vip.sources.is_some() || key.address.is_loopback() {
        return None;
    }
    let value = Vip {
        port: port_id(key, vip),
        scope: if vip.exposure == Exposure::Internal { INTERNAL } else { EXTERNAL },
        endpoints: u32::try_from(vip.weights.count(&vip.endpoints)).unwrap_or(u32::MAX),
        // As in the API server, a Service with session affinity has at least 1 s.
        affinity: vip.affinity.map_or(0, |affinity| affinity.seconds.max(1)),
        when_empty: match vip.when_empty {
            Verdict::Reject => REJECT,
            Verdict::Drop => DROP,
        },
    };
    Some((VipKey { to: socket(key.socket()), protocol }, value))
}

/// Whether clients of a VIP may keep their endpoint, so that the map `members` needs the endpoints.
pub fn has_members(key: &VipKey, vip: &Vip) -> bool {
    vip.affinity > 0 || key.protocol == UDP
}

/// The element that rejects connections to the unused ports of a ClusterIP.
pub fn unused_ports(cluster_ip: IpAddr) -> (VipKey, Vip) {
    (VipKey { to: socket(SocketAddr::new(cluster_ip, 0)), protocol: 0 }, Vip { when_empty: REJECT, ..Vip::default() })
}

/// The ID of the Service port that has a VIP. A cryptographic hash, so that no Service can take the endpoints of another one.
fn port_id(key: &vips::VipKey, vip: &vips::Vip) -> PortId {
    let vips::Vip { service, port_name, .. } = vip;
    let text = format!("{service}:{port_name} {} {}", key.protocol.as_lowercase(), key.family());
    let hash = Sha256::digest(text);
    let word = |index: usize| hash.iter().skip(4 * index).take(4).fold(0, |word, byte| word << 8 | u32::from(*byte));
    std::array::from_fn(word)
}

/// An address and port, as the maps have it.
pub fn socket(of: SocketAddr) -> Socket {
    let address = match of.ip() {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    let octets = address.octets();
    let word = |index: usize| u32::from_ne_bytes(std::array::from_fn(|byte| octets[4 * index + byte]));
    Socket { address: std::array::from_fn(word), port: of.port().into() }
}

/// An address and port of the maps.
pub fn socket_addr(socket: &Socket) -> SocketAddr {
    let octets: [u8; 16] = std::array::from_fn(|index| socket.address[index / 4].to_ne_bytes()[index % 4]);
    let address = Ipv6Addr::from(octets).to_canonical();
    SocketAddr::new(address, u16::try_from(socket.port).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use localnet_proto::ServiceKey;

    use super::*;

    fn key(address: &str, protocol: Protocol) -> vips::VipKey {
        vips::VipKey { address: address.parse().unwrap(), protocol, port: 80 }
    }

    #[test]
    fn sockets_round_trip_and_have_network_byte_order() {
        for text in ["10.0.0.1:80", "[fd00::1]:65535", "0.0.0.0:0"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(socket_addr(&socket(address)), address);
        }
        let words = socket("10.1.2.3:80".parse().unwrap()).address;
        assert_eq!(words.map(u32::to_ne_bytes), [[0; 4], [0; 4], [0, 0, 255, 255], [10, 1, 2, 3]]);
    }

    #[test]
    fn the_rules_of_the_node_serve_what_the_programs_cannot() {
        let plain = vips::Vip::default();
        let restricted = vips::Vip { sources: Some(Arc::new([])), ..plain.clone() };
        for (address, protocol, vip, planned) in [
            ("10.96.0.1", Protocol::Tcp, &plain, true),
            ("fd00::1", Protocol::Udp, &plain, true),
            ("10.96.0.1", Protocol::Sctp, &plain, false),
            ("10.96.0.1", Protocol::Tcp, &restricted, false),
            ("127.0.0.1", Protocol::Tcp, &plain, false),
        ] {
            assert_eq!(super::vip(&key(address, protocol), vip).is_some(), planned, "{address} {protocol:?}");
        }
    }

    #[test]
    fn ports_differ_by_service_name_protocol_and_family_but_not_by_address() {
        let of = |address, protocol, service: &str, port: &str| {
            let vip = vips::Vip {
                service: ServiceKey::new("default", service),
                port_name: port.into(),
                ..vips::Vip::default()
            };
            port_id(&key(address, protocol), &vip)
        };
        let first = of("10.96.0.1", Protocol::Tcp, "web", "http");
        assert_eq!(of("10.96.0.2", Protocol::Tcp, "web", "http"), first);
        for other in [
            of("10.96.0.1", Protocol::Udp, "web", "http"),
            of("10.96.0.1", Protocol::Tcp, "web", "https"),
            of("10.96.0.1", Protocol::Tcp, "other", "http"),
            of("fd00::1", Protocol::Tcp, "web", "http"),
        ] {
            assert_ne!(other, first);
        }
    }
}
