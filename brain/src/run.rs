//! The composition root: connects the sources, the pump and the feed. In the program `localnet-brain`, it also connects the
//! server.

use std::{future::Future, sync::Arc};

use anyhow::Context as _;
use futures::future::OptionFuture;
use localnet_config_file::Running;
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    args::Arguments,
    batch::Batch,
    configured::{self, Configured},
    events::Events,
    feed::Feed,
    journal,
    metrics::Metrics,
    pump::{self, Questions},
    push::{self, Pushers},
    reports::Reports,
    serve::{self, Listener},
    settings::{self, Settings},
    source::{self, Source},
    status,
    views::{Started, Views},
    watch::{
        file,
        kube::{self, ApiServer},
    },
};
use localnet_cluster::{self, Cluster, localize::NodeIps};

/// Maximum number of batches that wait for the pump. If this many wait, the sources also wait.
const QUEUE: usize = 64;

/// A brain that runs in this process. Dropping this value stops the brain. Clones of its feed then keep the last state.
#[derive(Debug)]
pub struct Brain {
    feed: Feed,
    events: Events,
    questions: Questions,
    work: JoinSet<anyhow::Result<()>>,
    /// Tasks that cannot fail: they record problems in the history, log changes, and follow the settings.
    followers: JoinSet<()>,
    _stop: DropGuard,
}

impl Brain {
    /// A brain that waits for the batches of a source. The source must end when the token is cancelled.
    fn without_source(
        options: localnet_cluster::Options,
        chosen: (watch::Receiver<NodeIps>, watch::Receiver<Option<Settings>>),
    ) -> (Self, mpsc::Sender<Batch>, CancellationToken) {
        let instance = rand::random();
        let feed = match &options.publish {
            Some(publish) if options.dns => Feed::with_dns(instance, Arc::clone(publish)),
            Some(publish) => Feed::with_records(instance, Arc::clone(publish)),
            None => Feed::new(instance),
        };
        let (sender, batches) = mpsc::channel(QUEUE);
        let stop = CancellationToken::new();
        let (questions, queries) = pump::questions();
        let pump = pump::run(Cluster::new(options), batches, chosen, queries, feed.clone());
        let mut work = JoinSet::new();
        work.spawn(async move {
            pump.await;
            Ok(())
        });
        let mut followers = JoinSet::new();
        followers.spawn(feed.history().clone().follow(feed.metrics().troubles()));
        let (events, guard) = (Events::default(), stop.clone().drop_guard());
        (Self { feed, events, questions, work, followers, _stop: guard }, sender, stop)
    }

    /// Posts the backends' warnings as events of the Node, if a source is an API server.
    pub fn post_warnings(&mut self, reports: &Reports) {
        self.events.post_warnings(reports, &mut self.work);
    }

    /// Logs the changes of Services.
    pub fn log_changes(&mut self) {
        self.followers.spawn(journal::run(self.feed.clone()));
    }

    /// The feed of this node.
    pub fn feed(&self) -> &Feed {
        &self.feed
    }

    /// The queue for questions about Services.
    pub fn questions(&self) -> &Questions {
        &self.questions
    }

    /// The queue of Kubernetes events.
    pub fn events(&self) -> &Events {
        &self.events
    }

    /// Resolves when a source has failed permanently. This is rare, because sources retry after most failures.
    pub async fn failed(&mut self) -> anyhow::Error {
        failed(&mut self.work).await
    }
}

impl From<Brain> for Started {
    fn from(mut brain: Brain) -> Self {
        Self { feed: brain.feed.clone(), failed: Box::pin(async move { brain.failed().await }) }
    }
}

/// Resolves when one of the tasks has failed, or when all have ended.
pub(crate) async fn failed(work: &mut JoinSet<anyhow::Result<()>>) -> anyhow::Error {
    while let Some(ended) = work.join_next().await {
        match ended.context("a task of the brain has crashed") {
            Ok(Err(error)) | Err(error) => return error,
            Ok(Ok(())) => {}
        }
    }
    anyhow::anyhow!("the source has ended")
}

