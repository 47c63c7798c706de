//! The differential test with two nodes: random packets between nodes that both have a proxy, in a network with our programs and in
//! one with kube-proxy. [`agree`] runs it.
//!
//! ```text
//!   network A   node-a: brain, backend ── router ── node-b: brain, backend
//!                                       API server
//!   network B   node-a: kube-proxy ─────┘        └─ node-b: kube-proxy        with the same addresses
//! ```
//!
//! The oracle judges the packet on each node that it passes, so the test knows which pod or process receives it and which address
//! the receiver sees ([`localnet_lab::journey`]). A run has one setup, which both nodes share. Each state is a new cluster on the same
//! API server. The clusters are random, but without the claims that kube-proxy is known to handle differently. The tests with one
//! node compare these.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use anyhow::Context as _;
use localnet_client::{Snapshot, grpc::Brain};
use localnet_lab::{
    Namespace, Network, Probe, Protocol, Running, Sender, Servers, Topology,
    journey::End,
    topology::{Place, ROUTER},
};
use tokio::runtime::Runtime;

use crate::{
    Programs,
    api_server::Api,
    await_condition,
    kube_proxy::{self, KUBE_PROXY},
    patience,
};

use super::{
    between::{Asked, ask_all, draw, judge},
    cluster::{Cluster, NAMESPACE, NODE_NAMES, NodeFacts},
    pair::{Pair, Side},
    pools, print_line,
    random::Random,
    settle::{self, tail},
    setup::Setup,
    world::load_conntrack,
    write::{Sentinel, Writer},
};

/// The address of the API server on the router of network A, and a link from there to each node of network B.
const API_SERVER: &str = "100.64.0.1";
const LINKS: [[&str; 2]; 2] = [["100.64.1.1", "100.64.1.2"], ["100.64.2.1", "100.64.2.2"]];
const PACKETS_PER_STATE: usize = 120;
/// With this many connections, the chance of missing one of two endpoints is below 10⁻¹¹.
const ENOUGH: usize = 40;
/// A started kube-proxy programs the zone of its Node within this time, or never.
const KNOWS_ZONE_WITHIN: Duration = Duration::from_secs(3);

/// A node of one network, with its proxy.
struct Node {
    side: Side,
    place: Place,
    setup: Setup,
    programs: Programs,
    brain: Option<Brain>,
    /// Whether the node is known to have programmed its zone.
    knows_zone: bool,
    _running: Vec<Running>,
}

struct Nodes {
    // Fields are dropped in this order: first the programs that run in a network.
    nodes: Vec<Node>,
    api_server: Api,
    _servers: Vec<Servers>,
    networks: BTreeMap<Side, Network>,
    runtime: Runtime,
    pair: Pair,
    /// The setup of both nodes, apart from their names and facts.
    setup: Setup,
}

/// The result of a run.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    packets: usize,
    /// Packets that a server answers, and those of them that a server on another node than the first one may answer.
    answered: usize,
    between_nodes: usize,
    /// Unexplained differences of localnet.
    pub(crate) ours: usize,
    /// Unexplained differences of kube-proxy.
    pub(crate) kube_proxys: usize,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { packets, answered, between_nodes, ours, kube_proxys } = self;
        write!(
            f,
            "{packets} packets, {answered} answered, {between_nodes} between nodes; {ours} differences of localnet and \
             {kube_proxys} of kube-proxy"
        )
    }
}

/// Sends at least this many random packets between two nodes.
///
/// # Errors
/// Returns an error if a program does not start or does not reach a state.
pub(crate) fn agree(pair: Pair, seed: u64, packets: usize) -> anyhow::Result<Summary> {
    let random_setup = Setup::random(&mut Random::new(seed.rotate_left(32)));
    let setup = Setup { node_port_addresses: Setup::USUAL.node_port_addresses, ..random_setup };
    print_line(&format!("differential between nodes: {}", setup.flags().join(" ")));
    let mut nodes = Nodes::build(pair, setup)?;
    let setups = Place::BOTH.map(|place| nodes.setup(place));
    let mut writer = Writer::new(&nodes.api_server.client);
    let (mut state_seed, mut summary) = (seed, Summary::default());
    while summary.packets < packets {
        let mut random = Random::new(state_seed);
        let cluster = undisputed(Cluster::random(&mut random), pair);
        let states = nodes.reach(&mut writer, &cluster).with_context(|| format!("after {summary}"))?;
        let asked: Vec<Asked> = (0..PACKETS_PER_STATE)
            .map(|_| draw(pair, (&cluster, &states), &setups, &topology(), &mut random))
            .collect();
        for (side, network) in &nodes.networks {
            for (number, seen) in ask_all(network, &asked)? {
                if let Some(error) = judge(&asked[number], &seen, network.topology()) {
                    match side {
                        Side::Ours => summary.ours += 1,
                        Side::KubeProxy => summary.kube_proxys += 1,
                    }
                    print_line(&format!(
                        "\ndifference between nodes ({side:?}): {}\n    got {seen:?}: {error}",
                        asked[number]
                    ));
                }
            }
        }
        summary.count(&asked);
        state_seed = Random::new(state_seed).number() >> 32;
    }
    Ok(summary)
}

