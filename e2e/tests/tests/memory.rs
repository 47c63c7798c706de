//! Renames Services and changes endpoints very often, in one process with everything that runs on a node: memory does not grow,
//! and no file stays open. `CHANGES` sets the number of changes, such as 1000000.
//!
//! ```text
//!  events ─► cluster ─► feed ─┬─► localnet-nft's backend, or localnet-iptables' ─► a kernel of its own
//!                             └─► a socket ─► one reader of full states, one of changes
//! ```

use std::{
    env, fs,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use k8s_openapi::{
    api::core::v1::{Node, Service},
    api::discovery::v1::EndpointSlice,
};
use localnet_brain::{
    feed::Feed,
    pump,
    reports::Reports,
    serve::{self, Listener},
};
use localnet_client::{Backend, Revision, Snapshot, Source as _, grpc::Brain, vips::Config};
use localnet_cluster::{
    Cluster, Options,
    localize::NodeIps,
    objects::{Event, Kind, Object},
};
use localnet_iptables::{Flavour, IptablesBackend, Tools, desired::Desired};
use localnet_lab::{Network, Topology};
use localnet_node::FeedSource;
use localnet_proto::Address;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

/// The same allocator as in the programs, because this test is about it.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const SERVICES: u64 = 2000;
/// The number of changes per batch, so that 100,000 changes take only seconds.
const BATCH: u64 = 100;
/// The number of changes before the first measurement. Until then, the allocator's memory and the brain's history still grow.
const WARMING_UP: u64 = 100_000;
/// The iptables tools run often, so there are fewer Services and fewer changes.
const BY_TOOLS: (u64, (u64, u64)) = (100, (WARMING_UP, 20_000));
/// Maximum growth of memory in MiB. In 100,000 changes, a leak of 5 bytes per change exceeds it.
const GROWTH: f64 = 0.4;
/// Memory also depends on what was allocated last, and changes by several hundred KiB in both directions. A leak increases the least
/// of several measurements, which are made after so many batches each.
const MEASUREMENTS: u64 = 5;
const BATCHES: u64 = 10;
/// The interval of reading a full state, which is decoded completely each time.
const FULL: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn memory_is_the_same_after_a_hundred_thousand_changes() -> anyhow::Result<()> {
    let changes = env::var("CHANGES").ok().map_or(Ok(100_000), |text| text.parse()).context("CHANGES")?;
    let open = async || localnet_nft::live::open(Config::default(), None, false, 0).await;
    in_a_process_of_its_own(|| measure(SERVICES, (WARMING_UP, changes), open))
}

#[test]
fn so_it_is_with_iptables() -> anyhow::Result<()> {
    let (services, changes) = BY_TOOLS;
    let open = async || {
        let tools = Tools::find(Flavour::Legacy)?;
        localnet_iptables::live::open(IptablesBackend::new(Desired::new(Config::default()), tools), 0).await
    };
    in_a_process_of_its_own(|| measure(services, changes, open))
}

/// Runs a test in a copy of this process. Memory is measured per process, and this process runs several tests.
fn in_a_process_of_its_own(test: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
    const ALONE: &str = "LOCALNET_MEMORY_ALONE";
    let thread = std::thread::current();
    let name = thread.name().context("a test has a name")?;
    if env::var(ALONE).is_ok_and(|alone| alone == name) {
        return test();
    }
    let this = env::current_exe()?;
    let ended = Command::new(this).args(["--exact", name, "--nocapture"]).env(ALONE, name).status()?;
    ensure!(ended.success(), "{name} fails alone, see above");
    Ok(())
}

/// Measures after a first part of the changes, in which the allocator's memory may grow. In the second part it may not.
fn measure<B: Backend + 'static>(
    services: u64,
    changes: (u64, u64),
    open: impl AsyncFnOnce() -> anyhow::Result<B> + Send,
) -> anyhow::Result<()> {
    let network = Network::build(Topology::default())?;
    // Use one thread, because the allocator keeps memory for each thread.
    network.node().run(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async { run(services, changes, open().await?).await })
    })
}

