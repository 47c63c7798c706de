//! The level `packets`: creates a network for each Case, runs the backend on the network's node, and sends real packets.

use anyhow::anyhow;
use localnet_lab::{Case, DetectLocal, Flow, Network, NodeOptions, Servers, case::read_cases, check::probe_flows};

use super::{
    Level, Options,
    bench::{Bench, Node},
    check, run_concurrently,
    states::state_of_case,
};
use crate::outcome::{Outcome, Verdict};

pub(super) fn run(options: &Options, report: &(impl Fn(&Outcome) + Sync)) -> anyhow::Result<Vec<Outcome>> {
    anyhow::ensure!(rustix::process::geteuid().is_root(), "level `packets` creates network namespaces: run as root");
    let cases = read_cases(&options.cases)?;
    let cases: Vec<Case> = cases.into_iter().filter(|case| options.selects(Level::Packets, &case.name)).collect();
    Ok(run_concurrently(options, &cases, |case| {
        check(Level::Packets, &case.name, report, || options.isolated(|| of(options, case)))
    }))
}

fn of(options: &Options, case: &Case) -> anyhow::Result<Verdict> {
    let state = state_of_case(&case.cluster(), &case.flows.node.name)?;
    if case.flows.node.localhost {
        return Ok(Verdict::NotClaimed("no claim is about NodePorts on 127.0.0.1".to_owned()));
    }
    let flows: Vec<Flow> = case.flows.flows.iter().filter_map(|flow| options.claims.of_flow(flow, &state)).collect();
    if flows.is_empty() && !case.flows.flows.is_empty() {
        return Ok(Verdict::NotClaimed(format!("none of the Case's {} flows is claimed", case.flows.flows.len())));
    }
    let endpoints = case.endpoints()?;
    let network = Network::build(case.flows.topology(&endpoints))?;
    let _servers = Servers::start(&network, endpoints)?;
    let mut bench = Bench::new(options, Node::Lent(network.node()))?;
    bench.start_brain()?;
    bench.start_backend_with(&flags(&case.flows.node))?;
    bench.apply(&state)?;
    probe_flows(&network, &flows).map_err(|error| anyhow!("{error:#}{}", bench.log_tail()))?;
    Ok(Verdict::Passed)
}

/// kube-proxy's flags for a node with these options.
fn flags(node: &NodeOptions) -> Vec<String> {
    let list = |networks: &[ipnet::IpNet]| networks.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let mut flags = match &node.detect_local {
        None => Vec::new(),
        Some(DetectLocal::ClusterCidr(networks)) => vec![format!("--cluster-cidr={}", list(networks))],
        Some(DetectLocal::NodeCidr) => vec!["--detect-local-mode=NodeCIDR".to_owned()],
        Some(DetectLocal::BridgeInterface(bridge)) => {
            vec!["--detect-local-mode=BridgeInterface".to_owned(), format!("--pod-bridge-interface={bridge}")]
        }
        Some(DetectLocal::InterfaceNamePrefix(prefix)) => {
            vec!["--detect-local-mode=InterfaceNamePrefix".to_owned(), format!("--pod-interface-name-prefix={prefix}")]
        }
    };
    if node.masquerade_all {
        flags.push("--masquerade-all".to_owned());
    }
    flags.extend(node.node_port_addresses.as_ref().map(|networks| format!("--nodeport-addresses={}", list(networks))));
    flags
}
