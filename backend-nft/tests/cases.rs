//! Verifies every Case: its state gives the plan in `nft.txt`, and real packets go where `flows.yaml` expects.

use localnet_client::vips::{Config, Detector, NodePortAddresses};
use localnet_lab::{
    Case, DetectLocal, Flows, Namespace, cases, check_between_nodes, check_case, check_cases, check_that_mistakes_show,
    expect_plan,
};
use localnet_nft::{LinuxBackend as _, Netlink, NftBackend, desired::Desired};
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

/// The plan of a state under the configuration of `flows`.
fn plan(flows: &Flows, state: &Snapshot) -> String {
    let mut desired = Desired::new(config(flows));
    desired.vips.set_local_addresses(flows.local_addresses());
    desired.text(state, &Changes::everything())
}

/// Programs a node with the state of the Case.
fn program(case: &Case, node: &Namespace) -> anyhow::Result<()> {
    node.run(|| {
        let mut backend = NftBackend::new(config(&case.flows), Netlink::open()?);
        backend.set_local_addresses(case.flows.local_addresses());
        backend.apply(&case.read_state()?, &Changes::everything())?.whole()
    })
}

#[test]
fn states_give_plans() {
    let cases = cases();
    assert!(!cases.is_empty());
    for case in cases {
        expect_plan(&case, "nft.txt", plan);
    }
}

#[test]
fn a_mistake_in_any_line_of_a_plan_is_detected() {
    for case in cases() {
        check_that_mistakes_show(&case, 17, plan);
    }
}

#[test]
fn packets_match_the_flows() {
    let wrong = check_cases(&cases(), |case, network| program(case, network.node()));
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn packets_between_nodes_match_the_flows() {
    let between = cases().into_iter().filter(|case| case.between_nodes.is_some());
    let wrong: Vec<_> = between.filter_map(|case| check_between_nodes(&case, program).err()).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn without_rules_the_flows_are_wrong() {
    let cases = cases();
    let case = cases.iter().find(|case| case.name == "hairpin").unwrap();
    let error = format!("{:#}", check_case(case, |_| Ok(())).unwrap_err());
    assert!(error.contains("flows are wrong"), "{error}");
}
