//! Verifies every Case: its state yields the plan in `iptables.txt`, and with both flavours real packets get the verdicts in
//! `flows.yaml`.

use localnet_client::vips::{Config, Detector, NodePortAddresses};
use localnet_iptables::{Flavour, IptablesBackend, LinuxBackend as _, Tools, desired::Desired};
use localnet_lab::{
    Case, DetectLocal, Flows, Namespace, cases, check_between_nodes, check_cases, check_that_mistakes_show, expect_plan,
};
use localnet_proto::{Changes, Snapshot};

fn config(flows: &Flows) -> Config {
    let detector = match &flows.node.detect_local {
        None => Detector::None,
        Some(DetectLocal::ClusterCidr(cidrs)) => Detector::ClusterCidr(cidrs.clone()),
        Some(DetectLocal::NodeCidr) => Detector::NodeCidr,
        Some(DetectLocal::BridgeInterface(name)) => Detector::BridgeInterface(name.as_str().into()),
        Some(DetectLocal::InterfaceNamePrefix(prefix)) => Detector::InterfaceNamePrefix(prefix.as_str().into()),
    };
    let given = flows.node.node_port_addresses.clone();
    let node_port_addresses = NodePortAddresses {
        localhost: flows.node.localhost,
        ..given.map_or(NodePortAddresses::PRIMARY, NodePortAddresses::in_cidrs)
    };
    Config { masquerade_all: flows.node.masquerade_all, masquerade_bit: 14, detector, node_port_addresses }
}

/// The plan of a state, in the configuration of `flows`.
fn plan(flows: &Flows, state: &Snapshot) -> String {
    let mut desired = Desired::new(config(flows));
    // Only the plans of such nodes show the rules that count.
    if flows.node.localhost {
        desired.count_packets();
    }
    desired.vips.set_local_addresses(flows.local_addresses());
    desired.text(state, &Changes::everything())
}

#[test]
fn states_give_plans() {
    let cases = cases();
    assert!(!cases.is_empty());
    for case in cases {
        expect_plan(&case, "iptables.txt", plan);
    }
}

#[test]
fn a_mistake_in_any_line_of_a_plan_is_detected() {
    for case in cases() {
        check_that_mistakes_show(&case, 17, plan);
    }
}

/// Programs a node with the state of the Case. `many_vips`: the number of VIPs above which they are grouped.
fn program(case: &Case, node: &Namespace, flavour: Flavour, many_vips: usize) -> anyhow::Result<()> {
    node.run(|| {
        let mut desired = Desired::new(config(&case.flows));
        desired.set_many_vips(many_vips);
        let mut backend = IptablesBackend::new(desired, Tools::find(flavour)?);
        backend.set_local_addresses(case.flows.local_addresses());
        backend.apply(&case.read_state()?, &Changes::everything())?.whole()?;
        // The backend reads exactly what it wrote, so a restart would write nothing.
        anyhow::ensure!(!backend.needs_repair()?, "the tables read back differ from those written");
        Ok(())
    })
}

/// The packets of all Cases that got an unexpected verdict.
fn wrong_packets(flavour: Flavour, many_vips: usize) -> Vec<String> {
    check_cases(&cases(), |case, network| program(case, network.node(), flavour, many_vips))
}

#[test]
fn packets_between_nodes_match_the_flows() {
    let between: Vec<_> = cases().into_iter().filter(|case| case.between_nodes.is_some()).collect();
    for flavour in [Flavour::Nft, Flavour::Legacy] {
        let check = |case| check_between_nodes(case, |case, node| program(case, node, flavour, USUAL)).err();
        let wrong: Vec<_> = between.iter().filter_map(check).collect();
        assert!(wrong.is_empty(), "{flavour:?}: {wrong:#?}");
    }
}

const USUAL: usize = 1000;

#[test]
fn packets_match_the_flows_with_nf_tables() {
    let wrong = wrong_packets(Flavour::Nft, USUAL);
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn packets_match_the_flows_with_ip_tables() {
    let wrong = wrong_packets(Flavour::Legacy, USUAL);
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn packets_match_the_flows_with_nf_tables_and_many_vips() {
    let wrong = wrong_packets(Flavour::Nft, 0);
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn packets_match_the_flows_with_ip_tables_and_many_vips() {
    let wrong = wrong_packets(Flavour::Legacy, 0);
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
