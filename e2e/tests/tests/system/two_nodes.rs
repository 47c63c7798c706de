//! Two nodes, each with its own brain and backend, or kube-proxy: the packets of the Case `two-nodes` between them.
//!
//! The proxies follow each other on the same nodes. The expectations are those of the Case, so the oracle of each node agrees with
//! them (`client/tests/cases.rs`), and kube-proxy must do the same.

use std::{collections::BTreeSet, net::SocketAddr, time::Duration};

use anyhow::Context as _;
use k8s_openapi::api::{
    core::v1::{Node, Service},
    discovery::v1::EndpointSlice,
};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams},
};
use localnet_controlplane::{ControlPlane, Options};
use localnet_e2e::{
    Backend, PATIENCE, Programs,
    kube_proxy::{self, Mode},
};
use localnet_lab::{
    Case, Namespace, Network, Outcome, Probe, Protocol, Running, Servers, Topology, cases, probe_flows,
    topology::{CLUSTER_CIDRS, Place, ROUTER, SERVICE_CIDRS},
};
use serde_json::{Value, json};

/// The Service whose answers show that a proxy knows the zone of its node, and the endpoint for the zone of each node.
const ZONES: (&str, [&str; 2]) = ("172.30.0.44:80", ["10.180.0.3:8044", "10.180.1.4:8044"]);
const NODES: [&str; 2] = ["node-a", "node-b"];
const ZONE: &str = "topology.kubernetes.io/zone";
/// A started kube-proxy programs the zone of its Node within this time, or never.
const KNOWS_ZONE_WITHIN: Duration = Duration::from_secs(3);

#[derive(Clone, Copy, Debug)]
enum Proxy {
    Ours(Backend),
    KubeProxy(Mode),
}

/// All use the tools of one flavour, so that nft can flush their rules.
const PROXIES: [Proxy; 4] = [
    Proxy::Ours(Backend::Nft),
    Proxy::KubeProxy(Mode::Nftables),
    Proxy::Ours(Backend::Iptables("nft")),
    Proxy::KubeProxy(Mode::Iptables("nft")),
];

/// A proxy on one node.
struct RunningProxy {
    _running: Vec<Running>,
    programs: Programs,
    log: &'static str,
}

struct World {
    plane: ControlPlane,
    network: Network,
    _servers: Servers,
    case: Case,
}

impl World {
    /// The control plane runs on the router, which both nodes reach.
    async fn build() -> anyhow::Result<Self> {
        let case = cases().into_iter().find(|case| case.name == "two-nodes").context("the Case does not exist")?;
        let case = case.on_other_node().context("the Case has no packets between nodes")?;
        let endpoints = case.endpoints()?;
        let network = Network::build(Topology { other_node: true, ..case.flows.topology(&endpoints) })?;
        let servers = Servers::start(&network, endpoints)?;
        let plane = ControlPlane::start(Options {
            netns: Some(network.router().path()),
            bind_address: ROUTER[0],
            service_cidrs: SERVICE_CIDRS.map(str::to_owned).to_vec(),
            controllers: false,
            ..Options::default()
        })
        .await?;
        plane.objects("demo").ensure_namespace().await?;
        let objects: Vec<Value> = serde_saphyr::from_multiple(&std::fs::read_to_string(case.cluster())?)?;
        for object in objects {
            create(&plane.client(), &object).await.with_context(|| format!("creating {object}"))?;
        }
        Ok(Self { plane, network, _servers: servers, case })
    }

    /// Starts a proxy on both nodes, and waits until both have programmed the cluster.
    async fn start(&self, proxy: Proxy) -> anyhow::Result<[RunningProxy; 2]> {
        let start = |place| self.start_on(place, proxy);
        let started = [start(Place::Local)?, start(Place::Remote)?];
        for (place, running) in Place::BOTH.into_iter().zip(&started) {
            let known = self.await_zone(
                place,
                running,
                if matches!(proxy, Proxy::Ours(_)) { PATIENCE } else { KNOWS_ZONE_WITHIN },
            );
            match proxy {
                Proxy::KubeProxy(_) if known.is_err() => {
                    // Entry 6 of `docs/differences.md`.
                    for zone in [json!("zone-of-a-moment"), json!(format!("zone-{}", ["a", "b"][place as usize]))] {
                        self.set_zone(place, zone).await?;
                    }
                    self.await_zone(place, running, PATIENCE)?;
                }
                Proxy::Ours(_) | Proxy::KubeProxy(_) => known?,
            }
        }
        Ok(started)
    }

