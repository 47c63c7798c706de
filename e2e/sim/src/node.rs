//! The node: a brain and the nft backend as they run on a real node, each of which may crash and start again.

use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::Context as _;
use localnet_brain::{
    Brain,
    reports::Reports,
    serve::{self, Listener, ServerState},
};
use localnet_client::{
    Backend, Changes, Mode, Options, Report, Revision, Snapshot, Source, SourceError, Synced, grpc,
    vips::{Config, Effective},
};
use localnet_cluster::localize::NodeIps;
use localnet_linux_backend::{live::LinuxBackend as _, portions::Limits};
use localnet_nft::NftBackend;
use localnet_proto::{Address, Update};
use tokio::{
    sync::{mpsc, watch},
    task::{AbortHandle, JoinHandle, JoinSet},
    time::{self, Instant},
};
use tokio_util::sync::CancellationToken;

use crate::{
    api::Api,
    flows::Cleaning,
    invariants::Ledger,
    kernel::{Crash, Kernel, Notice},
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
    pub fn start(kernel: Kernel, socket: &Path, limits: Limits, ledger: Ledger, trace: Trace) -> Self {
        let current = Arc::new(Mutex::new(None));
        let (handle, address) = (Arc::clone(&current), Address::Unix(socket.to_owned()));
        let supervisor = tokio::spawn(async move {
            loop {
                trace.add("the backend starts");
                let running = tokio::spawn(run(kernel.clone(), address.clone(), limits, ledger.clone()));
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

async fn run(kernel: Kernel, address: Address, limits: Limits, ledger: Ledger) -> anyhow::Result<()> {
    let source = grpc::Brain::new(address, None).context("failed to connect")?;
    let source = Recorded { source, state: Mutex::default(), kernel: kernel.clone(), ledger: ledger.clone() };
    let (notices, cleaning) = (kernel.subscribe(), Cleaning::new(kernel.flows()));
    let mut backend = NftBackend::new(Config::default(), kernel).with_limits(limits);
    backend.check()?;
    let backend = Live { backend, notices, cleaning, repairs: false, ledger };
    localnet_client::run(backend, source, Options::default(), std::future::pending()).await
}

/// Records the states that a source delivers.
struct Recorded<S> {
    source: S,
    state: Mutex<Snapshot>,
    kernel: Kernel,
    ledger: Ledger,
}

impl<S: Source> Source for Recorded<S> {
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

/// The backend on a live node. Unlike the real `Live`, it does not follow the addresses of interfaces, and it repairs changes
/// by other programs without a pause.
struct Live {
    backend: NftBackend<Kernel>,
    notices: mpsc::UnboundedReceiver<Notice>,
    cleaning: Cleaning,
    /// Whether the next sync repairs something.
    repairs: bool,
    ledger: Ledger,
}

impl Backend for Live {
    fn name(&self) -> &'static str {
        self.backend.name()
    }

    fn mode(&self) -> Option<Mode> {
        self.backend.mode()
    }

    fn configuration(&self) -> Option<Effective> {
        self.backend.configuration()
    }

    async fn sync(&mut self, state: &Snapshot, changes: &Changes) -> anyhow::Result<Synced> {
        if std::mem::take(&mut self.repairs) {
            self.cleaning.rules_changed();
        }
        self.ledger.sync_starts(state);
        let result = self.backend.sync(state, changes).await;
        self.ledger.sync_ends(state, &result);
        let synced = result.inspect_err(|_| self.cleaning.sync_failed())?;
        self.cleaning.after_sync(state, &synced, self.backend.take_commit());
        Ok(synced)
    }

    fn retry_refused(&mut self) {
        self.backend.retry_refused();
    }

    async fn cleanup(&mut self) -> anyhow::Result<()> {
        self.backend.cleanup().await
    }

    async fn disturbed(&mut self) {
        loop {
            let needs_repair = tokio::select! {
                biased;
                Some(notice) = self.notices.recv() => match notice {
                    Notice::Committed(tables, generation) => self.backend.committed_elsewhere(&tables, generation),
                    Notice::Lost => self.backend.lost_sight(),
                },
                () = at(self.cleaning.next()) => {
                    self.cleaning.run();
                    false
                }
            };
            if needs_repair {
                self.backend.forget();
                self.repairs = true;
                return;
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
