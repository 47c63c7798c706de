//! The format of `flows.yaml`: which packets go where, in terms that belong to no backend. Pure.
//!
//! ```yaml
//! node:                                   # the node's configuration; all optional
//!   name: node-a                          # the node under test
//!   detect_local: {cluster_cidr: [10.180.0.0/16, fd00:10:180::/48]}
//!   masquerade_all: false
//!   node_port_addresses: [192.168.0.0/16] # NodePorts are open on the node's addresses in these; default: the primary ones
//!   localhost: false                      # whether NodePorts are open on 127.0.0.1, too
//!   addresses: [192.168.1.2]              # addresses of the node besides the lab's fixed ones
//! flows:
//!   - {from: pod:10.180.0.2, proto: tcp, to: 172.30.0.41, port: 80, answers: [10.180.0.1:80, 10.180.1.1:80], source: kept}
//!   - {from: client, proto: udp, to: 172.30.0.41, port: 53, outcome: reject, because: nothing serves it}
//! ```
//! `from` is `client` (or `client:ADDRESS`), `node`, `pod:ADDRESS` or `remote-pod:ADDRESS`, with either address of the pod, or in
//! `between-nodes.yaml`, which has the same format, `other-node`. A flow
//! has either `answers` or an `outcome`. `answers` lists the endpoints that must all answer over many probes, and no others. An
//! outcome is `reject`, `drop` or `untouched`: the packet arrives at its destination unchanged.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use anyhow::{Context, bail};
use ipnet::IpNet;
use localnet_core::Protocol;
use serde::Deserialize;

use crate::serve::Endpoint;
use crate::topology::{CLIENT, CLIENT_TWO, LOOPBACK, NODE, OTHER_NODE, Place, Pod, Topology, of_family};

/// The content of a `flows.yaml`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flows {
    /// The node's configuration.
    #[serde(default)]
    pub node: NodeOptions,
    /// The expectations about packets.
    pub flows: Vec<Flow>,
    /// The node that [`Flows::node`] configures.
    #[serde(skip)]
    pub place: Place,
}

/// The node's configuration, which a backend needs besides the state that it receives.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NodeOptions {
    /// The node's name in the cluster.
    pub name: String,
    /// How the node detects its own pods; `None` if it does not.
    pub detect_local: Option<DetectLocal>,
    /// Whether all packets to ClusterIPs are masqueraded.
    pub masquerade_all: bool,
    /// NodePorts are open on the node's addresses in these networks; `None`: on its primary addresses.
    pub node_port_addresses: Option<Vec<IpNet>>,
    /// Whether NodePorts are open on 127.0.0.1, too. Only the modes iptables and nftables can do so.
    pub localhost: bool,
    /// Addresses of the node besides the lab's fixed ones.
    pub addresses: Vec<IpAddr>,
}

impl Default for NodeOptions {
    fn default() -> Self {
        Self {
            name: "node-a".to_owned(),
            detect_local: None,
            masquerade_all: false,
            node_port_addresses: None,
            localhost: false,
            addresses: Vec::new(),
        }
    }
}

/// How a node detects its own pods, as in kube-proxy's `--detect-local-mode`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DetectLocal {
    /// By source address: in these networks, at most one of each family.
    ClusterCidr(Vec<IpNet>),
    /// By source address: in the pod CIDRs of the Node object.
    NodeCidr,
    /// By input interface: this bridge.
    BridgeInterface(String),
    /// By input interface: a name with this prefix, which is `pod` in the lab.
    InterfaceNamePrefix(String),
}

/// An expectation about the packets of one sender to one destination.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Written")]
pub struct Flow {
    /// The sender.
    pub from: Sender,
    /// The transport protocol.
    pub protocol: Protocol,
    /// The destination.
    pub to: SocketAddr,
    /// The expected outcome.
    pub expect: Expect,
    /// The reason for the expectation, for error messages.
    pub because: Option<String>,
}

/// A sender of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// The external client, from this address or from its first one.
    Client(Option<IpAddr>),
    /// The node itself.
    Node,
    /// The other node itself.
    OtherNode,
    /// A pod.
    Pod(Pod),
}

/// The expected outcome of a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Each of these endpoints answers, and no other.
    Answers {
        /// The addresses of the endpoints.
        by: BTreeSet<SocketAddr>,
        /// The source address that the endpoints see; `None` if it does not matter.
        source: Option<Source>,
    },
    /// The packet is rejected at once.
    Reject,
    /// Nothing comes back.
    Drop,
    /// The packet arrives at its destination with its source address unchanged.
    Untouched,
}

/// The source address that an endpoint sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// The sender's address.
    Kept,
    /// An address of the node. For packets from the node itself it may be the sender's address.
    Masqueraded,
    /// An address of the other node.
    MasqueradedByOtherNode,
}

