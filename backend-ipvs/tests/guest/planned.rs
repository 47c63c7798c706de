//! The configuration and the plan of a Case.

use localnet_client::vips::{Config, Detector, NodePortAddresses};
use localnet_ipvs::{Options, desired::Desired};
use localnet_lab::{DetectLocal, Flows};

pub(crate) fn config(flows: &Flows) -> Config {
    let detector = match &flows.node.detect_local {
        None => Detector::None,
        Some(DetectLocal::ClusterCidr(cidrs)) => Detector::ClusterCidr(cidrs.clone()),
        Some(DetectLocal::NodeCidr) => Detector::NodeCidr,
        Some(DetectLocal::BridgeInterface(name)) => Detector::BridgeInterface(name.as_str().into()),
        Some(DetectLocal::InterfaceNamePrefix(prefix)) => Detector::InterfaceNamePrefix(prefix.as_str().into()),
    };
    let given = flows.node.node_port_addresses.clone();
    let node_port_addresses = given.map_or(NodePortAddresses::PRIMARY, NodePortAddresses::in_cidrs);
    Config { masquerade_all: flows.node.masquerade_all, masquerade_bit: 14, detector, node_port_addresses }
}

pub(crate) fn desired(flows: &Flows) -> Desired {
    let mut desired = Desired::new(config(flows), Options::default());
    desired.set_local_addresses(flows.local_addresses());
    desired
}
