//! kube-proxy's iptables mode → localnet-iptables → kube-proxy, under continuous connections: no connection fails, and no flow
//! changes its endpoint. Afterwards, cleanup removes the rules of both.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    process::Command,
    thread::scope,
    time::Duration,
};

use anyhow::Context as _;
use localnet_controlplane::ControlPlane;
use localnet_e2e::{
    Backend, Programs, await_condition,
    load::{Connections, Load},
    web::{self, DNS_NODE_PORT, HTTP, HTTP_NODE_PORT},
};
use localnet_lab::{
    Network, Probe, Protocol, Servers, Topology,
    topology::{CLUSTER_CIDRS, NODE},
};

use crate::kube_proxy::{self, KUBE_PROXY, Mode};

const PODS: [&str; 2] = ["10.180.0.1", "10.180.0.2"];
const ASKING: &str = "10.180.0.3";
const CONNECTIONS: u32 = 50;
const FLOWS: usize = 10;
const SEND_EVERY: Duration = Duration::from_millis(50);

struct World {
    programs: Programs,
    plane: ControlPlane,
    network: Network,
    _servers: Servers,
    cluster_ips: Vec<IpAddr>,
    /// The flavour of the iptables tools.
    flavour: &'static str,
}

impl World {
    async fn build(flavour: &'static str) -> anyhow::Result<Self> {
        let network = Network::build(Topology::with_pods(PODS.into_iter().chain([ASKING]))?)?;
        let servers = Servers::start(&network, web::endpoints(&PODS))?;
        let plane = web::plane(&network).await?;
        let cluster_ips = web::create(&plane, &PODS.map(|pod| (pod, "node-a"))).await?;
        Ok(Self { programs: Programs::new()?, plane, network, _servers: servers, cluster_ips, flavour })
    }

    fn start_kube_proxy(&self) -> anyhow::Result<localnet_lab::Running> {
        let lines =
            format!("clusterCIDR: {}\niptables: {{minSyncPeriod: 50ms, syncPeriod: 30s}}\n", CLUSTER_CIDRS.join(","));
        let source = (self.plane.kube_proxy_kubeconfig(), "node-a");
        kube_proxy::start(self.network.node(), &self.programs, Mode::Iptables(self.flavour), source, &lines)
    }

    /// The tables of both families.
    fn saved(&self) -> anyhow::Result<String> {
        let save = |tables| self.network.node().output(&mut Command::new(format!("{tables}-{}-save", self.flavour)));
        Ok(save("iptables")? + &save("ip6tables")?)
    }

    /// The names of the chains of Services and endpoints.
    fn chains(&self) -> anyhow::Result<BTreeSet<String>> {
        let saved = self.saved()?;
        let names = saved.lines().filter_map(|line| line.strip_prefix(':')?.split(' ').next());
        let of_services = ["KUBE-SVC-", "KUBE-SEP-", "KUBE-EXT-"];
        Ok(names.filter(|name| of_services.iter().any(|start| name.starts_with(start))).map(str::to_owned).collect())
    }

    /// Waits until both families have the rule that only one of the programs writes, and neither has that of the other program.
    fn await_rules_of(&self, program: &str, rule: &str, other: &str) -> anyhow::Result<()> {
        let are_alone = || self.saved().is_ok_and(|saved| saved.matches(rule).count() >= 2 && !saved.contains(other));
        await_condition(rule, are_alone).with_context(|| {
            let saved = self.saved().unwrap_or_else(|error| format!("{error:#}"));
            format!("{program}, without {other}: {}\n{saved}", self.programs.log(program))
        })
    }
}

/// Only kube-proxy writes this rule: NodePorts on all local addresses. localnet writes one rule for each address.
const THEIRS: &str = "--dst-type LOCAL -j KUBE-NODEPORTS";
/// Only localnet writes this rule: it rejects unused ports of ClusterIPs.
const OURS: &str = "-j KUBE-CLUSTER-IPS";

