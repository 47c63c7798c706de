//! [`Ends`]: the kernel's events about flows that end, each with the final counters of the flow.

use std::{fs, io};

use netlink_sys::Socket;
use rustix::io::Errno;

use crate::{
    conntrack::{
        Counters, Error, Flow,
        kernel::{DELETE, SUBSYSTEM, connect},
    },
    netlink::{self, messages},
};

/// `NFNLGRP_CONNTRACK_DESTROY`
const GROUP: u32 = 3;
/// The size of the receive buffer in bytes: room for about 6,000 events.
const BUFFER: usize = 4 << 20;

/// A subscription to the ends of flows.
#[derive(Debug)]
pub(super) struct Ends {
    socket: Socket,
    buffer: Vec<u8>,
    /// The events that the kernel had dropped when this was read last.
    dropped: u64,
}

impl Ends {
    /// Subscribes to the ends of flows in the calling thread's network namespace.
    pub(super) fn subscribe() -> Result<Self, Error> {
        let socket = connect()?;
        netlink::enlarge_receive_buffer(&socket, BUFFER)?;
        socket.add_membership(GROUP).map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::PERM) => Error::NotPermitted("follow"),
            _ => Error::Refused { action: "follow", errno: error },
        })?;
        Ok(Self { socket, buffer: vec![0; 8 << 10], dropped: 0 })
    }

    /// Calls `visit` for each flow that has ended since the last call. Returns how many events the kernel dropped in the meantime,
    /// because the receive buffer was full.
    pub(super) fn drain(&mut self, visit: &mut dyn FnMut(&Flow, Option<Counters>)) -> Result<u64, Error> {
        let mut overrun = false;
        loop {
            match netlink::receive(&self.socket, &mut self.buffer) {
                Ok(len) => {
                    for message in messages(&self.buffer[..len]) {
                        if message.kind == SUBSYSTEM << 8 | DELETE
                            && let Some(flow) = Flow::parse(message.attributes())
                        {
                            visit(&flow, Counters::parse(message.attributes()));
                        }
                    }
                }
                Err(Errno::NOBUFS) => overrun = true,
                Err(Errno::AGAIN) if overrun => return Ok(self.newly_dropped()),
                Err(Errno::AGAIN) => return Ok(0),
                Err(error) => return Err(Error::Io(error.into())),
            }
        }
    }

    /// How many events the kernel has dropped since the last call; at least 1.
    fn newly_dropped(&mut self) -> u64 {
        let now = self.dropped().unwrap_or(0).max(self.dropped + 1);
        now - std::mem::replace(&mut self.dropped, now)
    }

    /// The socket's count of dropped events, from `/proc/net/netlink`.
    fn dropped(&self) -> Option<u64> {
        let port = own_port(&self.socket).ok()?;
        dropped_of(&fs::read_to_string("/proc/thread-self/net/netlink").ok()?, port)
    }
}

fn own_port(socket: &Socket) -> io::Result<u32> {
    let mut address = netlink_sys::SocketAddr::new(0, 0);
    socket.get_address(&mut address)?;
    Ok(address.port_number())
}

/// The column `Drops` of the netfilter socket with this port.
fn dropped_of(table: &str, port: u32) -> Option<u64> {
    const NETFILTER: &str = "12";
    let of_socket = |line: &&str| {
        let mut columns = line.split_whitespace().skip(1);
        columns.next() == Some(NETFILTER) && columns.next() == Some(&port.to_string())
    };
    table.lines().find(of_socket)?.split_whitespace().nth(8)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::{net::UdpSocket, process::Command};

    use localnet_core::{Family, Protocol};

    use super::*;
    use crate::conntrack::{Conntrack as _, Kernel, Selection};

    const RULES: &str = "add table inet t; add chain inet t c { type filter hook output priority 0; }; \
                         add rule inet t c ct state new";

    #[test]
    fn each_flow_that_ends_is_read_or_counted_as_lost() {
        let inside = || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("this test needs root");
            for (program, arguments) in [("ip", &["link", "set", "lo", "up"][..]), ("nft", &[RULES])] {
                assert!(Command::new(program).args(arguments).status().unwrap().success());
            }
            let mut ends = Ends::subscribe().unwrap();
            let client = UdpSocket::bind("127.0.0.1:0").unwrap();
            let end_flows = |ends: &mut Ends, number: u16| {
                (1..=number).for_each(|port| _ = client.send_to(b"x", ("127.0.0.1", port)).unwrap());
                let (mut kernel, mut flows) = (Kernel::open().unwrap(), Vec::new());
                let selection = Selection { family: Family::V4, protocol: Protocol::Udp, established: false };
                kernel.dump(selection, &mut |flow| flows.push(*flow)).unwrap();
                assert_eq!(kernel.delete(&flows).unwrap(), usize::from(number));
                let mut read = 0;
                let lost =
                    ends.drain(&mut |flow, _| read += u64::from(flows.iter().any(|of| of.id == flow.id))).unwrap();
                (read, lost)
            };
            assert_eq!(end_flows(&mut ends, 40), (40, 0));
            rustix::net::sockopt::set_socket_recv_buffer_size(&ends.socket, 8 << 10).unwrap();
            for _ in 0..2 {
                let (read, lost) = end_flows(&mut ends, 100);
                assert!(lost > 0 && read > 0 && read + lost == 100, "{read} read, {lost} lost");
            }
        };
        if let Err(panic) = std::thread::spawn(inside).join() {
            std::panic::resume_unwind(panic);
        }
    }

    #[test]
    fn dropped_events_are_read_from_the_table_of_sockets() {
        let table = "\
sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode
00000000a6ae4e8d 0   4177       00000000 0        0        0     2        7        1\x20
000000005f5ae4d1 12  4177       00000004 0        0        0     2        41       2\x20
";
        assert_eq!(dropped_of(table, 4177), Some(41));
        assert_eq!(dropped_of(table, 4178), None);
        assert_eq!(dropped_of("", 1), None);
    }
}
