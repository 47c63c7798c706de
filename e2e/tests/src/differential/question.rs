//! Random packets: senders and destinations. Pure.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use localnet_lab::{
    Namespace, Network, Pod, Protocol,
    topology::{CLIENT, CLIENT_TWO, NODE, NODE_TO_PODS, Place, of_family},
};

use super::{
    cluster::{Cluster, Service},
    pools,
    random::Random,
};

/// The sender of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Sender {
    Pod(Pod),
    Node,
    Client,
    SecondClient,
}

impl fmt::Display for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod(pod) => write!(f, "{:?} pod {}", pod.place, pod.number),
            Self::Node => f.write_str("the node"),
            Self::Client => f.write_str("the client"),
            Self::SecondClient => f.write_str("the client's second address"),
        }
    }
}

/// A packet, and the purpose that it was made for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Question {
    pub(crate) sender: Sender,
    pub(crate) protocol: Protocol,
    pub(crate) to: SocketAddr,
    /// The name of the Service that the packet was made for.
    pub(crate) about: String,
}

impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sender, protocol, to, .. } = self;
        write!(f, "{sender} ({}) → {} {to}", self.source(), protocol.as_lowercase())
    }
}

impl Question {
    pub(crate) fn random(cluster: &Cluster, random: &mut Random) -> Self {
        let services: Vec<&Service> = cluster.services.values().collect();
        let slots: Vec<u8> = cluster.services.keys().copied().collect();
        let at = random.below(services.len());
        let (protocol, to) = destination(services[at], slots[at], random);
        Self { sender: sender(random), protocol, to, about: services[at].name.clone() }
    }

    /// The source address of the packet.
    pub(crate) fn source(&self) -> IpAddr {
        let pair = match self.sender {
            Sender::Pod(pod) => pod.addresses(),
            Sender::Node => NODE,
            Sender::Client => CLIENT,
            Sender::SecondClient => CLIENT_TWO,
        };
        of_family(pair, self.to.ip())
    }

    /// Whether the sender is a process of this node.
    pub(crate) fn is_from_this_node(&self) -> bool {
        match self.sender {
            Sender::Pod(pod) => pod.place == Place::Local,
            Sender::Node => true,
            Sender::Client | Sender::SecondClient => false,
        }
    }

    /// The namespace of the sender.
    pub(crate) fn home<'a>(&self, network: &'a Network) -> anyhow::Result<&'a Namespace> {
        match self.sender {
            Sender::Pod(pod) => network.pod(pod.addresses()[0]),
            Sender::Node => Ok(network.node()),
            Sender::Client | Sender::SecondClient => Ok(network.client()),
        }
    }
}

fn sender(random: &mut Random) -> Sender {
    let number = *random.pick(&pools::PODS);
    random.weighted(&[
        (35, Sender::Pod(pools::pod(Place::Local, number))),
        (12, Sender::Pod(pools::pod(Place::Remote, number))),
        (18, Sender::Node),
        (25, Sender::Client),
        (10, Sender::SecondClient),
    ])
}

#[derive(Clone, Copy)]
enum Aim {
    ClusterIp,
    External,
    LoadBalancer,
    NodePort,
    NodePortElsewhere,
    OtherPort,
    OtherProtocol,
    Unallocated,
    MoreServiceCidrs,
    Anything,
}

fn destination(service: &Service, slot: u8, random: &mut Random) -> (Protocol, SocketAddr) {
    let port = random.pick(&service.ports).clone();
    let (own, number) = (port.protocol, port.number);
    let addresses = |aim: Aim| match aim {
        Aim::External => service.external_ips.clone(),
        Aim::LoadBalancer => service.ingress.iter().map(|ingress| ingress.ip).collect(),
        _ => service.cluster_ips.clone(),
    };
    let mut aim = random.weighted(&[
        (30, Aim::ClusterIp),
        (16, Aim::External),
        (20, Aim::LoadBalancer),
        (20, Aim::NodePort),
        (8, Aim::NodePortElsewhere),
        (4, Aim::OtherPort),
        (3, Aim::OtherProtocol),
        (4, Aim::Unallocated),
        (2, Aim::MoreServiceCidrs),
        (2, Aim::Anything),
    ]);
    if matches!(aim, Aim::External | Aim::LoadBalancer) && addresses(aim).is_empty() {
        aim = Aim::ClusterIp;
    }
    if matches!(aim, Aim::NodePort) && service.node_ports().next().is_none() && random.percent(80) {
        aim = Aim::ClusterIp;
    }
    let any = [addresses(Aim::ClusterIp), addresses(Aim::External), addresses(Aim::LoadBalancer)].concat();
    let other_port = *random.pick(&pools::SERVICE_PORTS);
    let other_protocol = *random.pick(&pools::PROTOCOLS);
    let (protocol, ip, number) = match aim {
        Aim::ClusterIp | Aim::External | Aim::LoadBalancer => (own, *random.pick(&addresses(aim)), number),
        Aim::NodePort => (own, *random.pick(&NODE), port.node_port),
        Aim::NodePortElsewhere => {
            let elsewhere = [&pools::SECOND[..], &NODE_TO_PODS, &[pools::LINK_LOCAL]].concat();
            (own, *random.pick(&elsewhere), port.node_port)
        }
        Aim::OtherPort => (own, *random.pick(&any), other_port),
        Aim::OtherProtocol => (other_protocol, *random.pick(&any), number),
        // An address of a slot beyond the last one, or of this slot, whose Service has it, had it before, or never had it.
        Aim::Unallocated => {
            let pair = *random.pick(&pools::CLUSTER_IPS_OF_SLOT);
            let slot = *random.pick(&[slot, slot + pools::SLOTS]);
            (own, *random.pick(&pools::cluster_ips(slot, pair)), number)
        }
        Aim::MoreServiceCidrs => (own, *random.pick(&pools::IN_MORE_SERVICE_CIDRS), other_port),
        Aim::Anything => {
            let all = [pools::external_ips(), pools::load_balancer_ips()].concat();
            (other_protocol, *random.pick(&all), other_port)
        }
    };
    (protocol, SocketAddr::new(ip, number))
}
