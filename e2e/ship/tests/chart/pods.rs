//! Runs the chart's pods on two nodes as a kubelet starts them: from the API server's DaemonSet to a packet, and from one backend
//! to another under continuous connections.

use std::{
    fs,
    net::{IpAddr, SocketAddr},
    process::Command,
    time::Duration,
};

use anyhow::Context as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, api::PostParams, config::Kubeconfig};
use localnet_controlplane::{ControlPlane, NewNode, Options};
use localnet_e2e::{
    Programs,
    load::{Connections, Load},
    program,
    web::{self, DNS_NODE_PORT, HTTP, HTTP_NODE_PORT},
};
use localnet_lab::{
    Namespace, Network, Probe, Protocol, Servers, Topology,
    topology::{CLIENT, NODE, POD_CIDRS, ROUTER, SERVICE_CIDRS},
};
use serde_json::json;

use crate::{
    chart, helm_in,
    install::{NAMESPACE, api},
    kubelet::Kubelet,
};

/// On each node, one pod that serves, and one that is a client.
const SERVING: [&str; 2] = ["10.180.0.1", "10.180.1.1"];
const ASKING: [&str; 2] = ["10.180.0.2", "10.180.1.2"];
const OTHER_POD_CIDRS: [&str; 2] = ["10.180.1.0/24", "fd00:10:180:1::/64"];
const NODES: [&str; 2] = ["node-a", "node-b"];
const CONNECTIONS: u32 = 25;
const FLOWS: usize = 5;
const SEND_EVERY: Duration = Duration::from_millis(50);

struct World {
    programs: Programs,
    plane: ControlPlane,
    _servers: Servers,
    network: Network,
    cluster_ips: Vec<IpAddr>,
}

impl World {
    async fn build() -> anyhow::Result<Self> {
        let network = Network::build(Topology::with_pods(SERVING.into_iter().chain(ASKING))?)?;
        let servers = Servers::start(&network, web::endpoints(&SERVING))?;
        // Both nodes reach the control plane, which runs on neither.
        let plane = ControlPlane::start(Options {
            netns: Some(network.client().path()),
            bind_address: CLIENT[0],
            service_cidrs: SERVICE_CIDRS.map(str::to_owned).to_vec(),
            ..Options::default()
        })
        .await?;
        trust(&plane).await?;
        for (name, addresses, pod_cidrs) in [(NODES[0], &NODE, &POD_CIDRS), (NODES[1], &ROUTER, &OTHER_POD_CIDRS)] {
            plane.objects("default").ensure_node(NewNode { name, addresses, labels: &[], pod_cidrs }).await?;
        }
        let cluster_ips = web::create(&plane, &[(SERVING[0], NODES[0]), (SERVING[1], NODES[1])]).await?;
        Ok(Self { programs: Programs::new()?, plane, _servers: servers, network, cluster_ips })
    }

    /// Runs helm in a namespace that reaches the API server.
    fn helm(&self, verb: &[&str], values: &[&str]) -> anyhow::Result<()> {
        let kubeconfig = self.plane.kubeconfig().display().to_string();
        let mut arguments = verb.to_vec();
        arguments.extend(["--kubeconfig", &kubeconfig, "--namespace", NAMESPACE]);
        arguments.extend(values.iter().flat_map(|value| ["--set", value]));
        helm_in(&arguments, |command| self.network.client().output(command)).map(drop)
    }

    fn upgrade(&self, values: &[&str]) -> anyhow::Result<()> {
        self.helm(&["upgrade", "localnet", &chart("").display().to_string(), "--reuse-values"], values)
    }

