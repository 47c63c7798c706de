//! The flags that say how the node is programmed.

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};
use ipnet::IpNet;

use super::{Config, Detector, NodePortAddresses};

/// The flags that say how the node is programmed; every backend that proxies has them.
#[derive(Args, Clone, Debug)]
pub struct ConfigArgs {
    /// CIDRs of the cluster's pods, at most one of each family: traffic to ClusterIPs from elsewhere is masqueraded
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    pub cluster_cidr: Vec<IpNet>,
    /// How traffic of this node's pods is recognised
    #[arg(long, value_enum, value_name = "MODE", ignore_case = true, default_value_t)]
    pub detect_local_mode: DetectLocalMode,
    /// The bridge of this node's pods, for BridgeInterface
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub pod_bridge_interface: String,
    /// How the names of this node's pods' interfaces start, for InterfaceNamePrefix
    #[arg(long, value_name = "PREFIX", default_value = "", hide_default_value = true)]
    pub pod_interface_name_prefix: String,
    /// Masquerade everything that is sent to a ClusterIP
    #[arg(long)]
    pub masquerade_all: bool,
    /// Bit of the packet mark that asks for masquerading
    #[arg(long, value_name = "BIT", default_value_t = 14, value_parser = clap::value_parser!(u8).range(0..32))]
    pub masquerade_bit: u8,
    /// Answer NodePorts on the addresses of this node that are in these CIDRs, or, if the word `primary` is given, only on
    /// those that the Node object names first
    #[arg(long, value_name = "CIDR[,CIDR]|primary", value_delimiter = ',', default_value = PRIMARY)]
    pub nodeport_addresses: Vec<String>,
}

const PRIMARY: &str = "primary";

/// How traffic of this node's pods is recognised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum DetectLocalMode {
    /// By --cluster-cidr; not at all without it
    #[default]
    #[value(name = "ClusterCIDR")]
    ClusterCidr,
    /// By the node's pod CIDRs
    #[value(name = "NodeCIDR")]
    NodeCidr,
    /// By --pod-bridge-interface
    #[value(name = "BridgeInterface")]
    BridgeInterface,
    /// By --pod-interface-name-prefix
    #[value(name = "InterfaceNamePrefix")]
    InterfaceNamePrefix,
}

impl ConfigArgs {
    /// The configuration that the flags say.
    ///
    /// # Errors
    /// They contradict each other.
    pub fn config(&self) -> anyhow::Result<Config> {
        let interface = |flag, name: &str| match name.len() {
            0 => bail!("{flag} is needed for --detect-local-mode {:?}", self.detect_local_mode),
            1..=15 => Ok(name.into()),
            _ => bail!("{flag} {name:?} is longer than the 15 bytes of an interface name"),
        };
        let detector = match self.detect_local_mode {
            DetectLocalMode::ClusterCidr => cluster_cidr(&self.cluster_cidr)?,
            DetectLocalMode::NodeCidr => Detector::NodeCidr,
            DetectLocalMode::BridgeInterface => {
                Detector::BridgeInterface(interface("--pod-bridge-interface", &self.pod_bridge_interface)?)
            }
            DetectLocalMode::InterfaceNamePrefix => Detector::InterfaceNamePrefix(interface(
                "--pod-interface-name-prefix",
                &self.pod_interface_name_prefix,
            )?),
        };
        Ok(Config {
            masquerade_all: self.masquerade_all,
            masquerade_bit: self.masquerade_bit,
            detector,
            node_port_addresses: node_port_addresses(&self.nodeport_addresses)?,
        })
    }
}

fn node_port_addresses(texts: &[String]) -> anyhow::Result<NodePortAddresses> {
    match texts {
        [only] if only == PRIMARY => Ok(NodePortAddresses::Primary),
        texts if texts.iter().any(|text| text == PRIMARY) => {
            bail!("--nodeport-addresses takes either {PRIMARY} or CIDRs, not both")
        }
        texts => {
            let parse = |text: &String| {
                text.parse().with_context(|| format!("--nodeport-addresses {text:?} is neither {PRIMARY} nor a CIDR"))
            };
            Ok(NodePortAddresses::Cidrs(texts.iter().map(parse).collect::<anyhow::Result<_>>()?))
        }
    }
}

