//! What a proxy's rules do with the first packet of a flow.

use std::{
    collections::BTreeSet,
    fmt,
    net::{IpAddr, SocketAddr},
};

use localnet_client::route::{Outcome, Packet};
use serde::Serialize;

/// What happens to a packet. Random choices give several possibilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    /// The packet goes to this endpoint.
    #[serde(rename_all = "camelCase")]
    Endpoint {
        /// The endpoint.
        to: SocketAddr,
        /// Whether the node's address replaces the packet's source address.
        masquerade: bool,
        /// Whether the client is remembered, so that it keeps its endpoint.
        sticky: bool,
    },
    /// The sender gets "port unreachable".
    Reject,
    /// The packet is dropped.
    Drop,
    /// The rules leave the packet alone.
    Untouched,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Endpoint { to, masquerade, sticky } => {
                let masquerade = if *masquerade { " masqueraded" } else { "" };
                write!(f, "{to}{masquerade}{}", if *sticky { " sticky" } else { "" })
            }
            Self::Reject => f.write_str("reject"),
            Self::Drop => f.write_str("drop"),
            Self::Untouched => f.write_str("untouched"),
        }
    }
}

/// All possibilities for a packet.
pub type Verdicts = BTreeSet<Verdict>;

/// The possibilities that the oracle predicts.
pub fn of_outcome(outcome: &Outcome) -> Verdicts {
    match outcome {
        Outcome::Endpoints { choices, masquerade, hairpin, affinity } => {
            let endpoint = |to: &SocketAddr| Verdict::Endpoint {
                to: *to,
                masquerade: *masquerade || hairpin.contains(to),
                sticky: affinity.is_some(),
            };
            choices.iter().map(endpoint).collect()
        }
        Outcome::Reject => [Verdict::Reject].into(),
        Outcome::Drop => [Verdict::Drop].into(),
        Outcome::NotOurs => [Verdict::Untouched].into(),
    }
}

/// How a packet leaves a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// At its end, or by a return.
    AtEnd,
    /// Accepted, so that no further rule of this hook sees it.
    Accepted,
    /// Masqueraded.
    Masqueraded,
    /// Dropped.
    Dropped,
    /// Rejected.
    Rejected,
}

impl Left {
    /// The verdict for a packet that goes no further.
    pub fn end(self) -> Option<Verdict> {
        match self {
            Self::Dropped => Some(Verdict::Drop),
            Self::Rejected => Some(Verdict::Reject),
            Self::AtEnd | Self::Accepted | Self::Masqueraded => None,
        }
    }
}

/// A packet on its way through rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passing<'a> {
    /// The packet as it was sent.
    pub packet: &'a Packet,
    /// The addresses of the node's interfaces.
    pub local: &'a [IpAddr],
    /// The addresses of kube-ipvs0 in mode ipvs, which are the node's own, too.
    pub bound: &'a BTreeSet<IpAddr>,
    /// The present destination.
    pub to: SocketAddr,
    /// Whether a rule has translated the destination.
    pub translated: bool,
    /// The packet's mark.
    pub mark: u32,
    /// Whether a rule has remembered the client.
    pub sticky: bool,
}

impl<'a> Passing<'a> {
    /// A packet that no rule has seen.
    pub fn new(packet: &'a Packet, local: &'a [IpAddr]) -> Self {
        static NONE: BTreeSet<IpAddr> = BTreeSet::new();
        Self {
            packet,
            local,
            bound: &NONE,
            to: SocketAddr::new(packet.destination, packet.port),
            translated: false,
            mark: 0,
            sticky: false,
        }
    }

    /// The verdict for the translated packet.
    pub fn arrives(&self, masquerade: bool) -> Verdict {
        Verdict::Endpoint { to: self.to, masquerade, sticky: self.sticky }
    }

    /// Whether the address is one of the node's own.
    pub fn is_local(&self, address: IpAddr) -> bool {
        address.is_loopback() || self.local.contains(&address) || self.bound.contains(&address)
    }
}

/// A rule that this program cannot evaluate, because it compares something unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot evaluate the rule {0:?}")]
pub struct Unknown(pub String);

#[cfg(test)]
pub(super) mod testing {
    use std::net::{IpAddr, Ipv4Addr, SocketAddr};

    use localnet_client::route::{Origin, Packet};
    use localnet_proto::Protocol;

    use super::{Verdict, Verdicts};

    /// The only address of the node.
    pub(in super::super) const LOCAL: [IpAddr; 1] = [IpAddr::V4(Ipv4Addr::new(192, 168, 0, 2))];

    /// A packet from the node, from a pod (10.180.0.0/16) or from another host.
    pub(in super::super) fn packet(from: &str, to: &str, protocol: Protocol) -> Packet {
        let (source, to): (IpAddr, SocketAddr) = (from.parse().unwrap(), to.parse().unwrap());
        let origin = match from {
            _ if LOCAL.contains(&source) => Origin::Node,
            _ if from.starts_with("10.180.") => Origin::Pod,
            _ => Origin::Outside,
        };
        Packet { source, destination: to.ip(), protocol, port: to.port(), origin }
    }

    /// The verdicts without ports, `M` for masqueraded and `S` for sticky.
    pub(in super::super) fn short(verdicts: &Verdicts) -> String {
        let one = |verdict: &Verdict| match verdict {
            Verdict::Endpoint { to, .. } => verdict.to_string().replace(&to.to_string(), &to.ip().to_string()),
            other => other.to_string(),
        };
        let all: Vec<String> = verdicts.iter().map(one).collect();
        all.join(", ").replace(" masqueraded", " M").replace(" sticky", " S")
    }
}
