//! How long each command takes after the state has arrived, at 45,000 Services × 2 endpoints that a kernel holds, in a network namespace
//! of its own. Fails if one takes longer than 100 ms at the median.
//!
//! ```text
//! cargo bench -p localnet        # as root; QUICK=1: 1,000 Services
//! ```

use std::{
    collections::BTreeMap,
    io::{self, PipeWriter, Write as _, pipe},
    net::Ipv4Addr,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use localnet::{
    causes::Answer,
    diff::{self, Held},
    doctor::{self, Findings, Known},
    explain::{self, World},
    get::{Endpoints, Filter, Services, State},
    kernel::{self, Kernel},
    output::{Format, Out, Show, write},
    path::{self, Path},
    question::{self, From, Here},
    top::{self, By},
    watch,
    why_not::{self, Asked, Told},
};
use localnet_client::{
    Snapshot,
    vips::{Config, Detector, Facts},
};
use localnet_lab::{Network, Topology};
use localnet_linux::nft::Family;
use localnet_nft::{Netlink, NftBackend};
use localnet_proto::{
    Changes, Endpoint, EndpointPort, Node, Port, Protocol, Revision, Scopes, Service, ServiceKey, WhenEmpty,
    decode::Assembler,
    encode::{next_item, node_item, service_bytes},
};

const ROUNDS: usize = 9;
const LIMIT: Duration = Duration::from_millis(100);

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
        service.ports = vec![Port {
            name: "http".into(),
            protocol: Protocol::Tcp,
            port: 80,
            node_port: None,
            when_empty_v4: WhenEmpty::default(),
            when_empty_v6: WhenEmpty::default(),
        }];
        let scopes = Scopes { internal: true, established: true, ..Scopes::default() };
        let endpoint = |other: u32| Endpoint {
            address: Ipv4Addr::from(0x0a00_0001 + 2 * number + other).into(),
            ports: vec![EndpointPort { name: "http".into(), port: 8080 }],
            local: false,
            hostname: None,
            scopes,
        };
        service.endpoints = vec![endpoint(0), endpoint(1)];
        (key, Arc::new(service))
    };
    let count = u32::try_from(services).unwrap_or(u32::MAX);
    Snapshot { node, services: (0..count).map(service).collect(), ..Snapshot::default() }
}

/// Prints it, and waits until a reader has all of it.
fn printed(print: impl FnOnce(&mut Out<PipeWriter>) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let (mut reader, writer) = pipe()?;
    thread::scope(|scope| {
        let read = scope.spawn(move || io::copy(&mut reader, &mut io::sink()));
        let mut out = Out::new(writer);
        print(&mut out)?;
        out.flush()?;
        drop(out);
        let length = read.join().map_err(|_| anyhow::anyhow!("the reader panicked"))??;
        anyhow::ensure!(length > 0, "nothing was printed");
        Ok(())
    })
}

fn show(answer: &impl Show, format: Format) -> anyhow::Result<()> {
    printed(|out| write(answer, format, false, out))
}

