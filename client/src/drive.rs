//! The one loop that every backend runs in: newest state wins, failures are retried, nothing is ever undone by a lost stream.

use std::{pin::Pin, time::Duration};

use anyhow::Context as _;
use localnet_proto::{Changes, Family, Revision, Snapshot, Update};
use tokio::{
    pin, select,
    time::{self, Instant},
};
use tracing::{debug, info, warn};

use crate::{
    backend::Backend,
    retry::Backoff,
    source::{Outcome, Report, Source, SourceError},
};

/// How the loop runs.
#[derive(Clone, Debug)]
pub struct Options {
    /// Sync once and return.
    pub once: bool,
    /// The state that the caller has already: the first sync waits for another one.
    pub resume: Revision,
    /// Shortest time between the ends of two syncs and the next; changes in between are joined.
    pub min_interval: Duration,
    /// Longest delay between two attempts after failures, of the source and of the backend each.
    pub max_backoff: Duration,
    /// Tell the brain how far the backend has come. Not for a reader that programs nothing: the brain's health answers
    /// would wait for it once it is gone. A run with `once` never reports, for the same reason.
    pub report: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            once: false,
            resume: Revision::default(),
            min_interval: Duration::ZERO,
            max_backoff: Duration::from_secs(10),
            report: true,
        }
    }
}

/// Runs a backend on a source until `shutdown`; with [`Options::once`], until the first sync succeeds.
///
/// # Errors
/// Only with [`Options::once`]: the first failure of the source or the backend. Otherwise failures are logged and retried.
pub async fn run(
    backend: impl Backend,
    source: impl Source,
    options: Options,
    shutdown: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let mut drive = Drive {
        state: Snapshot { revision: options.resume, ..Snapshot::default() },
        holds_state: false,
        changes: Changes::everything(),
        applied: Revision::default(),
        source_backoff: Backoff::new(options.max_backoff),
        sync_backoff: Backoff::new(options.max_backoff),
        report_backoff: Backoff::new(options.max_backoff),
        ask_at: None,
        retry_at: None,
        undelivered: None,
        backend,
        source,
        options,
    };
    pin!(shutdown);
    drive.run(shutdown).await
}

struct Drive<B, S> {
    backend: B,
    source: S,
    options: Options,
    /// The newest state received.
    state: Snapshot,
    /// Whether `state` was received, so that changes can be folded into it.
    holds_state: bool,
    /// What differs between `state` and the last sync that succeeded.
    changes: Changes,
    /// The newest state that the backend holds.
    applied: Revision,
    source_backoff: Backoff,
    sync_backoff: Backoff,
    report_backoff: Backoff,
    /// After a failure of the source: when to ask it again.
    ask_at: Option<Instant>,
    /// After a failure of the backend: when to try again even without a newer state.
    retry_at: Option<Instant>,
    /// A report that the brain did not take, and when to offer it again.
    undelivered: Option<(Report, Instant)>,
}

/// Why the loop woke up.
enum Wake {
    State(Result<Update, SourceError>),
    Disturbed,
    Retry,
    Report,
    Shutdown,
}

impl<B: Backend, S: Source> Drive<B, S> {
    /// A running sync is finished before a shutdown; anything else is left at once.
    async fn run(&mut self, mut shutdown: Pin<&mut impl Future<Output = ()>>) -> anyhow::Result<()> {
        loop {
            match self.wake(shutdown.as_mut()).await {
                Wake::Shutdown => return Ok(()),
                Wake::State(Ok(update)) => self.receive(update),
                Wake::State(Err(error)) => {
                    self.source_failed(error)?;
                    continue;
                }
                Wake::Disturbed => debug!("the backend is to sync again"),
                Wake::Retry => {}
                Wake::Report => {
                    self.deliver().await;
                    continue;
                }
            }
            let result = self.sync().await;
            self.retry_at = result.is_err().then(|| Instant::now() + self.sync_backoff.next());
            if self.options.once {
                if result.is_ok() {
                    let Revision { instance, rev } = self.applied;
                    eprintln!("to resume this watch, use --instance-id {instance} --rev {rev}");
                }
                return result;
            }
            select! {
                () = shutdown.as_mut() => return Ok(()),
                () = time::sleep(self.options.min_interval) => {}
            }
        }
    }

    async fn wake(&mut self, shutdown: Pin<&mut impl Future<Output = ()>>) -> Wake {
        let next = async {
            if let Some(at) = self.ask_at {
                time::sleep_until(at).await;
            }
            self.source.next(self.state.revision, self.holds_state).await
        };
        let report_at = self.undelivered.as_ref().map(|(_, at)| *at);
        select! {
            biased;
            () = shutdown => Wake::Shutdown,
            update = next => Wake::State(update),
            () = self.backend.disturbed(), if self.holds_state => Wake::Disturbed,
            () = at(self.retry_at) => Wake::Retry,
            () = at(report_at) => Wake::Report,
        }
    }

    fn receive(&mut self, update: Update) {
        if self.ask_at.take().is_some() {
            info!(source = self.source.describe(), "connected again");
        }
        self.source_backoff.reset();
        let changed = self.state.apply(update);
        self.changes.merge(changed);
        self.holds_state = true;
    }

    fn source_failed(&mut self, error: SourceError) -> anyhow::Result<()> {
        let source = self.source.describe();
        if self.options.once {
            return Err(error).with_context(|| format!("getting the state from {source}"));
        }
        if self.ask_at.is_some() {
            debug!(source, %error, "still no state");
        } else {
            warn!(source, %error, "no state from the brain; the kernel stays as it is, retrying");
        }
        self.ask_at = Some(Instant::now() + self.source_backoff.next());
        Ok(())
    }

    async fn sync(&mut self) -> anyhow::Result<()> {
        let revision = self.state.revision;
        let started = Instant::now();
        let result = self.backend.sync(&self.state, &self.changes).await;
        match &result {
            Ok(()) => {
                let changed = self.changes.services.len();
                info!(%revision, changed, services = self.state.services.len(), took = ?started.elapsed(), "applied");
                self.changes = Changes::default();
                self.applied = revision;
                self.sync_backoff.reset();
            }
            Err(error) => warn!(%revision, error = format!("{error:#}"), "not applied, will be tried again"),
        }
        self.report(result.as_ref().err()).await;
        result
    }

    async fn report(&mut self, error: Option<&anyhow::Error>) {
        if self.options.once || !self.options.report {
            return;
        }
        let applied = if self.applied.instance == self.state.revision.instance { self.applied.rev } else { 0 };
        let outcome = Outcome { applied, error: error.map(|error| format!("{error:#}")) };
        let report = Report {
            backend: self.backend.name(),
            received: self.state.revision,
            families: Family::BOTH.map(|family| (family, outcome.clone())).to_vec(),
        };
        self.undelivered = Some((report, Instant::now()));
        self.deliver().await;
    }

    /// Offers the newest report to the brain. One that it does not take is offered again: nothing may change for a long
    /// time, and the brain's health answers wait for it.
    async fn deliver(&mut self) {
        let Some((report, at)) = &mut self.undelivered else { return };
        match self.source.report(report).await {
            Ok(()) => {
                self.undelivered = None;
                self.report_backoff.reset();
            }
            Err(error) => {
                debug!(%error, "the brain did not take the report");
                *at = Instant::now() + self.report_backoff.next();
            }
        }
    }
}

/// Resolves at an instant; never without one.
async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}
