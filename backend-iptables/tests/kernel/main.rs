//! Tests of the backend against the real kernel, with both flavours of the tools, in network namespaces. Needs root and iptables.
#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod live;
mod packets;

use std::{process::Command, sync::Arc, time::Instant};

use live::{Live, PATIENCE};
use localnet_client::{
    Synced,
    vips::{Config, Detector},
};
use localnet_iptables::{Flavour, IptablesBackend, Tools, desired::Desired};
use localnet_lab::{Namespace, Network, Topology};
use localnet_proto::{Changes, Port, Service, ServiceKey, Snapshot};

const TABLES: [&str; 3] = ["filter", "nat", "mangle"];
const FLAVOURS: [Flavour; 2] = [Flavour::Nft, Flavour::Legacy];

fn config() -> Config {
    let pods = ["10.180.0.0/16", "fd00:10:180::/48"].map(|cidr| cidr.parse().unwrap());
    Config { detector: Detector::ClusterCidr(pods.into()), ..Config::default() }
}

fn state() -> Snapshot {
    serde_saphyr::from_str(include_str!("state.yaml")).unwrap()
}

fn network() -> Network {
    Network::build(Topology::default()).unwrap()
}

/// Syncs with a backend that has just started. Returns the number of sections that it wrote, and the outcome.
fn sync(node: &Namespace, flavour: Flavour, state: &Snapshot) -> (u32, Synced) {
    let work = || {
        let mut backend = IptablesBackend::new(Desired::new(config()), Tools::find(flavour)?);
        let synced = backend.apply(state, &Changes::everything())?;
        Ok((backend.kernel().commits(), synced))
    };
    node.run(work).unwrap()
}

fn programs(flavour: Flavour) -> [&'static str; 2] {
    match flavour {
        Flavour::Nft => ["iptables-nft", "ip6tables-nft"],
        Flavour::Legacy => ["iptables-legacy", "ip6tables-legacy"],
    }
}

/// The chains and rules of both families. Dispatch chains are sorted, because the order of their lines does not matter.
fn list(node: &Namespace, flavour: Flavour) -> Vec<String> {
    let mut lines = Vec::new();
    for program in programs(flavour) {
        for table in TABLES {
            let saved = node.output(Command::new(format!("{program}-save")).args(["-t", table])).unwrap();
            let kept = saved.lines().filter(|line| !line.starts_with(['#', '*']) && *line != "COMMIT");
            // The counters of the kernel's own chains keep changing.
            let name = |line: &str| line.split(" [").next().unwrap().to_owned();
            lines.extend(kept.map(|line| format!("{program} {table} {}", name(line))));
        }
    }
    lines.sort();
    lines
}

fn run(node: &Namespace, command: &str) {
    let mut words = command.split(' ');
    node.output(Command::new(words.next().unwrap()).args(words)).unwrap();
}

#[test]
fn a_restart_writes_nothing() {
    for flavour in FLAVOURS {
        let network = network();
        let (written, synced) = sync(network.node(), flavour, &state());
        assert_eq!((written, synced.skipped.len(), synced.failed.len()), (4, 0, 0), "two tables of two families");
        let before = list(network.node(), flavour);
        assert_eq!(sync(network.node(), flavour, &state()).0, 0, "{flavour:?}");
        assert_eq!(list(network.node(), flavour), before);
    }
}

#[test]
fn deleted_services_leave_no_rules() {
    for flavour in FLAVOURS {
        let network = network();
        let none = Snapshot { services: Default::default(), ..state() };
        let work = || {
            let mut backend = IptablesBackend::new(Desired::new(config()), Tools::find(flavour)?);
            let mut apply = |state: &Snapshot| backend.apply(state, &Changes::everything())?.whole();
            apply(&none)?;
            let before = list(network.node(), flavour);
            for _ in 0..3 {
                apply(&state())?;
                anyhow::ensure!(list(network.node(), flavour).len() > before.len() + 20, "no rules were programmed");
                apply(&none)?;
            }
            Ok((before, list(network.node(), flavour)))
        };
        let (before, after) = network.node().run(work).unwrap();
        assert_eq!(after, before, "{flavour:?}");
    }
}

/// With nf_tables, the chains of so many Services are written and removed in several sections.
#[test]
fn many_services_are_written_adopted_and_deleted() {
    for flavour in FLAVOURS {
        let network = network();
        let node = network.node();
        let mut many = state();
        let web = many.services[&ServiceKey::new("default", "web")].clone();
        for number in 0..400_u16 {
            let [high, low] = number.to_be_bytes();
            let key = ServiceKey::new("many", number.to_string());
            let service = Service {
                key: key.clone(),
                cluster_ips: vec![[172, 30, 1 + high, low].into()],
                load_balancer_ips: Vec::new(),
                source_filters: Vec::new(),
                ports: vec![Port { node_port: None, ..web.ports[0].clone() }],
                ..(*web).clone()
            };
            many.services.insert(key, service.into());
        }
        sync(node, flavour, &state()).1.whole().unwrap();
        let before = list(node, flavour);
        let written = sync(node, flavour, &many).0;
        assert_eq!(written, if flavour == Flavour::Nft { 4 } else { 2 }, "{flavour:?}");
        assert_eq!(sync(node, flavour, &many).0, 0, "{flavour:?}");
        sync(node, flavour, &state()).1.whole().unwrap();
        assert!(list(node, flavour) == before, "{flavour:?}");
    }
}