impl Summary {
    fn count(&mut self, asked: &[Asked]) {
        let topology = topology();
        let first = |asked: &Asked| match asked.sender {
            Sender::Pod(pod) => pod.place,
            Sender::Node => Place::Local,
            Sender::OtherNode => Place::Remote,
            Sender::Client(_) => topology.home(asked.to.ip()).unwrap_or(Place::Local),
        };
        let ends_at = |asked: &Asked, is: &dyn Fn(&SocketAddr) -> bool| {
            asked.ends.iter().any(|end| matches!(end, End::Answer { by, .. } if is(by)))
        };
        let elsewhere =
            |asked: &&Asked| ends_at(asked, &|by| topology.home(by.ip()).is_some_and(|home| home != first(asked)));
        self.packets += asked.len();
        self.answered += asked.iter().filter(|asked| ends_at(asked, &|_| true)).count();
        self.between_nodes += asked.iter().filter(elsewhere).count();
    }
}

/// The cluster without what kube-proxy is known to do differently: addresses that several Services claim, or that are a node's own
/// (entries 1, 3 and 4 of `docs/differences.md`), and for mode iptables source ranges (entries 10 and 12).
fn undisputed(mut cluster: Cluster, pair: Pair) -> Cluster {
    let mut claimed = BTreeSet::from_iter(pools::addresses_of_node());
    for service in cluster.services.values_mut() {
        let mut own = BTreeSet::new();
        let mut is_free = |ip: &IpAddr| {
            own.insert(*ip);
            !claimed.contains(ip)
        };
        service.external_ips.retain(&mut is_free);
        service.ingress.retain(|ingress| is_free(&ingress.ip));
        claimed.append(&mut own);
        if pair.is_iptables() {
            service.source_ranges.clear();
        }
    }
    cluster.node = facts(Place::Local);
    cluster
}

fn facts(place: Place) -> NodeFacts {
    let at = place as usize;
    NodeFacts { zone: Some(pools::ZONES[at]), addresses: place.addresses(), pod_cidrs: pools::NODE_POD_CIDRS[at] }
}

fn topology() -> Topology {
    Topology { other_node: true, ..pools::topology() }
}

impl Nodes {
    fn build(pair: Pair, setup: Setup) -> anyhow::Result<Self> {
        let runtime = Runtime::new()?;
        let built = pair.sides().map(|side| anyhow::Ok((side, Network::build(topology())?)));
        let networks = built.collect::<anyhow::Result<BTreeMap<_, _>>>()?;
        let servers = networks.values().map(|network| Servers::start(network, pools::servers_of_both_nodes()));
        let servers = servers.collect::<Result<_, _>>()?;
        let router = networks[&Side::Ours].router();
        router.ip([format!("addr add {API_SERVER}/32 dev lo")])?;
        for (side, network) in &networks {
            for place in Place::BOTH {
                let node = network.node_at(place)?;
                load_conntrack(node)?;
                match side {
                    Side::Ours => node.ip([format!("route add {API_SERVER} via {} dev uplink", ROUTER[0])])?,
                    Side::KubeProxy => link(router, node, place)?,
                }
            }
        }
        let api_server = runtime.block_on(async {
            let api_server = Api::start(router.path(), API_SERVER.parse()?, false).await?;
            api_server.objects(NAMESPACE).ensure_namespace().await?;
            anyhow::Ok(api_server)
        })?;
        Ok(Self { nodes: Vec::new(), api_server, _servers: servers, networks, runtime, pair, setup })
    }

    /// Writes the cluster and waits until all nodes have programmed it. Returns the states of both nodes. The first time, starts the
    /// proxies once the cluster is written.
    fn reach(&mut self, writer: &mut Writer, cluster: &Cluster) -> anyhow::Result<[Snapshot; 2]> {
        let sentinel = self.runtime.block_on(async {
            for place in Place::BOTH {
                writer.write_node(NODE_NAMES[place as usize], facts(place)).await?;
            }
            writer.write(cluster).await
        })?;
        if self.nodes.is_empty() {
            for side in self.pair.sides() {
                for place in Place::BOTH {
                    let started = self.start(side, place)?;
                    self.nodes.push(started);
                }
            }
        }
        let mut states = Vec::new();
        for node in &mut self.nodes {
            let place = node.place;
            let settled =
                settle_node(node, &self.networks[&node.side], &self.runtime, sentinel.on(facts(place)), writer);
            let name = || format!("{:?} at {place:?}\n{}", node.side, tail(&node.programs.log(node.log(self.pair))));
            states.extend(settled.with_context(name)?);
        }
        states.try_into().map_err(|_| anyhow::anyhow!("two nodes have a brain"))
    }

