//! Tests `localnet diff` against a kernel: it reports only changes by other programs, whatever the Services were before.

use std::{path::Path, process::Command};

use anyhow::Context as _;
use localnet::{
    diff::{self, Difference},
    kernel::Live,
};
use localnet_client::{Snapshot, inspect::Inspect, vips::Config};
use localnet_ebpf::{
    EbpfBackend,
    host::Host,
    inspect::Inspector as EbpfInspector,
    kernel::{Change, Kernel as _},
    layout::Vip,
};
use localnet_iptables::{Flavour, IptablesBackend, Tools, desired::Desired, inspect::Inspector};
use localnet_lab::{Network, Sandbox, Topology};
use localnet_linux::addresses::NodeAddresses;
use localnet_nft::{LinuxBackend as _, Netlink, NftBackend};
use localnet_proto::Changes;
use proptest::{
    prelude::*,
    test_runner::{Config as Cases, TestRunner},
};
use tokio::runtime::Runtime;

/// For each Service: whether external traffic goes to local endpoints, whether it has session affinity, and its endpoints.
type Services = Vec<(bool, bool, Vec<u8>)>;

fn any_services() -> impl Strategy<Value = Services> {
    let endpoints = proptest::sample::subsequence((1..9_u8).collect::<Vec<_>>(), 0..7);
    proptest::collection::vec((any::<bool>(), prop::bool::weighted(0.8), endpoints), 1..3)
}

/// States that follow each other: Services with other policies, affinity and endpoints, more Services, and fewer.
fn states() -> [Services; 3] {
    [
        vec![(false, false, vec![1, 2, 4]), (true, true, vec![3])],
        vec![(true, true, vec![2, 4, 5]), (true, false, vec![]), (false, true, vec![1, 7])],
        vec![(false, true, vec![5]), (false, false, vec![1, 2, 3, 4])],
    ]
}

fn state(services: &Services) -> anyhow::Result<Snapshot> {
    let services = services.iter().zip(1..).map(|((to_local, affinity, hosts), number)| {
        let endpoints = hosts.iter().flat_map(|host| {
            let scopes = if host % 3 == 0 { "internal: true" } else { "internal: true, external: true, shortCircuit: true" };
            ["10.180.0.", "fd00:10:180::"].map(|net| {
                format!("{{address: \"{net}{host}\", ports: [{{name: web, port: 8080}}], scopes: {{{scopes}}}}}")
            })
        });
        let affinity = if *affinity { "clientIpAffinity: 600," } else { "" };
        format!(
            "{{service: default/s{number}, type: NodePort, clusterIPs: [172.30.0.{number}, \"fd00:172:30::{number}\"], {affinity}
              externalIPs: [192.168.99.{number}], externalTrafficToLocal: {to_local},
              ports: [{{name: web, protocol: TCP, port: 80, nodePort: 3000{number}}}], endpoints: [{}]}}",
            endpoints.collect::<Vec<_>>().join(", ")
        )
    });
    let text = format!(
        "node: {{name: node-a, addresses: [192.168.0.2, \"2001:db8::2\"]}}\nservices: [{}]\n",
        services.collect::<Vec<_>>().join(", ")
    );
    localnet::source::read(&text)
}

/// The differences that `localnet diff` reports.
fn differences(state: &Snapshot) -> anyhow::Result<Vec<Difference>> {
    let mut plan = diff::plan(state, &Config::default(), &[]);
    let found = diff::differences(&mut plan, &Live::read()?, diff::MOST);
    anyhow::ensure!(found.compared > 0, "nothing is compared");
    Ok(found.differences)
}

fn runtime() -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// The differences that `localnet diff` reports if the backend is not nft.
fn of_lines<I: Inspect>(
    state: &Snapshot,
    open: impl Future<Output = anyhow::Result<I>>,
) -> anyhow::Result<Vec<String>> {
    let found = runtime()?.block_on(async {
        let mut inspector = open.await?;
        let planned = inspector.planned(state);
        Ok::<_, anyhow::Error>(diff::of_listings(&planned, &inspector.live().await?, diff::MOST))
    })?;
    anyhow::ensure!(found.compared > 30, "only {} lines are compared", found.compared);
    let lines = found.differences.into_iter().map(|of| format!("{} {} {} {}", of.table, of.place, of.what, of.text));
    Ok(lines.collect())
}

