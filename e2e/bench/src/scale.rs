//! Compares the contestants in a cluster of real Deployments: how long after the controllers' changes packets reach a new pod.
//!
//! ```text
//!   driver ─▶ restarts Deployments ─▶ kube-controller-manager ─▶ pods, EndpointSlices ─▶ contestant
//!                                          ▲ ready pods                │ events          │ rules
//!                                       kubelet (fake) ── news ──▶ client ◀──────────────┘ connections
//! ```
//!
//! All objects are created once, by the controllers, and stored in the cache. Each contestant gets a new control plane with this
//! data. No program but the contestant, the controllers and the API server is between a pod's status and the connection.

mod client;
mod kubelet;
mod ledger;
mod objects;
mod page;

use std::{
    collections::{BTreeMap, HashSet},
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    sync::mpsc::{Receiver, Sender, channel},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        core::v1::Pod,
        discovery::v1::{Endpoint, EndpointSlice},
    },
    jiff::Timestamp,
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use localnet_controlplane::ControlPlane;
use serde::{Deserialize, Serialize};
use tokio::{
    runtime::Runtime,
    sync::oneshot,
    time::{sleep, timeout},
};

use crate::{
    api::{self, Kind},
    cluster::Size,
    contestants::{ALL, Contestant, IPTABLES_NF_TABLES},
    figures::{Memory, Start},
    machine::Machine,
    measure::{Others, memory, start, surroundings},
    options::Options,
    plane, print_progress, quiet,
    site::Site,
    statistics::Times,
};
use ledger::{Ledger, News};

/// Controllers for Deployments, in addition to those that the control plane starts.
const CONTROLLERS: [&str; 4] = [
    "--controllers=deployment-controller,replicaset-controller",
    "--concurrent-deployment-syncs=20",
    "--concurrent-replicaset-syncs=20",
    "--concurrent-service-endpoint-syncs=20",
];
/// The annotation with which the controller dates a change.
const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";
/// Time limits: for creating all objects, and for the start of a contestant.
const FILL: Duration = Duration::from_secs(3_600);
const START: Duration = Duration::from_secs(300);

/// The results of one contestant. Times are in milliseconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Run {
    contestant: String,
    size: String,
    start: Start,
    /// The times from the EndpointSlice event, from the pod's status, and from the controller's timestamp.
    event: Option<Times>,
    status: Option<Times>,
    timestamp: Option<Times>,
    not_reached: usize,
    restarts: usize,
    /// The number of EndpointSlices that the controller changed per second.
    slices_per_second: f64,
    connections: usize,
    failed: usize,
    stale: usize,
    /// Processor use in percent of one processor: of the contestant, and of control plane and benchmark.
    cpu: f64,
    surroundings: f64,
    memory: BTreeMap<String, Memory>,
    /// The share of the machine's CPU time in percent that neither contestant, control plane nor benchmark used.
    others_percent: f64,
}

/// Measures all contestants, and writes the page.
pub(crate) fn measure(options: &Options, page: &Path) -> anyhow::Result<()> {
    let machine = Machine::of_this()?;
    let runtime = Runtime::new()?;
    let (services, restarts, per_second) = if options.quick { (200, 20, 2.0) } else { (5_000, 60, 1.0) };
    let size = options.size.first().copied().unwrap_or(Size::new(services, 10));
    let data = runtime.block_on(filled(size, &options.cache))?;
    let mut runs = options.runs.as_deref().map_or_else(|| Ok(Vec::new()), crate::measured::<Run>)?;
    runs.retain(|run| run.size == size.to_string());
    // With the nf_tables flavour, kube-proxy does not load so many Services in time.
    let contestants = ALL.iter().filter(|contestant| !IPTABLES_NF_TABLES.contains(&contestant.name));
    for contestant in contestants.filter(|contestant| options.includes(contestant.name)) {
        if runs.iter().any(|run| run.contestant == contestant.name) {
            continue;
        }
        let run = of(&runtime, contestant, options, (size, &data), (restarts, per_second));
        let run = run.with_context(|| format!("measuring {} at {size}", contestant.name))?;
        crate::record(&run, options.runs.as_deref())?;
        runs.push(run);
    }
    let shares = runs.iter().map(|run| (run.contestant.clone(), run.others_percent));
    let objection = if options.quick { None } else { quiet::objection(&machine, shares) };
    let text = page::page(size, per_second, &machine, &runs);
    quiet::publish(objection, [page, Path::new("target/bench/scale.md")], |page| {
        fs::write(page, &text).with_context(|| format!("writing {}", page.display()))
    })
}

