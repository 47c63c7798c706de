//! The packets of all Cases, with the nft backend beside the programs: it serves clients outside, and what the programs leave to it.

use std::{
    net::SocketAddr,
    panic::resume_unwind,
    sync::atomic::{AtomicUsize, Ordering},
};

use anyhow::Context as _;
use localnet_client::vips;
use localnet_ebpf::{LinuxBackend as _, desired::Desired, plan};
use localnet_lab::{
    Case, Flow, Flows, Network, Sandbox, Sender, Servers, cases,
    flow::{Expect, Source},
    probe_flows,
    topology::Place,
};
use localnet_nft::{Netlink, NftBackend};
use localnet_proto::{Changes, Snapshot};

use crate::backend;

#[path = "../../src/testing/config.rs"]
mod case;
use case::config;

const AT_A_TIME: usize = 4;

/// Adapts the expectations about packets that the programs translate to the differences 1, 3 and 7 in docs/backends/ebpf.md.
fn adapted(flows: &Flows, state: &Snapshot) -> Flows {
    let mut desired = Desired::new(config(flows));
    desired.vips.set_local_addresses(flows.local_addresses());
    desired.update(state, &Changes::everything());
    let mut flows = flows.clone();
    flows.flows.iter_mut().for_each(|flow| adapt(flow, &desired));
    flows
}

fn adapt(flow: &mut Flow, desired: &Desired) {
    let vip_of = |to: SocketAddr| {
        let key = vips::VipKey { address: to.ip(), protocol: flow.protocol, port: to.port() };
        desired.vips.vip(&key).map(|vip| (key, vip))
    };
    let ours = vip_of(flow.to).filter(|(key, vip)| plan::vip(key, vip).is_some());
    let Some((_, vip)) = ours.filter(|_| is_local(flow)) else { return };
    let is_pod = flow.from != Sender::Node;
    if is_pod && vip.exposure == vips::Exposure::ExternalLocal && !vip.endpoints.is_empty() {
        let source = Some(Source::Kept);
        flow.expect = Expect::Answers { by: vip.endpoints.iter().copied().collect(), source };
    }
    let Expect::Answers { by, source } = &mut flow.expect else { return };
    *source = source.map(|_| if is_pod { Source::Kept } else { Source::Masqueraded });
    // The nft backend translates the packets if the endpoint is a VIP, too.
    let twice = |endpoint: &SocketAddr| match vip_of(*endpoint) {
        Some((_, vip)) => vip.endpoints.to_vec(),
        None => vec![*endpoint],
    };
    *by = by.iter().flat_map(twice).collect();
    if by.is_empty() {
        flow.expect = Expect::Reject;
    }
}

fn is_local(flow: &Flow) -> bool {
    match flow.from {
        Sender::Node => true,
        Sender::Pod(pod) => pod.place == Place::Local,
        Sender::Client(_) | Sender::OtherNode => false,
    }
}

fn check(case: &Case, sandbox: &Sandbox) -> anyhow::Result<()> {
    let state: Snapshot = case.read_state()?;
    let flows = adapted(&case.flows, &state);
    let endpoints = case.endpoints()?;
    let network = Network::build(flows.topology(&endpoints))?;
    if flows.node.localhost {
        network.node().sysctl(&[("net/ipv4/conf/all/route_localnet", "1")])?;
    }
    let _servers = Servers::start(&network, endpoints)?;
    let mut ebpf = backend(config(&flows))?;
    ebpf.set_local_addresses(flows.local_addresses());
    ebpf.apply(&state, &Changes::everything())?.whole()?;
    network.node().run(|| {
        let mut nft = NftBackend::new(config(&flows), Netlink::open()?);
        nft.set_local_addresses(flows.local_addresses());
        nft.apply(&state, &Changes::everything())?.whole()
    })?;
    let (local, outside): (Vec<Flow>, Vec<Flow>) = flows.flows.into_iter().partition(is_local);
    probe_flows(&network, &local).context("from this node")?;
    sandbox.outside(|| probe_flows(&network, &outside)).context("from other hosts")
}

#[test]
fn packets_match_the_flows() {
    let (cases, next) = (cases(), AtomicUsize::new(0));
    let work = || {
        let mut wrong = Vec::new();
        while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            let error = Sandbox::run(|sandbox| check(case, sandbox)).err();
            wrong.extend(error.map(|error| format!("{}: {error:#}", case.name)));
        }
        wrong
    };
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_A_TIME).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