fn nft(words: &str) -> anyhow::Result<String> {
    run("nft", words)
}

fn run(program: &str, words: &str) -> anyhow::Result<String> {
    let run = Command::new(program).args(words.split(' ')).output().with_context(|| format!("running {program}"))?;
    anyhow::ensure!(run.status.success(), "{program} {words}: {}", String::from_utf8_lossy(&run.stderr));
    Ok(String::from_utf8(run.stdout)?)
}

/// Regression: `diff` planned new slots for session affinity, but the kernel keeps the slots that endpoints had.
#[test]
fn diff_is_silent_whatever_happened_to_endpoints_under_affinity() {
    let network = Network::build(Topology::default()).unwrap();
    let steps = proptest::collection::vec((any_services(), prop::bool::weighted(0.2)), 1..12);
    let mut runner = TestRunner::new(Cases { cases: 24, failure_persistence: None, ..Cases::default() });
    let tested = runner.run(&steps, |steps| {
        let wrong = network.node().run(|| {
            nft("flush ruleset")?;
            let mut backend = NftBackend::new(Config::default(), Netlink::open()?);
            for (services, restarts) in steps {
                let state = state(&services)?;
                if restarts {
                    backend = NftBackend::new(Config::default(), Netlink::open()?);
                }
                backend.apply(&state, &Changes::everything())?.whole()?;
                let wrong = differences(&state)?;
                if !wrong.is_empty() {
                    return Ok(wrong);
                }
            }
            Ok(Vec::new())
        });
        prop_assert_eq!(wrong.unwrap(), vec![]);
        Ok(())
    });
    tested.unwrap();
}

#[test]
fn a_slot_that_leads_elsewhere_is_named() {
    let network = Network::build(Topology::default()).unwrap();
    let run = network.node().run(|| {
        let mut backend = NftBackend::new(Config::default(), Netlink::open()?);
        for hosts in [vec![1, 2, 4], vec![2, 4, 5]] {
            backend.apply(&state(&vec![(false, true, hosts)])?, &Changes::everything())?.whole()?;
        }
        let state = state(&vec![(false, true, vec![2, 4, 5])])?;
        assert_eq!(differences(&state)?, []);
        let vip = "172.30.0.1 . tcp . 80 . 1";
        assert!(nft("list map ip localnet affinity-endpoints")?.contains(&format!("{vip} : 10.180.0.2 . 8080")));
        for change in ["delete", "add"] {
            let element = if change == "add" { format!("{vip} : 10.6.6.6 . 8080") } else { vip.to_owned() };
            nft(&format!("{change} element ip localnet affinity-endpoints {{ {element} }}"))?;
        }
        let places: Vec<_> = differences(&state)?.into_iter().map(|of| (of.place, of.what, of.text)).collect();
        let names = |text: &str| places.iter().any(|(place, _, of)| place == "affinity-endpoints" && of.contains(text));
        assert!(names("172.30.0.1 . tcp . 80 . 1"), "{places:#?}");
        backend.forget();
        backend.apply(&state, &Changes::everything())?.whole()?;
        assert_eq!(differences(&state)?, [], "it is repaired");
        Ok(())
    });
    run.unwrap();
}

