//! How long each command takes after the state has arrived, at 45,000 Services × 2 endpoints that a kernel holds, in a network namespace
//! of its own. Fails if one takes longer than 100 ms at the median.
//!
//! ```text
//! cargo bench -p localnet        # as root; QUICK=1: 1,000 Services
//! ```

use std::{
    net::Ipv4Addr,
    sync::Arc,
    time::{Duration, Instant},
};

use localnet::{
    causes::Answer,
    diff::{self, Differences},
    doctor::{self, Findings, Known},
    explain::{self, World},
    get::{Endpoints, Filter, Services},
    kernel::{self, Kernel},
    output::{Format, render},
    path::{self, Path},
    question::{self, From, Here},
    top::{self, By},
    why_not::{self, Asked, Told},
};
use localnet_client::{
    Snapshot,
    vips::{Config, Detector, Facts},
};
use localnet_lab::{Network, Topology};
use localnet_linux::nft::Family;
use localnet_nft::{Netlink, NftBackend};
use localnet_proto::{Changes, Endpoint, EndpointPort, Node, Port, Protocol, Scopes, Service, ServiceKey, WhenEmpty};

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

fn median(mut work: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<Duration> {
    let mut took = Vec::new();
    for _ in 0..ROUNDS {
        let began = Instant::now();
        work()?;
        took.push(began.elapsed());
    }
    took.sort_unstable();
    Ok(took[ROUNDS / 2])
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
    // The state has arrived: what each command keeps of it is made before the clock runs.
    let mut rows: Vec<(&str, Duration)> = Vec::new();
    for (name, format) in [("get services", Format::Table), ("get services -o json", Format::Json)] {
        let took = median(|| {
            let services = Services { services: filter.services(&state).collect() };
            render(&services, format, false).map(drop)
        })?;
        rows.push((name, took));
    }
    rows.push((
        "get endpoints",
        median(|| render(&Endpoints::of(filter.services(&state)), Format::Table, false).map(drop))?,
    ));
    let mut asked_world = world()?;
    rows.push((
        "explain",
        median(|| {
            asked_world.kernel = Ok(Kernel::open()?);
            let destination =
                question::destination(&to()?, None, &asked_world.state).map_err(|no| anyhow::anyhow!("{no}"))?;
            let from = From::Address(Ipv4Addr::new(10, 9, 9, 9).into());
            let packet = question::packet(from, destination, &asked_world.state, &asked_world.facts, Here::default());
            let told = runtime.block_on(explain::explain(&mut asked_world, None, packet, true));
            anyhow::ensure!(told.arrives() && told.endpoints.len() == 2, "{told:?}");
            render(&told, Format::Table, false).map(drop)
        })?,
    ));
    rows.push((
        "explain --why-not",
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
            render(&answer, Format::Table, false).map(drop)
        })?,
    ));
    rows.push((
        "diff",
        median(|| {
            let mut differences = Differences::default();
            let mut kernel = Kernel::open()?;
            diff::differences(
                &state,
                config(),
                state.node.addresses.clone(),
                &mut kernel,
                diff::MOST,
                &mut differences,
            )?;
            anyhow::ensure!(differences.count == 0, "{differences:?}");
            render(&differences, Format::Table, false).map(drop)
        })?,
    ));
    rows.push((
        "doctor",
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
            render(&findings, Format::Table, false).map(drop)
        })?,
    ));
    rows.push((
        "top",
        median(|| {
            let flows = kernel::flows(Family::V4, |_| true)?;
            let top = top::count(&state, &asked_world.facts, &flows, By::Service, 20);
            render(&top, Format::Table, false).map(drop)
        })?,
    ));
    println!("{services} Services × 2 endpoints; medians of {ROUNDS} rounds after the state has arrived, in ms");
    for (name, took) in &rows {
        println!("{name:<22} {:>7.1}", took.as_secs_f64() * 1000.0);
    }
    let slow: Vec<_> = rows.iter().filter(|(_, took)| *took > LIMIT).map(|(name, _)| *name).collect();
    anyhow::ensure!(slow.is_empty(), "longer than {LIMIT:?}: {}", slow.join(", "));
    Ok(())
}
