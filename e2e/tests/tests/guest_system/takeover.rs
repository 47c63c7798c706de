//! kube-proxy's ipvs mode → localnet, under continuous connections: none fails, and open connections keep their endpoints. With the nft
//! backend, no new connection fails either while `kube-proxy --cleanup` removes what kube-proxy has left.

use std::{collections::BTreeSet, net::SocketAddr, process::Command, slice, thread};

use anyhow::{Context as _, ensure};
use localnet_e2e::{
    api_server::host_side,
    await_condition,
    load::{Connections, Load},
    writer::NODE_NAME,
};
use localnet_lab::{Namespace, OpenFlow, Outcome, Probe, Protocol, probe::ANSWER_TIMEOUT, topology::CLUSTER_CIDRS};
use localnet_vm::on_ipvs_with_host_side;
use tokio::runtime::Runtime;

use crate::kube_proxy::{self, LIMIT};

const CASE: &str = "policy-external-local";
/// The addresses of the Case's Service, and the endpoints that answer there.
const CLUSTER_IP: &str = "172.30.0.41:80";
const NODE_PORT: &str = "192.168.0.2:30041";
const REMOTE: &str = "10.180.1.4:8041";
const LOCAL: &str = "10.180.0.3:8041";
/// A pod that is only a client.
const ASKING: &str = "10.180.0.2";
/// New connections per second, on an emulated processor.
const RATE: u32 = 10;
/// Open connections to each address.
const OPEN: usize = 4;

#[test]
fn localnet_nft_takes_over_from_kube_proxy_ipvs_and_fails_no_connection() {
    on_ipvs_with_host_side(
        || host_side(1, false, LIMIT),
        || take_over("localnet-nft").unwrap_or_else(|error| panic!("{error:#}")),
    );
}

#[test]
fn localnet_ipvs_takes_over_from_kube_proxy_ipvs_and_fails_no_connection() {
    on_ipvs_with_host_side(
        || host_side(1, false, LIMIT),
        || take_over("localnet-ipvs").unwrap_or_else(|error| panic!("{error:#}")),
    );
}

fn take_over(backend: &str) -> anyhow::Result<()> {
    let (runtime, case) = (Runtime::new()?, kube_proxy::load(CASE)?);
    let mut world = kube_proxy::World::build(&runtime, slice::from_ref(&case))?;
    world.enter(&case)?;
    let (network, programs) = (&world.network, &world.programs);
    let (node, outside, pod) = (network.node(), network.client(), network.pod(ASKING.parse()?)?);
    let paths: [(&Namespace, &str, &[&str]); 2] = [(pod, CLUSTER_IP, &[LOCAL, REMOTE]), (outside, NODE_PORT, &[LOCAL])];
    let mut open = Vec::new();
    for (from, to, _) in paths {
        for _ in 0..OPEN {
            let mut flow = OpenFlow::new(from, Probe::new(Protocol::Tcp, to.parse()?));
            let by = ask(&mut flow, from)?;
            open.push((from, flow, by));
        }
    }
    let answered = thread::scope(|scope| {
        let loads: Vec<_> = paths
            .iter()
            .map(|(from, to, endpoints)| {
                let endpoints: Result<BTreeSet<SocketAddr>, _> = endpoints.iter().map(|one| one.parse()).collect();
                let connections =
                    Connections { source: None, to: vec![to.parse()?], endpoints: endpoints?, rate: RATE };
                anyhow::Ok(Load::connections(scope, from, connections))
            })
            .collect::<anyhow::Result<_>>()?;
        let taken = || -> anyhow::Result<()> {
            for program in [&mut world.kube_proxy, &mut world.brain] {
                program.kill()?;
                program.wait()?;
            }
            let source = format!("kube:{}", world.api.kube_proxy.display());
            let (api, cluster) = (programs.api(), CLUSTER_CIDRS.join(","));
            let arguments = ["--source", &source, "--node-name", NODE_NAME, "--listen", &api];
            world.brain = programs.start(node, "localnet-brain", &arguments)?;
            world.kube_proxy = programs.start(node, backend, &["--api", &api, "--cluster-cidr", &cluster])?;
            await_condition("the backend applies a state", || programs.states_applied(backend) > 0)
                .with_context(|| programs.log(backend))?;
            for (from, flow, by) in &mut open {
                let now = ask(flow, from).with_context(|| {
                    let sh = "ipvsadm -Lnc; ipvsadm -Ln; ip address show kube-ipvs0; conntrack -L; nft list ruleset";
                    let state = node.output(Command::new("sh").args(["-c", sh])).unwrap_or_default();
                    format!("{by}: {}\n{state}", programs.log(backend))
                })?;
                ensure!(now == *by, "an open connection to {by} is answered by {now}");
            }
            println!("{backend}: {} open connections have kept their endpoints", open.len());
            // It would also remove the virtual servers of localnet-ipvs.
            if backend == "localnet-nft" {
                // kube-proxy v1.37.2 first removes chains to which others of this mode still jump, and fails.
                let cleaned = localnet_e2e::kube_proxy::clean_up(node);
                cleaned.or_else(|_| localnet_e2e::kube_proxy::clean_up(node)).context("the second attempt")?;
                let left = open.iter_mut().filter_map(|(from, flow, _)| ask(flow, from).ok()).count();
                println!("{backend}: {left} of {} open connections have survived kube-proxy --cleanup", open.len());
            }
            Ok(())
        }();
        let answered: Vec<_> = loads.into_iter().map(Load::finish).collect();
        taken?;
        answered.into_iter().collect::<anyhow::Result<Vec<_>>>()
    })?;
    for (answered, (_, to, _)) in answered.iter().zip(paths) {
        println!("{backend}: {to}: {answered}");
        ensure!(answered.count > 0, "no connection was opened to {to}");
    }
    Ok(())
}

/// The endpoint that answers.
fn ask(flow: &mut OpenFlow, from: &Namespace) -> anyhow::Result<SocketAddr> {
    match flow.exchange(from, ANSWER_TIMEOUT)? {
        Outcome::Answer { by, .. } => Ok(by),
        outcome => anyhow::bail!("an open connection gets {outcome}"),
    }
}
