//! Tests of the backend on the fake kernel: what it writes, repairs and skips.

use std::{net::IpAddr, sync::Arc};

use localnet_client::vips::{Config, NodePortAddresses};
use localnet_proto::Service;
use proptest::{collection::vec, prelude::*};

use super::*;
use crate::testing::Fake;

type TestBackend = IptablesBackend<Fake>;

fn state(yaml: &str) -> Snapshot {
    serde_saphyr::from_str(yaml).unwrap()
}

const WEB: &str = "{node: {name: n, addresses: [192.168.0.2, \"fd00::2\"], podCIDRs: [10.0.0.0/16]}, services: [
    {service: ns/web, type: NodePort, clusterIPs: [172.30.0.1, \"fd00:172::1\"], externalIPs: [1.1.1.1],
     ports: [{name: http, protocol: TCP, port: 80, nodePort: 30080}], endpoints: [
     {address: 10.0.0.1, ports: [{name: http, port: 8080}], scopes: {internal: true, external: true}},
     {address: 10.0.0.2, ports: [{name: http, port: 8080}], local: true, scopes: {internal: true, external: true}},
     {address: \"fd00:10::1\", ports: [{name: http, port: 8080}], scopes: {internal: true, external: true}}]},
    {service: ns/none, type: ClusterIP, clusterIPs: [172.30.0.2], ports: [{name: p, protocol: UDP, port: 53}]}]}";

fn backend(state: &Snapshot, kernel: Fake) -> TestBackend {
    backend_with(state, kernel, usize::MAX)
}

/// A backend that has synced `state`, on `kernel`. `many_vips`: the number of VIPs above which they are grouped.
fn backend_with(state: &Snapshot, kernel: Fake, many_vips: usize) -> TestBackend {
    let mut backend = IptablesBackend::new(grouping_above(many_vips), kernel);
    sync(&mut backend, state, &Changes::everything()).whole().unwrap();
    backend
}

/// A desired state that groups VIPs by network if there are more than this.
fn grouping_above(many_vips: usize) -> Desired {
    let mut desired = Desired::new(Config::default());
    desired.set_many_vips(many_vips);
    desired
}

fn sync(backend: &mut TestBackend, state: &Snapshot, changes: &Changes) -> Synced {
    backend.apply(state, changes).unwrap()
}

fn kernel(backend: &mut TestBackend) -> &mut Fake {
    backend.kernel_mut()
}

fn into_kernel(backend: &mut TestBackend) -> Fake {
    std::mem::take(kernel(backend))
}

/// The lines of the tables, sorted where their order does not matter.
fn sorted(fake: &Fake) -> Vec<Vec<String>> {
    let of_family = |tables: &BTreeMap<String, BTreeMap<String, Vec<String>>>| {
        let mut all = Vec::new();
        for (table, chains) in tables {
            for (chain, rules) in chains {
                let mut rules: Vec<String> = rules.iter().map(|rule| format!("{table} {chain} {rule}")).collect();
                if chain.starts_with("KUBE-") && !chain.starts_with("KUBE-S") {
                    rules.sort();
                }
                if chain == "KUBE-SERVICES" {
                    rules.sort();
                }
                all.push(format!("{table} {chain}"));
                all.extend(rules);
            }
        }
        all
    };
    fake.tables.values().iter().map(of_family).collect()
}

#[test]
fn a_change_of_one_endpoint_writes_its_chains_only() {
    let mut state = state(WEB);
    let mut backend = backend(&state, Fake::default());
    assert_eq!(kernel(&mut backend).saves, 2, "one for each family, at the start");
    kernel(&mut backend).inputs.clear();
    let key = ServiceKey::new("ns", "web");
    Arc::make_mut(state.services.get_mut(&key).unwrap()).endpoints[0].address = IpAddr::from([10, 0, 0, 9]);
    let changes = Changes { services: [key].into(), ..Changes::default() };
    assert!(sync(&mut backend, &state, &changes).skipped.is_empty());
    let fake = kernel(&mut backend);
    assert_eq!((fake.inputs.len(), fake.saves), (1, 2));
    let (family, text, _) = &fake.inputs[0];
    assert_eq!(*family, Family::V4);
    let commands: Vec<&str> = text.lines().map(|line| &line[..line.len().min(12)]).collect();
    let expected = [
        "*nat",
        ":KUBE-SVC-",
        ":KUBE-SEP-", // the new one
        ":KUBE-SEP-", // the old one
        "-A KUBE-SVC-",
        "-A KUBE-SVC-",
        "-A KUBE-SEP-",
        "-A KUBE-SEP-",
        "-X KUBE-SEP-",
        "COMMIT",
    ];
    assert!(commands.len() == expected.len(), "{text}");
    for (command, expected) in commands.iter().zip(expected) {
        assert!(command.starts_with(expected), "{expected}: {text}");
    }
}

#[test]
fn rule_counts_match_the_kernel_and_the_writes() {
    let full = state(WEB);
    let mut backend = backend(&full, Fake::default());
    let counted = |backend: &mut TestBackend, last: bool| {
        let mut counts = Counts::default();
        backend.count(&mut counts);
        counts
            .rules
            .map(|rules| rules.into_iter().map(|count| if last { count.last } else { count.total }).collect::<Vec<_>>())
    };
    let there = |backend: &mut TestBackend| {
        let of = |tables: &BTreeMap<String, BTreeMap<String, Vec<String>>>, table: &str| {
            tables[table].values().map(|rules| rules.len() as u64).sum::<u64>()
        };
        ByFamily::from_fn(|family| ["filter", "nat"].map(|table| of(&kernel(backend).tables[family], table)).to_vec())
    };
    assert_eq!(counted(&mut backend, false), there(&mut backend));
    assert_eq!(counted(&mut backend, true), there(&mut backend), "all rules were written");
    let mut part = full.clone();
    let key = ServiceKey::new("ns", "web");
    part.services.remove(&key);
    _ = sync(&mut backend, &part, &Changes { services: [key].into(), ..Changes::default() });
    assert_eq!(counted(&mut backend, false), there(&mut backend));
    assert_eq!(counted(&mut backend, true), ByFamily::new(vec![0, 0], vec![0, 0]), "rules were only removed");
    _ = sync(&mut backend, &full, &Changes::everything());
    assert_eq!(counted(&mut backend, false), there(&mut backend));
}

/// A kernel may have no counters, or no rules that can use them (kubernetes/kubernetes#142068).
#[test]
fn rules_count_packets_if_the_kernel_can() {
    const RULES: [&str; 3] = [
        "KUBE-FORWARD -m conntrack --ctstate INVALID -m nfacct --nfacct-name ct_state_invalid_dropped_pkts -j DROP",
        "KUBE-EXT-HMALVVKA6APKJPPY -d 127.0.0.0/8 -m comment --comment \"count localhost traffic for ns/web:http external \
         destinations\" -m nfacct --nfacct-name localhost_nps_accepted_pkts",
        "KUBE-FORWARD -m conntrack --ctstate INVALID -m nfacct --nfacct-name ct_state_invalid_dropped_pkts -j DROP",
    ];
    let state = state(WEB);
    let counting = |backend: &mut TestBackend| {
        let all = kernel(backend).tables.values().iter().flat_map(BTreeMap::values).flatten();
        let rules = all.flat_map(|(chain, rules)| rules.iter().map(move |rule| format!("{chain} {rule}")));
        rules.filter(|rule| rule.contains("nfacct")).collect::<Vec<_>>()
    };
    let packets = |backend: &TestBackend| {
        let mut counts = Counts::default();
        backend.count(&mut counts);
        counts.packets
    };
    for counters in [None, Some(BTreeMap::new())] {
        let can = counters.is_some();
        let node_port_addresses = NodePortAddresses { localhost: true, ..NodePortAddresses::PRIMARY };
        let desired = Desired::new(Config { node_port_addresses, ..Config::default() });
        let mut backend = IptablesBackend::new(desired, Fake { counters, ..Fake::default() });
        sync(&mut backend, &state, &Changes::everything()).whole().unwrap();
        assert!(kernel(&mut backend).inputs.iter().all(|(_, _, accepted)| *accepted));
        if !can {
            assert_eq!((counting(&mut backend), packets(&backend)), (Vec::new(), None));
            continue;
        }
        assert_eq!(counting(&mut backend), RULES);
        kernel(&mut backend).counters.as_mut().unwrap().insert("localhost_nps_accepted_pkts".to_owned(), 7);
        assert_eq!(packets(&backend), Some(PacketCounts { invalid_dropped: 0, localhost_node_ports_accepted: 7 }));
        // Another program deletes the rules and the counters.
        let Fake { tables, counters, .. } = Fake::default();
        *kernel(&mut backend) = Fake { tables, counters, ..into_kernel(&mut backend) };
        backend.forget();
        sync(&mut backend, &state, &Changes::default()).whole().unwrap();
        assert_eq!(counting(&mut backend), RULES);
        assert_eq!(packets(&backend), Some(PacketCounts::default()));
    }
}

#[test]
fn a_new_service_adds_rules_and_its_deletion_removes_them() {
    let full = state(WEB);
    let mut part = full.clone();
    let key = ServiceKey::new("ns", "web");
    part.services.remove(&key);
    let changes = Changes { services: [key].into(), ..Changes::default() };
    let mut backend = backend(&part, Fake::default());
    let before = sorted(kernel(&mut backend));
    kernel(&mut backend).inputs.clear();
    _ = sync(&mut backend, &full, &changes);
    let text = kernel(&mut backend).inputs[0].1.clone();
    assert!(!text.contains(":KUBE-SERVICES"), "single lines are added: {text}");
    assert!(text.contains("-I KUBE-SERVICES -d 172.30.0.1/32 -p tcp"), "{text}");
    assert_eq!(sorted(kernel(&mut backend)), sorted(kernel(&mut self::backend(&full, Fake::default()))));
    _ = sync(&mut backend, &part, &changes);
    assert_eq!(sorted(kernel(&mut backend)), before);
}

#[test]
fn a_restart_writes_nothing_and_removes_stale_chains() {
    let state = state(WEB);
    let mut first = backend(&state, Fake::default());
    let mut fake = into_kernel(&mut first);
    fake.inputs.clear();
    let mut second = backend(&state, fake);
    assert_eq!(kernel(&mut second).inputs, []);
    let right = sorted(kernel(&mut second));
    let mut fake = into_kernel(&mut second);
    fake.tables[Family::V4].get_mut("nat").unwrap().insert("KUBE-SEP-STALE".into(), vec!["-j RETURN".into()]);
    fake.tables[Family::V4].get_mut("filter").unwrap().insert("KUBE-FIREWALL".into(), vec!["-j DROP".into()]);
    let mut third = backend(&state, fake);
    let chains = |backend: &mut TestBackend, table: &str| {
        kernel(backend).tables[Family::V4][table].keys().cloned().collect::<Vec<_>>()
    };
    assert!(!chains(&mut third, "nat").contains(&"KUBE-SEP-STALE".to_owned()));
    assert!(chains(&mut third, "filter").contains(&"KUBE-FIREWALL".to_owned()), "the kubelet's");
    kernel(&mut third).tables[Family::V4].get_mut("filter").unwrap().remove("KUBE-FIREWALL");
    assert_eq!(sorted(kernel(&mut third)), right);
}

#[test]
fn changes_by_other_programs_are_noticed_and_repaired() {
    let state = state(WEB);
    let mut first = backend(&state, Fake::default());
    let right = sorted(kernel(&mut first));
    assert!(!first.needs_repair().unwrap());
    let damages: [fn(&mut Fake); 6] = [
        |fake| *fake = Fake { inputs: std::mem::take(&mut fake.inputs), ..Fake::default() },
        |fake| fake.tables[Family::V4].get_mut("filter").unwrap().values_mut().for_each(Vec::clear),
        |fake| fake.tables[Family::V6].get_mut("nat").unwrap().get_mut("KUBE-SERVICES").unwrap().clear(),
        |fake| fake.tables[Family::V4].get_mut("nat").unwrap().get_mut("KUBE-MARK-MASQ").unwrap().clear(),
        |fake| fake.tables[Family::V4].get_mut("filter").unwrap().get_mut("FORWARD").unwrap().swap(0, 1),
        |fake| {
            fake.tables[Family::V4].get_mut("nat").unwrap().get_mut("KUBE-SERVICES").unwrap().push("-j RETURN".into());
        },
    ];
    for (number, damage) in damages.into_iter().enumerate() {
        damage(kernel(&mut first));
        assert!(first.needs_repair().unwrap(), "{number}");
        _ = sync(&mut first, &state, &Changes::default());
        assert_eq!(sorted(kernel(&mut first)), right, "{number}");
    }
    // Without a full sync, the next change finds the difference.
    *kernel(&mut first) = Fake::default();
    let key = ServiceKey::new("ns", "none");
    let mut changed = state.clone();
    changed.services.remove(&key);
    _ = sync(&mut first, &changed, &Changes { services: [key].into(), ..Changes::default() });
    assert_eq!(sorted(kernel(&mut first)), sorted(kernel(&mut backend(&changed, Fake::default()))));
}

#[test]
fn a_refused_service_is_named_and_skipped_and_the_others_are_programmed() {
    for (at_the_end, many_vips) in [(false, usize::MAX), (true, usize::MAX), (false, 0), (true, 0)] {
        let state = state(WEB);
        let refuses = Some(("--to-destination 10.0.0.2:8080".to_owned(), at_the_end));
        let mut backend = IptablesBackend::new(grouping_above(many_vips), Fake { refuses, ..Fake::default() });
        let expected = |state: &Snapshot| backend_with(state, Fake::default(), many_vips);
        let synced = sync(&mut backend, &state, &Changes::everything());
        assert_eq!(synced.skipped.len(), 1);
        assert_eq!(synced.skipped[0].subject.service_key(), Some(ServiceKey::new("ns", "web")));
        assert!(synced.skipped[0].problem.contains("--to-destination 10.0.0.2:8080") || at_the_end, "{synced:?}");
        let mut rest = state.clone();
        rest.services.remove(&ServiceKey::new("ns", "web"));
        assert_eq!(sorted(kernel(&mut backend)), sorted(kernel(&mut expected(&rest))));
        // A retry is refused as long as the kernel refuses the rule.
        backend.retry_refused();
        let synced = sync(&mut backend, &state, &Changes::default());
        assert_eq!((synced.skipped.len(), synced.refused), (1, [ServiceKey::new("ns", "web")].into()));
        let refuses = kernel(&mut backend).refuses.take();
        backend.retry_refused();
        let synced = sync(&mut backend, &state, &Changes::default());
        assert_eq!((synced.skipped, synced.refused), (vec![], BTreeSet::new()));
        assert_eq!(sorted(kernel(&mut backend)), sorted(kernel(&mut expected(&state))));
        kernel(&mut backend).refuses = refuses;
        kernel(&mut backend).tables = Fake::default().tables;
        assert!(backend.needs_repair().unwrap());
        assert_eq!(sync(&mut backend, &state, &Changes::default()).skipped.len(), 1);
        // The Service is programmed once the kernel accepts its rules.
        kernel(&mut backend).refuses = None;
        let mut changed = state.clone();
        Arc::make_mut(changed.services.get_mut(&ServiceKey::new("ns", "web")).unwrap()).endpoints.pop();
        assert_eq!(sync(&mut backend, &changed, &Changes::everything()).skipped, []);
        assert_eq!(sorted(kernel(&mut backend)), sorted(kernel(&mut expected(&changed))));
    }
}

/// The kernel refuses a rule because another program has removed its chain after the backend read the tables. No Service is
/// the cause (simulation, seed 93006441).
#[test]
fn a_flush_between_read_and_write_is_blamed_on_no_service() {
    let state = state(WEB);
    let mut backend = backend(&state, Fake::default());
    for rules in kernel(&mut backend).tables[Family::V4].get_mut("nat").unwrap().values_mut() {
        rules.retain(|rule| !rule.contains("-d 172.30.0.1/32"));
    }
    kernel(&mut backend).after_save = Some(|tables| tables[Family::V4] = Fake::default().tables[Family::V4].clone());
    backend.forget();
    assert_eq!(sync(&mut backend, &state, &Changes::default()).skipped, []);
    assert_eq!(kernel(&mut backend).inputs.iter().filter(|(_, _, accepted)| !accepted).count(), 1);
    assert_eq!(sorted(kernel(&mut backend)), sorted(kernel(&mut self::backend(&state, Fake::default()))));
}

/// A refusal for lack of memory is not the fault of the Service being written: the sync fails and skips no Service.
#[test]
fn lack_of_memory_is_blamed_on_no_service() {
    for at_the_end in [false, true] {
        let refuses = Some(("--to-destination 10.0.0.2:8080".to_owned(), at_the_end));
        let fake = Fake { refuses, short: true, ..Fake::default() };
        let mut backend = IptablesBackend::new(Desired::new(Config::default()), fake);
        let synced = backend.apply(&state(WEB), &Changes::everything()).unwrap();
        assert_eq!((synced.failed.len(), synced.skipped.len()), (1, 0), "{synced:?}");
        let error = format!("{:#}", synced.whole().unwrap_err());
        assert!(error.contains("Cannot allocate memory"), "{error}");
        kernel(&mut backend).refuses = None;
        assert_eq!(sync(&mut backend, &state(WEB), &Changes::default()).skipped, []);
        assert_eq!(sorted(kernel(&mut backend)), sorted(kernel(&mut self::backend(&state(WEB), Fake::default()))));
    }
}

#[test]
fn a_refused_rule_of_no_service_fails_the_sync() {
    let refuses = Some(("MASQUERADE".to_owned(), false));
    let mut backend = IptablesBackend::new(Desired::new(Config::default()), Fake { refuses, ..Fake::default() });
    let error = backend.apply(&state(WEB), &Changes::everything()).unwrap_err();
    assert!(format!("{error:#}").contains("MASQUERADE"), "{error:#}");
    kernel(&mut backend).refuses = None;
    _ = sync(&mut backend, &state(WEB), &Changes::default());
    assert_eq!(sorted(kernel(&mut backend)), sorted(kernel(&mut self::backend(&state(WEB), Fake::default()))));
}

#[test]
fn cleanup_restores_the_tables_of_before() {
    let mut fake = Fake::default();
    fake.tables[Family::V4].get_mut("filter").unwrap().get_mut("INPUT").unwrap().push("-j KUBE-FIREWALL".into());
    fake.tables[Family::V4].get_mut("filter").unwrap().insert("KUBE-FIREWALL".into(), vec!["-j DROP".into()]);
    let before = sorted(&fake);
    let mut backend = backend(&state(WEB), fake);
    assert_ne!(sorted(kernel(&mut backend)), before);
    backend.remove_all().unwrap();
    assert_eq!(sorted(kernel(&mut backend)), before);
}

/// A step: the Service to change, its new shape or `None` to delete it, and whether another program changes the tables first.
fn step() -> impl Strategy<Value = (u8, Option<(u8, u8, bool)>, bool)> {
    (0..4_u8, proptest::option::weighted(0.8, (0..3_u8, 0..4_u8, any::<bool>())), any::<bool>())
}

/// A service whose NodePort is also the port of the next service, which sometimes has the node's address as an external IP.
fn service(name: u8, (external, endpoints, local): (u8, u8, bool)) -> Service {
    let mut yaml = format!("{{service: ns/{name}, type: NodePort, clusterIPs: [172.30.0.{name}], ");
    if external > 0 {
        yaml += &format!("externalIPs: [192.168.0.{external}], ");
    }
    yaml += &format!(
        "externalTrafficToLocal: {local}, ports: [{{name: p, protocol: TCP, port: 4{name}, nodePort: 4{}}}], endpoints: [",
        (name + 1) % 4
    );
    for host in 0..endpoints {
        let scopes = if local { "{internal: true, shortCircuit: true}" } else { "{internal: true, external: true}" };
        yaml +=
            &format!("{{address: 10.0.0.{host}, local: true, ports: [{{name: p, port: 8080}}], scopes: {scopes}}}, ");
    }
    serde_saphyr::from_str(&(yaml + "]}")).unwrap()
}

/// The chains without rules that packets to a VIP reach in the table `nat`. Such a packet is not translated.
fn empty(tables: &BTreeMap<String, BTreeMap<String, Vec<String>>>) -> Vec<&str> {
    let rules = |chain: &str| tables["nat"].get(chain).into_iter().flatten();
    const DISPATCH: [&str; 2] = [names::SERVICES, names::NODE_PORTS];
    let mut reached = DISPATCH.to_vec();
    let mut next = 0;
    while let Some(chain) = reached.get(next) {
        let targets = rules(chain).filter_map(|rule| rule.rsplit_once("-j ")).map(|(_, target)| target);
        let new: Vec<_> = targets.filter(|target| tables["nat"].contains_key(*target)).collect();
        reached.extend(new);
        next += 1;
    }
    reached.retain(|chain| rules(chain).next().is_none() && !DISPATCH.contains(chain));
    reached
}

/// The time of `iptables-restore` for nf_tables grows with the square of a section's length.
#[test]
fn many_chains_are_written_and_removed_in_sections() {
    let mut full = state("{node: {name: n, addresses: [192.168.0.2]}, services: []}");
    let none = full.clone();
    full.services.extend(
        (0..4).map(|name| (ServiceKey::new("ns", name.to_string()), Arc::new(service(name, (name, 2, false))))),
    );
    let changes = Changes { services: full.services.keys().cloned().collect(), ..Changes::default() };
    let mut backend = backend(&none, Fake { section_lines: 30, ..Fake::default() });
    // The number of each command in each section of the table nat.
    let mut written = |state: &Snapshot| {
        kernel(&mut backend).inputs.clear();
        sync(&mut backend, state, &changes).whole().unwrap();
        let sections = kernel(&mut backend).inputs[0].1.split("COMMIT\n").filter(|section| section.starts_with("*nat"));
        let count = |section: &str, command| section.lines().filter(|line| line.starts_with(command)).count();
        sections.map(|section| [":", "-A", "-I", "-D", "-X"].map(|command| count(section, command))).collect::<Vec<_>>()
    };
    assert_eq!(written(&full), [[8, 16, 0, 0, 0], [8, 16, 0, 0, 0], [0, 0, 10, 0, 0]]);
    assert_eq!(
        written(&none),
        [[0, 0, 0, 10, 0], [15, 0, 0, 0, 0], [1, 0, 0, 0, 0], [15, 0, 0, 0, 15], [1, 0, 0, 0, 1]]
    );
}

/// Sections before the interruption stay in the kernel.
#[test]
fn an_interrupted_change_is_completed_after_a_restart() {
    let mut full = state("{node: {name: n, addresses: [192.168.0.2]}, services: []}");
    let none = full.clone();
    full.services.extend(
        (0..4).map(|name| (ServiceKey::new("ns", name.to_string()), Arc::new(service(name, (name, 2, false))))),
    );
    for next in [&full, &none] {
        let refuses = Some(("ns/2:p".to_owned(), false));
        let fake = Fake { refuses, short: true, section_lines: 1, ..Fake::default() };
        let mut backend = IptablesBackend::new(Desired::new(Config::default()), fake);
        sync(&mut backend, &full, &Changes::everything()).whole().unwrap_err();
        let fake = Fake { refuses: None, ..into_kernel(&mut backend) };
        let chains: Vec<_> = fake.tables[Family::V4]["nat"].keys().collect();
        let has = |start: &str| chains.iter().any(|chain| chain.starts_with(start));
        assert!(has("KUBE-SVC-") && !has(names::SERVICES), "{chains:?}");
        let mut again = self::backend(next, fake);
        assert_eq!(sorted(kernel(&mut again)), sorted(kernel(&mut self::backend(next, Fake::default()))));
    }
}

/// Each table is committed atomically, but not both together. Between the two commits, packets to the external address of a
/// Service that gains or loses its last endpoint are still translated or rejected. Otherwise they would leave the node, and
/// another host might answer them. kube-proxy writes both tables in each sync, filter first.
#[test]
fn no_packet_leaves_untranslated_between_two_commits() {
    // Half of 150 Services gain their endpoint and half lose it, so chains change line by line and as a whole.
    for (services, section_lines) in [(1, usize::MAX), (2, usize::MAX), (150_u8, usize::MAX), (150, 50)] {
        let swapped = |turn: u8| {
            let mut state = state("{node: {name: n, addresses: [192.168.0.2]}, services: []}");
            for name in 0..services {
                let mut service = service(name, (name + 1, (name + turn) % 2, false));
                service.ports[0].node_port = None;
                state.services.insert(ServiceKey::new("ns", name.to_string()), Arc::new(service));
            }
            state
        };
        let mut backend = backend(&swapped(0), Fake { section_lines, ..Fake::default() });
        for turn in [1, 2, 3] {
            kernel(&mut backend).committed.clear();
            let state = swapped(turn);
            _ = sync(
                &mut backend,
                &state,
                &Changes { services: state.services.keys().cloned().collect(), ..Changes::default() },
            );
            let committed = kernel(&mut backend).committed.clone();
            let expected = if services == 1 { 2 } else { 3 };
            assert!(committed.len() == expected || section_lines < usize::MAX, "no more commits than necessary");
            for (step, (_, tables)) in committed.iter().enumerate() {
                for name in 0..services {
                    let to = format!("-d 192.168.0.{}/32 ", name + 1);
                    let has = |table: &str, chain: &str| tables[table][chain].iter().any(|rule| rule.starts_with(&to));
                    let (translated, refused) = (has("nat", "KUBE-SERVICES"), has("filter", "KUBE-EXTERNAL-SERVICES"));
                    assert!(translated || refused, "turn {turn}, commit {step} of {expected}: {to}");
                }
                assert_eq!(empty(tables), [""; 0], "turn {turn}, commit {step}");
            }
            assert_eq!(sorted(kernel(&mut backend)), sorted(kernel(&mut self::backend(&state, Fake::default()))));
        }
    }
}

proptest! {
    #[test]
    fn any_history_ends_in_the_same_kernel(
        steps in vec(step(), 1..16),
        section_lines in prop_oneof![Just(usize::MAX), Just(1), Just(12)],
    ) {
        let node = "{name: n, addresses: [192.168.0.2]}";
        let mut state = state(&format!("{{node: {node}, services: []}}"));
        // The number of VIPs varies around this limit.
        const MANY_VIPS: usize = 4;
        let mut backend = backend_with(&state, Fake { section_lines, ..Fake::default() }, MANY_VIPS);
        for (name, shape, flush) in steps {
            let key = ServiceKey::new("ns", name.to_string());
            match shape {
                Some(shape) => _ = state.services.insert(key.clone(), Arc::new(service(name, shape))),
                None => _ = state.services.remove(&key),
            }
            if flush {
                kernel(&mut backend).tables = Fake::default().tables;
                prop_assert!(backend.needs_repair().unwrap());
            }
            _ = sync(&mut backend, &state, &Changes { services: [key].into(), ..Changes::default() });
            for (_, tables) in std::mem::take(&mut kernel(&mut backend).committed) {
                prop_assert_eq!(empty(&tables), [""; 0]);
            }
        }
        let mut new = backend_with(&state, Fake::default(), MANY_VIPS);
        prop_assert_eq!(sorted(kernel(&mut backend)), sorted(kernel(&mut new)));
    }
}

#[test]
fn rules_have_no_comments_if_there_are_many_endpoints() {
    let mut state = state(WEB);
    let few = state.clone();
    let key = ServiceKey::new("ns", "web");
    let service = Arc::make_mut(state.services.get_mut(&key).unwrap());
    let one = service.endpoints[0].clone();
    service.endpoints.extend((0..1000_u32).map(|number| {
        let mut more = one.clone();
        more.address = IpAddr::from((0x0a00_0100 + number).to_be_bytes());
        more
    }));
    service.endpoints.sort_by_key(|endpoint| endpoint.address);
    let mut backend = backend(&few, Fake::default());
    let with = |backend: &mut TestBackend| {
        let nat = &kernel(backend).tables[Family::V4]["nat"];
        let commented = |start: &str| {
            let of = nat.iter().filter(|(chain, _)| chain.starts_with(start)).flat_map(|(_, rules)| rules);
            of.filter(|rule| rule.contains("--comment")).count()
        };
        (commented("KUBE-SEP-"), commented("KUBE-SVC-"), commented("KUBE-SERVICES") > 0)
    };
    assert_eq!(with(&mut backend), (4, 2, true));
    let changes = Changes { services: [key].into(), ..Changes::default() };
    _ = sync(&mut backend, &state, &changes);
    assert_eq!(with(&mut backend), (0, 0, true));
    assert_eq!(sorted(kernel(&mut backend)), sorted(kernel(&mut self::backend(&state, Fake::default()))));
    _ = sync(&mut backend, &few, &changes);
    assert_eq!(with(&mut backend), (4, 2, true));
    assert_eq!(sorted(kernel(&mut backend)), sorted(kernel(&mut self::backend(&few, Fake::default()))));
}

#[test]
fn many_vips_are_dispatched_in_groups() {
    let full = state(WEB);
    let mut fewer = full.clone();
    let key = ServiceKey::new("ns", "web");
    fewer.services.remove(&key);
    let changes = Changes { services: [key].into(), ..Changes::default() };
    let mut backend = backend_with(&full, Fake::default(), 3);
    let dispatch = |backend: &mut TestBackend| kernel(backend).tables[Family::V4]["nat"]["KUBE-SERVICES"].clone();
    let before = dispatch(&mut backend);
    assert!(
        before.iter().all(|rule| rule.contains("-j KUBE-VIPS-") || rule.ends_with("-j KUBE-NODEPORTS")),
        "{before:?}"
    );
    kernel(&mut backend).inputs.clear();
    // After a restart, the backend finds the VIPs.
    let fake = into_kernel(&mut backend);
    let mut again = backend_with(&full, fake, 3);
    assert_eq!(kernel(&mut again).inputs, []);
    assert_eq!(again.take_commit(&[]).remembered.len(), 3);
    _ = sync(&mut again, &fewer, &changes);
    let nat = &kernel(&mut again).tables[Family::V4]["nat"];
    assert!(!nat.keys().any(|chain| chain.starts_with("KUBE-VIPS-")), "{nat:?}");
    assert_eq!(sorted(kernel(&mut again)), sorted(kernel(&mut backend_with(&fewer, Fake::default(), 3))));
}