    fn start_on(&self, place: Place, proxy: Proxy) -> anyhow::Result<RunningProxy> {
        let (node, name, programs) = (self.network.node_at(place)?, NODES[place as usize], Programs::new()?);
        let kubeconfig = self.plane.kube_proxy_kubeconfig();
        let (running, log) = match proxy {
            Proxy::Ours(backend) => {
                let brain = programs.start_brain_of(node, &format!("kube:{}", kubeconfig.display()), name)?;
                (vec![brain, programs.start_backend(node, backend)?], backend.program())
            }
            Proxy::KubeProxy(mode) => {
                let lines = format!(
                    "clusterCIDR: \"{}\"\ndetectLocalMode: ClusterCIDR\nnodePortAddresses: [primary]\n\
                     iptables: {{minSyncPeriod: 50ms, localhostNodePorts: false}}\nnftables: {{minSyncPeriod: 50ms}}\n",
                    CLUSTER_CIDRS.join(",")
                );
                let started = kube_proxy::start(node, &programs, mode, (kubeconfig, name), &lines)?;
                (vec![started], kube_proxy::KUBE_PROXY)
            }
        };
        Ok(RunningProxy { _running: running, programs, log })
    }

    /// Waits until the node sends its own packets only to the endpoint of its zone. Each proxy programs a whole state at once.
    fn await_zone(&self, place: Place, running: &RunningProxy, patience: Duration) -> anyhow::Result<()> {
        let (to, endpoints) = ZONES;
        let (to, endpoint): (SocketAddr, SocketAddr) = (to.parse()?, endpoints[place as usize].parse()?);
        let (node, probe) =
            (self.network.node_at(place)?, Probe::new(Protocol::Tcp, to).timeout(Duration::from_millis(200)));
        let began = std::time::Instant::now();
        loop {
            let mut by = BTreeSet::new();
            node.probe_until(probe, 40, |outcome| {
                by.insert(outcome);
                !matches!(outcome, Outcome::Answer { by, .. } if by == endpoint)
            })?;
            if by.iter().all(|outcome| matches!(outcome, Outcome::Answer { by, .. } if *by == endpoint)) {
                return Ok(());
            }
            anyhow::ensure!(began.elapsed() < patience, "{to} leads to {by:?}\n{}", running.programs.log(running.log));
            std::thread::park_timeout(Duration::from_millis(20));
        }
    }

    async fn set_zone(&self, place: Place, zone: Value) -> anyhow::Result<()> {
        let change = Patch::Merge(json!({ "metadata": { "labels": { ZONE: zone } } }));
        let nodes: Api<Node> = Api::all(self.plane.client());
        nodes.patch(NODES[place as usize], &PatchParams::default(), &change).await.map(drop).context("setting a zone")
    }
}

/// Creates an object of the Case with its status.
async fn create(client: &Client, object: &Value) -> anyhow::Result<()> {
    let named = |of: &str| object["metadata"][of].as_str().unwrap_or_default();
    let resource = match object["kind"].as_str() {
        Some("Node") => ApiResource::erase::<Node>(&()),
        Some("Service") => ApiResource::erase::<Service>(&()),
        Some("EndpointSlice") => ApiResource::erase::<EndpointSlice>(&()),
        kind => anyhow::bail!("{kind:?} is not a kind of this Case"),
    };
    let api: Api<DynamicObject> = match named("namespace") {
        "" => Api::all_with(client.clone(), &resource),
        namespace => Api::namespaced_with(client.clone(), namespace, &resource),
    };
    api.create(&PostParams::default(), &serde_json::from_value(object.clone())?).await?;
    if let Some(status) = object.get("status") {
        let status = Patch::Merge(json!({ "status": status }));
        api.patch_status(named("name"), &PatchParams::default(), &status).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn packets_between_two_nodes_have_the_expected_verdicts_and_sources() -> anyhow::Result<()> {
    let began = std::time::Instant::now();
    let world = World::build().await?;
    println!("built after {:.1?}", began.elapsed());
    let mut wrong = Vec::new();
    for proxy in PROXIES {
        let started = world.start(proxy).await.with_context(|| format!("{proxy:?}"))?;
        println!("{proxy:?} runs after {:.1?}", began.elapsed());
        let checked = tokio::task::block_in_place(|| probe_flows(&world.network, &world.case.flows.flows));
        wrong.extend(checked.err().map(|error| format!("{proxy:?}: {error:#}")));
        drop(started);
        for place in Place::BOTH {
            flush(world.network.node_at(place)?)?;
        }
        println!("{proxy:?} is checked after {:.1?}", began.elapsed());
    }
    anyhow::ensure!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    Ok(())
}

fn flush(node: &Namespace) -> anyhow::Result<()> {
    node.output(std::process::Command::new("nft").args(["flush", "ruleset"])).map(drop)
}