async fn run(services: u64, (warming_up, changes): (u64, u64), backend: impl Backend + 'static) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let address = Address::Unix(folder.path().join("brain.sock"));
    let (feed, reports) = (Feed::new(1), Reports::default());
    let (events, batches) = mpsc::channel(1);
    let cluster = Cluster::new(Options::of_node("node-1"));
    let node_ips = watch::channel(NodeIps::default()).1;
    let name = backend.name();
    let in_process = FeedSource::new(feed.clone(), reports.clone());
    let listener = Listener::bind(&address, &serve::Options::default()).await?;
    let read = [Arc::<AtomicU64>::default(), Arc::default()];

    let (questions, queries) = pump::questions();
    tokio::spawn(pump::run(cluster, batches, (node_ips, watch::channel(None).1), queries, feed.clone()));
    let server = serve::ServerState { views: feed.clone().into(), reports: reports.clone(), questions, pushers: None };
    tokio::spawn(serve::run(vec![listener], server, std::future::pending()));
    tokio::spawn(localnet_client::run(backend, in_process, Default::default(), std::future::pending()));
    for (fold, read) in [false, true].into_iter().zip(&read) {
        tokio::spawn(follow(Brain::new(address.clone(), None)?, fold, read.clone()));
    }

    let mut world = World { services, generation: 0 };
    events.send(world.lists()?.into()).await?;
    let mut least = Vec::new();
    let mut open = 0;
    for part in [warming_up, changes] {
        let batches = part / BATCH;
        let measured = batches.checked_sub(MEASUREMENTS * BATCHES).context("CHANGES must be at least 5000")?;
        let mut memory = f64::INFINITY;
        for done in 1..=batches {
            let batch = (0..BATCH / 2).map(|_| world.two_changes()).collect::<anyhow::Result<Vec<_>>>()?;
            events.send(batch.concat().into()).await?;
            if done > measured && done % BATCHES == 0 {
                all_have(&feed, &reports, name, &read).await?;
                memory = memory.min(allocated()?);
            }
        }
        if least.is_empty() {
            open = open_files()?;
        }
        least.push(memory);
    }
    ensure!(feed.state().len() as u64 == services, "{} Services are left", feed.state().len());

    let (before, after) = (least[0], least[1]);
    println!(
        "{name}: {changes} changes, {} states: {before:.1} MiB of memory, then {after:.1} MiB",
        feed.state().revision().rev
    );
    let began = Instant::now();
    // A tool may still be running and reading the tables.
    while open_files()? > open {
        ensure!(began.elapsed() < PATIENCE, "{open} files were open, and now there are {}", open_files()?);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    ensure!(after - before <= GROWTH, "memory grew from {before:.2} to {after:.2} MiB");
    Ok(())
}

/// Reads one state after the other, like a backend.
async fn follow(brain: Brain, fold: bool, read: Arc<AtomicU64>) {
    let mut state = Snapshot::default();
    loop {
        let update = brain.next(state.revision, fold && state.revision != Revision::default()).await.expect("a state");
        state.apply(update);
        read.store(state.revision.rev, Ordering::Relaxed);
        if !fold {
            tokio::time::sleep(FULL).await;
        }
    }
}

/// Waits until the backend and all readers have the newest state.
async fn all_have(feed: &Feed, reports: &Reports, backend: &str, read: &[Arc<AtomicU64>]) -> anyhow::Result<()> {
    let began = Instant::now();
    loop {
        let newest = feed.state().revision().rev;
        let applied = reports.last(backend).map_or(0, |received| received.report.rev);
        let slowest = read.iter().map(|read| read.load(Ordering::Relaxed)).chain([applied]).min();
        // Events may not have reached the cluster yet. If the state remains the same for a while, it is the last one.
        tokio::time::sleep(Duration::from_millis(50)).await;
        if slowest == Some(newest) && feed.state().revision().rev == newest {
            return Ok(());
        }
        ensure!(began.elapsed() < PATIENCE, "state {newest} has not arrived everywhere: {slowest:?}");
    }
}

/// The memory in MiB that the process has allocated and the kernel provides. It does not contain the parts of the program's file that
/// the kernel has loaded, because the kernel decides when it loads and drops them.
fn allocated() -> anyhow::Result<f64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).context("RssAnon")?;
    let kib: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib / 1024.0)
}

