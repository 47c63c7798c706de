//! The configuration of both programs besides the cluster, and its consequences for packets. Pure.

use std::{collections::BTreeSet, fmt, net::IpAddr};

use ipnet::IpNet;
use localnet_client::route::{Origin, Packet, Rules};
use localnet_lab::topology::{CLUSTER_CIDRS, NODE, POD_CIDRS, Place, of_family};

use super::{
    cluster::{NODE_NAMES, NodeFacts},
    pools,
    question::{Question, Sender},
    random::Random,
};

/// The method by which the node detects local pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detector {
    /// The CIDRs of the cluster, of one family, both or none.
    ClusterCidr(&'static [&'static str]),
    /// The pod CIDRs of the Node object.
    NodeCidr,
    /// The "bridge" through which pods send. The lab has no bridge, so the link to one pod stands for it.
    BridgeInterface,
    /// The names of the pods' interfaces.
    InterfaceNamePrefix,
}

/// The link to the pod behind the "bridge".
const BRIDGE: &str = "pod1";
const PREFIX: &str = "pod";

/// The choices of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Setup {
    /// The name of the node.
    pub(crate) node: &'static str,
    /// The facts in the Node object. The programs follow them without flags.
    pub(crate) facts: NodeFacts,
    pub(crate) detector: Detector,
    pub(crate) node_port_addresses: &'static [&'static str],
    pub(crate) masquerade_all: bool,
}

const PRIMARY: &[&str] = &["primary"];

impl Setup {
    /// The setup of most clusters.
    pub(crate) const USUAL: Self = Self {
        node: NODE_NAMES[0],
        facts: NodeFacts { zone: None, addresses: NODE, pod_cidrs: POD_CIDRS },
        detector: Detector::ClusterCidr(&CLUSTER_CIDRS),
        node_port_addresses: PRIMARY,
        masquerade_all: false,
    };

    /// The same setup with other facts in the Node object.
    pub(crate) fn on(self, facts: NodeFacts) -> Self {
        Self { facts, ..self }
    }

    /// Whether both setups have the same flags, so that the programs need not be started again.
    pub(crate) fn has_flags_of(&self, other: &Self) -> bool {
        self.on(other.facts) == *other
    }

