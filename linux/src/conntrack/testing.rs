//! A conntrack table in memory for tests, and flows to fill it with.

use std::net::{IpAddr, SocketAddr};

use localnet_core::Protocol;

use super::{Conntrack, Endpoints, Error, Flow, Frontend, Selection, Status, TcpState, Tuple, Zone};

/// The kernel's table, with faults on demand.
#[derive(Debug, Default)]
pub(crate) struct Fake {
    pub(crate) flows: Vec<Flow>,
    /// The selections that were dumped, in order.
    pub(crate) dumps: Vec<Selection>,
    pub(crate) dump_fails: bool,
    pub(crate) delete_fails: bool,
    /// Whether a dump shows each flow twice, as when the kernel interrupts it.
    pub(crate) shows_twice: bool,
}

impl Fake {
    pub(crate) fn new(flows: impl IntoIterator<Item = Flow>) -> Self {
        Self { flows: flows.into_iter().collect(), ..Self::default() }
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
        self.flows.retain(|flow| !flows.iter().any(|deleted| deleted.id == flow.id && deleted.reply == flow.reply));
        Ok(before - self.flows.len())
    }
}

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
