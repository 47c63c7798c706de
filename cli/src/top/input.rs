//! The keys of the live view of `localnet top`, and what they choose among. Pure.

use std::net::{IpAddr, SocketAddr};

use localnet_client::Snapshot;
use localnet_proto::{Family, Protocol, Service};

use crate::question;

/// A key, as far as the view knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// The line above.
    Up,
    /// The line below.
    Down,
    /// The page above.
    PageUp,
    /// The page below.
    PageDown,
    /// The first line.
    Home,
    /// The last line.
    End,
    /// Into the selected line.
    Enter,
    /// Back, or out of the filter.
    Escape,
    /// The previous destination.
    Left,
    /// The next destination.
    Right,
    /// Deletes the last character of the filter.
    Backspace,
    /// A character.
    Char(char),
    /// Ctrl-C.
    Interrupt,
}

/// What the I/O loop must do after a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Draw.
    Draw,
    /// Exit.
    Quit,
    /// Explain a packet, and call [`Model::explained`](super::model::Model::explained) with the answer.
    Explain(Question),
}

/// The packet to explain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// The sender.
    pub from: Sender,
    /// The destination.
    pub to: SocketAddr,
    /// The protocol.
    pub protocol: Protocol,
}

/// The kinds of senders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// A pod of this node.
    Pod,
    /// The node.
    Node,
    /// A client outside the cluster.
    Outside,
}

impl Sender {
    /// The sender in the words of `--from`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pod => "pod",
            Self::Node => "node",
            Self::Outside => "outside",
        }
    }

    /// The sender as the value of `--from`.
    pub fn question(self) -> question::From {
        match self {
            Self::Pod => question::From::Pod(None),
            Self::Node => question::From::Node,
            Self::Outside => question::From::Outside(None),
        }
    }

    /// The next one, in a circle.
    pub fn next(self) -> Self {
        match self {
            Self::Pod => Self::Node,
            Self::Node => Self::Outside,
            Self::Outside => Self::Pod,
        }
    }
}

/// What Services are sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    /// New connections per second.
    #[default]
    Connections,
    /// Bytes per second.
    Bytes,
    /// Flows.
    Flows,
    /// Unanswered flows.
    Unanswered,
    /// Refused packets per second.
    Refused,
    /// Eligible endpoints, the fewest first.
    Endpoints,
    /// The name.
    Name,
}

impl Sort {
    /// The next one, in a circle.
    pub fn next(self) -> Self {
        match self {
            Self::Connections => Self::Bytes,
            Self::Bytes => Self::Flows,
            Self::Flows => Self::Unanswered,
            Self::Unanswered => Self::Refused,
            Self::Refused => Self::Endpoints,
            Self::Endpoints => Self::Name,
            Self::Name => Self::Connections,
        }
    }

    /// The order in words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connections => "connections/s",
            Self::Bytes => "bytes/s",
            Self::Flows => "flows",
            Self::Unanswered => "unanswered flows",
            Self::Refused => "refused packets/s",
            Self::Endpoints => "fewest endpoints",
            Self::Name => "name",
        }
    }
}

/// An address and port of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// The kind of address.
    pub kind: &'static str,
    /// The address and port.
    pub to: SocketAddr,
    /// The protocol.
    pub protocol: Protocol,
}

/// All addresses and ports of a Service: ClusterIPs first.
pub fn destinations(state: &Snapshot, service: &Service) -> Vec<Destination> {
    let mut all = Vec::new();
    let each = |kind, ips: &[IpAddr], all: &mut Vec<Destination>| {
        for port in &service.ports {
            let to = |ip: &IpAddr| Destination { kind, to: SocketAddr::new(*ip, port.port), protocol: port.protocol };
            all.extend(ips.iter().map(to));
        }
    };
    each("ClusterIP", &service.cluster_ips, &mut all);
    for port in &service.ports {
        let families = Family::BOTH.into_iter().filter(|family| service.has_family(*family));
        let node = families.filter_map(|family| state.node.primary_address(family));
        all.extend(node.zip(std::iter::repeat(port.node_port)).filter_map(|(ip, number)| {
            Some(Destination { kind: "NodePort", to: SocketAddr::new(ip, number?), protocol: port.protocol })
        }));
    }
    each("LoadBalancer", &service.load_balancer_ips, &mut all);
    each("ExternalIP", &service.external_ips, &mut all);
    all
}
