//! The evidence from which answers are computed, and the outcome that the state determines for a packet.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
};

use localnet_client::{
    Snapshot,
    route::{self, Origin, Outcome, Packet, Target},
    vips::{Config, Exposure, Facts, PodSource, Vip, VipKey},
};
use localnet_core::Diagnostic;
use localnet_linux::routes::Route;
use localnet_proto::{Family, Protocol, Scopes, ServiceKey};

use crate::{
    configuration::Configuration,
    kernel::{self, Kernel, Observed},
    listings::Listings,
    path::{self, Path, Step},
    question,
};

/// The evidence for an answer: the state, the node's configuration, and the kernel if it can be read.
#[derive(Debug)]
pub struct World {
    /// The state of the node.
    pub state: Snapshot,
    /// The configuration that `facts` come from.
    pub configuration: Configuration,
    /// The values that plans use in addition to the Services.
    pub facts: Facts,
    /// The addresses of the node's interfaces; empty if unknown.
    pub local: Vec<IpAddr>,
    /// Whether the state describes this machine. If so, this machine's links may be read, whichever backend runs.
    pub is_here: bool,
    /// Whether the ebpf backend translates the connections of this node's processes.
    pub has_ebpf: bool,
    /// The name of the backend that programs this machine, if it is not nft.
    pub other: Option<String>,
    /// The kernel, or why it is not read.
    pub kernel: Result<Kernel, Diagnostic>,
    /// The plans and the live states in a sysdump, by the names of backends other than nft.
    pub listings: BTreeMap<String, Listings>,
    /// What a sysdump contains about forwarding and tracked flows.
    pub dumped: Option<Observed>,
}

/// The outcome that the state determines for a packet, and the objects that lead to this outcome.
#[derive(Debug)]
pub struct Judged<'a> {
    /// The packet before any translation.
    pub packet: Packet,
    /// The port of a Service that the packet is sent to; `None` if the destination is no VIP.
    pub target: Option<Target<'a>>,
    /// The plan on this node for the VIP that the packet is sent to.
    pub vip: Option<Vip>,
    /// The outcome for the packet.
    pub outcome: Outcome,
}

impl World {
    /// Gathers the evidence about this node, whose kernel holds no rules of localnet. Must be called in a tokio runtime.
    pub async fn of_shadow(state: Snapshot, config: Config) -> Self {
        let configuration = Configuration::chosen(config);
        let local = kernel::addresses().await.unwrap_or_default();
        let facts = configuration.facts(&state.node, Some(&local));
        let kernel = Err(kernel::unread("localnet only compares"));
        Self {
            state,
            configuration,
            facts,
            local,
            is_here: true,
            has_ebpf: false,
            other: None,
            kernel,
            listings: BTreeMap::new(),
            dumped: None,
        }
    }

    /// Returns the outcome that the oracle predicts for a packet, without reading the kernel.
    pub fn judge(&self, packet: Packet) -> Judged<'_> {
        let rules = question::rules(&self.facts, Family::of(packet.destination));
        let target = route::target(&self.state, &rules, &packet);
        let key = VipKey { address: packet.destination, protocol: packet.protocol, port: packet.port };
        let vip = target.as_ref().and_then(|target| path::vip(target.service, &self.facts, &key));
        Judged { packet, target, vip, outcome: route::route(&self.state, &rules, &packet) }
    }

    /// Builds the packet of a question. If the detector recognizes pods by their interface, reads the sender's interface from
    /// the kernel.
    pub async fn packet(&self, from: question::From, to: (SocketAddr, Protocol)) -> Packet {
        let by_interface = matches!(
            self.facts.pods(Family::of(to.0.ip())),
            Some(PodSource::Interface(_) | PodSource::InterfacePrefix(_))
        );
        let mut interface = None;
        if let Some(source) = from.address().filter(|_| by_interface && self.is_here) {
            let routes = kernel::routes([source]).await.unwrap_or_default();
            interface = routes.into_iter().find_map(|(_, route)| match route {
                Route::Out { interface, .. } => Some(interface),
                Route::Local | Route::None(_) => None,
            });
        }
        let here = question::Here { local: &self.local, interface: interface.as_deref() };
        question::packet(from, to, &self.state, &self.facts, here)
    }

    /// Whether the node's kernel forwards packets, and how many flows it tracks.
    pub fn observed(&self) -> Observed {
        self.dumped.unwrap_or_else(Observed::now)
    }

    /// Whether rules of the nft backend count refused packets. Only the kernel tells.
    pub fn counts_refused(&self) -> bool {
        self.kernel.as_ref().is_ok_and(|kernel| kernel.counts_refused)
    }

    /// Whether the address is one of the node's own.
    pub fn has(&self, address: IpAddr) -> bool {
        self.local.contains(&address) || self.state.node.addresses.contains(&address)
    }
}

