//! Every Case: its state gives the plan in `iptables.txt`, and real packets go where `flows.yaml` says, by both flavours.

use localnet_client::{
    Backend as _,
    incremental::{Adapter, Listener},
    vips::{Config, Detector, NodePortAddresses},
};
use localnet_iptables::{Flavour, IptablesBackend, Tools, dry_run::DryRun};
use localnet_lab::{DetectLocal, Flows, cases, check_cases, expect_file};
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
    let node_port_addresses = given.map_or(NodePortAddresses::Primary, NodePortAddresses::Cidrs);
    Config { masquerade_all: flows.node.masquerade_all, masquerade_bit: 14, detector, node_port_addresses }
}

/// Tells the listener the whole state.
fn tell<L: Listener>(listener: L, state: &Snapshot) -> anyhow::Result<Adapter<L>> {
    let mut adapter = Adapter::new(listener);
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    runtime.block_on(adapter.sync(state, &Changes::everything()))?.whole()?;
    Ok(adapter)
}

#[test]
fn states_give_plans() {
    let cases = cases();
    assert!(!cases.is_empty());
    for case in cases {
        let listener = DryRun::new(config(&case.flows)).with_addresses(case.flows.local_addresses()).silent();
        let mut told = tell(listener, &case.read_state().unwrap()).unwrap();
        expect_file(&case.file("iptables.txt"), &told.listener_mut().text());
    }
}

/// `many_vips`: more of them are reached by groups.
fn wrong_packets(flavour: Flavour, many_vips: usize) -> Vec<String> {
    check_cases(&cases(), |case, network| {
        network.node().run(|| {
            let mut backend =
                IptablesBackend::new(config(&case.flows), Tools::find(flavour)?).with_many_vips(many_vips);
            backend.set_local_addresses(case.flows.local_addresses());
            let mut told = tell(backend, &case.read_state()?)?;
            // What was written is what is found: a restart would write nothing.
            anyhow::ensure!(!told.listener_mut().look()?, "the tables are not read as they were written");
            Ok(())
        })
    })
}

const USUAL: usize = 1000;

#[test]
fn packets_go_where_the_flows_say_by_nf_tables() {
    let wrong = wrong_packets(Flavour::Nft, USUAL);
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn packets_go_where_the_flows_say_by_ip_tables() {
    let wrong = wrong_packets(Flavour::Legacy, USUAL);
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn packets_go_where_the_flows_say_by_nf_tables_where_there_are_many_vips() {
    let wrong = wrong_packets(Flavour::Nft, 0);
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn packets_go_where_the_flows_say_by_ip_tables_where_there_are_many_vips() {
    let wrong = wrong_packets(Flavour::Legacy, 0);
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
