//! From a real API server to a packet: etcd, kube-apiserver, endpointslice controller, brain and nft backend.

use std::{
    net::{IpAddr, SocketAddr},
    sync::atomic::{AtomicBool, Ordering},
};

use localnet_controlplane::{ControlPlane, NewNode, NewPod, Options, Port};
use localnet_e2e::Programs;
use localnet_lab::{
    Endpoint, Network, Outcome, Probe, Protocol, Servers, Topology,
    topology::{NODE, POD_CIDRS, SERVICE_CIDRS},
};
use serde_json::json;

const PODS: [&str; 3] = ["10.180.0.1", "10.180.0.2", "10.180.1.1"];
const HTTP: u16 = 8080;
const NODE_PORT: u16 = 30_080;
const LOAD_BALANCER: [&str; 2] = ["198.51.100.10", "2001:db8:ffff::10"];

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address of this test")
}

/// The addresses of a pod, and its endpoints in the family of `to`.
fn pod(name: &str) -> [IpAddr; 2] {
    localnet_lab::Pod::at(ip(name)).expect("a pod of the lab").addresses()
}

fn endpoints(pods: &[&str], to: IpAddr) -> Vec<SocketAddr> {
    let of_family = |pod_name: &&str| pod(pod_name).into_iter().find(|address| address.is_ipv4() == to.is_ipv4());
    pods.iter().filter_map(of_family).map(|address| SocketAddr::new(address, HTTP)).collect()
}

/// The control plane runs on the node, so the brain reaches the API server on loopback.
struct World {
    programs: Programs,
    plane: ControlPlane,
    network: Network,
    _servers: Servers,
    /// The addresses and ports of the Service, each with whether a pod is the client.
    targets: Vec<(bool, SocketAddr)>,
}

impl World {
    async fn build() -> anyhow::Result<Self> {
        let network = Network::build(Topology::with_pods(PODS)?)?;
        let http = |address| Endpoint { protocol: Protocol::Tcp, address: SocketAddr::new(address, HTTP) };
        let servers = Servers::start(&network, PODS.iter().flat_map(|name| pod(name)).map(http))?;
        let plane = ControlPlane::start(Options {
            netns: Some(network.node().path()),
            service_cidrs: SERVICE_CIDRS.map(str::to_owned).to_vec(),
            ..Options::default()
        })
        .await?;
        let mut world = Self { programs: Programs::new()?, plane, network, _servers: servers, targets: Vec::new() };
        world.fill().await?;
        Ok(world)
    }

    /// Creates a Node, a dual-stack Service of type LoadBalancer, and two ready pods, one of them on another node.
    async fn fill(&mut self) -> anyhow::Result<()> {
        let shop = self.plane.objects("shop");
        shop.ensure_namespace().await?;
        let zone = [("topology.kubernetes.io/zone", "zone-a")];
        shop.ensure_node(NewNode { name: "node-a", addresses: &NODE, labels: &zone, pod_cidrs: &POD_CIDRS }).await?;
        shop.ensure_node(NewNode { name: "node-b", addresses: &[ip("192.168.0.3")], labels: &zone, pod_cidrs: &[] })
            .await?;
        let service = shop
            .ensure_service(
                "web",
                json!({
                    "type": "LoadBalancer", "ipFamilyPolicy": "RequireDualStack", "selector": {"app": "web"},
                    "ports": [{"name": "http", "port": 80, "targetPort": "http", "nodePort": NODE_PORT}],
                }),
            )
            .await?;
        shop.set_load_balancer("web", &LOAD_BALANCER.map(ip)).await?;
        self.add_pod("web-1", "node-a", PODS[0]).await?;
        self.add_pod("web-3", "node-b", PODS[2]).await?;
        shop.await_ready_addresses("web", &[pod(PODS[0]), pod(PODS[2])].concat()).await?;
        let cluster_ips = service.spec.and_then(|spec| spec.cluster_ips).unwrap_or_default();
        let cluster_ips = cluster_ips.iter().map(|address| (true, SocketAddr::new(ip(address), 80)));
        let node_ports = NODE.into_iter().map(|address| (false, SocketAddr::new(address, NODE_PORT)));
        let load_balancers = LOAD_BALANCER.into_iter().map(|address| (false, SocketAddr::new(ip(address), 80)));
        self.targets = cluster_ips.chain(node_ports).chain(load_balancers).collect();
        anyhow::ensure!(self.targets.len() == 6, "two ClusterIPs were expected: {:?}", self.targets);
        Ok(())
    }