    fn start(&self, side: Side, place: Place) -> anyhow::Result<Node> {
        let (programs, namespace) = (Programs::new()?, self.networks[&side].node_at(place)?);
        let setup = self.setup(place);
        let kubeconfig = &self.api_server.kube_proxy;
        let running = match (side, self.pair.kube_proxy) {
            (Side::KubeProxy, Some(mode)) => {
                let lines = setup.kube_proxy_lines();
                vec![kube_proxy::start(namespace, &programs, mode, (kubeconfig, setup.node), &lines)?]
            }
            _ => {
                let source = format!("kube:{}", kubeconfig.display());
                let brain = programs.start_brain_of(namespace, &source, setup.node)?;
                let (api, flags, backend) = (programs.api(), setup.flags(), self.pair.backend);
                let mut arguments = vec!["--api", &api];
                arguments.extend(flags.iter().map(String::as_str).chain(backend.flags()));
                vec![brain, programs.start(namespace, backend.program(), &arguments)?]
            }
        };
        let brain = match side {
            Side::Ours => {
                let _inside = self.runtime.enter();
                Some(Brain::new(programs.api().parse()?, None)?)
            }
            Side::KubeProxy => None,
        };
        Ok(Node { side, place, setup, programs, brain, knows_zone: false, _running: running })
    }

    fn setup(&self, place: Place) -> Setup {
        Setup { node: NODE_NAMES[place as usize], ..self.setup }.on(facts(place))
    }
}

impl Node {
    /// The name of the proxy's log.
    fn log(&self, pair: Pair) -> &'static str {
        match self.side {
            Side::Ours => pair.backend.program(),
            Side::KubeProxy => KUBE_PROXY,
        }
    }
}

/// Waits until the node's own packets go where the sentinel says. Returns the state of the node's brain, if it has one.
fn settle_node(
    node: &mut Node,
    network: &Network,
    runtime: &Runtime,
    sentinel: Sentinel,
    writer: &Writer,
) -> anyhow::Result<Option<Snapshot>> {
    let state = match &mut node.brain {
        Some(brain) => {
            // The brain opens its socket only after it has read all lists.
            await_condition("the brain listens", || runtime.block_on(async { brain.status().await }).is_ok())?;
            let state = settle::await_state(brain, runtime, |state| sentinel.has_come(state))?;
            let logs = || ["localnet-nft", "localnet-iptables"].map(|name| node.programs.log(name));
            let applied = || logs().iter().any(|log| settle::has_applied(log, &state));
            await_condition("the backend has applied the state", applied)?;
            Some(state)
        }
        None => None,
    };
    let home = network.node_at(node.place)?;
    for (to, endpoint) in sentinel.paths() {
        let probe = Probe::new(Protocol::Tcp, to).timeout(Duration::from_millis(200));
        settle::await_answers(home, probe, 1, &BTreeSet::from([endpoint]), patience())?;
    }
    let await_zone = |patience| {
        let mut zones = sentinel.zones().into_iter();
        zones.try_for_each(|(to, endpoints)| {
            let probe = Probe::new(Protocol::Tcp, to).timeout(Duration::from_millis(200));
            settle::await_answers(home, probe, ENOUGH, &endpoints, patience)
        })
    };
    if !node.knows_zone {
        let first = await_zone(if node.side == Side::Ours { patience() } else { KNOWS_ZONE_WITHIN });
        if node.side == Side::KubeProxy && first.is_err() {
            // Entry 6 of `docs/differences.md`.
            for zone in ["zone-of-a-moment", sentinel.zone()] {
                runtime.block_on(writer.set_zone(node.setup.node, Some(zone)))?;
            }
            await_zone(patience())?;
        } else {
            first?;
        }
        node.knows_zone = true;
    }
    Ok(state)
}

/// Connects a node of network B to the API server.
fn link(router: &Namespace, node: &Namespace, place: Place) -> anyhow::Result<()> {
    let at = place as usize;
    let ([ours, theirs], name) = (LINKS[at], format!("link-{at}"));
    let (index, peer_index, peer) = (900 + 2 * at, 901 + 2 * at, node.name());
    router.ip([
        format!("link add {name} index {index} type veth peer name api index {peer_index} netns {peer}"),
        format!("addr add {ours}/30 dev {name}"),
        format!("link set {name} up"),
    ])?;
    node.ip([
        format!("addr add {theirs}/30 dev api"),
        "link set api up".to_owned(),
        format!("route add {API_SERVER} via {ours} dev api onlink src {theirs}"),
    ])
}

#[test]
fn no_service_of_an_undisputed_cluster_shares_an_external_address() {
    for seed in 0..50 {
        let cluster = undisputed(Cluster::random(&mut Random::new(seed)), Pair::NFT);
        let mut all: Vec<IpAddr> = Vec::new();
        for service in cluster.services.values() {
            let external = service.external_ips.iter().copied().chain(service.ingress.iter().map(|ingress| ingress.ip));
            all.extend(external.collect::<BTreeSet<_>>());
        }
        assert_eq!(all.len(), all.iter().collect::<BTreeSet<_>>().len(), "seed {seed}");
        assert!(all.iter().all(|ip| !localnet_lab::topology::NODE.contains(ip)), "seed {seed}: {all:?}");
    }
}