    /// A random setup.
    pub(crate) fn random(random: &mut Random) -> Self {
        Self {
            // With the second name, the pods of the other node count as this node's, so their endpoints are local.
            node: random.weighted(&[(3, NODE_NAMES[0]), (2, NODE_NAMES[1])]),
            facts: Self::USUAL.facts,
            detector: random.weighted(&[
                (3, Detector::ClusterCidr(&CLUSTER_CIDRS)),
                (1, Detector::ClusterCidr(&[CLUSTER_CIDRS[0]])),
                (1, Detector::ClusterCidr(&[CLUSTER_CIDRS[1]])),
                (1, Detector::ClusterCidr(&[])),
                (2, Detector::NodeCidr),
                (2, Detector::BridgeInterface),
                (2, Detector::InterfaceNamePrefix),
            ]),
            node_port_addresses: random.weighted::<&'static [&'static str]>(&[
                (3, PRIMARY),
                // Some of the node's addresses in both families, all of one, none of one, all, those towards the pods.
                (2, &["192.168.0.0/16", "2001:db8::/32"]),
                (1, &["192.168.1.0/24"]),
                (1, &["198.51.100.0/24", "2001:db8:1::2/128"]),
                (1, &["2001:db8:1::/64"]),
                (1, &["192.168.0.2/32", "169.254.0.0/16", "::/0"]),
                (2, &["0.0.0.0/0", "::/0"]),
                (1, &["10.180.0.0/16", "fd00:10:180::/48", "127.0.0.0/8"]),
            ]),
            masquerade_all: random.percent(15),
        }
    }

    /// The flags of our backends.
    pub(crate) fn flags(&self) -> Vec<String> {
        let flag = |name: &str, value: &str| [format!("--{name}"), value.to_owned()];
        let mut flags = flag("nodeport-addresses", &self.node_port_addresses.join(",")).to_vec();
        flags.extend(flag("detect-local-mode", self.mode()));
        match self.detector {
            Detector::ClusterCidr([]) | Detector::NodeCidr => {}
            Detector::ClusterCidr(cidrs) => flags.extend(flag("cluster-cidr", &cidrs.join(","))),
            Detector::BridgeInterface => flags.extend(flag("pod-bridge-interface", BRIDGE)),
            Detector::InterfaceNamePrefix => flags.extend(flag("pod-interface-name-prefix", PREFIX)),
        }
        if self.masquerade_all {
            flags.push("--masquerade-all".to_owned());
        }
        flags
    }

    /// Lines of kube-proxy's configuration.
    pub(crate) fn kube_proxy_lines(&self) -> String {
        let cidrs = match self.detector {
            Detector::ClusterCidr(cidrs) => cidrs.join(","),
            _ => String::new(),
        };
        let masquerade_all = self.masquerade_all;
        format!(
            "\
clusterCIDR: \"{cidrs}\"
detectLocalMode: {}
detectLocal: {{bridgeInterface: {BRIDGE}, interfaceNamePrefix: {PREFIX}}}
nodePortAddresses: {:?}
iptables: {{minSyncPeriod: 50ms, syncPeriod: 30s, masqueradeAll: {masquerade_all}, localhostNodePorts: false}}
ipvs: {{minSyncPeriod: 50ms, syncPeriod: 1h}}
nftables: {{minSyncPeriod: 50ms, syncPeriod: 30s, masqueradeAll: {masquerade_all}}}
",
            self.mode(),
            self.node_port_addresses,
        )
    }

    fn mode(&self) -> &'static str {
        match self.detector {
            Detector::ClusterCidr(_) => "ClusterCIDR",
            Detector::NodeCidr => "NodeCIDR",
            Detector::BridgeInterface => "BridgeInterface",
            Detector::InterfaceNamePrefix => "InterfaceNamePrefix",
        }
    }

    /// The rules that the oracle needs, for packets to an address.
    pub(crate) fn rules(&self, to: IpAddr) -> Rules {
        Rules {
            masquerade_all: self.masquerade_all,
            detects_pods: match self.detector {
                Detector::ClusterCidr(cidrs) => cidrs.iter().any(|cidr| network(cidr).addr().is_ipv4() == to.is_ipv4()),
                Detector::NodeCidr | Detector::BridgeInterface | Detector::InterfaceNamePrefix => true,
            },
            node_port_addresses: self.node_port_addresses(),
        }
    }

    /// The packet of a question as the oracle sees it, on a node with this setup.
    pub(crate) fn packet(&self, question: &Question) -> Packet {
        let Question { sender, protocol, to, .. } = *question;
        let origin = self.origin(sender, to.ip());
        Packet { source: question.source(), destination: to.ip(), protocol, port: to.port(), origin }
    }

    /// The origin of a sender's packets, as the node sees it.
    fn origin(&self, sender: Sender, to: IpAddr) -> Origin {
        match sender {
            Sender::Node => self.origin_at(of_family(NODE, to), ""),
            Sender::Client | Sender::SecondClient => Origin::Outside,
            Sender::Pod(pod) => {
                let interface =
                    if pod.place == Place::Local { format!("pod{}", pod.number) } else { "uplink".to_owned() };
                self.origin_at(of_family(pod.addresses(), to), &interface)
            }
        }
    }

    /// The origin of a packet from this source on this interface of the node. A process of the node has no interface.
    pub(crate) fn origin_at(&self, source: IpAddr, interface: &str) -> Origin {
        let in_any = |cidrs: &[&str]| cidrs.iter().any(|cidr| network(cidr).contains(&source));
        let is_known = match self.detector {
            _ if interface.is_empty() => return Origin::Node,
            Detector::ClusterCidr(cidrs) => in_any(cidrs),
            Detector::NodeCidr => in_any(&self.facts.pod_cidrs),
            Detector::InterfaceNamePrefix => interface.starts_with(PREFIX),
            Detector::BridgeInterface => interface == BRIDGE,
        };
        if is_known { Origin::Pod } else { Origin::Outside }
    }

    /// The node's addresses that answer NodePorts.
    fn node_port_addresses(&self) -> BTreeSet<IpAddr> {
        if self.node_port_addresses == PRIMARY {
            return self.facts.addresses.into();
        }
        let answers = |ip: &IpAddr| match self.is_restricted(*ip) {
            true => self.node_port_cidrs(*ip).any(|cidr| cidr.contains(ip)),
            false => *ip != pools::LINK_LOCAL,
        };
        pools::addresses_of_node().filter(answers).collect()
    }

    /// Whether some of the node's addresses in the family of `like` do not answer NodePorts.
    pub(crate) fn is_restricted(&self, like: IpAddr) -> bool {
        let mut cidrs = self.node_port_cidrs(like).peekable();
        self.node_port_addresses == PRIMARY || cidrs.peek().is_some() && cidrs.all(|cidr| cidr.prefix_len() > 0)
    }

    fn node_port_cidrs(&self, like: IpAddr) -> impl Iterator<Item = IpNet> {
        let cidrs = if self.node_port_addresses == PRIMARY { &[] } else { self.node_port_addresses };
        cidrs.iter().map(|cidr| network(cidr)).filter(move |cidr| cidr.addr().is_ipv4() == like.is_ipv4())
    }
}

impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.node, self.flags().join(" "))
    }
}

fn network(text: &str) -> IpNet {
    text.parse().expect("a CIDR of this file")
}
