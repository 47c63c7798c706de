//! Tests the backend on the real kernel, in separate network namespaces. Needs root, iproute2 and nft.
#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod affinity;
mod contract;
mod flows;
mod hash;
mod live;
mod node_facts;
mod refused;
mod repair;
mod traffic;

use std::{net::IpAddr, process::Command, sync::Arc};

use localnet_client::vips::{Config, Detector, NodePortAddresses};
use localnet_lab::{Namespace, Network, Topology, foreign::ForeignTables};
use localnet_linux::nft::{self, Chain, Element, Error, Set, Table, Transaction, TransactionSize};
use localnet_nft::{Kernel, Netlink, NftBackend, desired::Desired, kernel::LiveTable};
use localnet_proto::{Changes, Family, Service, ServiceKey, Snapshot};

fn config() -> Config {
    let pods = ["10.180.0.0/16", "fd00:10:180::/48"].map(|cidr| cidr.parse().unwrap());
    Config {
        masquerade_all: false,
        masquerade_bit: 14,
        detector: Detector::ClusterCidr(pods.into()),
        node_port_addresses: NodePortAddresses::PRIMARY,
    }
}

fn detectors() -> [Config; 4] {
    let with = |detector, masquerade_all| Config { masquerade_all, masquerade_bit: 31, detector, ..config() };
    [
        config(),
        with(Detector::None, true),
        with(Detector::BridgeInterface("cni0".into()), false),
        with(Detector::InterfaceNamePrefix("veth".into()), false),
    ]
}

fn state() -> Snapshot {
    serde_saphyr::from_str(include_str!("state.yaml")).unwrap()
}

fn network() -> Network {
    Network::build(Topology::default()).unwrap()
}

/// The kernel, and a record of the transactions.
struct Counting {
    netlink: Netlink,
    sent: Vec<TransactionSize>,
}

impl Kernel for Counting {
    fn apply(&mut self, transaction: &Transaction) -> Result<TransactionSize, Error> {
        let sent = self.netlink.apply(transaction)?;
        self.sent.push(sent);
        Ok(sent)
    }

    fn read(&mut self, table: &Table, wanted: &dyn Fn(&str) -> Option<Arc<Chain>>) -> Result<Option<LiveTable>, Error> {
        self.netlink.read(table, wanted)
    }

    fn elements(&mut self, table: &Table, set: &Set) -> Result<Option<Vec<Element>>, Error> {
        self.netlink.elements(table, set)
    }

    fn has_family(&self, family: Family) -> bool {
        self.netlink.has_family(family)
    }
}

/// Runs a new process's backend in the namespace. It must read the tables to find the differences.
fn sync(node: &Namespace, config: &Config, state: &Snapshot) -> Vec<TransactionSize> {
    let work = || {
        let mut backend = NftBackend::new(config.clone(), Counting { netlink: Netlink::open()?, sent: Vec::new() });
        backend.apply(state, &Changes::everything())?.whole()?;
        Ok(backend.kernel().sent.clone())
    };
    node.run(work).unwrap()
}

fn list(node: &Namespace) -> String {
    node.output(Command::new("nft").args(["list", "ruleset"])).unwrap()
}

fn list_with_handles(node: &Namespace) -> String {
    node.output(Command::new("nft").args(["-a", "list", "ruleset"])).unwrap()
}

fn load(node: &Namespace, text: &str) {
    node.output_with_input(Command::new("nft").args(["-f", "-"]), text).unwrap();
}

/// Sorts the listing, because elements come in the order of the kernel's hash tables, which varies.
fn sorted(listing: &str) -> Vec<String> {
    let mut lines: Vec<String> = listing
        .lines()
        .map(|line| line.trim().trim_start_matches("elements = {").trim_end_matches(['}', ',', ' ']).trim().to_owned())
        .collect();
    lines.sort();
    lines
}

#[track_caller]
fn assert_same(left: &str, right: &str, what: &str) {
    let (left, right) = (sorted(left), sorted(right));
    let only = |one: &[String], other: &[String]| -> Vec<String> {
        one.iter().filter(|line| !other.contains(line)).cloned().collect()
    };
    assert!(left == right, "{what}\n<<< {:#?}\n>>> {:#?}", only(&left, &right), only(&right, &left));
}

#[test]
fn text_and_netlink_create_the_same_tables_and_their_listing_can_be_loaded() {
    for config in detectors() {
        let [by_netlink, by_text, again] = std::array::from_fn(|_| network());
        sync(by_netlink.node(), &config, &state());
        let text = Desired::new(config.clone()).text(&state(), &Changes::everything());
        load(by_text.node(), &text);
        let listing = list(by_netlink.node());
        assert_same(&listing, &list(by_text.node()), &format!("{config:?}"));
        load(again.node(), &listing);
        assert_same(&listing, &list(again.node()), &format!("{config:?}"));
    }
}

