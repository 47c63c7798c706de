//! [`Effective`]: the configuration in effect. A backend reports it to the brain, and readers of the report decode it.

use std::{error::Error, fmt, net::IpAddr};

use localnet_proto::wire::{BackendConfiguration, DetectLocal, IpSet};

use super::{Config, Detector, NodePortAddresses};

/// The configuration in effect. Together with the state, it determines the verdict for a packet on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effective {
    /// The configured values or their defaults.
    pub config: Config,
    /// The addresses that answer NodePorts at present, sorted within each family.
    pub node_port_addresses: Vec<IpAddr>,
}

impl From<&Effective> for BackendConfiguration {
    fn from(effective: &Effective) -> Self {
        let Effective { config, node_port_addresses } = effective;
        let Config { masquerade_all, masquerade_bit, detector, node_port_addresses: configured } = config;
        let (detect_local, cluster_cidrs, interface) = match detector {
            Detector::None => (DetectLocal::None, &[][..], ""),
            Detector::ClusterCidr(cidrs) => (DetectLocal::ClusterCidr, &cidrs[..], ""),
            Detector::NodeCidr => (DetectLocal::NodeCidr, &[][..], ""),
            Detector::BridgeInterface(name) => (DetectLocal::BridgeInterface, &[][..], &**name),
            Detector::InterfaceNamePrefix(prefix) => (DetectLocal::InterfaceNamePrefix, &[][..], &**prefix),
        };
        let (v4, v6): (Vec<&IpAddr>, Vec<&IpAddr>) = node_port_addresses.iter().partition(|address| address.is_ipv4());
        Self {
            detect_local: detect_local.into(),
            cluster_cid_rs: texts(cluster_cidrs),
            interface: interface.to_owned(),
            masquerade_all: *masquerade_all,
            masquerade_bit: (*masquerade_bit).into(),
            node_ports_on_primary: configured.primary,
            node_port_cid_rs: texts(&configured.cidrs),
            node_port_addresses: Some(IpSet { v4: texts(v4), v6: texts(v6) }),
        }
    }
}

/// The error for a reported configuration that this version cannot decode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// The name of the field.
    pub field: &'static str,
    /// The value of the field.
    pub value: String,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { field, value } = self;
        write!(f, "{field} is {value:?}, which this version does not know")
    }
}

impl Error for Unreadable {}

impl TryFrom<&BackendConfiguration> for Effective {
    type Error = Unreadable;

    /// # Errors
    /// Returns an error if a field has a value that this version does not know, because the backend is newer or faulty.
    fn try_from(report: &BackendConfiguration) -> Result<Self, Self::Error> {
        let interface = || report.interface.as_str().into();
        let detector = match report.detect_local() {
            DetectLocal::Unknown => {
                return Err(Unreadable { field: "DetectLocal", value: report.detect_local.to_string() });
            }
            DetectLocal::None => Detector::None,
            DetectLocal::ClusterCidr => Detector::ClusterCidr(read("ClusterCIDRs", &report.cluster_cid_rs)?),
            DetectLocal::NodeCidr => Detector::NodeCidr,
            DetectLocal::BridgeInterface => Detector::BridgeInterface(interface()),
            DetectLocal::InterfaceNamePrefix => Detector::InterfaceNamePrefix(interface()),
        };
        let addresses = report.node_port_addresses.iter().flat_map(|set| set.v4.iter().chain(&set.v6));
        let addresses: Vec<IpAddr> = read("NodePortAddresses", addresses)?;
        let node_port_addresses = NodePortAddresses {
            primary: report.node_ports_on_primary,
            cidrs: read("NodePortCIDRs", &report.node_port_cid_rs)?,
            localhost: addresses.iter().any(IpAddr::is_loopback),
        };
        let bit = u8::try_from(report.masquerade_bit).ok().filter(|bit| *bit < 32);
        let unreadable = || Unreadable { field: "MasqueradeBit", value: report.masquerade_bit.to_string() };
        let config = Config {
            masquerade_all: report.masquerade_all,
            masquerade_bit: bit.ok_or_else(unreadable)?,
            detector,
            node_port_addresses,
        };
        Ok(Self { config, node_port_addresses: addresses })
    }
}

fn texts(items: impl IntoIterator<Item = impl ToString>) -> Vec<String> {
    items.into_iter().map(|item| item.to_string()).collect()
}

fn read<'a, T: std::str::FromStr>(
    field: &'static str,
    texts: impl IntoIterator<Item = &'a String>,
) -> Result<Vec<T>, Unreadable> {
    let one = |text: &String| text.parse().map_err(|_| Unreadable { field, value: text.clone() });
    texts.into_iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use ipnet::IpNet;

    use super::*;

    fn cidrs(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn every_configuration_round_trips() {
        let detectors = [
            Detector::None,
            Detector::ClusterCidr(cidrs(&["10.244.0.0/16", "fd00::/48"])),
            Detector::NodeCidr,
            Detector::BridgeInterface("cni0".into()),
            Detector::InterfaceNamePrefix("veth".into()),
        ];
        let node_ports = [
            NodePortAddresses::PRIMARY,
            NodePortAddresses::default(),
            NodePortAddresses::in_cidrs(cidrs(&["192.168.0.0/16", "::/0"])),
            NodePortAddresses { cidrs: cidrs(&["10.0.0.0/8"]), localhost: true, ..NodePortAddresses::PRIMARY },
        ];
        for detector in detectors {
            for node_port_addresses in &node_ports {
                let config = Config {
                    masquerade_all: true,
                    masquerade_bit: 31,
                    detector: detector.clone(),
                    node_port_addresses: node_port_addresses.clone(),
                };
                let own = ["127.0.0.1", "192.168.0.2", "fd00::2"].map(|address| address.parse().unwrap());
                let addresses = own[usize::from(!node_port_addresses.localhost)..].to_vec();
                let effective = Effective { config, node_port_addresses: addresses };
                assert_eq!(Effective::try_from(&BackendConfiguration::from(&effective)), Ok(effective));
            }
        }
    }

    #[test]
    fn an_error_names_the_unknown_value() {
        let valid = BackendConfiguration { detect_local: DetectLocal::None.into(), ..BackendConfiguration::default() };
        let error = |report: BackendConfiguration| Effective::try_from(&report).unwrap_err().to_string();
        let report = error(BackendConfiguration { detect_local: 99, ..valid.clone() });
        assert_eq!(report, "DetectLocal is \"99\", which this version does not know");
        assert!(error(BackendConfiguration { masquerade_bit: 32, ..valid.clone() }).contains("MasqueradeBit"));
        assert!(error(BackendConfiguration { node_port_cid_rs: vec!["x".to_owned()], ..valid }).contains("\"x\""));
        assert!(error(BackendConfiguration::default()).contains("DetectLocal"));
    }
}
