//! What `flows.yaml` can say: which packets go where, in words that no backend owns. Pure.
//!
//! ```yaml
//! node:                                   # how the node is set up; all optional
//!   name: node-a                          # whose view of the cluster is tested
//!   detect_local: {cluster_cidr: [10.180.0.0/16, fd00:10:180::/48]}
//!   masquerade_all: false
//!   node_port_addresses: [192.168.0.0/16] # on its addresses inside of these; absent: on the primary ones
//!   addresses: [192.168.1.2]              # of the node, beyond the lab's fixed ones
//! flows:
//!   - {from: pod:10.180.0.2, proto: tcp, to: 172.30.0.41, port: 80, answers: [10.180.0.1:80, 10.180.1.1:80], source: kept}
//!   - {from: client, proto: udp, to: 172.30.0.41, port: 53, outcome: reject, because: nothing serves it}
//! ```
//! `from` is `client` (or `client:ADDRESS`), `node`, `pod:ADDRESS` or `remote-pod:ADDRESS`; a pod may be named by either of its
//! addresses. A flow has either `answers`, all endpoints that must answer in the course of many probes and the only ones that may,
//! or an `outcome`: `reject`, `drop`, or `untouched`, which means that the packet arrives where it was sent to, unchanged.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, bail};
use ipnet::IpNet;
use serde::Deserialize;

use crate::probe::Protocol;
use crate::serve::Endpoint;
use crate::topology::{CLIENT, CLIENT_TWO, LOOPBACK, NODE, NODE_TO_PODS, Place, Pod, Topology, of_family};

/// The contents of a `flows.yaml`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flows {
    /// How the node is set up.
    #[serde(default)]
    pub node: NodeOptions,
    /// What must be true of its packets.
    pub flows: Vec<Flow>,
}

/// How the node is set up: what a backend is told besides the state it receives.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NodeOptions {
    /// The node's name in the cluster.
    pub name: String,
    /// How the node knows its own pods; absent means that it does not.
    pub detect_local: Option<DetectLocal>,
    /// Whether everything sent to a cluster IP is masqueraded.
    pub masquerade_all: bool,
    /// Where NodePorts are open: on its addresses inside of these; absent: on its primary ones.
    pub node_port_addresses: Option<Vec<IpNet>>,
    /// Addresses of the node beyond the lab's fixed ones.
    pub addresses: Vec<IpAddr>,
}

impl Default for NodeOptions {
    fn default() -> Self {
        Self {
            name: "node-a".to_owned(),
            detect_local: None,
            masquerade_all: false,
            node_port_addresses: None,
            addresses: Vec::new(),
        }
    }
}

/// How a node knows its own pods.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DetectLocal {
    /// Their addresses are in these, at most one of each family.
    ClusterCidr(Vec<IpNet>),
    /// Their addresses are in the pod CIDRs of the Node object.
    NodeCidr,
    /// They come in by this bridge.
    BridgeInterface(String),
    /// They come in by an interface whose name begins so. In the lab it is `pod`.
    InterfaceNamePrefix(String),
}

/// One statement about packets.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Written")]
pub struct Flow {
    /// Who sends them.
    pub from: Sender,
    /// By which protocol.
    pub protocol: Protocol,
    /// Where to.
    pub to: SocketAddr,
    /// What must come of it.
    pub expect: Expect,
    /// Why, if the author said so.
    pub because: Option<String>,
}

/// Who sends packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// The outside client, from this address or its first one.
    Client(Option<IpAddr>),
    /// The node itself.
    Node,
    /// A pod.
    Pod(Pod),
}

/// What must come of a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expect {
    /// These endpoints answer, each of them and no other.
    Answers {
        /// Their addresses.
        by: BTreeSet<SocketAddr>,
        /// What they see as the source; absent if it does not matter.
        source: Option<Source>,
    },
    /// Refused at once.
    Reject,
    /// Nothing ever comes back.
    Drop,
    /// Arrives where it was sent to, from whom it was sent.
    Untouched,
}

/// What an endpoint sees as the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// The address it was sent from.
    Kept,
    /// An address of the node. (For packets from the node itself that may be the one they were sent from.)
    Masqueraded,
}

impl Flows {
    /// Reads a `flows.yaml`.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        Ok(serde_saphyr::from_str(text)?)
    }

    /// What has to answer so that the flows can be checked: every endpoint they name, and for an outcome the destination itself, a witness
    /// of packets that get through. Without it a reject would look like a port where nothing listens. (Pods have no witnesses.)
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

    /// The addresses of the node's interfaces, as far as they are of use to anyone.
    pub fn local_addresses(&self) -> Vec<IpAddr> {
        NODE.into_iter().chain(NODE_TO_PODS).chain(self.node.addresses.iter().copied()).chain(LOOPBACK).collect()
    }

    /// The network that the flows and these endpoints need.
    pub fn topology(&self, endpoints: &BTreeSet<Endpoint>) -> Topology {
        let senders = self.flows.iter().filter_map(|flow| match flow.from {
            Sender::Pod(pod) => Some(pod),
            Sender::Client(_) | Sender::Node => None,
        });
        let servers = endpoints.iter().filter_map(|endpoint| Pod::at(endpoint.address.ip()));
        Topology { pods: senders.chain(servers).collect(), node_addresses: self.node.addresses.clone() }
    }
}

impl Sender {
    /// The address that a packet to `to` is sent from.
    pub fn source(self, to: IpAddr) -> IpAddr {
        match self {
            Self::Client(Some(address)) => address,
            Self::Client(None) => of_family(CLIENT, to),
            Self::Node => of_family(NODE, to),
            Self::Pod(pod) => of_family(pod.addresses(), to),
        }
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let (kind, address) = match text.split_once(':') {
            Some((kind, address)) => {
                (kind, Some(address.parse::<IpAddr>().with_context(|| format!("reading the address in from: {text}"))?))
            }
            None => (text, None),
        };
        match (kind, address) {
            ("node", None) => Ok(Self::Node),
            ("client", None) => Ok(Self::Client(None)),
            ("client", Some(own)) if CLIENT.contains(&own) || CLIENT_TWO.contains(&own) => Ok(Self::Client(Some(own))),
            ("pod" | "remote-pod", Some(address)) => match Pod::at(address) {
                Some(pod) if (pod.place == Place::Local) == (kind == "pod") => Ok(Self::Pod(pod)),
                _ => bail!("from: {text} names no {kind} of the lab (10.180.0.N are pods, 10.180.1.N remote pods)"),
            },
            _ => bail!("from: {text} is none of client, client:ADDRESS, node, pod:ADDRESS, remote-pod:ADDRESS"),
        }
    }
}

impl fmt::Display for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client(None) => f.write_str("client"),
            Self::Client(Some(address)) => write!(f, "client:{address}"),
            Self::Node => f.write_str("node"),
            Self::Pod(pod) if pod.place == Place::Local => write!(f, "pod:{}", pod.addresses()[0]),
            Self::Pod(pod) => write!(f, "remote-pod:{}", pod.addresses()[0]),
        }
    }
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} → {} {}", self.from, self.protocol, self.to)?;
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
                    None => Ok(()),
                }
            }
            Self::Reject => f.write_str("a reject"),
            Self::Drop => f.write_str("silence"),
            Self::Untouched => f.write_str("to arrive untouched"),
        }
    }
}

/// A flow as it is written.
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
        let from = Sender::parse(&written.from).map_err(|error| format!("{error:#}"))?;
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
