//! If the API server is unavailable for a minute, nothing changes in the kernel. Changes made during this time arrive once it is
//! back.
//!
//! A second API server over the same etcd makes these changes. The brain and the controllers do not know it.

use std::{
    collections::BTreeSet,
    fmt::Debug,
    io::{Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    process::Command,
    thread::{Scope, scope},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, Patch, PatchParams},
};
use localnet_controlplane::{ControlPlane, NewNode, Options, has_service_cidrs};
use localnet_e2e::{
    PATIENCE, Programs, await_condition,
    load::{Answered, Connections, Load},
};
use localnet_lab::{
    Endpoint, Network, Outcome, Probe, Protocol, Running, Servers, Topology,
    topology::{NODE, POD_CIDRS, SERVICE_CIDRS},
};
use localnet_linux::nft::{Event, Monitor, Table};
use localnet_proto::Family;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;
use tokio::{runtime::Runtime, time::timeout};

const PODS: [&str; 3] = ["10.180.0.1", "10.180.0.2", "10.180.0.3"];
const NAMESPACE: &str = "shop";
const AWAY: Duration = Duration::from_secs(60);
const CONNECTIONS_OF_EACH: u32 = 20;
const UDP_FLOWS: usize = 10;
const SEND_EVERY: Duration = Duration::from_millis(100);

/// A Service and its slice: the last byte of the ClusterIP, the port, the endpoints' port, and the pods.
struct Front {
    name: &'static str,
    number: u8,
    protocol: Protocol,
    port: u16,
    target: u16,
}

const WEB: Front = Front { name: "web", number: 10, protocol: Protocol::Tcp, port: 80, target: 8080 };
const OLD: Front = Front { name: "old", number: 11, protocol: Protocol::Tcp, port: 80, target: 8080 };
const NEW: Front = Front { name: "new", number: 12, protocol: Protocol::Tcp, port: 80, target: 8080 };
const CHAT: Front = Front { name: "chat", number: 13, protocol: Protocol::Tcp, port: 7, target: 7 };
const DNS: Front = Front { name: "dns", number: 53, protocol: Protocol::Udp, port: 53, target: 5353 };
const NODE_PORT: u16 = 30_080;

impl Front {
    fn address(&self) -> SocketAddr {
        SocketAddr::new(IpAddr::from([172, 30, 0, self.number]), self.port)
    }

    fn endpoints(&self, pods: &[&str]) -> Vec<SocketAddr> {
        pods.iter().map(|pod| SocketAddr::new(ip(pod), self.target)).collect()
    }

    async fn write(&self, client: &Client, pods: &[&str]) -> anyhow::Result<()> {
        let Self { name, port, target, .. } = self;
        let protocol = self.protocol.as_str();
        let mut of_service = json!({ "port": port, "protocol": protocol });
        let mut spec = json!({ "clusterIP": self.address().ip() });
        if *name == WEB.name {
            spec["type"] = "NodePort".into();
            of_service["nodePort"] = NODE_PORT.into();
        }
        spec["ports"] = json!([of_service]);
        apply::<Service>(client, name, json!({ "spec": spec })).await?;
        let endpoint =
            |pod: &&str| json!({ "addresses": [pod], "conditions": { "ready": true }, "nodeName": "node-a" });
        let slice = json!({
            "metadata": { "labels": { "kubernetes.io/service-name": name } },
            "addressType": "IPv4",
            "ports": [{ "name": "", "port": target, "protocol": protocol }],
            "endpoints": pods.iter().map(endpoint).collect::<Vec<_>>(),
        });
        apply::<EndpointSlice>(client, name, slice).await
    }

