//! The peak memory of `localnet-nft`: for the first load into an empty kernel, and when all Services are renamed at once.
//!
//! ```text
//! Services made here ─► feed ─► socket ─► localnet-nft, as shipped ─► a namespace of its own; then its VmHWM
//! ```
//!
//! docs/backends/nft.md has the figures of a release build:
//!
//! ```text
//! cargo build --release -p localnet-nft
//! PROGRAM=$PWD/target/release/localnet-nft SERVICES=10000 RENAMED=200000 cargo test -p localnet-e2e --test first_load -- --nocapture
//! ```

use std::{env, fs, net::Ipv4Addr, path::PathBuf, process::Stdio, sync::Arc, time::Duration};

use anyhow::{Context as _, ensure};
use localnet_brain::{
    feed::Feed,
    pump,
    reports::Reports,
    serve::{self, Listener},
};
use localnet_cluster::localize::Localized;
use localnet_e2e::program;
use localnet_lab::{Network, Topology};
use localnet_proto::{Address, Endpoint, EndpointPort, Node, Port, Protocol, Scopes, Service, ServiceKey};
use tokio::time::timeout;

const PORTS: u16 = 2;
const ENDPOINTS: u32 = 2;
/// A debug build needs long for 200,000 Services.
const PATIENCE: Duration = Duration::from_secs(240);
/// What a first load of 10,000 Services may need besides the pages of the program's file, in MiB. A debug build needs 31.3; a release
/// build 29.7 and 9.8 for its file, so that its peak is below 40. A debug build needed 41 when all elements of a table were made
/// before the first was sent.
const LIMIT: f64 = 32.0;
/// What renaming all Services may need besides those pages, as a multiple of the first load's peak.
const RENAMED: f64 = 2.0;

#[test]
fn the_first_load_of_ten_thousand_services_needs_at_most_40_mib() -> anyhow::Result<()> {
    let services = number("SERVICES", 10_000)?;
    let [load, _] = measure(services, false)?;
    println!("{services} Services × {PORTS} ports: {load}");
    ensure!(services > 10_000 || load.beside <= LIMIT, "{load}, and the limit is {LIMIT} MiB");
    Ok(())
}

#[test]
fn renaming_all_services_at_once_needs_at_most_twice_the_memory() -> anyhow::Result<()> {
    let services = number("RENAMED", 10_000)?;
    let [load, renamed] = measure(services, true)?;
    println!("{services} Services × {PORTS} ports: {load}; renamed at once: {renamed}");
    ensure!(renamed.beside <= load.beside * RENAMED, "{load}, and when all are renamed {renamed}");
    Ok(())
}

fn number(name: &str, default: u32) -> anyhow::Result<u32> {
    env::var(name).ok().map_or(Ok(default), |text| text.parse()).with_context(|| name.to_owned())
}

/// Memory of a process in MiB.
#[derive(Clone, Copy, Debug)]
struct Memory {
    /// VmHWM.
    peak: f64,
    /// The peak without the pages of the program's file, which depend on the build.
    beside: f64,
    /// VmRSS.
    now: f64,
}

impl Memory {
    fn of(process: u32) -> anyhow::Result<Self> {
        let status = fs::read_to_string(format!("/proc/{process}/status"))?;
        let field = |name: &str| -> anyhow::Result<f64> {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).context(name.to_owned())?;
            Ok(line.trim().trim_end_matches("kB").trim().parse::<f64>()? / 1024.0)
        };
        let (peak, now) = (field("VmHWM:")?, field("VmRSS:")?);
        Ok(Self { peak, beside: peak - field("RssFile:")?, now })
    }
}

impl std::fmt::Display for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { peak, beside, now } = self;
        write!(f, "peak {peak:.1} MiB, {beside:.1} MiB beside the program's own pages; then {now:.1} MiB")
    }
}

/// The memory of the program after it has loaded that many Services, and after all have other names if `rename`.
fn measure(services: u32, rename: bool) -> anyhow::Result<[Memory; 2]> {
    let network = Network::build(Topology::default())?;
    let folder = tempfile::tempdir()?;
    let socket = Address::Unix(folder.path().join("brain.sock"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (feed, reports) = (Feed::new(1), Reports::default());
        let listener = Listener::bind(&socket, &serve::Options::default()).await?;
        let (questions, _asked) = pump::questions();
        let server =
            serve::ServerState { views: feed.clone().into(), reports: reports.clone(), questions, pushers: None };
        tokio::spawn(serve::run(vec![listener], server, std::future::pending()));

        let node =
            Node { name: "node".into(), addresses: vec![Ipv4Addr::new(192, 168, 0, 2).into()], ..Node::default() };
        let first = sorted((0..services).map(|index| service("service", index)));
        feed.publish(Localized { node: Some(node), services: first, ..Localized::default() });
        let program = env::var_os("PROGRAM").map_or_else(|| program("localnet-nft"), |path| Ok(PathBuf::from(path)))?;
        let api = format!("unix://{}", folder.path().join("brain.sock").display());
        let backend = network.node().spawn(program, |command| {
            command.args(["--api", &api]).env_remove("RUST_LOG").stdin(Stdio::null()).stdout(Stdio::null())
        })?;
        applied(&feed, &reports).await?;
        let load = Memory::of(backend.id())?;
        if rename {
            let other = (0..services).map(|index| service("renamed", index));
            let gone = (0..services).map(|index| (service("service", index).0, None));
            feed.publish(Localized { services: sorted(other.chain(gone)), ..Localized::default() });
            applied(&feed, &reports).await?;
        }
        Ok([load, Memory::of(backend.id())?])
    })
}

/// Waits until the backend reports the newest state as applied.
async fn applied(feed: &Feed, reports: &Reports) -> anyhow::Result<()> {
    let newest = feed.state().revision().rev;
    let mut received = reports.subscribe();
    let has = |rev: u64| rev == newest;
    timeout(PATIENCE, received.wait_for(|reports| reports.get("nft").is_some_and(|last| has(last.report.rev))))
        .await
        .with_context(|| format!("state {newest} is not applied"))??;
    Ok(())
}

type Named = (ServiceKey, Option<Arc<Service>>);

fn sorted(services: impl Iterator<Item = Named>) -> Vec<Named> {
    let mut services: Vec<Named> = services.collect();
    services.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
    services
}

fn service(name: &str, index: u32) -> Named {
    let address = |first: u8, number: u32| -> std::net::IpAddr {
        let [_, second, third, fourth] = number.to_be_bytes();
        Ipv4Addr::new(first, second, third, fourth).into()
    };
    let port = |number: u16| Port {
        name: format!("port-{number}").into(),
        protocol: Protocol::Tcp,
        port: 80 + number,
        ..Port::default()
    };
    let endpoint = |slot| Endpoint {
        address: address(10, index * ENDPOINTS + slot),
        ports: (0..PORTS)
            .map(|number| EndpointPort { name: format!("port-{number}").into(), port: 8080 + number })
            .collect(),
        local: false,
        hostname: None,
        scopes: Scopes { internal: true, external: true, short_circuit: false, established: true },
        weight: None,
    };
    let key = ServiceKey::new(format!("namespace-{}", index % 100), format!("{name}-{index:06}"));
    let service = Service {
        ports: (0..PORTS).map(port).collect(),
        endpoints: (0..ENDPOINTS).map(endpoint).collect(),
        ..Service::new(key.clone(), vec![address(172, (16 << 16) + index)])
    };
    (key, Some(service.into()))
}