/// Starts a brain. The sources have the order of their precedence.
///
/// An unavailable API server is no error: the brain logs it and retries. Files that become invalid later are no error
/// either. If files are invalid at the start, [`Brain::failed`] resolves.
///
/// # Errors
/// Returns an error if the configuration of a source is invalid, for instance its kubeconfig.
pub async fn start(
    sources: &[Source],
    options: localnet_cluster::Options,
    node_ips: watch::Receiver<NodeIps>,
) -> anyhow::Result<Brain> {
    Ok(start_with(sources, None, options, (node_ips, watch::channel(None).1)).await?.0)
}

/// Does the same, and lets other programs push Services if there is a file of grants. Their sources follow all others.
async fn start_with(
    sources: &[Source],
    grants: Option<push::File>,
    options: localnet_cluster::Options,
    chosen: (watch::Receiver<NodeIps>, watch::Receiver<Option<Settings>>),
) -> anyhow::Result<(Brain, Option<Pushers>)> {
    let pushed = grants.iter().flat_map(push::File::sources);
    let names = source::names(sources).into_iter().chain(pushed).collect();
    let options = localnet_cluster::Options { sources: names, may_grow: grants.is_some(), ..options };
    let (mut brain, batches, stop) = Brain::without_source(options.clone(), chosen);
    let pushers = grants.map(|grants| {
        let proxy_name = options.service_proxy_name.as_deref().map(Arc::from);
        push::start(grants, proxy_name, (batches.clone(), brain.feed.metrics().troubles()), &mut brain.work)
    });
    brain.events = watch(sources, &options, (batches, brain.feed.metrics()), &stop, &mut brain.work).await?;
    Ok((brain, pushers))
}

/// Starts a brain on an API server that the caller has set up. Unlike [`start`], this cannot fail.
pub fn start_on(api: ApiServer, options: &localnet_cluster::Options, node_ips: watch::Receiver<NodeIps>) -> Brain {
    let (mut brain, batches, stop) = Brain::without_source(options.clone(), (node_ips, watch::channel(None).1));
    let api = api.with_metrics(brain.feed.metrics());
    brain.events = watch_api(api, options, batches, stop, &mut brain.work);
    brain
}

/// Starts to watch the sources in tasks of `work`, until `stop` is cancelled. The sources send their batches to `events` and
/// export their troubles to `metrics`. Returns the queue of Kubernetes events.
///
/// # Errors
/// See [`start`].
pub(crate) async fn watch(
    sources: &[Source],
    options: &localnet_cluster::Options,
    (events, metrics): (mpsc::Sender<Batch>, &Metrics),
    stop: &CancellationToken,
    work: &mut JoinSet<anyhow::Result<()>>,
) -> anyhow::Result<Events> {
    let mut posted = Events::default();
    let node_name = Some(&options.node_name).filter(|_| options.sources.len() == 1);
    let mut folders = 0;
    for (number, source) in sources.iter().enumerate() {
        let events = numbered(number, &events, work);
        match source {
            Source::File(_) if options.canary.is_some() => {
                anyhow::bail!("--canary needs an API server, which evaluates the selector; use --source kube")
            }
            Source::File(path) => {
                folders += 1;
                let troubles = metrics.troubles();
                let troubles = if folders > 1 { troubles.numbered(folders) } else { troubles };
                let files =
                    file::Files { path: path.clone(), node_name: node_name.cloned(), publish: options.publish.clone() };
                let stop = stop.clone();
                work.spawn(file::run(files, (events, troubles), stop));
            }
            Source::Kube { kubeconfig, server } => {
                let keep_alive = kube::KeepAlive::default();
                let api = ApiServer::from_kubeconfig(kubeconfig.as_deref(), server.clone(), keep_alive).await?;
                posted = watch_api(api.with_metrics(metrics), options, events, stop.clone(), work);
            }
        }
    }
    Ok(posted)
}

/// A sender that adds the number of the source to each batch.
fn numbered(
    number: usize,
    events: &mpsc::Sender<Batch>,
    work: &mut JoinSet<anyhow::Result<()>>,
) -> mpsc::Sender<Batch> {
    let events = events.clone();
    if number == 0 {
        return events;
    }
    let (sender, mut batches) = mpsc::channel(1);
    work.spawn(async move {
        while let Some(batch) = batches.recv().await {
            if events.send(Batch { source: number, ..batch }).await.is_err() {
                break;
            }
        }
        Ok(())
    });
    sender
}

