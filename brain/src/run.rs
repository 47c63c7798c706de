//! Puts the parts together: source → pump → feed, and for the command also serve.

use std::{future::Future, sync::Arc};

use anyhow::Context as _;
use localnet_config_file::Running;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{mpsc, watch},
    task::JoinSet,
};
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::info;

use crate::{
    args::{Arguments, Source},
    cluster::{self, Cluster},
    configured::{self, Configured},
    events::Events,
    feed::Feed,
    journal,
    localize::NodeIps,
    metrics::Metrics,
    pump::{self, Batch, Questions},
    serve::{self, Listener, Reports},
    views::{Allowed, Views},
    watch::{file, kube},
};

/// Batches of events that may wait for the pump; a source that is faster is slowed down.
const QUEUE: usize = 64;

/// A brain at work in this process. Dropping it ends the work; what was read stays readable in clones of the feed.
#[derive(Debug)]
pub struct Brain {
    feed: Feed,
    events: Events,
    questions: Questions,
    work: JoinSet<anyhow::Result<()>>,
    journal: JoinSet<()>,
    _stop: DropGuard,
}

impl Brain {
    /// Posts what backends warn of as events about the node, where there is an API server.
    pub fn tell_warnings(&mut self, reports: &Reports) {
        self.events.tell_warnings(reports, &mut self.work);
    }

    /// Logs which Services change, and how.
    pub fn log_changes(&mut self) {
        self.journal.spawn(journal::run(self.feed.clone()));
    }

    /// The states of the node.
    pub fn feed(&self) -> &Feed {
        &self.feed
    }

    /// Where it can be asked why services are as they are.
    pub fn questions(&self) -> &Questions {
        &self.questions
    }

    /// Where events about the node are posted.
    pub fn events(&self) -> &Events {
        &self.events
    }

    /// Resolves when the source has failed for good. Sources mend what they can, so this is rare.
    pub async fn failed(&mut self) -> anyhow::Error {
        failed(&mut self.work).await
    }
}

/// Resolves when one of the parts has failed, or all have ended.
pub(crate) async fn failed(work: &mut JoinSet<anyhow::Result<()>>) -> anyhow::Error {
    while let Some(ended) = work.join_next().await {
        match ended.context("a part of the brain has crashed") {
            Ok(Err(error)) | Err(error) => return error,
            Ok(Ok(())) => {}
        }
    }
    anyhow::anyhow!("the source has ended")
}

/// Starts a brain. What is wrong with the source's configuration is an error here. An API server that is away, and files that become wrong
/// later, are said in the log and waited out; files that are wrong at the start end the brain.
pub async fn start(
    source: &Source,
    options: cluster::Options,
    node_ips: watch::Receiver<NodeIps>,
) -> anyhow::Result<Brain> {
    let feed = Feed::new(rand::random());
    let (events, batches) = mpsc::channel(QUEUE);
    let stop = CancellationToken::new();
    let mut work = JoinSet::new();
    let posted = watch(source, &options, (events, feed.metrics()), stop.clone(), &mut work).await?;
    let (questions, asked) = pump::questions();
    let pump = pump::run(Cluster::new(options), batches, node_ips, asked, feed.clone());
    work.spawn(async move {
        pump.await;
        Ok(())
    });
    Ok(Brain { feed, events: posted, questions, work, journal: JoinSet::new(), _stop: stop.drop_guard() })
}

/// Begins to watch a source: what it says is sent to `events`, until `stop`, and `metrics` are told how that goes. Returns
/// where events of Kubernetes are posted.
pub(crate) async fn watch(
    source: &Source,
    options: &cluster::Options,
    (events, metrics): (mpsc::Sender<Batch>, &Metrics),
    stop: CancellationToken,
    work: &mut JoinSet<anyhow::Result<()>>,
) -> anyhow::Result<Events> {
    let node_name = options.node_name.clone();
    match source {
        Source::File(path) => {
            let path = path.clone();
            let troubles = metrics.troubles();
            work.spawn(async move { file::run(path, &node_name, (events, troubles), stop).await });
            Ok(Events::default())
        }
        Source::Kube { kubeconfig, server } => {
            let keep_alive = kube::KeepAlive::default();
            let api = kube::ApiServer::at_server(kubeconfig.as_deref(), server.clone(), keep_alive).await?;
            let api = api.told_to(metrics);
            let posted = Events::start(&api, &options.node_name, work);
            work.spawn(kube::run(api.clone(), options.clone(), events, stop));
            Ok(posted)
        }
    }
}

/// Runs the command with a configuration until `shutdown`.
pub async fn run(arguments: Arguments, running: Running, shutdown: impl Future<Output = ()>) -> anyhow::Result<()> {
    let said = running.config();
    let options = arguments.source.cluster(said)?;
    let source = arguments.source.source(said, arguments.kube_proxy.to_do()?.master)?;
    info!(
        version = env!("CARGO_PKG_VERSION"),
        node = options.node_name,
        source = %source,
        mode = said.mode.as_str(),
        configuration = %running.origin(),
        "localnet-brain starts"
    );
    let listening = arguments.serve.options();
    let listeners = Listener::bind_all(&arguments.serve.listen, &listening).await?;
    let (node_ips, chosen_ips) = watch::channel(configured::node_ips(said));
    let mut brain = start(&source, options.clone(), chosen_ips).await?;
    brain.log_changes();
    let views = views(brain.feed().clone(), &arguments.serve.serve_node, source, options);

    let reports = Reports::default();
    brain.tell_warnings(&reports);
    let chosen = running.has_file();
    let (current, mut following) = running.follow();
    let mut configured = Configured::start(current, chosen, node_ips, &brain, &reports)?;
    let stop = CancellationToken::new();
    let told = serve::Told { views, reports, questions: brain.questions().clone() };
    let served = serve::run(listeners, told, stop.clone().cancelled_owned());
    let mut served = std::pin::pin!(served);
    let result = tokio::select! {
        () = shutdown => Ok(()),
        error = brain.failed() => Err(error),
        error = configured.failed() => Err(error),
        error = following.failed() => Err(error),
        ended = &mut served => return ended,
    };
    stop.cancel();
    result.and(served.await)
}

/// The own view, and those of other nodes that may be asked for, from the same source.
fn views(own: Feed, allowed: &[String], source: Source, options: cluster::Options) -> Views {
    let source = Arc::new(source);
    Views::with_others(own, Allowed::new(allowed), move |node_name| {
        let (source, options) = (Arc::clone(&source), cluster::Options { node_name, ..options.clone() });
        // What an operator chooses among addresses is about the own node.
        let (_, node_ips) = watch::channel(NodeIps::default());
        Box::pin(async move { start(&source, options, node_ips).await })
    })
}

/// Resolves on SIGTERM or SIGINT.
///
/// # Errors
/// The signals cannot be handled.
pub fn terminated() -> anyhow::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate()).context("failed to handle SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("failed to handle SIGINT")?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