    async fn remove(&self, client: &Client) -> anyhow::Result<()> {
        Api::<Service>::namespaced(client.clone(), NAMESPACE).delete(self.name, &DeleteParams::default()).await?;
        Api::<EndpointSlice>::namespaced(client.clone(), NAMESPACE).delete(self.name, &DeleteParams::default()).await?;
        Ok(())
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address of this test")
}

async fn apply<K>(client: &Client, name: &str, mut object: serde_json::Value) -> anyhow::Result<()>
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + Debug
        + Serialize
        + DeserializeOwned,
{
    object["apiVersion"] = K::api_version(&()).into();
    object["kind"] = K::kind(&()).into();
    object["metadata"]["name"] = name.into();
    let api: Api<K> = Api::namespaced(client.clone(), NAMESPACE);
    let ours = PatchParams::apply("localnet-e2e").force();
    let applied = api.patch(name, &ours, &Patch::Apply(object)).await;
    applied.map(drop).with_context(|| format!("applying {} {name}", K::kind(&())))
}

/// The node without its control plane.
struct World {
    // Fields are dropped in this order: first the programs that run in the network.
    _backend: Running,
    _brain: Running,
    programs: Programs,
    _servers: Servers,
    network: Network,
}

async fn start_control_plane(network: &Network) -> anyhow::Result<ControlPlane> {
    let options = Options {
        netns: Some(network.node().path()),
        service_cidrs: SERVICE_CIDRS.map(str::to_owned).to_vec(),
        ..Options::default()
    };
    let plane = ControlPlane::start(options).await?;
    let objects = plane.objects(NAMESPACE);
    objects.ensure_namespace().await?;
    objects.ensure_node(NewNode { name: "node-a", addresses: &NODE, labels: &[], pod_cidrs: &POD_CIDRS }).await?;
    for front in [WEB, OLD, DNS] {
        front.write(&plane.client(), &PODS[..2]).await?;
    }
    CHAT.write(&plane.client(), &PODS[..1]).await?;
    Ok(plane)
}

impl World {
    fn build(network: Network, plane: &ControlPlane) -> anyhow::Result<Self> {
        let mut endpoints = Vec::new();
        for front in [WEB, DNS] {
            let at = |address| Endpoint { protocol: front.protocol, address };
            endpoints.extend(front.endpoints(&PODS).into_iter().map(at));
        }
        let servers = Servers::start(&network, endpoints)?;
        let programs = Programs::new()?;
        let source = format!("kube:{}", plane.kube_proxy_kubeconfig().display());
        let brain = programs.start_brain(network.node(), &source)?;
        let backend = programs.start_nft(network.node())?;
        let world = Self { _backend: backend, _brain: brain, programs, _servers: servers, network };
        for front in [WEB, OLD] {
            world.await_pods(&front, &PODS[..2])?;
        }
        Ok(world)
    }

    fn await_pods(&self, front: &Front, pods: &[&str]) -> anyhow::Result<()> {
        let probe = Probe::new(front.protocol, front.address());
        self.programs.await_answers(self.network.client(), probe, &front.endpoints(pods))
    }

    fn nft(&self, arguments: &[&str]) -> anyhow::Result<String> {
        self.network.node().output(Command::new("nft").args(arguments))
    }

    /// Starts to connect to `web` through all its VIPs.
    fn connect<'scope, 'env>(&'env self, scope: &'scope Scope<'scope, 'env>) -> anyhow::Result<Vec<Load<'scope>>> {
        let node_port = SocketAddr::new(NODE[0], NODE_PORT);
        let pod = self.network.pod(ip(PODS[2]))?;
        let senders = [
            (self.network.client(), vec![WEB.address(), node_port]),
            (pod, vec![WEB.address(), node_port]),
            (self.network.node(), vec![WEB.address()]),
        ];
        let begin = |(from, to)| {
            let endpoints = WEB.endpoints(&PODS).into_iter().collect();
            Load::connections(scope, from, Connections { source: None, to, endpoints, rate: CONNECTIONS_OF_EACH })
        };
        Ok(senders.into_iter().map(begin).collect())
    }