    /// Replaces the pods of one node after the other, as the DaemonSet controller does.
    async fn roll_out(&self, kubelets: &mut [Kubelet<'_>]) -> anyhow::Result<()> {
        let daemon_set = api(&self.plane.client(), ("apps", "v1", "DaemonSet")).get("localnet").await?;
        for kubelet in kubelets {
            kubelet.replace(&daemon_set.data["spec"]["template"]).await?;
        }
        Ok(())
    }

    /// The clients and their destinations: ClusterIPs from a pod of each node, NodePorts of both nodes from outside.
    fn targets(&self, port: u16, node_port: u16) -> anyhow::Result<Vec<(&Namespace, SocketAddr)>> {
        let mut targets = Vec::new();
        for pod in ASKING {
            let from = self.network.pod(pod.parse()?)?;
            targets.extend(self.cluster_ips.iter().map(|ip| (from, SocketAddr::new(*ip, port))));
        }
        let nodes = NODE.into_iter().chain(ROUTER);
        targets.extend(nodes.map(|ip| (self.network.client(), SocketAddr::new(ip, node_port))));
        Ok(targets)
    }

    /// The output of a program that lists rules, on both nodes.
    fn rules(&self, program: &str, arguments: &[&str]) -> anyhow::Result<[String; 2]> {
        let of = |node: &Namespace| node.output(Command::new(program).args(arguments));
        Ok([of(self.network.node())?, of(self.network.router())?])
    }
}

/// Creates the ConfigMap with the API server's certificate authority, which the controller manager adds to each namespace.
async fn trust(plane: &ControlPlane) -> anyhow::Result<()> {
    let kubeconfig = Kubeconfig::read_from(plane.kubeconfig())?;
    let cluster = kubeconfig.clusters.into_iter().find_map(|cluster| cluster.cluster);
    let authority =
        cluster.and_then(|cluster| cluster.certificate_authority).context("the kubeconfig has a CA file")?;
    let map = serde_json::from_value(json!({
        "metadata": { "name": "kube-root-ca.crt" },
        "data": { "ca.crt": fs::read_to_string(authority)? },
    }))?;
    let maps: Api<ConfigMap> = Api::namespaced(plane.client(), NAMESPACE);
    maps.create(&PostParams::default(), &map).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_serve_and_hand_over_to_another_backend_and_back() -> anyhow::Result<()> {
    let world = World::build().await?;
    let server = world.plane.apiserver_address();
    let (host, port) = (format!("apiServer.host={}", server.ip()), format!("apiServer.port={}", server.port()));
    // These settings exist only in the host's network namespace.
    let limits = ["config.linux.conntrack.maxPerCore=0", "config.linux.conntrack.min=0"];
    let values = [&[host.as_str(), &port, "iptables.flavour=legacy", "history.enabled=true"][..], &limits].concat();
    world.helm(&["install", "localnet", &chart("").display().to_string()], &values)?;

    let nodes = [(world.network.node(), NODES[0], NODE[0]), (world.network.router(), NODES[1], ROUTER[0])];
    let kubelets = nodes.into_iter().map(|node| Kubelet::new(node, world.plane.client(), NAMESPACE));
    let mut kubelets = kubelets.collect::<anyhow::Result<Vec<_>>>()?;
    world.roll_out(&mut kubelets).await?;
    let targets = world.targets(80, HTTP_NODE_PORT)?;
    for (from, to) in &targets {
        world
            .programs
            .await_answers(from, Probe::new(Protocol::Tcp, *to), &web::answering(&SERVING, *to, HTTP))
            .with_context(|| kubelets.iter().map(Kubelet::logs).collect::<String>())?;
    }

    let answered = std::thread::scope(|scope| {
        let mut loads = Vec::new();
        for (from, to) in &targets {
            let endpoints = web::answering(&SERVING, *to, HTTP).into_iter().collect();
            let connections = Connections { source: None, to: vec![*to], endpoints, rate: CONNECTIONS };
            loads.push(Load::connections(scope, from, connections));
        }
        for (from, to) in world.targets(53, DNS_NODE_PORT)? {
            loads.push(Load::flows(scope, from, to, FLOWS, SEND_EVERY)?.0);
        }
        let handed = tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(there_and_back(&world, &mut kubelets))
        });
        let answered: Vec<_> = loads.into_iter().map(Load::finish).collect();
        handed.with_context(|| kubelets.iter().map(Kubelet::logs).collect::<String>())?;
        answered.into_iter().collect::<Result<Vec<_>, _>>()
    });
    for answered in &answered? {
        println!("{answered}");
        anyhow::ensure!(answered.count > 0, "no request was sent");
    }
    Ok(())
}

/// Executes the steps of the chart's page, "Switch to another backend".
async fn there_and_back(world: &World, kubelets: &mut [Kubelet<'_>]) -> anyhow::Result<()> {
    let nft = || world.rules("nft", &["list", "tables"]);
    let iptables = || world.rules("iptables-legacy-save", &["-t", "nat"]);
    let has = |rules: &[String; 2], what: &str| rules.iter().filter(|rules| rules.contains(what)).count();
    // The first step can be rolled back.
    world.upgrade(&["backend=iptables"])?;
    world.roll_out(kubelets).await?;
    world.helm(&["rollback", "localnet", "1"], &[])?;
    world.roll_out(kubelets).await?;
    world.upgrade(&["backend=iptables"])?;
    world.roll_out(kubelets).await?;
    anyhow::ensure!(has(&nft()?, "localnet") == 2 && has(&iptables()?, "KUBE-SVC-") == 2, "both are in the kernel");
    world.upgrade(&["cleanup={nft}"])?;
    world.roll_out(kubelets).await?;
    anyhow::ensure!(has(&nft()?, "localnet") == 0, "nft's rules still exist: {:?}", nft()?);
    // The second step can be rolled back alone.
    world.helm(&["rollback", "localnet"], &[])?;
    world.roll_out(kubelets).await?;
    anyhow::ensure!(has(&iptables()?, "KUBE-SVC-") == 2, "those of iptables stay");

    world.upgrade(&["backend=nft", "socket.hostPath=/run/localnet", "history.hostPath=/var/lib/localnet"])?;
    world.roll_out(kubelets).await?;
    for kubelet in &*kubelets {
        let mut command = Command::new(program("localnet")?);
        command.arg("--api").arg(format!("unix://{}", kubelet.host("/run/localnet/brain.sock").display()));
        let services = kubelet.node.output(command.args(["get", "services"]))?;
        anyhow::ensure!(services.contains("web"), "the host reads the state: {services}");
        let history = fs::metadata(kubelet.host("/var/lib/localnet/history")).context("reading the history file")?;
        let logs = kubelet.logs();
        anyhow::ensure!(history.len() > 0 && !logs.contains("cannot record the history"), "{logs}");
    }
    world.upgrade(&["cleanup={iptables}"])?;
    world.roll_out(kubelets).await?;
    anyhow::ensure!(has(&iptables()?, "KUBE-SVC-") == 0, "iptables' rules still exist: {:?}", iptables()?);
    world.upgrade(&["cleanup=null"])?;
    world.roll_out(kubelets).await?;
    anyhow::ensure!(has(&nft()?, "localnet") == 2, "{:?}", nft()?);
    Ok(())
}
