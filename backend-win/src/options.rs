//! The operator's options for HNS. `program` parses the flags.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// The options for programming HNS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Options {
    /// The network of the pods. `None` means the only network that can have pods.
    pub network: Option<String>,
    /// The source address of load-balanced packets in an overlay network.
    pub source_vip: Option<IpAddr>,
    /// Whether replies from ClusterIPs go directly to the client (direct server return). With external traffic policy Local,
    /// replies from a Service's other addresses always go directly to the client.
    pub dsr: bool,
    /// Whether external load balancers can check the node's health at the VIP.
    pub forward_health_check_vip: bool,
    /// The name of the endpoint that leads to the node itself.
    pub root_endpoint: String,
    /// The port that serves the node's health.
    pub health_port: u16,
}

impl Default for Options {
    /// Returns kube-proxy's defaults.
    fn default() -> Self {
        Self {
            network: None,
            source_vip: None,
            dsr: false,
            forward_health_check_vip: false,
            root_endpoint: "cbr0".to_owned(),
            health_port: 10_256,
        }
    }
}
