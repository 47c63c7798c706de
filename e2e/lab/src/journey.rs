//! The path of a packet through both nodes of a network, if the verdict of each node is known. Pure.
//!
//! ```text
//!   sender ─▶ its own node, or the node that has the destination ─▶ verdict ─▶ the node that has the endpoint ─▶ verdict ─▶ …
//! ```
//! A node's verdict comes from an oracle, which knows one node. This module knows the network: it passes a packet from node to
//! node, and says what the last one receives, and whether the answer comes back.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use crate::flow::{Expect, Sender, Source};
use crate::lines::interface;
use crate::topology::{Place, Topology, of_family};

/// A packet that passes a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The node.
    pub node: Place,
    /// The interface on which it arrives; empty if a process of the node sends it.
    pub interface: String,
    /// The source address.
    pub source: IpAddr,
    /// The destination.
    pub to: SocketAddr,
}

/// What a node does with a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It sends the packet to one of several endpoints.
    Endpoints {
        /// The endpoints.
        choices: BTreeSet<SocketAddr>,
        /// Whether it masquerades the packet, whichever endpoint it chooses.
        masquerade: bool,
        /// The endpoints for which it always masquerades the packet.
        hairpin: BTreeSet<SocketAddr>,
    },
    /// It rejects the packet.
    Reject,
    /// It drops the packet.
    Drop,
    /// It does not change the packet.
    Untouched,
}

/// Where a packet ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// A server answers, and the answer comes back to the sender.
    Answer {
        /// The server.
        by: SocketAddr,
        /// The last node that masqueraded the packet. The server sees an address of this node, or that of the sender.
        masqueraded_by: Option<Place>,
    },
    /// A node rejects it.
    Rejected,
    /// A node drops it.
    Dropped,
    /// The answer bypasses a node that has translated the packet, so the sender does not recognize it.
    Lost,
}

/// All ends that a sender's packet to a destination can have, if `verdict` tells what a node does.
pub fn journey(
    topology: &Topology,
    sender: Sender,
    to: SocketAddr,
    verdict: impl Fn(&Hop) -> Verdict,
) -> BTreeSet<End> {
    let (node, interface) = match sender {
        Sender::Node => (Place::Local, String::new()),
        Sender::OtherNode => (Place::Remote, String::new()),
        Sender::Pod(pod) => (pod.place, interface(pod)),
        Sender::Client(_) => (topology.home(to.ip()).unwrap_or(Place::Local), UPLINK.to_owned()),
    };
    // The source of a packet from a node to one of its own addresses is that address.
    let to_itself = interface.is_empty() && topology.is_of(node, to.ip());
    let source = if to_itself { to.ip() } else { sender.source(to.ip()) };
    let mut journey = Journey { topology, verdict, ends: BTreeSet::new() };
    journey.pass(&Hop { node, interface, source, to }, None, MOST_HOPS);
    journey.ends
}

/// The interface of packets from elsewhere.
const UPLINK: &str = "uplink";
/// A packet that passes more nodes goes in a circle.
const MOST_HOPS: usize = 4;

struct Journey<'a, V> {
    topology: &'a Topology,
    verdict: V,
    ends: BTreeSet<End>,
}

impl<V: Fn(&Hop) -> Verdict> Journey<'_, V> {
    fn pass(&mut self, hop: &Hop, masqueraded_by: Option<Place>, hops_left: usize) {
        match (self.verdict)(hop) {
            _ if hops_left == 0 => _ = self.ends.insert(End::Lost),
            Verdict::Reject => _ = self.ends.insert(End::Rejected),
            Verdict::Drop => _ = self.ends.insert(End::Dropped),
            Verdict::Untouched => self.deliver(hop, masqueraded_by, hops_left),
            Verdict::Endpoints { choices, masquerade, hairpin } => {
                for choice in choices {
                    let wanted = masquerade || hairpin.contains(&choice);
                    self.send_to(choice, wanted, hop, masqueraded_by, hops_left);
                }
            }
        }
    }

    /// Follows a packet that `hop.node` has translated.
    fn send_to(
        &mut self,
        choice: SocketAddr,
        wanted: bool,
        hop: &Hop,
        masqueraded_by: Option<Place>,
        hops_left: usize,
    ) {
        let (node, by_process) = (hop.node, hop.interface.is_empty());
        // A packet that arrives and stays on the node does not pass the hook that masquerades.
        let masquerades = wanted && (by_process || !self.topology.is_of(node, choice.ip()));
        if !masquerades && !self.answer_passes(node, hop.source, choice.ip(), by_process) {
            self.ends.insert(End::Lost);
            return;
        }
        let to_own_pod = self.topology.home(choice.ip()) == Some(node) && !self.topology.is_of(node, choice.ip());
        let own = if to_own_pod { node.gateways() } else { node.addresses() };
        let source = if masquerades { of_family(own, choice.ip()) } else { hop.source };
        let translated = Hop { source, to: choice, ..hop.clone() };
        self.deliver(&translated, masquerades.then_some(node).or(masqueraded_by), hops_left);
    }

    /// Follows a packet that leaves `hop.node` to the node that has its destination, or to a server.
    fn deliver(&mut self, hop: &Hop, masqueraded_by: Option<Place>, hops_left: usize) {
        match self.topology.home(hop.to.ip()) {
            Some(home) if home != hop.node => {
                let next = Hop { node: home, interface: UPLINK.to_owned(), source: hop.source, to: hop.to };
                self.pass(&next, masqueraded_by, hops_left - 1);
            }
            _ => _ = self.ends.insert(End::Answer { by: hop.to, masqueraded_by }),
        }
    }

    /// Whether the answer of an endpoint to a source passes the node. The outside world answers the client through the first node.
    fn answer_passes(&self, node: Place, source: IpAddr, endpoint: IpAddr, by_process: bool) -> bool {
        let homes = [source, endpoint].map(|address| self.topology.home(address));
        let passes = homes.contains(&Some(node)) || homes == [None, None] && node == Place::Local;
        passes && (source != endpoint || by_process)
    }
}

