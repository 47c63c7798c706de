//! Measures how long each command takes, from the arrival of the state until a reader has the whole answer. The kernel holds 45,000
//! Services with two endpoints each, in a separate network namespace. Fails if the median time of a command is above
//! [`limit`].
//!
//! ```text
//! cargo bench --workspace --bench answers          # as root; QUICK=1: 1,000 Services
//! cargo bench --workspace --bench answers -- diff  # only commands with that in their names
//! ```

use std::{
    collections::BTreeMap,
    io::{self, PipeWriter, Write as _, pipe},
    net::Ipv4Addr,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use localnet::{
    answer::Answer,
    configuration::Configuration,
    diff,
    doctor::{self, Evidence, Findings},
    explain,
    get::{Endpoints, Filter, Services},
    kernel::{self, Kernel, Live},
    output::{self, Format, Out, Show},
    path::{self, Path},
    question::{self, From, Here},
    style::Style,
    top::{self, By},
    watch,
    why_not::{self, Question},
    world::World,
};
use localnet_client::{
    Snapshot,
    vips::{Config, Detector, Facts},
};
use localnet_core::Code;
use localnet_lab::{Network, Topology};
use localnet_nft::{LinuxBackend as _, Netlink, NftBackend};
use localnet_proto::Family;
use localnet_proto::{
    Changes, Endpoint, EndpointPort, Node, Port, Revision, Scopes, Service, ServiceKey,
    decode::Assembler,
    encode::{next_item, node_item, service_bytes},
};

/// The same allocator as in the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const ROUNDS: usize = 9;

/// The limit of a command's median time. Commands that print the whole state in another format take longer.
fn limit(name: &str) -> Duration {
    let prints_all = (name.starts_with("get") || name.starts_with("watch")) && name.contains(" -o ");
    Duration::from_millis(if prints_all { 150 } else { 100 })
}

fn main() -> anyhow::Result<()> {
    let quick = std::env::var("QUICK").is_ok_and(|quick| !quick.is_empty());
    let services = if quick { 1_000 } else { 45_000 };
    let network = Network::build(Topology::default())?;
    network.node().run(|| measure(services))
}

fn config() -> Config {
    Config { detector: Detector::ClusterCidr(vec!["10.0.0.0/8".parse().expect("a CIDR")]), ..Config::default() }
}

fn state(services: usize) -> Snapshot {
    let node = Node {
        name: "node".to_owned(),
        addresses: vec![Ipv4Addr::new(192, 168, 0, 2).into()],
        service_cidrs: vec!["172.16.0.0/12".parse().expect("a CIDR")],
        ..Node::default()
    };
    let service = |number: u32| {
        let key = ServiceKey::new(format!("namespace-{}", number % 100), format!("service-{number}"));
        let mut service = Service::new(key.clone(), vec![Ipv4Addr::from(0xac10_0001 + number).into()]);
        service.ports = vec![Port { name: "http".into(), port: 80, ..Port::default() }];
        let scopes = Scopes { internal: true, established: true, ..Scopes::default() };
        let endpoint = |other: u32| Endpoint {
            address: Ipv4Addr::from(0x0a00_0001 + 2 * number + other).into(),
            ports: vec![EndpointPort { name: "http".into(), port: 8080 }],
            local: false,
            hostname: None,
            scopes,
            weight: None,
        };
        service.endpoints = vec![endpoint(0), endpoint(1)];
        (key, Arc::new(service))
    };
    let count = u32::try_from(services).unwrap_or(u32::MAX);
    Snapshot { node, services: (0..count).map(service).collect(), ..Snapshot::default() }
}

/// Prints an answer, and waits until a reader has all of it.
fn printed(print: impl FnOnce(&mut Out<PipeWriter>) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let (mut reader, writer) = pipe()?;
    thread::scope(|scope| {
        let read = scope.spawn(move || io::copy(&mut reader, &mut io::sink()));
        let mut out = output::buffered(writer);
        print(&mut out)?;
        out.flush()?;
        drop(out);
        let length = read.join().map_err(|_| anyhow::anyhow!("the reader panicked"))??;
        anyhow::ensure!(length > 0, "nothing was printed");
        Ok(())
    })
}

fn show(answer: &impl Show, format: Format) -> anyhow::Result<()> {
    printed(|out| output::write(answer, format, Style::default(), out))
}

/// The rows of the table. Each is printed once its command is measured.
struct Rows {
    /// Only commands whose names contain this text are measured.
    chosen: String,
    slow: Vec<String>,
}

impl Rows {
    /// Adds a row with the times that `work` returns.
    fn add(&mut self, name: impl Into<String>, work: impl FnMut() -> anyhow::Result<Duration>) -> anyhow::Result<()> {
        let name = name.into();
        if !name.contains(&self.chosen) {
            return Ok(());
        }
        let before = processor_time()?;
        let mut took = std::iter::repeat_with(work).take(ROUNDS).collect::<Result<Vec<_>, _>>()?;
        let processor = (processor_time()? - before) / u32::try_from(ROUNDS)?;
        took.sort_unstable();
        let [median, least, processor] = [took[ROUNDS / 2], took[0], processor].map(|took| took.as_secs_f64() * 1000.0);
        println!("{name:<29} {median:>8.1} {least:>8.1} {processor:>8.1}");
        if took[ROUNDS / 2] > limit(&name) {
            self.slow.push(name);
        }
        Ok(())
    }

    /// Adds a row with the whole duration of `work`.
    fn add_all(&mut self, name: impl Into<String>, mut work: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<()> {
        self.add(name, || {
            let began = Instant::now();
            work()?;
            Ok(began.elapsed())
        })
    }
}

/// The processor time of all threads of this process, including their time in the kernel, in steps of 10 ms.
fn processor_time() -> anyhow::Result<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // utime and stime: their positions count from the name's end, because the name may contain spaces.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().skip(11).take(2);
    let ticks = fields.map(str::parse::<u64>).sum::<Result<u64, _>>()?;
    Ok(Duration::from_millis(ticks * 10))
}

fn measure(services: usize) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let state = state(services);
    let mut backend = NftBackend::new(config(), Netlink::open()?);
    backend.set_local_addresses(state.node.addresses.clone());
    backend.apply(&state, &Changes::everything())?.whole()?;
    let world = || -> anyhow::Result<World> {
        Ok(World {
            listings: BTreeMap::new(),
            dumped: None,
            facts: Facts::new(&config(), &state.node, &state.node.addresses),
            configuration: Configuration::chosen(config()),
            state: state.clone(),
            local: state.node.addresses.clone(),
            is_here: true,
            has_ebpf: false,
            other: None,
            kernel: Kernel::open(),
        })
    };
    let filter = Filter::default();
    let asked = format!("namespace-{0}/service-{0}:http", 77);
    let to = || asked.parse().map_err(anyhow::Error::msg);
    // The items of the state, encoded as for the connection to the brain.
    let items: Vec<_> = state.services.values().flat_map(|service| service_bytes(service)).collect();
    let arrives = || -> anyhow::Result<Snapshot> {
        let mut assembler = Assembler::default();
        assembler.push(next_item(Revision { instance: 1, rev: 1 }, false))?;
        assembler.push(node_item(&state.node))?;
        items.iter().try_for_each(|item| assembler.push_bytes(item.clone()))?;
        let mut arrived = Snapshot::default();
        arrived.apply(assembler.finish()?);
        Ok(arrived)
    };
    // The state has arrived. The time to convert it into a command's own form is not measured.
    println!(
        "{services} Services × 2 endpoints; {ROUNDS} rounds after the state has arrived: median, least and processors' time, in ms"
    );
    // Cargo passes --bench, and a user passes the text to search for in the commands' names.
    let chosen = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).unwrap_or_default();
    let mut rows = Rows { chosen, slow: Vec::new() };
    let formats = [
        ("", Format::Table),
        (" -o wide", Format::Wide),
        (" -o json", Format::Json),
        (" -o yaml", Format::Yaml),
        (" -o name", Format::Name),
    ];
    for (option, format) in formats {
        rows.add_all(format!("get services{option}"), || {
            show(&Services { services: filter.services(&state).collect(), rates: None }, format)
        })?;
        rows.add_all(format!("get endpoints{option}"), || {
            show(&Endpoints::of(filter.services(&state), &BTreeMap::new()), format)
        })?;
        if matches!(format, Format::Json | Format::Yaml) {
            rows.add_all(format!("get state{option}"), || show(&state, format))?;
        }
        let options = watch::Options { filter: filter.clone(), format, style: Style::default(), count: Some(1) };
        rows.add_all(format!("watch{option}, first state"), || {
            let nothing = BTreeMap::new();
            let changes = watch::differences(&nothing, &state.services);
            let at = watch::At { revision: 1, time: Timestamp::now() };
            printed(|out| watch::lines(&changes, at, &options, true, out))
        })?;
    }
    let mut explained_world = world()?;
    rows.add_all("explain", || {
        explained_world.kernel = Kernel::open();
        let destination = question::destination(&to()?, None, &explained_world.state).map_err(anyhow::Error::msg)?;
        let from = From::Address(Ipv4Addr::new(10, 9, 9, 9).into());
        let packet =
            question::packet(from, destination, &explained_world.state, &explained_world.facts, Here::default());
        let explanation = runtime.block_on(explain::explain(&mut explained_world, None, packet, true));
        anyhow::ensure!(explanation.arrives() && explanation.endpoints.len() == 2, "{explanation:?}");
        show(&explanation, Format::Table)
    })?;
    rows.add_all("explain --why-not", || {
        explained_world.kernel = Kernel::open();
        let question = Question::new(to()?, None, None).map_err(anyhow::Error::msg)?;
        let evidence = runtime.block_on(why_not::gather(&mut explained_world, &question, None, None));
        let answer = Answer::of(&evidence);
        // The namespace has no route to pods, and nothing else is wrong.
        anyhow::ensure!(
            answer.causes.iter().all(|cause| [Code::NoRoute, Code::ForwardingOff].contains(&cause.code)),
            "{answer:?}"
        );
        show(&answer, Format::Table)
    })?;
    // As in the command, the kernel is read while the state arrives.
    rows.add("diff", || {
        let reading = thread::spawn(Live::read);
        let state = arrives()?;
        let arrived = Instant::now();
        let mut plan = diff::plan(&state, &config(), &state.node.addresses);
        let live = reading.join().map_err(|_| anyhow::anyhow!("the reader panicked"))??;
        let differences = diff::differences(&mut plan, &live, diff::MOST);
        anyhow::ensure!(differences.count == 0 && differences.compared > 0, "{differences:?}");
        show(&differences, Format::Table)?;
        Ok(arrived.elapsed())
    })?;
    rows.add_all("doctor", || {
        let mut kernel = Kernel::open();
        let mut evidence = Evidence { state: Some(Ok(doctor::count(&state))), ..Evidence::default() };
        let facts = &explained_world.facts;
        let chains = |family: Family| {
            Path::new(facts, family, path::has_affinity(&state, facts, family), false).chains().to_vec()
        };
        doctor::read_kernel(&mut kernel, &mut evidence, chains);
        let findings = Findings::of(&evidence);
        anyhow::ensure!(!findings.checks.is_empty());
        show(&findings, Format::Table)
    })?;
    rows.add_all("top", || {
        let sample = top::Sample { at: Instant::now(), flows: kernel::counted_flows()? };
        let top = top::count(&state, &explained_world.facts, &sample, None, (By::Service, false));
        show(&top, Format::Table)
    })?;
    anyhow::ensure!(rows.slow.is_empty(), "longer than their limit: {}", rows.slow.join(", "));
    Ok(())
}