fn median(mut work: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<Took> {
    median_of(|| {
        let began = Instant::now();
        work()?;
        Ok(began.elapsed())
    })
}

fn median_of(work: impl FnMut() -> anyhow::Result<Duration>) -> anyhow::Result<Took> {
    let mut took = std::iter::repeat_with(work).take(ROUNDS).collect::<Result<Vec<_>, _>>()?;
    took.sort_unstable();
    Ok(Took { median: took[ROUNDS / 2], least: took[0] })
}

/// How long a command takes: where other programs run as well, the least says what it costs.
struct Took {
    median: Duration,
    least: Duration,
}

/// The rows of the table, printed as they come.
#[derive(Default)]
struct Rows {
    slow: Vec<String>,
}

impl Rows {
    fn push(&mut self, (name, took): (String, Took)) {
        let millis = |took: Duration| took.as_secs_f64() * 1000.0;
        println!("{name:<29} {:>8.1} {:>8.1}", millis(took.median), millis(took.least));
        if took.median > LIMIT {
            self.slow.push(name);
        }
    }
}

fn measure(services: usize) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let state = state(services);
    let mut backend = NftBackend::new(config(), Netlink::open()?);
    backend.set_local_addresses(state.node.addresses.clone());
    backend.apply(&state, &Changes::everything())?.whole()?;
    let world = || -> anyhow::Result<World> {
        Ok(World {
            facts: Facts::new(&config(), &state.node, &state.node.addresses),
            state: state.clone(),
            local: state.node.addresses.clone(),
            is_here: true,
            kernel: Ok(Kernel::open()?),
        })
    };
    let filter = Filter::default();
    let asked = format!("namespace-{0}/service-{0}:http", 77);
    let to = || asked.parse().map_err(anyhow::Error::msg);
    // As it comes over the wire.
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
    // The state has arrived: what each command keeps of it is made before the clock runs.
    println!("{services} Services × 2 endpoints; {ROUNDS} rounds after the state has arrived: median and least, in ms");
    let mut rows = Rows::default();
    let formats = [
        ("", Format::Table),
        (" -o wide", Format::Wide),
        (" -o json", Format::Json),
        (" -o yaml", Format::Yaml),
        (" -o name", Format::Name),
    ];
    for (option, format) in formats {
        let took = median(|| show(&Services { services: filter.services(&state).collect() }, format))?;
        rows.push((format!("get services{option}"), took));
        let took = median(|| show(&Endpoints::of(filter.services(&state)), format))?;
        rows.push((format!("get endpoints{option}"), took));
        if matches!(format, Format::Json | Format::Yaml) {
            rows.push((format!("get state{option}"), median(|| show(&State(&state), format))?));
        }
        let options = watch::Options { filter: filter.clone(), format, colour: false, count: Some(1) };
        let took = median(|| {
            let nothing = BTreeMap::new();
            let changes = watch::differences(&nothing, &state.services);
            printed(|out| watch::lines(&changes, 1, &options, true, out))
        })?;
        rows.push((format!("watch{option}, first state"), took));
    }
    let mut asked_world = world()?;
    rows.push((
        "explain".to_owned(),
        median(|| {
            asked_world.kernel = Ok(Kernel::open()?);
            let destination =
                question::destination(&to()?, None, &asked_world.state).map_err(|no| anyhow::anyhow!("{no}"))?;
            let from = From::Address(Ipv4Addr::new(10, 9, 9, 9).into());
            let packet = question::packet(from, destination, &asked_world.state, &asked_world.facts, Here::default());
            let told = runtime.block_on(explain::explain(&mut asked_world, None, packet, true));
            anyhow::ensure!(told.arrives() && told.endpoints.len() == 2, "{told:?}");
            show(&told, Format::Table)
        })?,
    ));
    rows.push((
        "explain --why-not".to_owned(),
        median(|| {
            asked_world.kernel = Ok(Kernel::open()?);
            let asked = Asked::new(to()?, None, None).map_err(anyhow::Error::msg)?;
            let evidence = runtime.block_on(why_not::gather(&mut asked_world, &asked, Told::default()));
            let answer = Answer::of(&evidence);
            // The namespace has no route to pods, and nothing else is wrong.
            anyhow::ensure!(
                answer.causes.iter().all(|cause| cause.id == "no-route" || cause.id == "forwarding-off"),
                "{answer:?}"
            );
            show(&answer, Format::Table)
        })?,
    ));
    rows.push((
        "diff".to_owned(),
        // The kernel is read while the state arrives, as the command does.
        median_of(|| {
            thread::scope(|scope| {
                let reading = scope.spawn(|| Held::read(&mut Kernel::open()?));
                let state = arrives()?;
                let arrived = Instant::now();
                let held = reading.join().map_err(|_| anyhow::anyhow!("the kernel's reader panicked"))??;
                let differences = diff::differences(&state, config(), state.node.addresses.clone(), held, diff::MOST);
                anyhow::ensure!(differences.count == 0 && differences.compared > 0, "{differences:?}");
                show(&differences, Format::Table)?;
                Ok(arrived.elapsed())
            })
        })?,
    ));
    rows.push((
        "doctor".to_owned(),
        median(|| {
            let mut kernel = Ok(Kernel::open()?);
            let mut known = Known { state: Some(Ok(doctor::count(&state))), ..Known::default() };
            let facts = &asked_world.facts;
            let chains = |family: Family| {
                let family = localnet_nft::plan::model_family(family);
                Path::new(facts, family, path::has_affinity(&state, facts, family)).chains().to_vec()
            };
            doctor::look(&mut kernel, &mut known, chains);
            let findings = Findings::of(&known);
            anyhow::ensure!(!findings.checks.is_empty());
            show(&findings, Format::Table)
        })?,
    ));
    rows.push((
        "top".to_owned(),
        median(|| {
            let flows = kernel::flows(Family::V4, |_| true)?;
            let top = top::count(&state, &asked_world.facts, &flows, By::Service, 20);
            show(&top, Format::Table)
        })?,
    ));
    anyhow::ensure!(rows.slow.is_empty(), "longer than {LIMIT:?}: {}", rows.slow.join(", "));
    Ok(())
}
