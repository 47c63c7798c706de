//! What an operator chooses of HNS. Parsing of flags is [`crate::args`].

use std::net::IpAddr;

/// How HNS is programmed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The network of the pods; `None`: the only one on which pods may be.
    pub network: Option<String>,
    /// The address that balanced packets come from, in an overlay network.
    pub source_vip: Option<IpAddr>,
    /// Answers of ClusterIPs go to the client directly. (Those of local external policies always do.)
    pub dsr: bool,
    /// Load balancers may ask the node for its health at the VIP.
    pub forward_health_check_vip: bool,
    /// The endpoint through which the node itself is reached.
    pub root_endpoint: String,
    /// The port on which the node's health is answered.
    pub health_port: u16,
}

impl Default for Options {
    /// kube-proxy's defaults.
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