    /// The minute without an API server, and the checks after it.
    fn outage(&self, plane: &mut ControlPlane, chat: &Chat, runtime: &Runtime) -> anyhow::Result<()> {
        let another = runtime.block_on(plane.start_another_apiserver())?;
        let ruleset = ["-a", "list", "ruleset"];
        let before = self.nft(&ruleset)?;
        let mut monitor = self.network.node().run(|| {
            let _entered = runtime.enter();
            Ok(Monitor::subscribe(Vec::new())?)
        })?;

        plane.stop_apiserver()?;
        let stopped = Instant::now();
        await_condition("the brain logs that the API server is unavailable", || {
            self.programs.log("localnet-brain").contains("keeping the last objects")
        })?;
        runtime.block_on(async {
            let client = another.client();
            OLD.remove(&client).await?;
            NEW.write(&client, &PODS[2..]).await?;
            WEB.write(&client, &PODS[1..]).await
        })?;
        let rest = AWAY.saturating_sub(stopped.elapsed());
        let changed = runtime.block_on(async { timeout(rest, monitor.next()).await });
        anyhow::ensure!(changed.is_err(), "the ruleset changed: {changed:?}");
        anyhow::ensure!(self.nft(&ruleset)? == before, "the kernel holds something else");
        chat.exchange()?;
        // An event from the kernel arrives for every change. To verify this, another change must be the first event.
        let witness = Table::new(Family::V4, "witness");
        self.nft(&["add", "table", "ip", "witness"])?;
        let heard = runtime.block_on(monitor.next())?;
        let is_witness = matches!(&heard, Event::Committed(commit) if commit.tables == BTreeSet::from([witness]));
        anyhow::ensure!(is_witness, "the ruleset changed: {heard:?}");

        // The changes made through the second API server are in etcd.
        drop(another);
        runtime.block_on(plane.start_apiserver())?;
        self.await_pods(&NEW, &PODS[2..])?;
        self.await_pods(&WEB, &PODS[1..])?;
        let old = Probe::new(OLD.protocol, OLD.address());
        // Without ServiceCIDRs, the node forwards the packet to a router, which rejects it.
        let gone = if has_service_cidrs() { Outcome::Dropped } else { Outcome::Rejected };
        let is_gone = |outcomes: &BTreeSet<_>| *outcomes == BTreeSet::from([gone]);
        self.programs.await_outcomes(self.network.client(), old, 1, is_gone)?;
        chat.exchange()
    }

    fn logs(&self) -> String {
        ["localnet-brain", "localnet-nft"].map(|name| format!("{name}:\n{}", self.programs.log(name))).concat()
    }
}

/// Both ends of a long-lived TCP connection.
struct Chat {
    client: TcpStream,
    server: TcpStream,
}

impl Chat {
    fn open(network: &Network) -> anyhow::Result<Self> {
        let at = CHAT.endpoints(&PODS[..1])[0];
        let listener = network.pod(at.ip())?.run(|| Ok(TcpListener::bind(at)?))?;
        let client = network.client().run(|| Ok(TcpStream::connect(CHAT.address())?))?;
        let (server, _) = listener.accept()?;
        for end in [&client, &server] {
            end.set_read_timeout(Some(PATIENCE))?;
        }
        Ok(Self { client, server })
    }

    fn exchange(&self) -> anyhow::Result<()> {
        let Self { client, server } = self;
        for (mut from, mut to) in [(client, server), (server, client)] {
            from.write_all(b"still there?")?;
            to.read_exact(&mut [0; 12]).context("using a connection that was there before")?;
        }
        Ok(())
    }
}

#[test]
fn an_api_server_outage_of_a_minute_changes_nothing() -> anyhow::Result<()> {
    let runtime = Runtime::new()?;
    let network = Network::build(Topology::with_pods(PODS)?)?;
    let mut plane = runtime.block_on(start_control_plane(&network))?;
    let world = World::build(network, &plane)?;
    let chat = Chat::open(&world.network)?;
    let (connections, datagrams) = scope(|scope| {
        let (udp, used) = Load::flows(scope, world.network.client(), DNS.address(), UDP_FLOWS, SEND_EVERY)?;
        anyhow::ensure!(used.len() == 2, "flows to both endpoints of dns were expected: {used:?}");
        let tcp = world.connect(scope)?;
        let done = world.outage(&mut plane, &chat, &runtime).with_context(|| world.logs());
        let tcp: Vec<_> = tcp.into_iter().map(Load::finish).collect();
        let udp = udp.finish();
        done?;
        let tcp = tcp.into_iter().collect::<Result<Vec<_>, _>>().context("TCP")?;
        anyhow::Ok((Answered::together(tcp), udp.context("UDP")?))
    })?;
    println!("a minute without the API server: connections: {connections}; datagrams: {datagrams}; all were answered");
    assert!(connections.took > AWAY && datagrams.took > AWAY);
    Ok(())
}
