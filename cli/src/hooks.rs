//! The hooks of netfilter that a packet to a VIP passes, and its destination at each. Pure.
//!
//! ```text
//!  nf_tables, from other hosts: prerouting (VIP) ─► forward, or input on the node (endpoint)
//!  nf_tables, from the node:    output (endpoint)
//!  IPVS, from other hosts:      prerouting, input (VIP) ─► IPVS ─► output, postrouting (endpoint)
//!                                                             └──► rest of input, on the node (endpoint)
//!  IPVS, from the node:         output (VIP) ─► IPVS ─► output again, postrouting (endpoint)
//!                                                  └──► rest of output, postrouting, on the node (endpoint)
//! ```
//!
//! IPVS sends a packet to an endpoint elsewhere through the whole hook `output`, and never through `forward`
//! (`ip_vs_nat_send_or_cont` in the kernel's `ip_vs_xmit.c`). Only the first packet of a connection is of interest, not the replies.

use std::net::{IpAddr, SocketAddr};

use localnet_client::route::{Origin, Packet};
use localnet_linux::nft::{
    HookPoint,
    foreign::{self, Part},
};

/// The priority of IPVS in the hook `input`: `NF_IP_PRI_NAT_SRC - 1` (`ip_vs_ops4` in the kernel's `ip_vs_core.c`).
const IPVS_INPUT: i32 = 99;
/// The priority of IPVS in the hook `output`: `NF_IP_PRI_NAT_DST + 2`.
const IPVS_OUTPUT: i32 = -98;

/// What replaces a packet's destination by an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Translator {
    /// Destination NAT, with rules of nf_tables or iptables.
    NfTables,
    /// IPVS.
    Ipvs,
}

/// Returns the packet as each hook sees it, in the order of the hooks. `source` is its source address, if it is known. `has` tells
/// whether the node has an address.
pub fn passed(
    translator: Translator,
    packet: &Packet,
    source: Option<IpAddr>,
    endpoints: &[SocketAddr],
    has: impl Fn(IpAddr) -> bool,
) -> Vec<foreign::Packet> {
    let protocol = packet.protocol;
    let vip = SocketAddr::new(packet.destination, packet.port);
    let at = |point, part, to: SocketAddr| foreign::Packet {
        point,
        part,
        source,
        destination: to.ip(),
        protocol,
        port: to.port(),
    };
    let from_node = packet.origin == Origin::Node;
    let mut passed = match (translator, from_node) {
        (Translator::NfTables, false) => vec![at(HookPoint::Prerouting, Part::Whole, vip)],
        (Translator::NfTables, true) => Vec::new(),
        (Translator::Ipvs, false) => {
            vec![at(HookPoint::Prerouting, Part::Whole, vip), at(HookPoint::Input, Part::Before(IPVS_INPUT), vip)]
        }
        (Translator::Ipvs, true) => vec![at(HookPoint::Output, Part::Before(IPVS_OUTPUT), vip)],
    };
    for endpoint in endpoints {
        let on_node = has(endpoint.ip());
        let hooks: &[(HookPoint, Part)] = match (translator, from_node, on_node) {
            (Translator::NfTables, true, _) => &[(HookPoint::Output, Part::Whole)],
            (Translator::NfTables, false, true) => &[(HookPoint::Input, Part::Whole)],
            (Translator::NfTables, false, false) => &[(HookPoint::Forward, Part::Whole)],
            (Translator::Ipvs, false, true) => &[(HookPoint::Input, Part::After(IPVS_INPUT))],
            (Translator::Ipvs, true, true) => {
                &[(HookPoint::Output, Part::After(IPVS_OUTPUT)), (HookPoint::Postrouting, Part::Whole)]
            }
            (Translator::Ipvs, _, false) => &[(HookPoint::Output, Part::Whole), (HookPoint::Postrouting, Part::Whole)],
        };
        passed.extend(hooks.iter().map(|(point, part)| at(*point, *part, *endpoint)));
    }
    passed
}

#[cfg(test)]
mod tests {
    use localnet_proto::Protocol;

    use super::*;

    /// The hooks of a packet to 10.96.0.1:80 with an endpoint elsewhere, 10.0.0.7:8080, and one on the node, 192.168.0.2:8080.
    fn hooks(translator: Translator, origin: Origin) -> Vec<String> {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let node = ip("192.168.0.2");
        let (source, destination) = (ip("10.0.0.1"), ip("10.96.0.1"));
        let packet = Packet { source, destination, protocol: Protocol::Tcp, port: 80, origin };
        let endpoints = [SocketAddr::new(ip("10.0.0.7"), 8080), SocketAddr::new(node, 8080)];
        let passed = passed(translator, &packet, Some(source), &endpoints, |address| address == node);
        assert!(passed.iter().all(|packet| packet.source == Some(source) && packet.protocol == Protocol::Tcp));
        let line = |of: &foreign::Packet| format!("{:?} {:?} {}:{}", of.point, of.part, of.destination, of.port);
        passed.iter().map(line).collect()
    }

    #[test]
    fn rules_of_nf_tables_translate_before_the_packet_is_routed() {
        assert_eq!(
            hooks(Translator::NfTables, Origin::Pod),
            ["Prerouting Whole 10.96.0.1:80", "Forward Whole 10.0.0.7:8080", "Input Whole 192.168.0.2:8080"]
        );
        assert_eq!(
            hooks(Translator::NfTables, Origin::Node),
            ["Output Whole 10.0.0.7:8080", "Output Whole 192.168.0.2:8080"]
        );
    }

    #[test]
    fn ipvs_translates_in_input_and_output_and_never_forwards() {
        for origin in [Origin::Pod, Origin::Outside] {
            assert_eq!(
                hooks(Translator::Ipvs, origin),
                [
                    "Prerouting Whole 10.96.0.1:80",
                    "Input Before(99) 10.96.0.1:80",
                    "Output Whole 10.0.0.7:8080",
                    "Postrouting Whole 10.0.0.7:8080",
                    "Input After(99) 192.168.0.2:8080",
                ]
            );
        }
        assert_eq!(
            hooks(Translator::Ipvs, Origin::Node),
            [
                "Output Before(-98) 10.96.0.1:80",
                "Output Whole 10.0.0.7:8080",
                "Postrouting Whole 10.0.0.7:8080",
                "Output After(-98) 192.168.0.2:8080",
                "Postrouting Whole 192.168.0.2:8080",
            ]
        );
    }
}
