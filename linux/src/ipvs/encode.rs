//! Encodes changes and queries as messages of generic netlink. Pure.

use std::net::IpAddr;

use localnet_core::Family;

use super::server::full_prefix;
use super::uapi::{self, attribute, command, control, destination, service};
use super::{Change, Destination, Frontend, Timeouts, VirtualServer};
use crate::netlink::{self, Command, Writer, family_number};

fn head(family: u16, command: u8, flags: u16, sequence: u32) -> Command {
    Command { kind: family, flags: netlink::REQUEST | flags, sequence, command, version: uapi::VERSION }
}

/// Queries the ID of the generic netlink family with that name.
pub(super) fn family_request(writer: &mut Writer, sequence: u32, name: &str) {
    let command = Command {
        kind: control::FAMILY,
        flags: netlink::REQUEST | netlink::ACK,
        sequence,
        command: control::GET_FAMILY,
        version: control::VERSION,
    };
    writer.command(command, |writer| writer.string(control::FAMILY_NAME, name));
}

/// Encodes a change. `flags` are added to `NLM_F_REQUEST`.
pub(super) fn change(writer: &mut Writer, family: u16, flags: u16, sequence: u32, change: &Change) {
    let number = match change {
        Change::AddServer(_) => command::NEW_SERVICE,
        Change::UpdateServer(_) => command::SET_SERVICE,
        Change::DeleteServer(_) => command::DELETE_SERVICE,
        Change::AddDestination(..) => command::NEW_DESTINATION,
        Change::UpdateDestination(..) => command::SET_DESTINATION,
        Change::DeleteDestination(..) => command::DELETE_DESTINATION,
    };
    writer.command(head(family, number, flags, sequence), |writer| match change {
        Change::AddServer(server) | Change::UpdateServer(server) => write_server(writer, server),
        Change::DeleteServer(frontend) => write_frontend(writer, frontend),
        Change::AddDestination(frontend, destination) | Change::UpdateDestination(frontend, destination) => {
            write_frontend(writer, frontend);
            write_destination(writer, destination);
        }
        Change::DeleteDestination(frontend, address) => {
            write_frontend(writer, frontend);
            writer.nest(attribute::DESTINATION, |writer| {
                write_address(writer, destination::ADDRESS, address.ip());
                writer.bytes(destination::PORT, &address.port().to_be_bytes());
                writer.host_u16(destination::FAMILY, family_number(Family::of(address.ip())).into());
            });
        }
    });
}

/// Queries all virtual servers.
pub(super) fn servers_request(writer: &mut Writer, family: u16, sequence: u32) {
    writer.command(head(family, command::GET_SERVICE, netlink::DUMP, sequence), |_| ());
}

/// Queries one virtual server.
pub(super) fn server_request(writer: &mut Writer, family: u16, sequence: u32, frontend: &Frontend) {
    let head = head(family, command::GET_SERVICE, netlink::ACK, sequence);
    writer.command(head, |writer| write_frontend(writer, frontend));
}

/// Queries the destinations of a virtual server.
pub(super) fn destinations_request(writer: &mut Writer, family: u16, sequence: u32, frontend: &Frontend) {
    let head = head(family, command::GET_DESTINATION, netlink::DUMP, sequence);
    writer.command(head, |writer| write_frontend(writer, frontend));
}

/// Queries the timeouts.
pub(super) fn timeouts_request(writer: &mut Writer, family: u16, sequence: u32) {
    writer.command(head(family, command::GET_CONFIG, netlink::ACK, sequence), |_| ());
}

/// Sets the timeouts. The kernel ignores those that are 0.
pub(super) fn set_timeouts(writer: &mut Writer, family: u16, sequence: u32, timeouts: &Timeouts) {
    writer.command(head(family, command::SET_CONFIG, netlink::ACK, sequence), |writer| {
        writer.host_u32(attribute::TIMEOUT_TCP, timeouts.tcp);
        writer.host_u32(attribute::TIMEOUT_TCP_FIN, timeouts.tcp_fin);
        writer.host_u32(attribute::TIMEOUT_UDP, timeouts.udp);
    });
}

