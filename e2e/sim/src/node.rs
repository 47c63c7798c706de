//! The node: a brain and a backend as they run on a real node, each of which may crash and start again.

use std::{
    net::IpAddr,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::Context as _;
use localnet_brain::{
    Brain,
    reports::Reports,
    serve::{self, Listener, ServerState},
};
use localnet_client::{
    Backend, Changes, Counts, Diagnostic, Mode, Options, Report, Revision, Snapshot, Source, SourceError, Synced, grpc,
    vips::Effective,
};
use localnet_cluster::localize::NodeIps;
use localnet_linux::conntrack::Commit;
use localnet_linux_backend::live;
use localnet_proto::{Address, Update};
use tokio::{
    sync::watch,
    task::{AbortHandle, JoinHandle, JoinSet},
    time::{self, Instant},
};
use tokio_util::sync::CancellationToken;

use crate::{
    api::Api,
    backends::Subsystem,
    flows::Cleaning,
    invariants::Ledger,
    kernel::{Crash, Kernel},
    trace::Trace,
    world::NODE,
};

/// A running brain. Dropping it is like killing it.
pub struct RunningBrain {
    /// The brain.
    pub brain: Brain,
    /// The reports of the backend.
    pub reports: Reports,
    serving: JoinSet<anyhow::Result<()>>,
    stop: CancellationToken,
    _node_ips: watch::Sender<NodeIps>,
}

impl RunningBrain {
    /// Starts a brain that serves on `socket`.
    ///
    /// # Errors
    /// Returns an error if the socket cannot be bound.
    pub async fn start(api: &Api, socket: &Path, ledger: &Ledger, trace: &Trace) -> anyhow::Result<Self> {
        api.brain_starts();
        let address = Address::Unix(socket.to_owned());
        let listener = Listener::bind(&address, &serve::Options::default()).await?;
        let (node_ips, chosen) = watch::channel(NodeIps::default());
        let mut brain = localnet_brain::start_on(api.server(), &localnet_cluster::Options::of_node(NODE), chosen);
        let instance = brain.feed().state().revision().instance;
        ledger.brain_started(instance);
        trace.add(format_args!("brain {instance:x} starts"));
        let reports = Reports::recorded(brain.feed().history().clone());
        brain.post_warnings(&reports);
        let state = ServerState {
            views: brain.feed().clone().into(),
            reports: reports.clone(),
            questions: brain.questions().clone(),
        };
        let stop = CancellationToken::new();
        let mut serving = JoinSet::new();
        serving.spawn(serve::run(vec![listener], state, stop.clone().cancelled_owned()));
        Ok(Self { brain, reports, serving, stop, _node_ips: node_ips })
    }

    /// Stops the brain: by a signal if `gracefully` is set, else by a kill.
    pub async fn end(mut self, gracefully: bool) {
        if gracefully {
            self.stop.cancel();
        } else {
            self.serving.abort_all();
        }
        while self.serving.join_next().await.is_some() {}
    }

    /// Whether one of its tasks has ended, which only a bug can cause.
    pub async fn failure(&mut self) -> Option<String> {
        let ended = tokio::select! {
            biased;
            error = self.brain.failed() => format!("{error:#}"),
            Some(ended) = self.serving.join_next() => format!("{ended:?}"),
            () = std::future::ready(()) => return None,
        };
        Some(ended)
    }
}

/// The backend, which a supervisor starts again after each crash.
pub struct RunningBackend {
    current: Arc<Mutex<Option<AbortHandle>>>,
    supervisor: JoinHandle<()>,
}

impl RunningBackend {
    /// Starts the backend and its supervisor.
    pub fn start<S: Subsystem>(kernel: Kernel<S>, socket: &Path, ledger: Ledger, trace: Trace) -> Self {
        let current = Arc::new(Mutex::new(None));
        let (handle, address) = (Arc::clone(&current), Address::Unix(socket.to_owned()));
        let supervisor = tokio::spawn(async move {
            loop {
                trace.add("the backend starts");
                let running = tokio::spawn(run(kernel.clone(), address.clone(), ledger.clone()));
                *handle.lock().unwrap_or_else(PoisonError::into_inner) = Some(running.abort_handle());
                match running.await {
                    Ok(Ok(())) => ledger.violated("no-panic", "the backend has ended by itself"),
                    // Without privileges, the backend exits at the start.
                    Ok(Err(error)) => trace.add(format_args!("the backend exits: {error:#}")),
                    Err(error) => {
                        if error.try_into_panic().is_ok_and(|panic| !panic.is::<Crash>()) {
                            ledger.violated("no-panic", "the backend has panicked");
                        }
                    }
                }
                trace.add("the backend has ended");
                time::sleep(Duration::from_millis(rand::random_range(10..3000))).await;
            }
        });
        Self { current, supervisor }
    }

    /// Kills the backend.
    pub fn kill(&self) {
        if let Some(current) = &*self.current.lock().unwrap_or_else(PoisonError::into_inner) {
            current.abort();
        }
    }
}

impl Drop for RunningBackend {
    fn drop(&mut self) {
        self.supervisor.abort();
        self.kill();
    }
}

async fn run<S: Subsystem>(kernel: Kernel<S>, address: Address, ledger: Ledger) -> anyhow::Result<()> {
    let source = grpc::Brain::new(address, None).context("failed to connect")?;
    let source = Recorded { source, state: Mutex::default(), kernel: kernel.clone(), ledger: ledger.clone() };
    let node = Node(Arc::new(Mutex::new(Cleaning::new(kernel.flows()))));
    let backend = Observed { backend: S::open(kernel, node.clone()).await?, node, ledger };
    localnet_client::run(backend, source, Options::default(), std::future::pending()).await
}

/// Records the states that a source delivers.
struct Recorded<T, S: Subsystem> {
    source: T,
    state: Mutex<Snapshot>,
    kernel: Kernel<S>,
    ledger: Ledger,
}

impl<T: Source, S: Subsystem> Source for Recorded<T, S> {
    async fn next(&self, have: Revision, fold: bool) -> Result<Update, SourceError> {
        time::sleep(self.kernel.pause()).await;
        let update = self.source.next(have, fold).await?;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.apply(update.clone());
        self.ledger.received(&state);
        Ok(update)
    }

    async fn report(&self, report: &Report) -> Result<(), SourceError> {
        self.source.report(report).await
    }

    fn describe(&self) -> String {
        self.source.describe()
    }
}

/// The node around a backend. The addresses of its interfaces are unknown. Clones share it.
#[derive(Clone, Debug)]
pub struct Node(Arc<Mutex<Cleaning>>);

impl Node {
    fn cleaning(&self) -> MutexGuard<'_, Cleaning> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl live::Node for Node {
    async fn addresses(&mut self) -> Option<Vec<IpAddr>> {
        None
    }

    async fn changed_addresses(&mut self) -> Vec<IpAddr> {
        std::future::pending().await
    }

    fn committed(&mut self, commit: Commit) {
        self.cleaning().committed(commit);
    }
}

/// Records the syncs of a backend, and deletes stale flows.
struct Observed<B> {
    backend: B,
    node: Node,
    ledger: Ledger,
}

impl<B: Backend> Backend for Observed<B> {
    fn name(&self) -> &'static str {
        self.backend.name()
    }

    fn mode(&self) -> Option<Mode> {
        self.backend.mode()
    }

    fn warnings(&self) -> Vec<Diagnostic> {
        self.backend.warnings()
    }

    fn counts(&self) -> Option<watch::Receiver<Counts>> {
        self.backend.counts()
    }

    fn configuration(&self) -> Option<Effective> {
        self.backend.configuration()
    }

    async fn sync(&mut self, state: &Snapshot, changes: &Changes) -> anyhow::Result<Synced> {
        self.ledger.sync_starts(state);
        let result = self.backend.sync(state, changes).await;
        self.ledger.sync_ends(state, &result);
        let is_complete = result.as_ref().is_ok_and(|synced| synced.failed.is_empty() && synced.refused.is_empty());
        self.node.cleaning().after_sync(is_complete.then_some(state));
        result
    }

    fn retry_refused(&mut self) {
        self.backend.retry_refused();
    }

    async fn cleanup(&mut self) -> anyhow::Result<()> {
        self.backend.cleanup().await
    }

    async fn disturbed(&mut self) {
        loop {
            let next = self.node.cleaning().next();
            tokio::select! {
                biased;
                () = self.backend.disturbed() => return,
                () = at(next) => self.node.cleaning().run(),
            }
        }
    }
}

/// Resolves at `instant`. Never resolves if there is none.
async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}
