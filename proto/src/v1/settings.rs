//! `TrafficSettings`: model ↔ wire.

use std::sync::Arc;

use super::wire;
use crate::{
    convert::parsed,
    model::{ClusterIpMasquerade, LocalPods, TrafficSettings},
};

/// The message.
pub(super) fn encode(settings: &TrafficSettings) -> wire::TrafficSettings {
    let masquerade = match settings.cluster_ip_masquerade {
        ClusterIpMasquerade::None => wire::ClusterIpMasquerade::None,
        ClusterIpMasquerade::ExceptLocalPods => wire::ClusterIpMasquerade::ExceptLocalPods,
        ClusterIpMasquerade::All => wire::ClusterIpMasquerade::All,
    };
    wire::TrafficSettings {
        node_ports: Some(wire::NodePortAddresses {
            addresses: settings.node_port_addresses.iter().map(ToString::to_string).collect(),
            interface_cidrs: settings.node_port_cidrs.iter().map(ToString::to_string).collect(),
        }),
        local_pods: Some(local_pods(&settings.local_pods)),
        cluster_ip_masquerade: masquerade.into(),
        masquerade_mark_bit: settings.masquerade_mark_bit.map(u32::from),
    }
}

fn local_pods(local: &LocalPods) -> wire::LocalPods {
    use wire::LocalPodDetection as By;

    let (detection, cidrs, interface) = match local {
        LocalPods::None => (By::None, Vec::new(), ""),
        LocalPods::Source(cidrs) => (By::Source, cidrs.iter().map(ToString::to_string).collect(), ""),
        LocalPods::Interface(name) => (By::Interface, Vec::new(), &**name),
        LocalPods::InterfacePrefix(prefix) => (By::InterfacePrefix, Vec::new(), &**prefix),
    };
    wire::LocalPods { detection: detection.into(), cidrs, interface: interface.to_owned() }
}

/// The settings of a message. A way of detection that this reader does not know recognizes no traffic, and an unknown kind of
/// masquerading means all traffic, as node.proto requires.
///
/// # Errors
/// Returns an error if an address, a CIDR or the bit is invalid.
pub(super) fn decode(settings: &wire::TrafficSettings) -> Result<TrafficSettings, String> {
    use wire::LocalPodDetection as By;

    let (node_ports, local) = (settings.node_ports.clone().unwrap_or_default(), settings.local_pods.clone());
    let local = local.unwrap_or_default();
    let local_pods = match By::try_from(local.detection) {
        Ok(By::Source) => LocalPods::Source(parsed(&local.cidrs)?),
        Ok(By::Interface) => LocalPods::Interface(Arc::from(local.interface)),
        Ok(By::InterfacePrefix) => LocalPods::InterfacePrefix(Arc::from(local.interface)),
        Ok(By::None | By::Unspecified) | Err(_) => LocalPods::None,
    };
    let cluster_ip_masquerade = match wire::ClusterIpMasquerade::try_from(settings.cluster_ip_masquerade) {
        Ok(wire::ClusterIpMasquerade::None) => ClusterIpMasquerade::None,
        Ok(wire::ClusterIpMasquerade::ExceptLocalPods) => ClusterIpMasquerade::ExceptLocalPods,
        Ok(wire::ClusterIpMasquerade::All | wire::ClusterIpMasquerade::Unspecified) | Err(_) => {
            ClusterIpMasquerade::All
        }
    };
    let bit = |bit| u8::try_from(bit).ok().filter(|bit| *bit < 32).ok_or_else(|| format!("{bit} is not a bit (0-31)"));
    Ok(TrafficSettings {
        node_port_addresses: parsed(&node_ports.addresses)?,
        node_port_cidrs: parsed(&node_ports.interface_cidrs)?,
        local_pods,
        cluster_ip_masquerade,
        masquerade_mark_bit: settings.masquerade_mark_bit.map(bit).transpose()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_survive_the_wire() {
        let cidrs = |text: &str| text.split_whitespace().map(|one| one.parse().unwrap()).collect();
        for (local_pods, cluster_ip_masquerade) in [
            (LocalPods::None, ClusterIpMasquerade::None),
            (LocalPods::Source(cidrs("10.0.0.0/24 fd00::/64")), ClusterIpMasquerade::ExceptLocalPods),
            (LocalPods::Interface("cni0".into()), ClusterIpMasquerade::ExceptLocalPods),
            (LocalPods::InterfacePrefix("veth".into()), ClusterIpMasquerade::All),
        ] {
            for bit in [None, Some(0), Some(31)] {
                let settings = TrafficSettings {
                    node_port_addresses: vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
                    node_port_cidrs: cidrs("192.168.0.0/16"),
                    local_pods: local_pods.clone(),
                    cluster_ip_masquerade,
                    masquerade_mark_bit: bit,
                };
                assert_eq!(decode(&encode(&settings)), Ok(settings));
            }
        }
    }

    #[test]
    fn values_of_a_newer_brain_fail_closed() {
        let local = wire::LocalPods { detection: 99, cidrs: vec!["10.0.0.0/8".to_owned()], ..Default::default() };
        let newer =
            wire::TrafficSettings { local_pods: Some(local), cluster_ip_masquerade: 99, ..encode(&Default::default()) };
        let read = decode(&newer).unwrap();
        assert_eq!((read.local_pods, read.cluster_ip_masquerade), (LocalPods::None, ClusterIpMasquerade::All));
        let wrong = wire::TrafficSettings { masquerade_mark_bit: Some(32), ..newer };
        assert_eq!(decode(&wrong), Err("32 is not a bit (0-31)".to_owned()));
    }
}