/// Writes the attribute that identifies a virtual server.
fn write_frontend(writer: &mut Writer, frontend: &Frontend) {
    writer.nest(attribute::SERVICE, |writer| write_name(writer, frontend));
}

fn write_name(writer: &mut Writer, frontend: &Frontend) {
    let address = frontend.address;
    writer.host_u16(service::FAMILY, family_number(Family::of(address.ip())).into());
    writer.host_u16(service::PROTOCOL, frontend.protocol.number().into());
    write_address(writer, service::ADDRESS, address.ip());
    writer.bytes(service::PORT, &address.port().to_be_bytes());
}

fn write_server(writer: &mut Writer, server: &VirtualServer) {
    let family = Family::of(server.frontend.address.ip());
    let (persistent, timeout, prefix_len) = match server.persistence {
        Some(persistence) => (service::PERSISTENT, persistence.timeout, persistence.prefix_len),
        None => (0, 0, full_prefix(family)),
    };
    writer.nest(attribute::SERVICE, |writer| {
        write_name(writer, &server.frontend);
        writer.string(service::SCHEDULER, server.scheduler.as_str());
        // All bits of the mask are set, so that the kernel replaces all flags.
        let mut flags = [0; 8];
        flags[..4].copy_from_slice(&(server.flags.bits() | persistent).to_ne_bytes());
        flags[4..].copy_from_slice(&u32::MAX.to_ne_bytes());
        writer.bytes(service::FLAGS, &flags);
        writer.host_u32(service::TIMEOUT, timeout);
        match family {
            // The kernel expects a mask for IPv4 and a length for IPv6.
            Family::V4 => writer.bytes(service::NETMASK, &mask(prefix_len).to_be_bytes()),
            Family::V6 => writer.host_u32(service::NETMASK, prefix_len.into()),
        }
    });
}

fn write_destination(writer: &mut Writer, value: &Destination) {
    writer.nest(attribute::DESTINATION, |writer| {
        write_address(writer, destination::ADDRESS, value.address.ip());
        writer.bytes(destination::PORT, &value.address.port().to_be_bytes());
        writer.host_u32(destination::FORWARDING, value.forwarding.0);
        writer.host_u32(destination::WEIGHT, value.weight);
        writer.host_u32(destination::UPPER_THRESHOLD, value.upper_threshold);
        writer.host_u32(destination::LOWER_THRESHOLD, value.lower_threshold);
        writer.host_u16(destination::FAMILY, family_number(Family::of(value.address.ip())).into());
    });
}

fn write_address(writer: &mut Writer, kind: u16, address: IpAddr) {
    match address {
        IpAddr::V4(address) => writer.bytes(kind, &address.octets()),
        IpAddr::V6(address) => writer.bytes(kind, &address.octets()),
    }
}

