//! `NodeState.traffic`: what kube-proxy's configuration means on this node, so that readers of `localnet.v1` need neither its flags nor
//! its file.
//!
//! The conclusions depend on the configuration, the node, and the addresses of this machine's interfaces. [`follow`] keeps the first
//! and the last up to date, and the pump adds the conclusions to each new state of the node.

use std::{net::IpAddr, sync::Arc, time::Duration};

use localnet_config::{Config, DetectLocalMode};
use localnet_config_file::Current;
use localnet_proto::{
    Family, Node,
    model::{ClusterIpMasquerade, LocalPods, TrafficSettings},
    node_ports::{self, NodePortAddresses},
};
use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval},
};

use crate::platform;

/// The addresses of this machine's interfaces are read at this interval.
const POLL_INTERVAL: Duration = Duration::from_secs(30);

/// What the conclusions depend on besides the node.
#[derive(Clone, Debug)]
pub struct Settings {
    config: Arc<Config>,
    /// The addresses of this machine's interfaces.
    interfaces: Vec<IpAddr>,
}

impl PartialEq for Settings {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.config, &other.config) && self.interfaces == other.interfaces
    }
}

impl Settings {
    /// The configuration, with the addresses that this machine has now.
    pub fn now(config: Arc<Config>) -> Self {
        Self { config, interfaces: Vec::new() }.with_interfaces()
    }

    fn with_interfaces(self) -> Self {
        let interfaces = platform::interface_addresses().unwrap_or_else(|error| {
            tracing::warn!(%error, "failed to read the addresses of this node; using the previous ones");
            self.interfaces
        });
        Self { config: self.config, interfaces }
    }

    /// The conclusions for a node.
    pub fn conclude(&self, node: &Node) -> TrafficSettings {
        let (config, local_pods) = (&self.config, self.local_pods(node));
        let addresses = NodePortAddresses {
            primary: config.node_port_addresses.primary(),
            cidrs: config.node_port_addresses.cidrs(),
            localhost: config.node_ports_on_localhost(config.mode),
        };
        // A brain on another machine does not know the node's interfaces.
        let is_here = node.addresses.iter().any(|address| self.interfaces.contains(address));
        let cidrs = |family| if is_here { Vec::new() } else { addresses.cidrs_of(family, node) };
        TrafficSettings {
            node_port_addresses: node_ports::addresses(&addresses, node, if is_here { &self.interfaces } else { &[] }),
            node_port_cidrs: Family::BOTH.into_iter().flat_map(cidrs).collect(),
            cluster_ip_masquerade: match local_pods {
                _ if config.linux.masquerade_all => ClusterIpMasquerade::All,
                LocalPods::None => ClusterIpMasquerade::None,
                _ => ClusterIpMasquerade::ExceptLocalPods,
            },
            local_pods,
            masquerade_mark_bit: (platform::PLATFORM == localnet_config::Platform::Linux)
                .then(|| config.masquerade_bit(config.mode)),
        }
    }

    fn local_pods(&self, node: &Node) -> LocalPods {
        let local = &self.config.detect_local;
        // A CIDR of each family is in use: the first.
        let first = |cidrs: &[ipnet::IpNet]| {
            let of = |family| cidrs.iter().map(ipnet::IpNet::trunc).find(|cidr| Family::of(cidr.addr()) == family);
            LocalPods::Source(Family::BOTH.into_iter().filter_map(of).collect())
        };
        match local.mode {
            DetectLocalMode::ClusterCidr if local.cluster_cidrs.is_empty() => LocalPods::None,
            DetectLocalMode::ClusterCidr => first(&local.cluster_cidrs),
            DetectLocalMode::NodeCidr => first(&node.pod_cidrs),
            DetectLocalMode::BridgeInterface => LocalPods::Interface(local.bridge_interface.as_str().into()),
            DetectLocalMode::InterfaceNamePrefix => {
                LocalPods::InterfacePrefix(local.interface_name_prefix.as_str().into())
            }
        }
    }
}

/// Sends new settings whenever the configuration or the addresses of this machine change. Never resolves.
pub async fn follow(mut current: Current, settings: watch::Sender<Option<Settings>>) {
    let mut ticks = interval(POLL_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let config = tokio::select! {
            config = current.changed() => config,
            _ = ticks.tick() => current.now(),
        };
        settings.send_if_modified(|settings| {
            let interfaces = settings.as_ref().map(|settings| settings.interfaces.clone()).unwrap_or_default();
            let before = settings.replace(Settings { config, interfaces }.with_interfaces());
            before != *settings
        });
    }
}

/// A configuration with these lines.
#[cfg(test)]
pub(crate) fn config(lines: &str) -> Config {
    let text = format!(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha2\nkind: KubeProxyConfiguration\nmode: nftables\n{lines}\n"
    );
    localnet_config::Reader { platform: localnet_config::Platform::Linux, empty_mode: localnet_config::Mode::Nftables }
        .read(&text)
        .unwrap()
        .config
}

