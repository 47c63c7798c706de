//! `TrafficSettings` ↔ `BackendConfiguration` of `localnetv1`.

use std::{net::IpAddr, str::FromStr};

use ipnet::IpNet;

use crate::{
    model::{ClusterIpMasquerade, Family, LocalPods, Node, TrafficSettings},
    wire::{BackendConfiguration, DetectLocal, IpSet},
};

/// The bit that kube-proxy uses by default. In `localnetv1`, a backend cannot leave the bit out.
const DEFAULT_BIT: u8 = 14;

/// The configuration that leads to the same verdicts as the settings. `None` if there is none: `localnetv1` cannot express that
/// traffic from this node's pods is recognized, but no traffic to ClusterIPs is masqueraded.
pub(super) fn encode(settings: &TrafficSettings) -> Option<BackendConfiguration> {
    use ClusterIpMasquerade as Masquerade;

    let masquerade_all = match (settings.cluster_ip_masquerade, &settings.local_pods) {
        // "All except that of local pods" is all if no pod is recognized.
        (Masquerade::All, _) | (Masquerade::ExceptLocalPods, LocalPods::None) => true,
        (Masquerade::ExceptLocalPods, _) | (Masquerade::None, LocalPods::None) => false,
        (Masquerade::None, _) => return None,
    };
    let (detect_local, cidrs, interface) = match &settings.local_pods {
        LocalPods::None => (DetectLocal::None, &[][..], ""),
        LocalPods::Source(cidrs) => (DetectLocal::ClusterCidr, &cidrs[..], ""),
        LocalPods::Interface(name) => (DetectLocal::BridgeInterface, &[][..], &**name),
        LocalPods::InterfacePrefix(prefix) => (DetectLocal::InterfaceNamePrefix, &[][..], &**prefix),
    };
    let (v4, v6): (Vec<_>, Vec<_>) = settings.node_port_addresses.iter().partition(|address| address.is_ipv4());
    Some(BackendConfiguration {
        detect_local: detect_local.into(),
        cluster_cid_rs: cidrs.iter().map(ToString::to_string).collect(),
        interface: interface.to_owned(),
        masquerade_all,
        masquerade_bit: settings.masquerade_mark_bit.unwrap_or(DEFAULT_BIT).into(),
        node_ports_on_primary: false,
        node_port_cid_rs: Family::BOTH.into_iter().flat_map(|family| node_port_cidrs(settings, family)).collect(),
        node_port_addresses: Some(IpSet {
            v4: v4.into_iter().map(ToString::to_string).collect(),
            v6: v6.into_iter().map(ToString::to_string).collect(),
        }),
    })
}

/// CIDRs that select the addresses of a family that serve NodePorts. Without any, all addresses of the family would serve them.
fn node_port_cidrs(settings: &TrafficSettings, family: Family) -> Vec<String> {
    let addresses = settings.node_port_addresses.iter().filter(|address| !address.is_loopback());
    let all = addresses.map(|address| IpNet::from(*address)).chain(settings.node_port_cidrs.iter().copied());
    let cidrs: Vec<_> = all.filter(|cidr| Family::of(cidr.addr()) == family).map(|cidr| cidr.to_string()).collect();
    if !cidrs.is_empty() {
        return cidrs;
    }
    // No interface has the unspecified address.
    vec![if family == Family::V4 { "0.0.0.0/32" } else { "::/128" }.to_owned()]
}

