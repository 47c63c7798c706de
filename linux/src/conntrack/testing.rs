//! A conntrack table in memory for tests, and flows to fill it with. The contract in `tests/conntrack` checks that it behaves like the
//! kernel's.

use std::net::SocketAddr;

use localnet_core::Protocol;

use super::{Conntrack, Error, Flow, Selection, Status, Tuple, Zone};

/// The kernel's table, with faults on demand.
#[derive(Clone, Debug, Default)]
pub struct Fake {
    /// The entries, in the order of a dump.
    pub flows: Vec<Flow>,
    /// The ID of the newest entry.
    pub ids: u32,
    /// The selections that were dumped, in order.
    pub dumps: Vec<Selection>,
    /// Whether dumps fail after they have shown all flows.
    pub dump_fails: bool,
    /// Whether deletions fail.
    pub delete_fails: bool,
    /// Whether a dump shows each flow twice, as when the kernel interrupts it.
    pub shows_twice: bool,
}

impl Fake {
    /// A table with these entries.
    pub fn new(flows: impl IntoIterator<Item = Flow>) -> Self {
        Self { flows: flows.into_iter().collect(), ..Self::default() }
    }

    /// A datagram passes the node. If it belongs to no flow, `rules` translates its destination, unless they return `None`. Returns
    /// where it arrives.
    pub fn send(&mut self, packet: Tuple, rules: impl FnOnce(SocketAddr) -> Option<SocketAddr>) -> SocketAddr {
        for flow in self.flows.iter_mut().filter(|flow| flow.protocol == Protocol::Udp) {
            if flow.original == packet {
                return flow.reply.source;
            }
            if flow.reply == packet {
                flow.status = Status(flow.status.0 | Status::SEEN_REPLY.0);
                return flow.original.source;
            }
        }
        let translated = rules(packet.destination);
        let arrives = translated.unwrap_or(packet.destination);
        let mut reply = Tuple { source: arrives, destination: packet.source };
        // If another flow has this reply, the kernel also translates the client's port.
        while self.flows.iter().any(|flow| flow.reply == reply) {
            reply.destination.set_port(reply.destination.port().wrapping_add(1).max(1024));
        }
        self.ids += 1;
        self.flows.push(Flow {
            protocol: Protocol::Udp,
            original: packet,
            reply,
            status: translated.map_or(Status(0), |_| Status::DESTINATION_NAT),
            tcp_state: None,
            zone: Zone::Both(0),
            id: self.ids,
        });
        arrives
    }

    /// Enters a flow again under a new ID, as a packet does that was in flight while the rules changed.
    pub fn repeat(&mut self, flow: &Flow) -> u32 {
        self.ids += 1;
        self.flows.push(Flow { id: self.ids, ..*flow });
        self.ids
    }
}

impl Conntrack for Fake {
    fn dump(&mut self, selection: Selection, visit: &mut dyn FnMut(&Flow)) -> Result<(), Error> {
        self.dumps.push(selection);
        for _ in 0..1 + usize::from(self.shows_twice) {
            self.flows.iter().filter(|flow| selection.admits(flow)).for_each(&mut *visit);
        }
        if self.dump_fails { Err(Error::Interrupted) } else { Ok(()) }
    }

    fn delete(&mut self, flows: &[Flow]) -> Result<usize, Error> {
        if self.delete_fails && !flows.is_empty() {
            return Err(Error::Unanswered);
        }
        let before = self.flows.len();
        // The status may have changed since the dump.
        let name = |flow: &Flow| (flow.id, flow.protocol, flow.reply, flow.zone);
        self.flows.retain(|flow| !flows.iter().any(|deleted| name(deleted) == name(flow)));
        Ok(before - self.flows.len())
    }
}

#[cfg(test)]
pub(crate) use samples::*;

#[cfg(test)]
mod samples {
    use std::net::IpAddr;

    use super::*;
    use crate::conntrack::{Endpoints, Frontend, TcpState};

    /// Whether a flow has seen packets in both directions.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Stage {
        Unanswered,
        Answered,
    }

    pub(crate) fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    pub(crate) fn frontend(protocol: Protocol, text: &str) -> Frontend {
        Frontend::new(protocol, address(text))
    }

    pub(crate) fn endpoints(all: &[&str]) -> Endpoints {
        all.iter().map(|text| address(text)).collect()
    }

    /// A flow to `destination` that ends at `endpoint`, as the kernel records it after the rules translated it.
    pub(crate) fn flow(protocol: Protocol, stage: Stage, destination: SocketAddr, endpoint: SocketAddr) -> Flow {
        let client: IpAddr =
            if destination.is_ipv4() { [10, 0, 0, 9].into() } else { [0xfd00, 0, 0, 0, 0, 0, 0, 9].into() };
        let client = SocketAddr::new(client, 40_000);
        let mut status = 0;
        if stage == Stage::Answered {
            status |= Status::SEEN_REPLY.0 | Status::ASSURED.0;
        }
        if destination != endpoint {
            status |= Status::DESTINATION_NAT.0;
        }
        let tcp_state = match stage {
            Stage::Unanswered => TcpState::SYN_SENT,
            Stage::Answered => TcpState::ESTABLISHED,
        };
        Flow {
            protocol,
            original: Tuple { source: client, destination },
            reply: Tuple { source: endpoint, destination: client },
            status: Status(status),
            tcp_state: (protocol == Protocol::Tcp).then_some(tcp_state),
            zone: Zone::Both(0),
            id: 1,
        }
    }

    impl Flow {
        /// The same flow, entered by a packet of the reply direction.
        pub(crate) fn reversed(self) -> Self {
            Self { original: self.reply, reply: self.original, ..self }
        }
    }
}
