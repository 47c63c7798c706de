//! The configuration of a Case. The unit tests and the tests with a kernel both use this file.

use localnet_client::vips::{Config, Detector, NodePortAddresses};
use localnet_lab::{DetectLocal, Flows};

/// The configuration of a Case.
pub(crate) fn config(flows: &Flows) -> Config {
    let detector = match &flows.node.detect_local {
        None => Detector::None,
        Some(DetectLocal::ClusterCidr(cidrs)) => Detector::ClusterCidr(cidrs.clone()),
        Some(DetectLocal::NodeCidr) => Detector::NodeCidr,
        Some(DetectLocal::BridgeInterface(name)) => Detector::BridgeInterface(name.as_str().into()),
        Some(DetectLocal::InterfaceNamePrefix(prefix)) => Detector::InterfaceNamePrefix(prefix.as_str().into()),
    };
    let given = flows.node.node_port_addresses.clone();
    let mut node_port_addresses = given.map_or(NodePortAddresses::PRIMARY, NodePortAddresses::in_cidrs);
    node_port_addresses.localhost = flows.node.localhost;
    Config { masquerade_all: flows.node.masquerade_all, detector, node_port_addresses, ..Config::default() }
}
