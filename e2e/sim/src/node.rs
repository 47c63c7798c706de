//! The node: a brain and a backend as they run on a real node, each of which may crash and start again.

use std::{
    path::Path,
    pin::pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    task::Poll,
    time::Duration,
};

use anyhow::Context as _;
use localnet_brain::{
    Brain,
    feed::State,
    health::{self, progress::Health},
    reports::Reports,
    serve::{self, Listener, ServerState},
};
use localnet_client::{
    Backend, Changes, Counts, Diagnostic, Mode, Options, Report, Revision, Snapshot, Source, SourceError, Synced, grpc,
    vips::Effective,
};
use localnet_cluster::localize::NodeIps;
use localnet_config::NodePortAddresses;
use localnet_proto::{Address, Update};
use tokio::{
    sync::watch,
    task::{AbortHandle, JoinHandle, JoinSet},
    time::{self, Instant},
};
use tokio_util::sync::CancellationToken;

use crate::{
    api::Api,
    backends::Program,
    flows::{Cleaning, Node},
    kernel::{Crash, Kernel},
    ledger::{Ledger, PATIENCE},
    link::Link,
    replay::replay,
    trace::Trace,
    world::NODE,
};

/// A running brain. Dropping it is like killing it.
pub struct RunningBrain {
    /// The brain.
    pub brain: Brain,
    /// The reports of the backend.
    pub reports: Reports,
    /// The configuration of the node's addresses.
    pub node_ips: watch::Sender<NodeIps>,
    health: Arc<health::Inputs>,
    /// The first state that the simulation has seen.
    first: Option<Snapshot>,
    serving: JoinSet<anyhow::Result<()>>,
    stop: CancellationToken,
}

impl RunningBrain {
    /// Starts a brain that serves on `socket`, with a configuration of the node's addresses.
    ///
    /// # Errors
    /// Returns an error if the socket cannot be bound.
    pub async fn start(
        (api, link): (&Api, &Link),
        socket: &Path,
        node_ips: NodeIps,
        ledger: &Ledger,
        trace: &Trace,
    ) -> anyhow::Result<Self> {
        api.brain_starts();
        link.brain_starts();
        let address = Address::Unix(socket.to_owned());
        let listener = Listener::bind(&address, &serve::Options::default()).await?;
        let (node_ips, chosen) = watch::channel(node_ips);
        let publish = link.has_draft().then(Default::default);
        let options = localnet_cluster::Options { publish, ..localnet_cluster::Options::of_node(NODE) };
        let mut brain = localnet_brain::start_on(api.server(), &options, chosen);
        let instance = brain.feed().state().revision().instance;
        ledger.brain_started(instance);
        trace.add(format_args!("brain {instance:x} starts"));
        let reports = Reports::recorded(brain.feed().history().clone());
        brain.post_warnings(&reports);
        let state = ServerState {
            views: brain.feed().clone().into(),
            reports: reports.clone(),
            questions: brain.questions().clone(),
            pushers: None,
        };
        let stop = CancellationToken::new();
        let mut serving = JoinSet::new();
        serving.spawn(serve::run(vec![listener], state, stop.clone().cancelled_owned()));
        let options =
            health::Options { healthz: None, node_port_addresses: NodePortAddresses::default(), timeout: PATIENCE };
        let clock = link.clone();
        let health = health::Inputs::new(&options, brain.feed(), &reports, Arc::new(move || clock.now()));
        serving.spawn(follow(Arc::clone(&health), brain.feed().subscribe(), reports.clone(), stop.clone()));
        Ok(Self { brain, reports, node_ips, health, first: None, serving, stop })
    }

    /// The health of the node.
    pub fn health(&self) -> Health {
        self.health.health().0
    }

    /// Remembers the newest state if it is the first one.
    pub fn look(&mut self, state: &State) {
        if self.first.is_none() && state.revision().rev > 0 {
            self.first = state.snapshot().ok();
        }
    }