fn control_plane(data: Option<PathBuf>) -> localnet_controlplane::Options {
    let mut options = plane::options(None, data);
    options.controllers = true;
    options.controller_arguments = CONTROLLERS.map(str::to_owned).to_vec();
    // With as much garbage as in the other benchmark, these objects would not fit into the memory.
    options.gogc = 200;
    options
}

/// The data of an etcd with all Deployments, pods, Services and EndpointSlices, from the cache if possible.
async fn filled(size: Size, cache: &Path) -> anyhow::Result<PathBuf> {
    let bodies = objects::deployments(size).chain(objects::services(size));
    let name = format!("scale-{size}-{:016x}", plane::digest(bodies)?);
    plane::cached(cache, &name, control_plane(None), async |plane: &ControlPlane| {
        let (tell, news) = channel();
        let feed = Feed::from_now(plane.client()).await?;
        tokio::select! {
            result = feed.follow(objects::FIRST_PODS, tell) => result,
            result = timeout(FILL, fill(plane, size, news)) => result.context("creating all objects")?,
        }
    })
    .await
}

/// Creates all objects. The Services follow once the pods are ready, so that each EndpointSlice is written only once.
async fn fill(plane: &ControlPlane, size: Size, news: Receiver<News>) -> anyhow::Result<()> {
    const LOOK: Duration = Duration::from_millis(100);
    const PROGRESS: Duration = Duration::from_secs(30);
    let all = (size.services * size.endpoints) as usize;
    let client = plane.client();
    for number in 0..objects::NAMESPACES {
        plane.objects(&objects::namespace(number)).ensure_namespace().await?;
    }
    api::create(&client, Kind::Deployments, objects::deployments(size)).await?;
    let (mut ready, mut in_slices, mut printed) = (0, HashSet::new(), Instant::now());
    let mut services = Some(objects::services(size));
    while in_slices.len() < all {
        for one in news.try_iter() {
            match one {
                News::Ready { .. } => ready += 1,
                News::Slice { ready, .. } => in_slices.extend(ready),
                _ => {}
            }
        }
        if ready == all
            && let Some(services) = services.take()
        {
            api::create(&client, Kind::Services, services).await?;
        }
        if printed.elapsed() > PROGRESS {
            print_progress(&format!("of {all} pods, {ready} are ready and {} are in EndpointSlices", in_slices.len()));
            printed = Instant::now();
        }
        sleep(LOOK).await;
    }
    Ok(())
}

/// The pods and EndpointSlices that change after a time.
struct Feed {
    client: Client,
    slices: Api<EndpointSlice>,
    versions: [String; 2],
}

impl Feed {
    async fn from_now(client: Client) -> anyhow::Result<Self> {
        let (pods, slices) = (Api::<Pod>::all(client.clone()), Api::all(client.clone()));
        let versions = [api::newest_version(&pods).await?, api::newest_version(&slices).await?];
        Ok(Self { client, slices, versions })
    }

    /// Runs the fake kubelet, and passes on news of pods and EndpointSlices. Ends only with an error.
    async fn follow(self, first_pod: Ipv4Addr, news: Sender<News>) -> anyhow::Result<()> {
        let Self { client, slices, versions: [pods_from, slices_from] } = self;
        let told = news.clone();
        let changed = |slice| {
            // The receiver may have ended.
            _ = told.send(slice_news(slice, Instant::now(), Timestamp::now()));
        };
        let watch = api::watch_from(&slices, slices_from, changed);
        tokio::try_join!(kubelet::run(client, pods_from, first_pod, news), watch).map(drop)
    }
}

