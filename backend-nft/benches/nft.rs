//! Measures the cost of programming, from a state in memory to the kernel's acknowledgement, in a separate network
//! namespace.
//!
//! ```text
//! cargo bench -p localnet-nft            # as root; QUICK=1: small
//! ```
//!
//! `FIGURES=FILE` writes the figures that `make bench` publishes.
//!
//! For comparison, the same run gives the same plan to `nft -f` as text. Times differ between machines, so compare
//! ratios. CPU time is that of the thread, including its time in the kernel; on a busy machine it is more reliable than
//! wall-clock time.

use std::{
    net::{IpAddr, Ipv4Addr},
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use localnet_client::vips::{Config, Detector, NodePortAddresses};
use localnet_lab::{Network, Topology};
use localnet_linux::nft::{self, Chain, Element, Error, Set, Table, Transaction, TransactionSize};
use localnet_nft::{Kernel, LinuxBackend as _, Netlink, NftBackend, kernel::LiveTable};
use localnet_proto::{Changes, Endpoint, EndpointPort, Family, Node, Port, Scopes, Service, ServiceKey, Snapshot};

const ROUNDS: usize = 5;
const CHANGES: usize = 2000;

fn main() -> anyhow::Result<()> {
    let set = |name| std::env::var(name).ok().filter(|value: &String| !value.is_empty());
    let sizes = [(1_000, 3, true), (10_000, 3, true), (45_000, 2, false)];
    let sizes = if set("QUICK").is_some() { &sizes[..1] } else { &sizes[..] };
    let mut written = Vec::new();
    println!("medians of {ROUNDS} rounds in ms; changes in µs");
    println!(
        "services endpoints | empty → all   CPU  of it kernel  longest commit | nft -f  ratio | one endpoint replaced | one more, one less | flushed → repaired | all compared"
    );
    for &(services, endpoints, peer) in sizes {
        let mut loads = Vec::new();
        let mut figures = Figures::default();
        for round in 0..ROUNDS {
            let text = measure(services, endpoints, round + 1 == ROUNDS, &mut figures)?;
            if peer {
                loads.push(load(&text)?);
            }
        }
        let full = quantile(&mut figures.full, 50);
        let load = (!loads.is_empty()).then(|| quantile(&mut loads, 50));
        let millis = |time: Duration| time.as_secs_f64() * 1000.0;
        written.push(serde_json::json!({
            "services": services, "endpoints": endpoints, "median": millis(full), "nft": load.map(millis),
            "longest": millis(quantile(&mut figures.longest, 100)),
        }));
        println!(
            "{services:>8} {:>9} | {:>11} {:>5} {:>13} {:>15} | {:>6} {:>6} | {:>21} | {:>18} | {:>18} | {:>12}",
            services * endpoints,
            ms(full),
            ms(quantile(&mut figures.cpu, 50)),
            ms(quantile(&mut figures.kernel, 50)),
            ms(quantile(&mut figures.longest, 100)),
            load.map_or("-".to_owned(), ms),
            load.map_or("-".to_owned(), |load| format!("{:.1}", load.as_secs_f64() / full.as_secs_f64())),
            micros(&mut figures.replaced),
            micros(&mut figures.counted),
            ms(quantile(&mut figures.repaired, 50)),
            ms(quantile(&mut figures.compared, 50)),
        );
    }
    println!(
        "one service of many ports, local endpoints: ms and µs for each pair of a port and an endpoint, which must not grow with the ports"
    );
    println!("   ports endpoints | empty → all   a pair | one endpoint replaced   a pair");
    let sizes = [(250, 20), (1_000, 20), (4_000, 20)];
    for &(ports, endpoints) in if set("QUICK").is_some() { &sizes[..1] } else { &sizes[..] } {
        let [full, change] = many_ports(ports, endpoints)?;
        let pair = |time: Duration| format!("{:.1}", time.as_secs_f64() * 1e6 / (ports * endpoints) as f64);
        println!(
            "{ports:>8} {endpoints:>9} | {:>11} {:>8} | {:>21} {:>8}",
            ms(full),
            pair(full),
            ms(change),
            pair(change)
        );
    }
    if let Some(path) = set("FIGURES") {
        std::fs::write(&path, serde_json::to_string(&written)?).with_context(|| format!("writing {path}"))?;
    }
    Ok(())
}

#[derive(Default)]
struct Figures {
    full: Vec<Duration>,
    cpu: Vec<Duration>,
    kernel: Vec<Duration>,
    longest: Vec<Duration>,
    replaced: Vec<Duration>,
    counted: Vec<Duration>,
    repaired: Vec<Duration>,
    compared: Vec<Duration>,
}

/// Programs an empty kernel. The last round also changes services one by one. Returns the plan as text.
fn measure(services: usize, endpoints: usize, last: bool, figures: &mut Figures) -> anyhow::Result<String> {
    network()?.node().run(|| {
        let mut state = state(services, endpoints);
        let mut backend = NftBackend::new(
            config(),
            Timed { netlink: Netlink::open()?, cpu: Duration::ZERO, longest: Duration::ZERO },
        );
        let (start, cpu_start) = (Instant::now(), cpu()?);
        backend.apply(&state, &Changes::everything())?.whole()?;
        figures.full.push(start.elapsed());
        figures.cpu.push(cpu()? - cpu_start);
        figures.kernel.push(backend.kernel().cpu);
        figures.longest.push(backend.kernel().longest);
        let text = script(&backend);
        for flush in [true, false] {
            let took = repair(&mut backend, &state, flush)?;
            if flush { &mut figures.repaired } else { &mut figures.compared }.push(took);
        }
        if last {
            figures.replaced = changes(&mut backend, &mut state, CHANGES, |service, change| {
                service.endpoints[0].address = Ipv4Addr::new(10, 255, (change >> 8) as u8, change as u8).into();
            })?;
            // In a cluster, other Services have the number of endpoints that a Service gets, so its chain exists.
            if let Some(mut last) = state.services.last_entry() {
                Arc::make_mut(last.get_mut()).endpoints.pop();
            }
            backend.apply(&state, &Changes::everything())?.whole()?;
            figures.counted = changes(&mut backend, &mut state, CHANGES, |service, change| {
                let endpoint = service.endpoints.pop().expect("each service has endpoints");
                if change % 2 == 1 {
                    let other = Endpoint { address: Ipv4Addr::new(10, 254, 1, 1).into(), ..endpoint.clone() };
                    service.endpoints.extend([endpoint, other]);
                }
            })?;
        }
        Ok(text)
    })
}

/// Measures one service with `ports` ports and `endpoints` endpoints on this node. Returns how long it takes to program
/// all of it, and to replace one endpoint.
fn many_ports(ports: usize, endpoints: usize) -> anyhow::Result<[Duration; 2]> {
    network()?.node().run(|| {
        let name = |port: usize| Arc::<str>::from(format!("port-{port:05}"));
        let mut service = service(0, endpoints);
        let port = service.ports.remove(0);
        let numbers =
            |first: usize| (0..ports).map(move |port| (name(port), u16::try_from(first + port).unwrap_or_default()));
        service.ports = numbers(1_000).map(|(name, number)| Port { name, port: number, ..port.clone() }).collect();
        for endpoint in &mut service.endpoints {
            endpoint.local = true;
            endpoint.ports = numbers(20_000).map(|(name, port)| EndpointPort { name, port }).collect();
        }
        let mut state = state(0, 0);
        state.services.insert(service.key.clone(), Arc::new(service));
        let mut backend = NftBackend::new(
            config(),
            Timed { netlink: Netlink::open()?, cpu: Duration::ZERO, longest: Duration::ZERO },
        );
        let start = Instant::now();
        backend.apply(&state, &Changes::everything())?.whole()?;
        let full = start.elapsed();
        let mut changed = changes(&mut backend, &mut state, ROUNDS, |service, change| {
            service.endpoints[0].address = Ipv4Addr::new(10, 255, (change >> 8) as u8, change as u8).into();
        })?;
        Ok([full, quantile(&mut changed, 50)])
    })
}

/// Measures reading the tables and sending the differences: everything if `flush`, otherwise nothing.
fn repair(backend: &mut NftBackend<Timed>, state: &Snapshot, flush: bool) -> anyhow::Result<Duration> {
    if flush {
        let mut transaction = Transaction::new();
        transaction.delete_table(&Table::new(Family::V4, "localnet"));
        nft::Socket::open()?.commit(&transaction)?;
    }
    backend.forget();
    let start = Instant::now();
    backend.apply(state, &Changes::default())?.whole()?;
    Ok(start.elapsed())
}

/// The kernel, with the time spent on encoding, system calls and answers.
struct Timed {
    netlink: Netlink,
    cpu: Duration,
    /// The longest duration of one commit.
    longest: Duration,
}

impl Kernel for Timed {
    fn apply(&mut self, transaction: &Transaction) -> Result<TransactionSize, Error> {
        let (start, cpu_start) = (Instant::now(), cpu()?);
        let result = self.netlink.apply(transaction);
        self.cpu += cpu()? - cpu_start;
        self.longest = self.longest.max(start.elapsed());
        result
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

/// The CPU time of this thread.
fn cpu() -> std::io::Result<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    Ok(Duration::from_nanos(text.split(' ').next().and_then(|field| field.parse().ok()).unwrap_or_default()))
}

fn config() -> Config {
    let pods = vec!["10.0.0.0/8".parse().expect("is a CIDR")];
    Config {
        masquerade_all: false,
        masquerade_bit: 14,
        detector: Detector::ClusterCidr(pods),
        node_port_addresses: NodePortAddresses::PRIMARY,
    }
}

/// Changes services one by one, each twice in a row, and `times` changes in all. Returns how long the kernel took to
/// acknowledge each change.
fn changes(
    backend: &mut NftBackend<Timed>,
    state: &mut Snapshot,
    times: usize,
    mut change: impl FnMut(&mut Service, usize),
) -> anyhow::Result<Vec<Duration>> {
    let keys: Vec<ServiceKey> = state.services.keys().cloned().collect();
    let mut took = Vec::with_capacity(times);
    for (count, key) in keys.iter().flat_map(|key| [key, key]).cycle().take(times).enumerate() {
        if let Some(service) = state.services.get_mut(key) {
            change(Arc::make_mut(service), count);
        }
        let changes = Changes { services: [key.clone()].into(), ..Changes::default() };
        let start = Instant::now();
        backend.apply(state, &changes)?.whole()?;
        took.push(start.elapsed());
    }
    Ok(took)
}

/// A node without pods.
fn network() -> anyhow::Result<Network> {
    Network::build(Topology::default())
}

/// The plan as text for `nft -f`.
fn script(backend: &NftBackend<Timed>) -> String {
    let mut transaction = Transaction::new();
    for content in backend.plan() {
        transaction.add_content(content);
    }
    nft::script(&transaction)
}

/// Measures how long `nft -f` takes for the same plan, in a separate namespace.
fn load(text: &str) -> anyhow::Result<Duration> {
    let network = network()?;
    let start = Instant::now();
    network.node().output_with_input(Command::new("nft").args(["-f", "-"]), text)?;
    Ok(start.elapsed())
}

fn state(services: usize, endpoints: usize) -> Snapshot {
    let services = (0..services).map(|index| service(index, endpoints));
    Snapshot {
        node: Node {
            name: "node".to_owned(),
            addresses: vec![Ipv4Addr::new(192, 168, 0, 2).into()],
            ..Node::default()
        },
        services: services.map(|service| (service.key.clone(), Arc::new(service))).collect(),
        ..Snapshot::default()
    }
}

fn service(index: usize, endpoints: usize) -> Service {
    let address = |first: u8, number: usize| -> IpAddr {
        Ipv4Addr::new(first, (number >> 16) as u8, (number >> 8) as u8, number as u8).into()
    };
    let port = Port { name: "http".into(), port: 80, ..Port::default() };
    let endpoint = |slot| Endpoint {
        address: address(10, index * endpoints + slot),
        ports: vec![EndpointPort { name: "http".into(), port: 8080 }],
        local: slot == 0 && index.is_multiple_of(30),
        hostname: None,
        scopes: Scopes { internal: true, external: true, short_circuit: false, established: true },
        weight: None,
    };
    Service {
        ports: vec![port],
        endpoints: (0..endpoints).map(endpoint).collect(),
        ..Service::new(
            ServiceKey::new(format!("namespace-{}", index % 100), format!("service-{index}")),
            vec![address(172, (16 << 16) + index)],
        )
    }
}

fn quantile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort_unstable();
    let place = (times.len() * percent / 100).min(times.len().saturating_sub(1));
    times.get(place).copied().unwrap_or_default()
}

fn ms(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64() * 1000.0)
}

fn micros(times: &mut [Duration]) -> String {
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    format!("p50 {:.1}, p99 {:.1}", micros(quantile(times, 50)), micros(quantile(times, 99)))
}