impl Expect {
    /// Whether a packet that has these ends meets the expectation.
    pub fn allows(&self, ends: &BTreeSet<End>, to: SocketAddr) -> bool {
        match self {
            Self::Answers { by, source } => {
                let seen = |end: &End| match end {
                    End::Answer { by, masqueraded_by } => Some((*by, *masqueraded_by)),
                    End::Rejected | End::Dropped | End::Lost => None,
                };
                let seen: Option<BTreeSet<_>> = ends.iter().map(seen).collect();
                let masqueraded_by = match source {
                    Some(Source::Kept) => Some(None),
                    Some(Source::Masqueraded) => Some(Some(Place::Local)),
                    Some(Source::MasqueradedByOtherNode) => Some(Some(Place::Remote)),
                    None => None,
                };
                seen.is_some_and(|seen| {
                    let answering: BTreeSet<_> = seen.iter().map(|(by, _)| *by).collect();
                    answering == *by && masqueraded_by.is_none_or(|expected| seen.iter().all(|(_, of)| *of == expected))
                })
            }
            Self::Untouched => *ends == BTreeSet::from([End::Answer { by: to, masqueraded_by: None }]),
            Self::Reject => *ends == BTreeSet::from([End::Rejected]),
            Self::Drop => *ends == BTreeSet::from([End::Dropped]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    /// Both nodes send packets to 10.9.9.9 to one pod of each node. Each node serves the NodePort 30080 at its own address, the
    /// first one with all endpoints, and the other one with its own endpoint alone.
    fn ends(from: &str, to: &str, masquerade: bool) -> String {
        let topology = Topology { other_node: true, ..Topology::with_pods(["10.180.0.1", "10.180.1.1"]).unwrap() };
        let (local, remote) = (at("10.180.0.1:80"), at("10.180.1.1:80"));
        let verdict = |hop: &Hop| {
            let choices = match (hop.node, hop.to.to_string().as_str()) {
                (_, "10.9.9.9:80") | (Place::Local, "192.168.0.2:30080") => BTreeSet::from([local, remote]),
                (Place::Remote, "192.168.0.3:30080") => BTreeSet::from([remote]),
                (Place::Remote, "192.168.0.3:30081") => return Verdict::Drop,
                _ => return Verdict::Untouched,
            };
            let own = choices
                .iter()
                .copied()
                .filter(|choice| choice.ip() == hop.source && topology.home(choice.ip()) == Some(hop.node));
            Verdict::Endpoints { hairpin: own.collect(), choices, masquerade }
        };
        let sender = from.parse::<Sender>().unwrap();
        let ends = journey(&topology, sender, at(to), verdict);
        let shown = ends.iter().map(|end| match end {
            End::Answer { by, masqueraded_by: None } => format!("{by}"),
            End::Answer { by, masqueraded_by: Some(node) } => format!("{by} by {node:?}"),
            other => format!("{other:?}"),
        });
        shown.collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn packets_pass_from_node_to_node_and_answers_return() {
        let (local, remote) = ("10.180.0.1:80", "10.180.1.1:80");
        for (from, to, masquerade, expected) in [
            ("pod:10.180.0.1", "10.9.9.9:80", false, format!("{local} by Local, {remote}")),
            ("remote-pod:10.180.1.1", "10.9.9.9:80", false, format!("{local}, {remote} by Remote")),
            ("node", "10.9.9.9:80", true, format!("{local} by Local, {remote} by Local")),
            ("other-node", "10.9.9.9:80", true, format!("{local} by Remote, {remote} by Remote")),
            ("client", "10.9.9.9:80", true, format!("{local} by Local, {remote} by Local")),
            // The answer of the other node's pod does not pass the first node.
            ("client", "10.9.9.9:80", false, format!("{local}, Lost")),
            ("client", "192.168.0.3:30080", false, remote.to_owned()),
            ("pod:10.180.0.1", "192.168.0.3:30080", false, remote.to_owned()),
            ("pod:10.180.0.1", "192.168.0.3:30080", true, format!("{remote} by Remote")),
            ("remote-pod:10.180.1.1", "192.168.0.2:30080", true, format!("{local} by Local, {remote} by Local")),
            ("remote-pod:10.180.1.1", "192.168.0.2:30080", false, format!("{local}, Lost")),
            ("pod:10.180.0.1", "192.168.0.3:30081", false, "Dropped".to_owned()),
            ("node", "192.168.0.3:30081", true, "Dropped".to_owned()),
            ("client", "192.168.0.3:9", true, "192.168.0.3:9".to_owned()),
            ("pod:10.180.0.1", "1.2.3.4:80", true, "1.2.3.4:80".to_owned()),
        ] {
            assert_eq!(ends(from, to, masquerade), expected, "{from} → {to}, masquerade {masquerade}");
        }
    }
}