fn slice_news(slice: EndpointSlice, at: Instant, now: Timestamp) -> News {
    let trigger = slice.metadata.annotations.and_then(|all| all.get(TRIGGER_TIME)?.parse::<Timestamp>().ok());
    let age = trigger.and_then(|trigger| Duration::try_from(now.duration_since(trigger)).ok());
    let is_ready =
        |endpoint: &Endpoint| endpoint.conditions.as_ref().is_none_or(|conditions| conditions.ready != Some(false));
    let endpoints = slice.endpoints.into_iter().flatten().filter(is_ready);
    let ready = endpoints.flat_map(|endpoint| endpoint.addresses).filter_map(|address| address.parse().ok());
    News::Slice { ready: ready.collect(), age, at }
}

/// Measures one contestant at a size, with the data of a filled etcd.
fn of(
    runtime: &Runtime,
    contestant: &Contestant,
    options: &Options,
    (size, data): (Size, &Path),
    pace: (u32, f64),
) -> anyhow::Result<Run> {
    let site = Site::build(runtime.handle(), size, control_plane(Some(data.to_owned())))?;
    print_progress(&format!("{} at {size}", contestant.name));
    // The controllers verify all objects.
    options.lengths(size).await_idle()?;
    let others = Others::begin(&site)?;
    let mut team = site.start(contestant)?;
    let start = start::measure(&site, &mut team, START)?;
    let start = start.with_context(|| format!("not all Services answered within {START:?}"))?;
    quiet::settle()?;
    let (cpu, around, started) = (team.cpu()?, surroundings(&site)?, Instant::now());
    let ledger = restart(runtime, &site, pace)?;
    team.check_alive(&site)?;
    let percent = |spent: Duration| spent.as_secs_f64() / started.elapsed().as_secs_f64() * 100.0;
    let restarting = ledger.ended.map_or_else(|| started.elapsed(), |ended| ended - started);
    let reached = ledger.reached();
    Ok(Run {
        contestant: contestant.name.to_owned(),
        size: size.to_string(),
        start,
        event: Times::of(reached.event),
        status: Times::of(reached.status),
        timestamp: Times::of(reached.timestamp),
        not_reached: reached.not_reached,
        restarts: ledger.restarts,
        slices_per_second: ledger.slices as f64 / restarting.as_secs_f64(),
        connections: ledger.connections,
        failed: ledger.failed,
        stale: ledger.stale,
        cpu: percent(team.cpu()? - cpu),
        surroundings: percent(surroundings(&site)? - around),
        memory: memory(&team)?,
        others_percent: others.end(&site, &team)?,
    })
}

/// Restarts Deployments while the client connects to their Services.
fn restart(runtime: &Runtime, site: &Site, pace: (u32, f64)) -> anyhow::Result<Ledger> {
    let (tell, news) = channel();
    let (end, ended) = oneshot::channel::<()>();
    thread::scope(|scope| {
        let client = scope.spawn(move || {
            let ledger = site.inside(move || client::run(site.size, &news));
            drop(end);
            ledger
        });
        let told = tell.clone();
        let work = async {
            let feed = Feed::from_now(site.client()).await?;
            tokio::select! {
                result = feed.follow(objects::NEW_PODS, tell) => result,
                result = drive(site, pace, told, ended) => result,
            }
        };
        runtime.block_on(work)?;
        client.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Restarts this number of Deployments at a rate per second, and waits until the client has ended.
async fn drive(
    site: &Site,
    (restarts, per_second): (u32, f64),
    news: Sender<News>,
    ended: oneshot::Receiver<()>,
) -> anyhow::Result<()> {
    for number in 0..restarts.min(site.size.services) {
        // Do not synchronize with any timer of the contestant.
        sleep(Duration::from_secs_f64(rand::random_range(0.5..1.5) / per_second)).await;
        // This stride visits all Services, with large distances in between.
        let chosen = (u64::from(number) * 7_919 % u64::from(site.size.services)) as u32;
        let service = site.size.name(chosen);
        let deployments: Api<Deployment> = Api::namespaced(site.client(), &objects::namespace(chosen));
        // The client may have failed, here and below.
        _ = news.send(News::Restart { service: service.clone() });
        let patch = Patch::Strategic(objects::restart(number));
        deployments
            .patch(&service, &PatchParams::default(), &patch)
            .await
            .with_context(|| format!("restarting {service}"))?;
    }
    _ = news.send(News::End);
    // An error means that the client has dropped its end.
    _ = ended.await;
    Ok(())
}