/// `diff` is silent after each state, whatever the previous state was, and names each change by another program.
#[test]
fn rules_of_iptables_are_compared_in_both_flavours() {
    for (flavour, program) in [(Flavour::Nft, "iptables-nft"), (Flavour::Legacy, "ip6tables-legacy")] {
        let network = Network::build(Topology::default()).unwrap();
        let tested = network.node().run(|| {
            let mut backend = IptablesBackend::new(Desired::new(Config::default()), Tools::find(flavour)?);
            let mut last = Snapshot::default();
            for services in states() {
                last = state(&services)?;
                backend.apply(&last, &Changes::everything())?.whole()?;
                assert_eq!(of_lines(&last, Inspector::open(Config::default()))?, [""; 0], "{flavour:?}");
            }
            for change in [
                "-t nat -D KUBE-POSTROUTING 3",
                "-t nat -A KUBE-MARK-MASQ -j RETURN",
                "-t nat -N KUBE-SEP-LEFTOVER",
                "-t filter -D FORWARD 2",
                "-t nat -A KUBE-SERVICES -j KUBE-MARK-MASQ",
                // Rules of other programs are no differences.
                "-t nat -A PREROUTING -j ACCEPT",
                "-t filter -N OTHER",
            ] {
                run(program, change)?;
            }
            let family = if program.starts_with("ip6") { "ip6" } else { "ip" };
            assert_eq!(
                of_lines(&last, Inspector::open(Config::default()))?,
                [
                    "filter FORWARD missing -m comment --comment \"kubernetes forwarding rules\" -j KUBE-FORWARD",
                    "nat KUBE-MARK-MASQ unplanned -j RETURN",
                    "nat KUBE-POSTROUTING missing -m comment --comment \"kubernetes service traffic requiring SNAT\" -j MASQUERADE --random-fully",
                    "nat KUBE-SEP-LEFTOVER unplanned the whole chain or set",
                    "nat KUBE-SERVICES unplanned -j KUBE-MARK-MASQ",
                ]
                .map(|line| format!("{family} {line}"))
            );
            backend.forget();
            backend.apply(&last, &Changes::everything())?.whole()?;
            assert_eq!(of_lines(&last, Inspector::open(Config::default()))?, [""; 0], "it is repaired");
            Ok(())
        });
        tested.unwrap();
    }
}

/// `diff` is silent after each state, and names each change of the maps and each detached program.
#[test]
fn maps_of_ebpf_are_compared() {
    let tested = Sandbox::run(|_| {
        Network::build(Topology::default())?.node().run(|| {
            let (bpffs, cgroup) = (Path::new(Sandbox::BPFFS), Path::new(Sandbox::CGROUP));
            let mut backend = EbpfBackend::new(Config::default(), Host::open(bpffs, cgroup)?);
            backend.set_local_addresses(runtime()?.block_on(NodeAddresses::default().list())?);
            let mut last = Snapshot::default();
            for services in states() {
                last = state(&services)?;
                backend.apply(&last, &Changes::everything())?.whole()?;
                assert_eq!(of_lines(&last, EbpfInspector::open(Config::default()))?, [""; 0]);
            }
            let content = Host::pinned(bpffs)?;
            let vip = content.vips.iter().find(|(_, vip)| vip.endpoints == 4).context("a VIP with 4 endpoints")?;
            let member = content.members.first().context("a member")?;
            backend
                .kernel_mut()
                .apply(&[Change::Vip(*vip.0, Some(Vip { endpoints: 3, ..*vip.1 })), Change::Member(*member, false)])?;
            for links in std::fs::read_dir(bpffs.join("localnet-ebpf"))? {
                let program = links?.path().join("connect6");
                if program.exists() {
                    std::fs::remove_file(program)?;
                }
            }
            let found = of_lines(&last, EbpfInspector::open(Config::default()))?;
            let expected = [
                ("bpf members missing member ", ":8080"),
                ("bpf programs missing connect6", ""),
                ("bpf vips missing vip ", ", 4 endpoints"),
                ("bpf vips unplanned vip ", ", 3 endpoints"),
            ];
            let is_as = |(line, (start, end)): (&String, (&str, &str))| line.starts_with(start) && line.ends_with(end);
            assert!(found.len() == expected.len() && found.iter().zip(expected).all(is_as), "{found:#?}");
            backend.forget();
            backend.apply(&last, &Changes::everything())?.whole()?;
            assert_eq!(of_lines(&last, EbpfInspector::open(Config::default()))?, [""; 0], "it is repaired");
            Ok(())
        })
    });
    tested.unwrap();
}