impl Judged<'_> {
    /// Returns the steps of the packet through the rules of the nft backend.
    pub fn steps(&self, world: &World) -> Vec<Step> {
        let family = Family::of(self.packet.destination);
        let affinity = path::has_affinity(&world.state, &world.facts, family);
        let path = Path::new(&world.facts, family, affinity, world.counts_refused());
        let at_node = world.has(self.packet.destination);
        match (&self.target, &self.vip) {
            (Some(target), Some(vip)) => path.to_vip(&self.packet, target, vip, &self.outcome, at_node),
            _ => path.to_none(&self.packet, &self.outcome, at_node),
        }
    }

    /// Returns the scope of the packet, as a set with one element.
    pub fn scope(&self) -> Scopes {
        let mut scopes = Scopes::default();
        match (&self.target, &self.vip) {
            (Some(target), _) if target.internal => scopes.internal = true,
            (_, Some(vip)) if vip.exposure == Exposure::ExternalLocal && self.packet.origin != Origin::Outside => {
                scopes.short_circuit = true;
            }
            _ => scopes.external = true,
        }
        scopes
    }

    /// Whether the ebpf backend translates a connection of the sender, so that no such packet exists (docs/backends/ebpf.md).
    pub fn is_translated_on_connect(&self, world: &World) -> bool {
        let to = self.packet.destination;
        let is_served = self
            .target
            .as_ref()
            .is_some_and(|target| !target.service.source_filters.iter().any(|filter| filter.targets.contains(&to)));
        let can_be = self.packet.protocol != Protocol::Sctp && !to.is_loopback();
        world.has_ebpf && self.packet.origin != Origin::Outside && is_served && can_be
    }

    /// Whether the source ranges of the destination exclude the source.
    pub fn is_filtered(&self) -> bool {
        self.target.as_ref().is_some_and(|target| !route::admitted(target.service, &self.packet))
    }

    /// The Service that the packet is sent to, if any.
    pub fn service(&self) -> Option<&ServiceKey> {
        self.target.as_ref().map(|target| &target.service.key)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::configuration::ConfigurationArgs;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        configuration: ConfigurationArgs,
    }

    #[test]
    fn the_ebpf_backend_translates_what_processes_of_the_node_connect_to() {
        let state = crate::source::read(
            "node: {name: n, addresses: [192.168.0.2]}
services:
- {service: shop/web, type: LoadBalancer, clusterIPs: [10.96.0.1], loadBalancerIPs: [198.51.100.1],
   sourceFilters: [{targets: [198.51.100.1], sourceRanges: [10.0.0.0/8]}],
   ports: [{name: a, protocol: TCP, port: 80}, {name: b, protocol: SCTP, port: 80}]}
",
        )
        .unwrap();
        let configuration = Configuration::of(&Line::parse_from(["localnet"]).configuration, Err("a test")).unwrap();
        let facts = configuration.facts(&state.node, None);
        let kernel = Err(kernel::unread("a test"));
        let (local, other) = (Vec::new(), None);
        let mut world = World {
            state,
            configuration,
            facts,
            local,
            is_here: false,
            has_ebpf: true,
            other,
            kernel,
            listings: BTreeMap::new(),
            dumped: None,
        };
        let is_translated = |world: &World, origin, to: &str, protocol| {
            let to: SocketAddr = to.parse().unwrap();
            let source = [10, 0, 0, 1].into();
            let packet = Packet { source, destination: to.ip(), protocol, port: to.port(), origin };
            world.judge(packet).is_translated_on_connect(world)
        };
        for (origin, to, protocol, expected) in [
            (Origin::Pod, "10.96.0.1:80", Protocol::Tcp, true),
            (Origin::Node, "10.96.0.1:80", Protocol::Tcp, true),
            (Origin::Outside, "10.96.0.1:80", Protocol::Tcp, false),
            (Origin::Pod, "10.96.0.1:80", Protocol::Sctp, false),
            (Origin::Pod, "198.51.100.1:80", Protocol::Tcp, false),
            (Origin::Pod, "10.96.0.1:81", Protocol::Tcp, false),
        ] {
            assert_eq!(is_translated(&world, origin, to, protocol), expected, "{origin:?} {to} {protocol:?}");
        }
        world.has_ebpf = false;
        assert!(!is_translated(&world, Origin::Pod, "10.96.0.1:80", Protocol::Tcp));
    }
}