fn cluster_cidr(cidrs: &[IpNet]) -> anyhow::Result<Detector> {
    let v4 = cidrs.iter().filter(|cidr| cidr.addr().is_ipv4()).count();
    match (v4, cidrs.len() - v4) {
        (0, 0) => Ok(Detector::None),
        (0 | 1, 0 | 1) => Ok(Detector::ClusterCidr(cidrs.to_vec())),
        _ => bail!("--cluster-cidr takes at most one CIDR of each family, not {}", cidrs.len()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Arguments {
        #[command(flatten)]
        config: ConfigArgs,
    }

    fn config(flags: &[&str]) -> Result<Config, String> {
        let arguments = Arguments::try_parse_from([&["backend"], flags].concat()).map_err(|e| e.to_string())?;
        arguments.config.config().map_err(|error| error.to_string())
    }

    #[test]
    fn flags_become_a_configuration() {
        let defaults = Config::default();
        let node_ports = |texts: &[&str]| {
            let cidrs = NodePortAddresses::Cidrs(texts.iter().map(|text| text.parse().unwrap()).collect());
            Ok(Config { node_port_addresses: cidrs, ..defaults.clone() })
        };
        let detector = |detector| Ok(Config { detector, ..defaults.clone() });
        let cidrs = |texts: &[&str]| Detector::ClusterCidr(texts.iter().map(|text| text.parse().unwrap()).collect());
        for (flags, expected) in [
            (&[][..], Ok(defaults.clone())),
            (&["--cluster-cidr", "10.0.0.0/8,fd00::/48"], detector(cidrs(&["10.0.0.0/8", "fd00::/48"]))),
            (&["--detect-local-mode", "nodecidr"], detector(Detector::NodeCidr)),
            (
                &["--detect-local-mode", "BridgeInterface", "--pod-bridge-interface", "cni0"],
                detector(Detector::BridgeInterface("cni0".into())),
            ),
            (
                &["--detect-local-mode", "InterfaceNamePrefix", "--pod-interface-name-prefix", "veth"],
                detector(Detector::InterfaceNamePrefix("veth".into())),
            ),
            (&["--masquerade-all", "--masquerade-bit", "31"], {
                Ok(Config { masquerade_all: true, masquerade_bit: 31, ..defaults.clone() })
            }),
            (&["--nodeport-addresses", "primary"], Ok(defaults.clone())),
            (&["--nodeport-addresses", "192.168.0.0/24,::/0"], node_ports(&["192.168.0.0/24", "::/0"])),
        ] {
            assert_eq!(config(flags), expected, "{flags:?}");
        }
    }

    #[test]
    fn contradicting_flags_are_told() {
        for (flags, expected) in [
            (&["--cluster-cidr", "10.0.0.0/8,11.0.0.0/8"][..], "at most one CIDR of each family"),
            (&["--cluster-cidr", "10.0.0"], "10.0.0"),
            (&["--detect-local-mode", "BridgeInterface"], "--pod-bridge-interface is needed"),
            (&["--masquerade-bit", "32"], "32"),
            (&["--nodeport-addresses", "primary,10.0.0.0/8"], "either primary or CIDRs"),
            (&["--nodeport-addresses", "192.168.0.2"], "\"192.168.0.2\" is neither primary nor a CIDR"),
            (
                &["--detect-local-mode", "InterfaceNamePrefix", "--pod-interface-name-prefix", "a-very-long-name"],
                "longer than the 15 bytes",
            ),
        ] {
            let error = config(flags).unwrap_err();
            assert!(error.contains(expected), "{flags:?}: {error}");
        }
    }
}