    /// Checks that the history leads from the first to the newest state.
    pub fn check_replay(&self, ledger: &Ledger) {
        if let Some(Err(error)) = self.first.clone().map(|first| replay(first, self.brain.feed())) {
            ledger.violated("replays", error);
        }
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

/// Processes each revision and each report at once, as the health servers do.
async fn follow(
    health: Arc<health::Inputs>,
    mut revision: watch::Receiver<Revision>,
    reports: Reports,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let mut reports = reports.subscribe();
    loop {
        health.health();
        tokio::select! {
            changed = revision.changed() => changed?,
            changed = reports.changed() => changed?,
            () = stop.cancelled() => return Ok(()),
        }
    }
}

/// The value of a fuse that is off.
const OFF: u32 = u32::MAX;

/// Runs a future until it has been polled as often as `fuse` says. Then drops it, wherever it waits, and returns `None`.
async fn fused<F: Future>(future: F, fuse: &AtomicU32) -> Option<F::Output> {
    let mut future = pin!(future);
    std::future::poll_fn(|context| match fuse.load(Ordering::Relaxed) {
        0 => {
            fuse.store(OFF, Ordering::Relaxed);
            Poll::Ready(None)
        }
        left => {
            fuse.store(if left == OFF { OFF } else { left - 1 }, Ordering::Relaxed);
            future.as_mut().poll(context).map(Some)
        }
    })
    .await
}

/// The backend, which a supervisor starts again after each crash.
pub struct RunningBackend {
    current: Arc<Mutex<Option<AbortHandle>>>,
    fuse: Arc<AtomicU32>,
    supervisor: JoinHandle<()>,
}

impl RunningBackend {
    /// Starts the backend and its supervisor.
    pub fn start<S: Program>((kernel, link): (Kernel<S>, Link), socket: &Path, ledger: Ledger, trace: Trace) -> Self {
        let current = Arc::new(Mutex::new(None));
        let fuse = Arc::new(AtomicU32::new(OFF));
        let countdown = Arc::clone(&fuse);
        let (handle, address) = (Arc::clone(&current), Address::Unix(socket.to_owned()));
        let supervisor = tokio::spawn(async move {
            loop {
                trace.add("the backend starts");
                ledger.backend_started();
                let backend = run(kernel.clone(), link.clone(), address.clone(), ledger.clone());
                let fuse = Arc::clone(&countdown);
                let running = tokio::spawn(async move { fused(backend, &fuse).await });
                *handle.lock().unwrap_or_else(PoisonError::into_inner) = Some(running.abort_handle());
                match running.await {
                    Ok(None) => {}
                    Ok(Some(Ok(()))) => ledger.violated("no-panic", "the backend has ended by itself"),
                    // Without privileges, the backend exits at the start.
                    Ok(Some(Err(error))) => trace.add(format_args!("the backend exits: {error:#}")),
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
        Self { current, fuse, supervisor }
    }

    /// Kills the backend after it has been polled so many times, or, if `None`, no more.
    pub fn kill_after(&self, polls: Option<u32>) {
        self.fuse.store(polls.unwrap_or(OFF), Ordering::Relaxed);
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

async fn run<S: Program>(kernel: Kernel<S>, link: Link, address: Address, ledger: Ledger) -> anyhow::Result<()> {
    let source = Recorded::new("the backend", address, link, ledger.clone())?.of_backend();
    let node = Node::new(Cleaning::new(kernel.flows()));
    let backend = S::open(kernel.clone(), node.clone()).await?;
    let backend = Observed { backend, kernel, node, ledger };
    localnet_client::run(backend, source, Options::default(), std::future::pending()).await
}

/// A second reader of the brain, such as another backend: it pauses after each state, so it gets larger changes than the backend.
pub async fn read_beside(address: Address, link: Link, ledger: Ledger, longest: Duration) -> anyhow::Result<()> {
    let source = Recorded::new("the second reader", address, link, ledger)?;
    loop {
        let have = source.revision();
        // As after any call that breaks off, the reader keeps what it has.
        let _ = source.next(have, true).await;
        time::sleep(rand::random_range(Duration::from_millis(1)..longest)).await;
    }
}

/// Records the states that a brain delivers over a connection with faults.
struct Recorded {
    reader: &'static str,
    source: grpc::Brain,
    /// The same brain, read in `localnet.v1`. Only the backend reads it, so the second reader compares both packages.
    draft: Option<grpc::Brain>,
    state: Mutex<Snapshot>,
    link: Link,
    ledger: Ledger,
}

impl Recorded {
    fn new(reader: &'static str, address: Address, link: Link, ledger: Ledger) -> anyhow::Result<Self> {
        let source = grpc::Brain::new(address, None).context("failed to connect")?;
        Ok(Self { reader, source, draft: None, state: Mutex::default(), link, ledger })
    }

    fn of_backend(self) -> Self {
        Self { draft: Some(self.source.clone().reading_draft_v1("simulated")), ..self }
    }

    fn revision(&self) -> Revision {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).revision
    }
}

impl Source for Recorded {
    async fn next(&self, have: Revision, fold: bool) -> Result<Update, SourceError> {
        time::sleep(self.link.pause()).await;
        // An older brain answers each request with the full state.
        let fold = fold && !self.link.is_old();
        let source = self.draft.as_ref().filter(|_| self.link.has_draft()).unwrap_or(&self.source);
        let answer = self.link.call(source.next(have, fold)).await;
        if let Err(SourceError::Invalid(error)) = &answer {
            self.ledger.violated("valid-answers", format!("{} rejects an answer: {error}", self.reader));
        }
        let update = answer?;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.apply(update.clone());
        self.ledger.received(self.reader, &state, have);
        Ok(update)
    }

    async fn report(&self, report: &Report) -> Result<(), SourceError> {
        // The client ignores that an older brain does not know reports.
        if self.link.is_old() { Ok(()) } else { self.link.call(self.source.report(report)).await }
    }

    fn describe(&self) -> String {
        self.source.describe()
    }
}

/// Records the syncs of a backend, and deletes stale flows.
struct Observed<S: Program> {
    backend: S::Backend,
    kernel: Kernel<S>,
    node: Node,
    ledger: Ledger,
}

impl<S: Program> Backend for Observed<S> {
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
        let digest = self.ledger.sync_starts(state);
        self.kernel.sync_starts();
        let result = self.backend.sync(state, changes).await;
        let is_troubled = self.kernel.is_troubled();
        self.kernel.ask(|kernel| self.ledger.sync_ends((state, digest), &result, is_troubled, kernel));
        let is_complete = result.as_ref().is_ok_and(|synced| synced.failed.is_empty() && synced.refused.is_empty());
        self.kernel.sync_ends(is_complete);
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