#[tokio::test(flavor = "multi_thread")]
async fn switching_from_kube_proxy_and_back_fails_no_connection() -> anyhow::Result<()> {
    for flavour in ["nft", "legacy"] {
        let world = World::build(flavour).await?;
        tokio::task::block_in_place(|| there_and_back(&world))?;
    }
    Ok(())
}

fn there_and_back(world: &World) -> anyhow::Result<()> {
    let (node, client) = (world.network.node(), world.network.client());
    let pod = world.network.pod(ASKING.parse()?)?;
    let mut kube_proxy = world.start_kube_proxy()?;
    let targets: Vec<_> = (world.cluster_ips.iter().map(|ip| (pod, SocketAddr::new(*ip, 80))))
        .chain(NODE.map(|ip| (client, SocketAddr::new(ip, HTTP_NODE_PORT))))
        .collect();
    for (from, to) in &targets {
        world.programs.await_answers(from, Probe::new(Protocol::Tcp, *to), &web::answering(&PODS, *to, HTTP))?;
    }
    let chains = world.chains()?;
    anyhow::ensure!(chains.len() >= 12, "chains of two ports in two families were expected: {chains:?}");

    let answered = scope(|scope| {
        let mut loads: Vec<_> = targets
            .iter()
            .map(|(from, to)| {
                let endpoints = web::answering(&PODS, *to, HTTP).into_iter().collect();
                Load::connections(
                    scope,
                    from,
                    Connections { source: None, to: vec![*to], endpoints, rate: CONNECTIONS },
                )
            })
            .collect();
        for ip in NODE {
            let to = SocketAddr::new(ip, DNS_NODE_PORT);
            loads.push(Load::flows(scope, client, to, FLOWS, SEND_EVERY)?.0);
        }
        let taken = || -> anyhow::Result<()> {
            kube_proxy.kill()?;
            kube_proxy.wait()?;
            let source = format!("kube:{}", world.plane.kube_proxy_kubeconfig().display());
            let mut brain = world.programs.start_brain(node, &source)?;
            // localnet must find out by itself which tools kube-proxy used.
            let (api, cluster) = (world.programs.api(), CLUSTER_CIDRS.join(","));
            let mut ours =
                world.programs.start(node, "localnet-iptables", &["--api", &api, "--cluster-cidr", &cluster])?;
            world.await_rules_of("localnet-iptables", OURS, THEIRS)?;
            anyhow::ensure!(world.chains()? == chains, "chains have other names than kube-proxy's");
            ours.kill()?;
            ours.wait()?;
            brain.kill()?;
            brain.wait()?;
            kube_proxy = world.start_kube_proxy()?;
            world.await_rules_of(KUBE_PROXY, THEIRS, OURS)?;
            anyhow::ensure!(world.chains()? == chains, "kube-proxy has found other chains than its own");
            kube_proxy.kill()?;
            kube_proxy.wait()?;
            Ok(())
        }();
        let answered: Vec<_> = loads.into_iter().map(Load::finish).collect();
        taken?;
        answered.into_iter().collect::<Result<Vec<_>, _>>()
    })?;
    for answered in &answered {
        println!("{}: {answered}", world.flavour);
    }
    anyhow::ensure!(answered.iter().all(|load| load.count > 0), "no request was sent: {answered:?}");

    let mut cleanup = world.programs.start(node, "localnet-iptables", &["cleanup"])?;
    anyhow::ensure!(cleanup.wait()?.success(), "{}", world.programs.log("localnet-iptables"));
    let left = Backend::Iptables(world.flavour).listing(node)?;
    // Chains of the kubelet, which kube-proxy creates.
    let left: Vec<_> = left.iter().filter(|line| line.contains("KUBE-") && !line.contains("KUBE-FIREWALL")).collect();
    anyhow::ensure!(left.is_empty(), "cleanup left {left:?}");
    Ok(())
}