impl Flows {
    /// Parses a `flows.yaml`.
    ///
    /// # Errors
    /// Returns an error that names the line if the text is not a valid `flows.yaml`.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        Ok(serde_saphyr::from_str(text)?)
    }

    /// The endpoints at which servers have to run: every endpoint that a flow names. For an outcome also the destination itself, to
    /// detect packets that get through; without a server there, a reject would look like a closed port. Pods have no such servers.
    pub fn endpoints(&self) -> BTreeSet<Endpoint> {
        let mut endpoints = BTreeSet::new();
        for flow in &self.flows {
            let addresses = match &flow.expect {
                Expect::Answers { by, .. } => by.clone(),
                Expect::Reject | Expect::Drop | Expect::Untouched if Pod::at(flow.to.ip()).is_none() => {
                    BTreeSet::from([flow.to])
                }
                Expect::Reject | Expect::Drop | Expect::Untouched => continue,
            };
            endpoints.extend(addresses.into_iter().map(|address| Endpoint { protocol: flow.protocol, address }));
        }
        endpoints
    }

    /// The addresses of the node's interfaces, without link-local ones.
    pub fn local_addresses(&self) -> Vec<IpAddr> {
        let own = self.place.addresses().into_iter().chain(self.place.gateways());
        own.chain(self.node.addresses.iter().copied()).chain(LOOPBACK).collect()
    }

    /// The network that the flows and the endpoints need.
    pub fn topology(&self, endpoints: &BTreeSet<Endpoint>) -> Topology {
        let senders = self.flows.iter().filter_map(|flow| match flow.from {
            Sender::Pod(pod) => Some(pod),
            Sender::Client(_) | Sender::Node | Sender::OtherNode => None,
        });
        let servers = endpoints.iter().filter_map(|endpoint| Pod::at(endpoint.address.ip()));
        Topology {
            pods: senders.chain(servers).collect(),
            node_addresses: self.node.addresses.clone(),
            ..Topology::default()
        }
    }
}

impl Sender {
    /// The source address of a packet to `to`.
    pub fn source(self, to: IpAddr) -> IpAddr {
        match self {
            Self::Client(Some(address)) => address,
            Self::Client(None) => of_family(CLIENT, to),
            Self::Node => of_family(NODE, to),
            Self::OtherNode => of_family(OTHER_NODE, to),
            Self::Pod(pod) => of_family(pod.addresses(), to),
        }
    }
}

impl FromStr for Sender {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (kind, address) = match text.split_once(':') {
            Some((kind, address)) => {
                (kind, Some(address.parse::<IpAddr>().with_context(|| format!("reading the address in from: {text}"))?))
            }
            None => (text, None),
        };
        match (kind, address) {
            ("node", None) => Ok(Self::Node),
            ("other-node", None) => Ok(Self::OtherNode),
            ("client", None) => Ok(Self::Client(None)),
            ("client", Some(own)) if CLIENT.contains(&own) || CLIENT_TWO.contains(&own) => Ok(Self::Client(Some(own))),
            ("pod" | "remote-pod", Some(address)) => match Pod::at(address) {
                Some(pod) if (pod.place == Place::Local) == (kind == "pod") => Ok(Self::Pod(pod)),
                _ => bail!("from: {text} is not a {kind} of the lab (10.180.0.N are pods, 10.180.1.N remote pods)"),
            },
            _ => bail!(
                "from: {text} is none of client, client:ADDRESS, node, other-node, pod:ADDRESS, remote-pod:ADDRESS"
            ),
        }
    }
}

impl fmt::Display for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client(None) => f.write_str("client"),
            Self::Client(Some(address)) => write!(f, "client:{address}"),
            Self::Node => f.write_str("node"),
            Self::OtherNode => f.write_str("other-node"),
            Self::Pod(pod) if pod.place == Place::Local => write!(f, "pod:{}", pod.addresses()[0]),
            Self::Pod(pod) => write!(f, "remote-pod:{}", pod.addresses()[0]),
        }
    }
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} → {} {}", self.from, self.protocol.as_lowercase(), self.to)?;
        match &self.because {
            Some(because) => write!(f, " ({because})"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Expect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Answers { by, source } => {
                let by: Vec<_> = by.iter().map(ToString::to_string).collect();
                write!(f, "answers by each of {}", by.join(", "))?;
                match source {
                    Some(Source::Kept) => f.write_str(" which see the sender's address"),
                    Some(Source::Masqueraded) => f.write_str(" which see an address of the node"),
                    Some(Source::MasqueradedByOtherNode) => f.write_str(" which see an address of the other node"),
                    None => Ok(()),
                }
            }
            Self::Reject => f.write_str("a reject"),
            Self::Drop => f.write_str("silence"),
            Self::Untouched => f.write_str("to arrive untouched"),
        }
    }
}

/// A flow as `flows.yaml` contains it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    from: String,
    proto: Protocol,
    to: IpAddr,
    port: u16,
    answers: Option<BTreeSet<SocketAddr>>,
    source: Option<Source>,
    outcome: Option<WrittenOutcome>,
    because: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum WrittenOutcome {
    Reject,
    Drop,
    Untouched,
}

impl TryFrom<Written> for Flow {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        let expect = match (written.answers, written.source, written.outcome) {
            (Some(by), source, None) if !by.is_empty() => Expect::Answers { by, source },
            (None, None, Some(WrittenOutcome::Reject)) => Expect::Reject,
            (None, None, Some(WrittenOutcome::Drop)) => Expect::Drop,
            (None, None, Some(WrittenOutcome::Untouched)) => Expect::Untouched,
            _ => return Err("a flow has either answers (with or without source) or an outcome".to_owned()),
        };
        let from = written.from.parse::<Sender>().map_err(|error| format!("{error:#}"))?;
        let to = SocketAddr::new(written.to, written.port);
        let addresses = match &expect {
            Expect::Answers { by, .. } => by.iter().map(SocketAddr::ip).collect(),
            Expect::Reject | Expect::Drop | Expect::Untouched => Vec::new(),
        };
        let mut families = addresses.into_iter().chain([from.source(to.ip())]).map(|address| address.is_ipv4());
        if families.any(|ipv4| ipv4 != to.is_ipv4()) {
            return Err(format!("the flow to {to} mixes address families"));
        }
        Ok(Self { from, protocol: written.proto, to, expect, because: written.because })
    }
}

#[cfg(test)]
mod tests;