#[test]
fn cleanup_restores_the_tables_of_before() {
    for flavour in FLAVOURS {
        let network = network();
        let node = network.node();
        for program in programs(flavour) {
            for command in [
                "-t filter -N KUBE-FIREWALL",
                "-t filter -A KUBE-FIREWALL -j DROP",
                "-t filter -A INPUT -s 192.0.2.1,2001:db8::1 -j KUBE-FIREWALL",
                "-t mangle -N KUBE-KUBELET-CANARY",
                "-t nat -N DOCKER",
                "-t nat -A PREROUTING -j DOCKER",
            ] {
                let source = if program.starts_with("ip6") { "2001:db8::1" } else { "192.0.2.1" };
                run(node, &format!("{program} {}", command.replace("192.0.2.1,2001:db8::1", source)));
            }
        }
        let before = list(node, flavour);
        // The cleanup removes chains that a kube-proxy left, too.
        for (program, table) in programs(flavour).into_iter().flat_map(|program| TABLES.map(|table| (program, table))) {
            run(node, &format!("{program} -t {table} -N KUBE-PROXY-CANARY"));
        }
        sync(node, flavour, &state()).1.whole().unwrap();
        assert!(list(node, flavour).len() > before.len() + 20);
        let flavour_name = format!("{flavour:?}").to_lowercase();
        let cleanup =
            [env!("CARGO_BIN_EXE_localnet-iptables"), "cleanup", "--iptables-flavour", &flavour_name].join(" ");
        run(node, &cleanup);
        // In nf_tables, a cleanup leaves the kernel's own chains in place, empty.
        let rest: Vec<_> = list(node, flavour).into_iter().filter(|line| !line.ends_with(" ACCEPT")).collect();
        let before: Vec<_> = before.into_iter().filter(|line| !line.ends_with(" ACCEPT")).collect();
        assert_eq!(rest, before);
        run(node, &cleanup);
    }
}

#[test]
fn a_refused_service_is_named_and_the_others_are_programmed() {
    for flavour in FLAVOURS {
        let network = network();
        let mut state = state();
        let key = ServiceKey::new("default", "sticky");
        // The tools refuse a timeout of 0 seconds.
        Arc::make_mut(state.services.get_mut(&key).unwrap()).client_ip_affinity = Some(0.into());
        let (_, synced) = sync(network.node(), flavour, &state);
        assert_eq!(synced.failed.len(), 0, "{synced:?}");
        let [skipped] = synced.skipped.as_slice() else { panic!("{synced:?}") };
        assert_eq!(skipped.subject.service_key(), Some(key));
        assert!(skipped.problem.contains("--seconds 0"), "{skipped}");
        let listing = list(network.node(), flavour).join("\n");
        assert!(listing.contains("default/web:http cluster IP") && !listing.contains("sticky"), "{listing}");
    }
}

/// Verifies that the backend notices and repairs each of these damages.
fn repairs(flavour: Flavour, damages: &[&str]) {
    let network = Arc::new(network());
    let node = network.node();
    let [v4, v6] = programs(flavour);
    let damages: Vec<_> =
        damages.iter().map(|damage| damage.replace("ip6tables", v6).replace("iptables", v4)).collect();
    let program = || {
        let (_, synced) = sync(node, flavour, &state());
        assert!(synced.failed.is_empty(), "{synced:?}");
    };
    program();
    let right = list(node, flavour);
    // While no backend runs, every command does damage. A backend that is started afterwards repairs it.
    for damage in &damages {
        run(node, damage);
        assert!(list(node, flavour) != right, "{damage} changes nothing");
        program();
        assert!(list(node, flavour) == right, "after {damage} and a start");
    }
    let _live = Live::start(&network, config(), flavour, state());
    for damage in &damages {
        run(node, damage);
        let began = Instant::now();
        while list(node, flavour) != right {
            assert!(began.elapsed() < PATIENCE, "{flavour:?} {damage} is not repaired");
        }
    }
}

const FLUSHES: [&str; 4] =
    ["iptables -F", "iptables -t nat -F", "ip6tables -t nat -F", "ip6tables -t filter -F FORWARD"];

#[test]
fn flushes_of_ip_tables_are_repaired() {
    repairs(Flavour::Legacy, &FLUSHES);
}

#[test]
fn flushes_and_altered_chains_of_nf_tables_are_repaired() {
    repairs(Flavour::Nft, &FLUSHES);
    repairs(Flavour::Nft, &["iptables -t nat -F KUBE-SERVICES", "iptables -t nat -A KUBE-MARK-MASQ -j RETURN"]);
}