#[cfg(test)]
mod tests {
    use localnet_client::vips::{self, Facts, PodSource};
    use localnet_proto::ByFamily;

    use super::*;

    /// The addresses of the node's interfaces.
    const INTERFACES: [&str; 8] =
        ["127.0.0.1", "::1", "10.0.0.9", "192.168.0.2", "192.168.0.3", "169.254.1.1", "fd00::2", "fe80::1"];

    fn parsed<T: std::str::FromStr<Err: std::fmt::Debug>>(texts: &[&str]) -> Vec<T> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn node() -> Node {
        Node {
            addresses: parsed(&["192.168.0.2", "192.168.0.3", "fd00::2"]),
            pod_cidrs: parsed(&["10.1.0.0/24", "fd00:1::/64"]),
            ..Node::default()
        }
    }

    /// How a reader of `localnet.v1` recognizes pods, in the terms of our backends.
    fn source(local: &LocalPods, family: Family) -> Option<PodSource> {
        match local {
            LocalPods::None => None,
            LocalPods::Source(cidrs) => {
                let cidr = cidrs.iter().find(|cidr| Family::of(cidr.addr()) == family);
                cidr.copied().map(PodSource::Cidr)
            }
            LocalPods::Interface(name) => Some(PodSource::Interface(name.clone())),
            LocalPods::InterfacePrefix(prefix) => Some(PodSource::InterfacePrefix(prefix.clone())),
        }
    }

    /// Backends of `localnetv1` draw the same conclusions themselves.
    #[test]
    fn the_conclusions_are_those_of_our_backends() {
        for lines in [
            "",
            "nodePortAddresses: [primary]",
            "nodePortAddresses: [192.168.0.0/24]",
            "nodePortAddresses: [192.168.0.3/32, \"fd01::/16\"]",
            "nodePortAddresses: [0.0.0.0/0, \"::/0\"]",
            "nodePortAddresses: [\"fe80::/10\"]",
            "nodePortAddresses: [primary, localhost]\nfeatureGates: {KubeProxyNFTablesLocalhostNodePorts: true}",
            "detectLocalMode: ClusterCIDR\ndetectLocal: {clusterCIDRs: [10.0.0.0/8]}",
            "detectLocalMode: ClusterCIDR\ndetectLocal: {clusterCIDRs: [10.0.0.1/8, \"fd00::/8\"]}",
            "detectLocalMode: NodeCIDR",
            "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cni0}",
            "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: veth}",
            "linux: {masqueradeAll: true}",
            "nftables: {masqueradeBit: 3}",
        ] {
            let (config, node) = (config(lines), node());
            let mut of_backend = vips::Config::of(&config);
            of_backend.node_port_addresses.localhost = config.node_ports_on_localhost(config.mode);
            let facts = Facts::new(&of_backend, &node, &parsed(&INTERFACES));
            let settings = Settings { config: Arc::new(config), interfaces: parsed(&INTERFACES) };
            let concluded = settings.conclude(&node);
            let mut expected = facts.node_port_addresses.clone();
            expected.sort_unstable();
            assert_eq!((concluded.node_port_addresses, concluded.node_port_cidrs), (expected, Vec::new()), "{lines}");
            let pods = ByFamily::from_fn(|family| source(&concluded.local_pods, family));
            assert_eq!(pods, facts.pods, "{lines}");
            let none = pods == ByFamily::default();
            let masquerade = match (facts.masquerade_all, none) {
                (true, _) => ClusterIpMasquerade::All,
                (false, true) => ClusterIpMasquerade::None,
                (false, false) => ClusterIpMasquerade::ExceptLocalPods,
            };
            assert_eq!(concluded.cluster_ip_masquerade, masquerade, "{lines}");
            assert_eq!(concluded.masquerade_mark_bit.map(|bit| 1 << bit), Some(facts.masquerade_mark), "{lines}");
        }
    }

    #[test]
    fn a_brain_on_another_machine_sends_cidrs() {
        for (lines, addresses, cidrs) in [
            ("nodePortAddresses: [primary]", &["192.168.0.2", "fd00::2"][..], &[][..]),
            ("nodePortAddresses: [192.168.0.0/24]", &[], &["192.168.0.0/24", "::/0"]),
            ("nodePortAddresses: [0.0.0.0/0, \"::/0\"]", &[], &["0.0.0.0/0", "::/0"]),
        ] {
            let settings = Settings { config: Arc::new(config(lines)), interfaces: parsed(&["127.0.0.1", "10.9.9.9"]) };
            let concluded = settings.conclude(&node());
            assert_eq!(concluded.node_port_addresses, parsed::<IpAddr>(addresses), "{lines}");
            assert_eq!(concluded.node_port_cidrs, parsed::<ipnet::IpNet>(cidrs), "{lines}");
        }
    }
}