fn watch_api(
    api: ApiServer,
    options: &localnet_cluster::Options,
    batches: mpsc::Sender<Batch>,
    stop: CancellationToken,
    work: &mut JoinSet<anyhow::Result<()>>,
) -> Events {
    let events = Events::start(&api, &options.node_name, work);
    work.spawn(kube::run(api, options.clone(), batches, stop));
    events
}

/// Runs the program with a configuration until `shutdown` resolves.
///
/// # Errors
/// Returns an error if an argument is invalid, an address cannot be bound, or a task fails permanently.
pub async fn run(arguments: Arguments, running: Running, shutdown: impl Future<Output = ()>) -> anyhow::Result<()> {
    let config = running.config();
    let canary = arguments.canary.clone();
    let publish = arguments.draft.publish();
    let dns = arguments.draft.dns;
    let options = localnet_cluster::Options { canary, publish, dns, ..arguments.source.cluster(config)? };
    let sources = arguments.source.sources(config, arguments.kube_proxy.to_do()?.master)?;
    let grants = arguments.push_grants.map(push::File::read).transpose()?;
    running.log_start("localnet-brain", Some(&options.node_name), source::names(&sources).join(", "));
    let listeners = Listener::bind_all(&arguments.serve.listen, &arguments.serve.options).await?;
    let (node_ips, chosen_ips) = watch::channel(configured::node_ips(config));
    // Only readers of `localnet.v1` get them.
    let settings = options.publish.is_some().then(|| Settings::now(Arc::new(config.clone())));
    let (settings, concluded) = watch::channel(settings);
    let (mut brain, pushers) = start_with(&sources, grants, options.clone(), (chosen_ips, concluded)).await?;
    arguments.history.start(brain.feed());
    brain.log_changes();
    let concludes = options.publish.is_some();
    let views = views(brain.feed().clone(), &arguments.serve.serve_node, sources, options);

    let reports = Reports::recorded(brain.feed().history().clone());
    let chosen = running.has_file();
    let (current, mut following) = running.follow();
    if concludes {
        let follow = settings::follow(current.clone(), settings);
        brain.followers.spawn(follow);
    }
    let mut configured = None;
    let metrics = arguments.shadow_metrics_bind_address;
    let _metrics = metrics.map(|address| status::start(address, current.clone(), brain.feed(), &reports));
    if !arguments.shadow && arguments.canary.is_none() {
        brain.post_warnings(&reports);
        let of_brain = (brain.feed(), brain.events());
        configured = Some(Configured::start(current, chosen, node_ips, of_brain, &reports)?);
    }
    let stop = CancellationToken::new();
    let state = serve::ServerState { views, reports, questions: brain.questions().clone(), pushers };
    let served = serve::run(listeners, state, stop.clone().cancelled_owned());
    let mut served = std::pin::pin!(served);
    let result = tokio::select! {
        () = shutdown => Ok(()),
        error = brain.failed() => Err(error),
        Some(error) = OptionFuture::from(configured.as_mut().map(Configured::failed)) => Err(error),
        error = following.failed() => Err(error),
        ended = &mut served => return ended,
    };
    stop.cancel();
    result.and(served.await)
}

/// The view of this node, and the views of the other nodes that `--serve-node` allows. All views read the same sources.
fn views(own: Feed, allowed: &[String], sources: Vec<Source>, options: localnet_cluster::Options) -> Views {
    let sources: Arc<[Source]> = sources.into();
    Views::with_others(own, allowed.to_vec(), move |node_name| {
        let (sources, options) =
            (Arc::clone(&sources), localnet_cluster::Options { node_name, dns: false, ..options.clone() });
        // The configuration can select addresses of this node only, not of the other nodes.
        let (_, node_ips) = watch::channel(NodeIps::default());
        Box::pin(async move { start(&sources, options, node_ips).await.map(Started::from) })
    })
}