/// The number of open files, sockets and pipes of this process.
fn open_files() -> anyhow::Result<usize> {
    Ok(fs::read_dir("/proc/self/fd").context("/proc/self/fd")?.count())
}

/// The changing objects. No Service ever gets a name or address that was used before.
struct World {
    services: u64,
    generation: u64,
}

impl World {
    fn lists(&mut self) -> anyhow::Result<Vec<Event>> {
        let node = json!({ "metadata": { "name": "node-1" },
            "status": { "addresses": [{ "type": "InternalIP", "address": "192.168.0.2" }] } });
        let node: Node = serde_json::from_value(node)?;
        let services = (0..self.services).map(|number| service(number, number)).collect::<anyhow::Result<_>>()?;
        let slices = (0..self.services).map(|number| slice(number, number)).collect::<anyhow::Result<_>>()?;
        self.generation = self.services;
        Ok(vec![
            Event::Replace { kind: Kind::Service, objects: services },
            Event::Replace { kind: Kind::Slice, objects: slices },
            Event::Replace { kind: Kind::Node, objects: vec![Object::Node(node.into())] },
            Event::Replace { kind: Kind::ServiceCidr, objects: vec![] },
        ])
    }

    /// Replaces the oldest Service by one with another name, then replaces the endpoints of another Service.
    fn two_changes(&mut self) -> anyhow::Result<Vec<Event>> {
        let (old, new) = (self.generation - self.services, self.generation);
        self.generation += 1;
        let gone = |kind| Event::Delete { kind, namespace: "default".into(), name: name(old).into() };
        let other = Event::Apply(slice(old + self.services / 2, new)?);
        Ok(vec![
            gone(Kind::Service),
            gone(Kind::Slice),
            Event::Apply(service(new, new)?),
            Event::Apply(slice(new, new)?),
            other,
        ])
    }
}

/// All names are equally long, because longer names would need more memory.
fn name(number: u64) -> String {
    format!("service-{number:09}")
}

fn service(number: u64, address: u64) -> anyhow::Result<Object> {
    let ip = format!("172.30.{}.{}", address % SERVICES / 250, address % SERVICES % 250);
    let service: Service = serde_json::from_value(json!({
        "metadata": { "name": name(number), "namespace": "default" },
        "spec": { "type": "ClusterIP", "clusterIP": ip, "clusterIPs": [ip], "ports": [{ "name": "http", "port": 80, "protocol": "TCP" }] },
    }))?;
    Ok(Object::Service(service.into()))
}

fn slice(number: u64, generation: u64) -> anyhow::Result<Object> {
    let endpoint = |host: u64| -> Value {
        let address = generation % 60_000;
        let ip = format!("10.{host}.{}.{}", address / 250, address % 250);
        json!({ "addresses": [ip], "conditions": { "ready": true }, "nodeName": "node-2" })
    };
    let slice: EndpointSlice = serde_json::from_value(json!({
        "metadata": { "name": name(number), "namespace": "default", "labels": { "kubernetes.io/service-name": name(number) } },
        "addressType": "IPv4",
        "ports": [{ "name": "http", "port": 8080, "protocol": "TCP" }],
        "endpoints": [endpoint(180), endpoint(181)],
    }))?;
    Ok(Object::Slice(slice.into()))
}
