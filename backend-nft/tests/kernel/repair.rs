//! Verifies that changes by other programs are repaired immediately, and that nothing else is.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        mpsc::{Receiver, channel},
    },
    time::{Duration, Instant},
};

use localnet_lab::{Endpoint, Namespace, Network, Outcome, Probe, Protocol, Servers, Topology};
use localnet_linux::nft::{Commit, Event, Monitor, TableContent};
use localnet_nft::{
    Kernel, Netlink,
    kernel::{ChainMatch, LiveTable},
};

use super::{config, list, live::Live, live::PATIENCE, load, sorted, state, sync};

const DAMAGE: [&str; 10] = [
    "flush ruleset",
    "delete element ip localnet services { 172.30.0.13 . tcp . 80 }",
    "flush chain ip localnet services",
    "flush map ip6 localnet endpoints",
    "delete table ip localnet",
    "flush set ip localnet cluster-ips",
    // One rule is replaced.
    "flush chain ip6 localnet mark-masquerade; add rule ip6 localnet mark-masquerade meta mark set 1",
    "insert rule ip localnet masquerading accept",
    // The table exists, but packets do not enter it.
    "add table ip localnet { flags dormant; }",
    "add table ip6 localnet { flags dormant; }",
];

/// The expected tables, for comparison with the live ones.
struct Wanted(Vec<TableContent>);

impl Wanted {
    /// Plans with another instance of the backend; the live tables must be correct already.
    fn new(node: &Namespace) -> Self {
        let plan = node.run(|| {
            let mut backend = localnet_nft::NftBackend::new(config(), Netlink::open()?);
            backend.apply(&state(), &localnet_proto::Changes::everything())?.whole()?;
            Ok(backend.plan())
        });
        Self(plan.unwrap())
    }

    fn is_there(&self, kernel: &mut Netlink) -> bool {
        self.0.iter().all(|wanted| {
            let chains: BTreeMap<_, _> =
                wanted.chains.iter().map(|chain| (chain.name.clone(), Arc::new(chain.clone()))).collect();
            let find = |name: &str| chains.get(name).cloned();
            let Some(LiveTable { sets, chains: found }) = kernel.read(&wanted.table, &find).unwrap() else {
                return false;
            };
            let sets_are_right = wanted.sets.iter().all(|(set, elements)| {
                sets.iter().flatten().any(|(found, held)| {
                    found.name == set.name
                        && held.len() == elements.len()
                        && elements.iter().all(|one| held.contains(one))
                })
            });
            let same = |(_, comparison): &(_, ChainMatch)| *comparison == ChainMatch::Exact;
            sets_are_right && found.len() == chains.len() && found.iter().all(same)
        })
    }
}

/// Receives every commit in a node until the receiver is dropped.
fn commits(network: &Arc<Network>) -> Receiver<Commit> {
    let (sender, receiver) = channel();
    let (ready, is_ready) = channel();
    let network = network.clone();
    let work = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let mut monitor = Monitor::subscribe(Vec::new())?;
            ready.send(())?;
            while let Event::Committed(commit) = monitor.next().await? {
                if sender.send(commit).is_err() {
                    break;
                }
            }
            Ok(())
        })
    };
    std::thread::spawn(move || network.node().run(work));
    is_ready.recv_timeout(PATIENCE).unwrap();
    receiver
}

/// Damages the tables again as soon as they are repaired, and requires a repair each time. The benchmark measures the
/// time.
fn repairs(network: &Arc<Network>, rounds: usize) {
    let node = network.node();
    let wanted = Wanted::new(node);
    let mut kernel = node.run(|| Ok(Netlink::open()?)).unwrap();
    assert!(wanted.is_there(&mut kernel));
    let commits = commits(network);
    let next = |by_nft: bool| loop {
        let commit = commits.recv_timeout(PATIENCE).expect("a commit");
        if (commit.process_name.as_deref() == Some("nft")) == by_nft {
            return;
        }
    };
    let repair = |damage: &&str| {
        load(node, damage);
        next(true);
        next(false);
        let began = Instant::now();
        while !wanted.is_there(&mut kernel) {
            assert!(began.elapsed() < PATIENCE, "{damage} is not repaired:\n{}", list(node));
        }
    };
    DAMAGE.iter().cycle().take(rounds).for_each(repair);
}

#[test]
fn damage_by_other_programs_is_repaired_at_once() {
    let network = Arc::new(super::network());
    let _live = Live::start(&network, config(), state());
    repairs(&network, 40);
}

#[test]
fn changes_of_other_tables_cost_nothing() {
    let network = Arc::new(super::network());
    let live = Live::start(&network, config(), state());
    let before = sorted(&list(network.node()));
    for _ in 0..20 {
        load(network.node(), "add table ip other; add chain ip other c; flush chain ip other c; delete table ip other");
    }
    load(network.node(), "delete element ip localnet cluster-ips { 172.30.0.13 }");
    // Once this commit is noticed, all earlier ones were noticed, too.
    let began = Instant::now();
    while sorted(&list(network.node())) != before {
        assert!(began.elapsed() < PATIENCE, "{}", list(network.node()));
    }
    assert_eq!(live.set(state()), 2, "the first sync, and one repair");
}

#[test]
fn two_backends_with_the_same_state_do_not_repair_each_other() {
    let network = Arc::new(super::network());
    let first = Live::start(&network, config(), state());
    let second = Live::start(&network, config(), state());
    load(network.node(), "flush ruleset");
    // Each instance repairs the tables or finds them repaired. Each then reads at most once more what the other one
    // wrote.
    first.next_sync();
    second.next_sync();
    let wanted = Wanted::new(network.node());
    let mut kernel = network.node().run(|| Ok(Netlink::open()?)).unwrap();
    let began = Instant::now();
    while !wanted.is_there(&mut kernel) {
        assert!(began.elapsed() < PATIENCE);
    }
    drop((first, second));
    assert_eq!(sync(network.node(), &config(), &state()), []);
}

#[test]
fn packets_flow_again_after_a_flush() {
    let vip: SocketAddr = "172.30.0.13:80".parse().unwrap();
    let pod: IpAddr = "10.180.0.1".parse().unwrap();
    let network = Arc::new(Network::build(Topology::with_pods(["10.180.0.1"]).unwrap()).unwrap());
    let endpoint = Endpoint { protocol: Protocol::Tcp, address: SocketAddr::new(pod, 8080) };
    let _servers = Servers::start(&network, [endpoint]).unwrap();
    let mut state = state();
    let key = localnet_proto::ServiceKey::new("default", "many");
    let many = Arc::make_mut(state.services.get_mut(&key).unwrap());
    many.endpoints.truncate(1);
    many.endpoints[0].address = pod;
    let _live = Live::start(&network, config(), state);
    for _ in 0..5 {
        load(network.node(), "flush ruleset");
        let began = Instant::now();
        let probe = Probe::new(Protocol::Tcp, vip).timeout(Duration::from_millis(200));
        // The namespace outside answers for every address, but never with the pod's name.
        while !matches!(network.client().probe(probe).unwrap(), Outcome::Answer { by, .. } if by == endpoint.address) {
            assert!(began.elapsed() < PATIENCE, "{}", list(network.node()));
        }
        println!("answered {:?} after the flush", began.elapsed());
    }
}
