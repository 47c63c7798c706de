//! Least privilege: the ipvs backend runs as `nobody` with one capability, and starts no program.

use std::net::SocketAddr;

use anyhow::Context as _;
use localnet_e2e::{
    Programs, await_condition,
    privileges::{NET_ADMIN, NOBODY, Traced, copy_examples, has_only, start},
};
use localnet_lab::{Endpoint, Network, Probe, Protocol, Servers, Topology, topology::CLUSTER_CIDRS};
use localnet_vm::on_ipvs;

const BACKEND: &str = "localnet-ipvs";
/// The pods of the examples, and the VIP that they are behind.
const PODS: [&str; 3] = ["10.180.0.1", "10.180.0.2", "10.180.0.3"];
const WEB: &str = "172.30.0.10:80";

#[test]
fn the_ipvs_backend_needs_one_capability_and_starts_no_program() {
    on_ipvs(|| needs_little().unwrap_or_else(|error| panic!("{error:#}")));
}

fn needs_little() -> anyhow::Result<()> {
    let network = Network::build(Topology::with_pods(PODS)?)?;
    let endpoints: Vec<SocketAddr> = PODS.iter().map(|pod| format!("{pod}:8080").parse()).collect::<Result<_, _>>()?;
    let at = |address: &SocketAddr| Endpoint { protocol: Protocol::Tcp, address: *address };
    let _servers = Servers::start(&network, endpoints.iter().map(at))?;
    let (programs, node) = (Programs::new()?, network.node());
    let source = format!("file:{}", copy_examples(&programs)?.display());
    let (api, pods) = (programs.api(), CLUSTER_CIDRS.join(","));
    let arguments = ["--source", &source, "--node-name", "node-a", "--listen", &api];
    let _brain = start(&programs, node, ("localnet-brain", NOBODY), &[], &arguments)?;
    let arguments = ["--api", &api, "--cluster-cidr", &pods];
    let mut backend = start(&programs, node, (BACKEND, NOBODY), &["net_admin"], &arguments)?;
    programs.await_answers(network.client(), Probe::new(Protocol::Tcp, WEB.parse()?), &endpoints)?;
    has_only(&backend, NOBODY, NET_ADMIN)?;
    backend.kill()?;
    backend.wait()?;

    let applied = || programs.states_applied(BACKEND);
    let before = applied();
    let traced = Traced::start(&programs, node, BACKEND, &arguments)?;
    await_condition("the backend applies a state", || applied() > before).with_context(|| programs.log(BACKEND))?;
    anyhow::ensure!(traced.started()? == [BACKEND], "{:?} were started", traced.started()?);
    Ok(())
}