#[test]
fn a_restart_changes_nothing() {
    for config in detectors() {
        let network = network();
        sync(network.node(), &config, &state());
        let before = list_with_handles(network.node());
        assert_eq!(sync(network.node(), &config, &state()), [], "{config:?}");
        assert_eq!(list_with_handles(network.node()), before);
    }
}

#[test]
fn tables_that_nft_loaded_are_adopted() {
    let network = network();
    load(network.node(), &Desired::new(config()).text(&state(), &Changes::everything()));
    let before = list_with_handles(network.node());
    assert_eq!(sync(network.node(), &config(), &state()), []);
    assert_eq!(list_with_handles(network.node()), before);
}

#[test]
fn another_configuration_rewrites_only_its_chains() {
    let network = network();
    sync(network.node(), &config(), &state());
    let all = Config { masquerade_all: true, ..config() };
    let sent = sync(network.node(), &all, &state());
    // In each family the chain `services` is flushed and gets its five rules.
    assert_eq!(sent.iter().map(|sent| (sent.messages, sent.elements)).collect::<Vec<_>>(), [(6, 0), (6, 0)]);
    let fresh = self::network();
    sync(fresh.node(), &all, &state());
    assert_same(&list(network.node()), &list(fresh.node()), "");
}

#[test]
fn replacing_one_of_many_endpoints_sends_and_deletes_few_elements() {
    let network = network();
    let sent = network.node().run(|| {
        let mut state = state();
        let mut backend = NftBackend::new(config(), Counting { netlink: Netlink::open()?, sent: Vec::new() });
        backend.apply(&state, &Changes::everything())?.whole()?;
        let key = ServiceKey::new("default", "many");
        let changed = Changes { services: [key.clone()].into(), ..Changes::default() };
        for first in ["10.180.1.99", "10.180.1.98"] {
            let service: &mut Service = Arc::make_mut(state.services.get_mut(&key).unwrap());
            service.endpoints.first_mut().unwrap().address = first.parse::<IpAddr>().unwrap();
            backend.apply(&state, &changed)?.whole()?;
        }
        // The first two transactions created the tables.
        Ok(backend.kernel().sent[2..].to_vec())
    });
    let sent: Vec<_> = sent.unwrap().iter().map(|sent| (sent.messages, sent.elements)).collect();
    // One message deletes the elements of the slots that changed, one adds them. The Service has a ClusterIP and a load
    // balancer IP, so each slot has two elements.
    assert!(sent.iter().all(|(messages, elements)| *messages == 2 && (4..=16).contains(elements)), "{sent:?}");
}

#[test]
fn the_chain_of_an_unused_size_is_deleted() {
    let network = network();
    let mut state = state();
    sync(network.node(), &config(), &state);
    assert!(list(network.node()).contains("chain lb-32 {"));
    let many = Arc::make_mut(state.services.get_mut(&ServiceKey::new("default", "many")).unwrap());
    many.endpoints.truncate(2);
    let sent = sync(network.node(), &config(), &state);
    assert_eq!(sent.len(), 2, "the chain is deleted after its last element");
    let fresh = self::network();
    sync(fresh.node(), &config(), &state);
    assert_same(&list(network.node()), &list(fresh.node()), "");
    assert!(!list(network.node()).contains("lb-32"));
}

#[test]
fn any_damage_to_the_tables_is_repaired_at_the_start() {
    let network = network();
    let node = network.node();
    sync(node, &config(), &state());
    let right = list(node);
    for damage in [
        "flush ruleset",
        "flush chain ip localnet services",
        "flush map ip localnet endpoints",
        "delete element ip localnet services { 172.30.0.13 . tcp . 80 }; add element ip localnet services { 172.30.0.13 . tcp . 80 comment \"default/many:web\" : 0:1 }",
        "delete element ip6 localnet cluster-ips { fd00:172:30::10 }",
        "add element ip localnet cluster-ips { 10.0.0.1 }",
        "add chain ip localnet odd { type filter hook input priority 5; }",
        "add set ip localnet odd { type mark; }",
        "insert rule ip localnet masquerading accept",
        "delete table ip localnet; table ip localnet { set services { type ipv4_addr; }; }",
    ] {
        load(node, damage);
        assert_ne!(sorted(&list(node)), sorted(&right), "{damage}");
        sync(node, &config(), &state());
        assert_same(&list(node), &right, damage);
    }
}