/// The settings that lead to the same verdicts as the configuration of a backend on the node. What cannot be parsed is left out.
pub(super) fn decode(configuration: &BackendConfiguration, node: &Node) -> TrafficSettings {
    // A CIDR of each family is in use: the first.
    let first = |cidrs: Vec<IpNet>| {
        let of = |family| cidrs.iter().map(IpNet::trunc).find(|cidr| Family::of(cidr.addr()) == family);
        LocalPods::Source(Family::BOTH.into_iter().filter_map(of).collect())
    };
    let interface = || configuration.interface.as_str().into();
    let local_pods = match configuration.detect_local() {
        DetectLocal::ClusterCidr => first(parsed(&configuration.cluster_cid_rs)),
        DetectLocal::NodeCidr => first(node.pod_cidrs.clone()),
        DetectLocal::BridgeInterface => LocalPods::Interface(interface()),
        DetectLocal::InterfaceNamePrefix => LocalPods::InterfacePrefix(interface()),
        DetectLocal::None | DetectLocal::Unknown => LocalPods::None,
    };
    let addresses = configuration.node_port_addresses.iter().flat_map(|set| set.v4.iter().chain(&set.v6));
    let mut node_port_addresses: Vec<IpAddr> = parsed(addresses);
    node_port_addresses.sort_unstable();
    TrafficSettings {
        node_port_addresses,
        node_port_cidrs: Vec::new(),
        cluster_ip_masquerade: match local_pods {
            _ if configuration.masquerade_all => ClusterIpMasquerade::All,
            LocalPods::None => ClusterIpMasquerade::None,
            _ => ClusterIpMasquerade::ExceptLocalPods,
        },
        local_pods,
        masquerade_mark_bit: u8::try_from(configuration.masquerade_bit).ok().filter(|bit| *bit < 32),
    }
}

fn parsed<'a, T: FromStr>(texts: impl IntoIterator<Item = &'a String>) -> Vec<T> {
    texts.into_iter().filter_map(|text| text.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cidrs(text: &str) -> Vec<IpNet> {
        text.split_whitespace().map(|one| one.parse().unwrap()).collect()
    }

    #[test]
    fn settings_survive_the_older_form() {
        for (local_pods, cluster_ip_masquerade) in [
            (LocalPods::None, ClusterIpMasquerade::None),
            (LocalPods::None, ClusterIpMasquerade::All),
            (LocalPods::Source(cidrs("10.0.0.0/24 fd00::/64")), ClusterIpMasquerade::ExceptLocalPods),
            (LocalPods::Interface("cni0".into()), ClusterIpMasquerade::ExceptLocalPods),
            (LocalPods::InterfacePrefix("veth".into()), ClusterIpMasquerade::All),
        ] {
            let settings = TrafficSettings {
                node_port_addresses: ["10.0.0.1", "127.0.0.1", "fd00::1"].map(|one| one.parse().unwrap()).into(),
                node_port_cidrs: Vec::new(),
                local_pods,
                cluster_ip_masquerade,
                masquerade_mark_bit: Some(15),
            };
            let older = encode(&settings).unwrap();
            assert_eq!(older.node_port_cid_rs, ["10.0.0.1/32", "fd00::1/128"]);
            assert_eq!(decode(&older, &Node::default()), settings);
        }
    }

    #[test]
    fn a_family_without_addresses_serves_no_node_ports() {
        let settings = TrafficSettings {
            node_port_addresses: vec!["127.0.0.1".parse().unwrap()],
            node_port_cidrs: cidrs("fd00::/8"),
            ..TrafficSettings::default()
        };
        assert_eq!(encode(&settings).unwrap().node_port_cid_rs, ["0.0.0.0/32", "fd00::/8"]);
    }

    #[test]
    fn what_the_older_form_cannot_express_is_left_out() {
        let local_pods = LocalPods::Interface("cni0".into());
        let settings = TrafficSettings { local_pods, ..TrafficSettings::default() };
        assert_eq!(encode(&settings), None, "pods are recognized, but nothing is masqueraded");
        let cluster_ip_masquerade = ClusterIpMasquerade::ExceptLocalPods;
        let settings = TrafficSettings { cluster_ip_masquerade, ..TrafficSettings::default() };
        assert!(encode(&settings).unwrap().masquerade_all, "no pod is recognized");
    }

    #[test]
    fn the_pod_cidrs_of_the_node_are_sources() {
        let node = Node { pod_cidrs: cidrs("10.1.0.7/24 10.2.0.0/24 fd00::/64"), ..Node::default() };
        let detect_local = DetectLocal::NodeCidr.into();
        let settings = decode(&BackendConfiguration { detect_local, ..BackendConfiguration::default() }, &node);
        assert_eq!(settings.local_pods, LocalPods::Source(cidrs("10.1.0.0/24 fd00::/64")));
        assert_eq!(settings.cluster_ip_masquerade, ClusterIpMasquerade::ExceptLocalPods);
    }
}
