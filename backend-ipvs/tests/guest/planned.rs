//! A Case as the backend is given it.

use localnet_client::vips::{Config, Detector, NodePortAddresses};
use localnet_ipvs::{Options, dry_run::DryRun};
use localnet_lab::{Case, DetectLocal, Flows};

pub(crate) fn config(flows: &Flows) -> Config {
    let detector = match &flows.node.detect_local {
        None => Detector::None,
        Some(DetectLocal::ClusterCidr(cidrs)) => Detector::ClusterCidr(cidrs.clone()),
        Some(DetectLocal::NodeCidr) => Detector::NodeCidr,
        Some(DetectLocal::BridgeInterface(name)) => Detector::BridgeInterface(name.as_str().into()),
        Some(DetectLocal::InterfaceNamePrefix(prefix)) => Detector::InterfaceNamePrefix(prefix.as_str().into()),
    };
    let given = flows.node.node_port_addresses.clone();
    let node_port_addresses = given.map_or(NodePortAddresses::Primary, NodePortAddresses::Cidrs);
    Config { masquerade_all: flows.node.masquerade_all, masquerade_bit: 14, detector, node_port_addresses }
}

pub(crate) fn dry_run(case: &Case) -> DryRun {
    DryRun::new(config(&case.flows), Options::default()).with_addresses(case.flows.local_addresses())
}