#[test]
fn a_running_backend_restores_deleted_tables_at_the_next_change() {
    let network = network();
    let node = network.node();
    let mut state = state();
    let key = ServiceKey::new("default", "dns");
    node.run(|| {
        let mut backend = NftBackend::new(config(), Netlink::open()?);
        backend.apply(&state, &Changes::everything())?.whole()?;
        node.output(Command::new("nft").args(["flush", "ruleset"]))?;
        Arc::make_mut(state.services.get_mut(&key).unwrap()).endpoints.remove(0);
        backend.apply(&state, &Changes { services: [key.clone()].into(), ..Changes::default() })?.whole()
    })
    .unwrap();
    let fresh = self::network();
    sync(fresh.node(), &config(), &state);
    assert_same(&list(node), &list(fresh.node()), "");
}

#[test]
fn outgrown_maps_are_replaced_in_one_transaction() {
    let network = network();
    let mut state = state();
    let grown = network.node().run(|| {
        let mut backend = NftBackend::new(config(), Counting { netlink: Netlink::open()?, sent: Vec::new() });
        backend.apply(&state, &Changes::everything())?.whole()?;
        let size = room(&list(network.node()));
        let many = state.services[&ServiceKey::new("default", "many")].clone();
        let mut changes = Changes::default();
        for index in 0..300_u32 {
            let mut service = Service::clone(&many);
            service.key = ServiceKey::new("crowd", format!("s{index}"));
            service.cluster_ips = vec![IpAddr::V4((0xac1e_1000 + index).into())];
            service.load_balancer_ips.clear();
            service.source_filters.clear();
            changes.services.insert(service.key.clone());
            state.services.insert(service.key.clone(), Arc::new(service));
        }
        backend.apply(&state, &changes)?.whole()?;
        Ok((backend.kernel().sent.len(), size))
    });
    let (sent, size) = grown.unwrap();
    assert_eq!(sent, 3, "both tables, then the one that grew");
    let listing = list(network.node());
    assert!(room(&listing) > size, "all sets together still have room for {size} elements");
    assert_eq!(sync(network.node(), &config(), &state), [], "a grown table is adopted");
    let fresh = self::network();
    sync(fresh.node(), &config(), &state);
    assert_same(&listing, &list(fresh.node()), "");
}

/// How many elements all sets together may have.
fn room(listing: &str) -> u64 {
    listing.lines().filter_map(|line| line.trim().strip_prefix("size ")?.parse::<u64>().ok()).sum()
}

#[test]
fn cleanup_removes_only_our_tables() {
    let network = network();
    let node = network.node();
    let foreign = ForeignTables::install(node).unwrap();
    let before = list_with_handles(node);
    let cleanup = || node.output(Command::new(env!("CARGO_BIN_EXE_localnet-nft")).arg("cleanup")).unwrap();
    cleanup();
    assert_eq!(list_with_handles(node), before, "cleanup without tables is no error");
    sync(node, &config(), &state());
    foreign.check_unchanged(node).unwrap();
    cleanup();
    assert_eq!(list_with_handles(node), before);
}

#[test]
fn without_privileges_the_program_prints_one_line_and_exits_with_1() {
    let node = network();
    for arguments in [&["--api", "unix:///nowhere.sock"][..], &["cleanup"]] {
        let program = env!("CARGO_BIN_EXE_localnet-nft");
        let error = node
            .node()
            .output(
                Command::new("setpriv")
                    .args(["--bounding-set=-net_admin", "--inh-caps=-net_admin", program])
                    .args(arguments),
            )
            .unwrap_err();
        let error = format!("{error:#}");
        assert!(error.contains("CAP_NET_ADMIN"), "{error}");
        assert_eq!(error.matches("error:").count(), 1, "{error}");
    }
}

#[test]
fn scripts_are_transactions() {
    // The script that the benchmark passes to `nft -f` must equal the output of the dry run.
    let [by_script, by_listing] = std::array::from_fn(|_| network());
    let mut backend = by_script.node().run(|| Ok(NftBackend::new(config(), Netlink::open()?))).unwrap();
    backend.apply(&state(), &Changes::everything()).unwrap().whole().unwrap();
    backend.remove_all().unwrap();
    let mut transaction = Transaction::new();
    for content in backend.plan() {
        transaction.add_content(content);
    }
    load(by_script.node(), &nft::script(&transaction));
    load(by_listing.node(), &Desired::new(config()).text(&state(), &Changes::everything()));
    assert_same(&list(by_script.node()), &list(by_listing.node()), "");
}