/// The mask of a prefix. All bits are set for a length of 32 or more.
pub(super) fn mask(prefix_len: u8) -> u32 {
    u32::MAX.checked_shl(u32::from(32_u8.saturating_sub(prefix_len))).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use localnet_core::Protocol;

    use super::super::{Flags, Forwarding, Persistence};
    use super::*;

    /// Checks the encoding of a change, for family 0x20 and sequence number 7.
    #[track_caller]
    fn check_change(change: &Change, expected: &[&str]) {
        check(|writer| super::change(writer, 0x20, 0, 7, change), expected);
    }

    /// Compares with hexadecimal digits, as a little-endian machine encodes them.
    #[track_caller]
    fn check(write: impl FnOnce(&mut Writer), expected: &[&str]) {
        let mut writer = Writer::default();
        write(&mut writer);
        let written: String = writer.bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let expected: String = expected.concat().chars().filter(|char| !char.is_whitespace()).collect();
        assert_eq!(written, expected);
    }

    fn frontend(protocol: Protocol, address: &str) -> Frontend {
        Frontend::new(protocol, address.parse().unwrap())
    }

    #[test]
    fn the_family_is_queried_by_name() {
        check(
            |writer| family_request(writer, 3, "IPVS"),
            &[
                "20000000 1000 0500 03000000 00000000", // length, GENL_ID_CTRL, NLM_F_REQUEST | NLM_F_ACK, sequence, port
                "03 01 0000",                           // CTRL_CMD_GETFAMILY, version
                "0900 0200 4950565300 000000",          // CTRL_ATTR_FAMILY_NAME
            ],
        );
    }

    #[test]
    fn a_virtual_server_is_added_with_all_its_properties() {
        let server = VirtualServer {
            flags: Flags::SCHEDULER_2,
            persistence: Some(Persistence { timeout: 10800, prefix_len: 24 }),
            ..VirtualServer::new(frontend(Protocol::Tcp, "10.96.0.1:80"), "mh".parse().unwrap())
        };
        check(
            |writer| change(writer, 0x20, netlink::ACK, 7, &Change::AddServer(server)),
            &[
                "5c000000 2000 0500 07000000 00000000", // length, family, NLM_F_REQUEST | NLM_F_ACK, sequence, port
                "01 01 0000",                           // IPVS_CMD_NEW_SERVICE, IPVS_GENL_VERSION
                "4800 0180",                            // IPVS_CMD_ATTR_SERVICE, nested
                "0600 0100 0200 0000",                  // IPVS_SVC_ATTR_AF: AF_INET
                "0600 0200 0600 0000",                  // IPVS_SVC_ATTR_PROTOCOL: TCP
                "0800 0300 0a600001",                   // IPVS_SVC_ATTR_ADDR
                "0600 0400 0050 0000",                  // IPVS_SVC_ATTR_PORT, in network byte order
                "0700 0600 6d6800 00",                  // IPVS_SVC_ATTR_SCHED_NAME
                "0c00 0700 11000000 ffffffff",          // IPVS_SVC_ATTR_FLAGS: persistent, scheduler's second; mask
                "0800 0800 302a0000",                   // IPVS_SVC_ATTR_TIMEOUT
                "0800 0900 ffffff00",                   // IPVS_SVC_ATTR_NETMASK, in network byte order
            ],
        );
    }

    #[test]
    fn the_mask_of_an_ipv6_virtual_server_is_a_length() {
        let server = VirtualServer {
            flags: Flags::ONE_PACKET,
            ..VirtualServer::new(frontend(Protocol::Udp, "[fd00:96::a]:53"), "rr".parse().unwrap())
        };
        check_change(
            &Change::UpdateServer(server),
            &[
                "68000000 2000 0100 07000000 00000000",
                "02 01 0000", // IPVS_CMD_SET_SERVICE
                "5400 0180",
                "0600 0100 0a00 0000", // AF_INET6
                "0600 0200 1100 0000", // UDP
                "1400 0300 fd000096 00000000 00000000 0000000a",
                "0600 0400 0035 0000",
                "0700 0600 727200 00",
                "0c00 0700 04000000 ffffffff",
                "0800 0800 00000000",
                "0800 0900 80000000", // 128
            ],
        );
    }

    #[test]
    fn a_destination_is_added_to_a_virtual_server_by_name() {
        let destination = Destination {
            forwarding: Forwarding::TUNNEL,
            upper_threshold: 100,
            lower_threshold: 50,
            ..Destination::masqueraded("10.244.1.2:8080".parse().unwrap(), 3)
        };
        check_change(
            &Change::AddDestination(frontend(Protocol::Sctp, "10.96.0.1:80"), destination),
            &[
                "74000000 2000 0100 07000000 00000000",
                "05 01 0000", // IPVS_CMD_NEW_DEST
                "2400 0180",
                "0600 0100 0200 0000",
                "0600 0200 8400 0000", // SCTP
                "0800 0300 0a600001",
                "0600 0400 0050 0000",
                "3c00 0280",           // IPVS_CMD_ATTR_DEST, nested
                "0800 0100 0af40102",  // IPVS_DEST_ATTR_ADDR
                "0600 0200 1f90 0000", // IPVS_DEST_ATTR_PORT, in network byte order
                "0800 0300 02000000",  // IPVS_DEST_ATTR_FWD_METHOD
                "0800 0400 03000000",  // IPVS_DEST_ATTR_WEIGHT
                "0800 0500 64000000",  // IPVS_DEST_ATTR_U_THRESH
                "0800 0600 32000000",  // IPVS_DEST_ATTR_L_THRESH
                "0600 0b00 0200 0000", // IPVS_DEST_ATTR_ADDR_FAMILY
            ],
        );
    }

    #[test]
    fn deletions_contain_only_the_key() {
        let name = "2400 0180 0600 0100 0200 0000 0600 0200 0600 0000 0800 0300 0a600001 0600 0400 0050 0000";
        let frontend = frontend(Protocol::Tcp, "10.96.0.1:80");
        check_change(&Change::DeleteServer(frontend), &["38000000 2000 0100 07000000 00000000 03 01 0000", name]);
        check_change(
            &Change::DeleteDestination(frontend, "10.244.1.2:8080".parse().unwrap()),
            &[
                "54000000 2000 0100 07000000 00000000 07 01 0000",
                name,
                "1c00 0280 0800 0100 0af40102 0600 0200 1f90 0000 0600 0b00 0200 0000",
            ],
        );
    }

    #[test]
    fn questions_and_timeouts() {
        check(|writer| servers_request(writer, 0x20, 7), &["14000000 2000 0103 07000000 00000000 04 01 0000"]);
        check(
            |writer| server_request(writer, 0x20, 7, &frontend(Protocol::Tcp, "10.96.0.1:80")),
            &[
                "38000000 2000 0500 07000000 00000000 04 01 0000", // IPVS_CMD_GET_SERVICE
                "2400 0180 0600 0100 0200 0000 0600 0200 0600 0000 0800 0300 0a600001 0600 0400 0050 0000",
            ],
        );
        check(
            |writer| destinations_request(writer, 0x20, 7, &frontend(Protocol::Tcp, "10.96.0.1:80")),
            &[
                "38000000 2000 0103 07000000 00000000 08 01 0000", // NLM_F_DUMP, IPVS_CMD_GET_DEST
                "2400 0180 0600 0100 0200 0000 0600 0200 0600 0000 0800 0300 0a600001 0600 0400 0050 0000",
            ],
        );
        check(|writer| timeouts_request(writer, 0x20, 7), &["14000000 2000 0500 07000000 00000000 0d 01 0000"]);
        check(
            |writer| set_timeouts(writer, 0x20, 7, &Timeouts { tcp: 900, tcp_fin: 120, udp: 0 }),
            &[
                "2c000000 2000 0500 07000000 00000000",
                "0c 01 0000",         // IPVS_CMD_SET_CONFIG
                "0800 0400 84030000", // IPVS_CMD_ATTR_TIMEOUT_TCP
                "0800 0500 78000000", // IPVS_CMD_ATTR_TIMEOUT_TCP_FIN
                "0800 0600 00000000", // IPVS_CMD_ATTR_TIMEOUT_UDP
            ],
        );
    }

    #[test]
    fn masks_have_as_many_bits_as_the_prefix() {
        for (prefix_len, expected) in
            [(0, 0), (1, 0x8000_0000), (24, 0xffff_ff00), (32, u32::MAX), (33, u32::MAX), (255, u32::MAX)]
        {
            assert_eq!(mask(prefix_len), expected, "{prefix_len}");
        }
    }
}