    async fn add_pod(&self, name: &str, node: &str, address: &str) -> anyhow::Result<()> {
        let ports = [Port { name: "http", protocol: "TCP", number: HTTP }];
        let labels = [("app", "web")];
        let ips = pod(address);
        let new = NewPod { name, node, labels: &labels, ips: &ips, ports: &ports, ready: true };
        self.plane.objects("shop").ensure_pod(new).await
    }

    fn start_brain(&self) -> anyhow::Result<localnet_lab::Running> {
        let source = format!("kube:{}", self.plane.kube_proxy_kubeconfig().display());
        self.programs.start_brain(self.network.node(), &source)
    }

    /// Waits until exactly these pods answer at every address of the Service, in both families.
    fn await_pods(&self, pods: &[&str]) -> anyhow::Result<()> {
        for (inside, to) in &self.targets {
            let from = if *inside { self.network.pod(ip(PODS[1]))? } else { self.network.client() };
            self.programs.await_answers(from, Probe::new(Protocol::Tcp, *to), &endpoints(pods, to.ip()))?;
        }
        Ok(())
    }

    /// Connects to every address in turn until `done`. Every connection must be answered.
    fn keep_connecting(&self, done: &AtomicBool) -> anyhow::Result<usize> {
        let mut connections = 0;
        while !done.load(Ordering::Relaxed) {
            for (inside, to) in &self.targets {
                let from = if *inside { self.network.pod(ip(PODS[1]))? } else { self.network.client() };
                let outcome = from.probe(Probe::new(Protocol::Tcp, *to))?;
                anyhow::ensure!(matches!(outcome, Outcome::Answer { .. }), "{to}: {outcome} after {connections}");
                connections += 1;
            }
        }
        Ok(connections)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn packets_reach_a_service_of_a_live_cluster() -> anyhow::Result<()> {
    let mut world = World::build().await?;
    let mut brain = world.start_brain()?;
    let mut backend = world.programs.start_nft(world.network.node())?;
    world.await_pods(&[PODS[0], PODS[2]])?;

    // A rolling change: one pod is added and another removed, and no connection fails.
    let done = AtomicBool::new(false);
    let connections = std::thread::scope(|scope| {
        let connecting = scope.spawn(|| world.keep_connecting(&done));
        let changed = tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(async {
                let shop = world.plane.objects("shop");
                world.add_pod("web-2", "node-a", PODS[1]).await?;
                world.await_pods(&PODS)?;
                shop.set_pod_ready("web-1", false).await?;
                world.await_pods(&[PODS[1], PODS[2]])
            })
        });
        done.store(true, Ordering::Relaxed);
        changed.and(connecting.join().expect("the connecting thread does not panic"))
    })?;
    anyhow::ensure!(connections >= 12, "only {connections} connections were made during the change");

    // Without an API server, restarts change nothing. Changes made during this time arrive afterwards.
    let ruleset = |world: &World| {
        let mut list = std::process::Command::new("nft");
        world.network.node().output(list.args(["-a", "list", "ruleset"]))
    };
    let before = ruleset(&world)?;
    world.plane.stop_apiserver()?;
    backend.kill()?;
    backend.wait()?;
    backend = world.programs.start_nft(world.network.node())?;
    world.await_pods(&[PODS[1], PODS[2]])?;
    brain.kill()?;
    brain.wait()?;
    brain = world.start_brain()?;
    world.await_pods(&[PODS[1], PODS[2]])?;
    assert_eq!(ruleset(&world)?, before, "restarts without an API server changed the kernel");
    world.plane.start_apiserver().await?;
    world.plane.objects("shop").set_pod_ready("web-1", true).await?;
    world.await_pods(&PODS)?;

    // A deleted Service disappears from the kernel, and cleanup removes everything.
    world.plane.objects("shop").remove_service("web").await?;
    let (_, to) = world.targets[4];
    world.programs.await_outcomes(world.network.client(), Probe::new(Protocol::Tcp, to), 1, |outcomes| {
        !outcomes.iter().any(|outcome| matches!(outcome, Outcome::Answer { .. }))
    })?;
    backend.kill()?;
    backend.wait()?;
    let mut cleanup = world.programs.start(world.network.node(), "localnet-nft", &["cleanup"])?;
    assert!(cleanup.wait()?.success(), "{}", world.programs.log("localnet-nft"));
    assert_eq!(ruleset(&world)?, "", "cleanup left something");
    drop(brain);
    Ok(())
}
