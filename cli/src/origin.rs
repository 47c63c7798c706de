//! The origin and the values of a configuration, as answers show them.

use std::fmt;

use ipnet::IpNet;
use localnet_client::vips::{Config, Detector, NodePortAddresses};
use serde::Serialize;

/// The origin and the values of a configuration, as answers show them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Origin {
    /// Where the configuration comes from: `reported`, `commandLine` or `defaults`.
    pub source: &'static str,
    /// The backend that reports the configuration.
    pub backend: Option<String>,
    /// The origin in words.
    pub text: String,
    /// The configuration's values.
    #[serde(flatten)]
    pub values: Values,
}

/// The values of a configuration, as answers show them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Values {
    /// How pods are recognized, in words.
    pub pods: String,
    /// The addresses that answer NodePorts, in words.
    pub node_ports: String,
    /// Whether all traffic to ClusterIPs is masqueraded.
    pub masquerade_all: bool,
    /// The bit of the packet mark that requests masquerading, 0–31.
    pub masquerade_bit: u8,
}

impl Values {
    /// Returns the values of a configuration.
    pub fn of(config: &Config) -> Self {
        let Config { masquerade_all, masquerade_bit, detector, node_port_addresses } = config;
        let list = |cidrs: &[IpNet]| cidrs.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        Self {
            pods: match detector {
                Detector::None => "not recognized".to_owned(),
                Detector::ClusterCidr(cidrs) => format!("ClusterCIDR {}", list(cidrs)),
                Detector::NodeCidr => "NodeCIDR".to_owned(),
                Detector::BridgeInterface(name) => format!("BridgeInterface {name}"),
                Detector::InterfaceNamePrefix(prefix) => format!("InterfaceNamePrefix {prefix}"),
            },
            node_ports: match node_port_addresses {
                NodePortAddresses { primary: false, cidrs, .. } if cidrs.is_empty() => "all addresses".to_owned(),
                NodePortAddresses { primary: true, cidrs, .. } if cidrs.is_empty() => "primary".to_owned(),
                NodePortAddresses { primary: true, cidrs, .. } => format!("primary,{}", list(cidrs)),
                NodePortAddresses { cidrs, .. } => list(cidrs),
            },
            masquerade_all: *masquerade_all,
            masquerade_bit: *masquerade_bit,
        }
    }
}

impl fmt::Display for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = if self.masquerade_all { "; all traffic to ClusterIPs is masqueraded" } else { "" };
        write!(f, "pods: {}; NodePorts: {}{all}", self.pods, self.node_ports)
    }
}

impl Origin {
    /// Returns the line for the end of an answer.
    pub fn line(&self) -> String {
        format!("configuration: {}\n", self.text)
    }
}
