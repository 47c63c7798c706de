//! The loop in which every backend runs. It applies the newest state and retries failures. If the connection to the
//! source breaks, the kernel keeps the applied state.
//!
//! ```text
//! source ──► read ──Update──► sync ──► backend
//!    ▲         ▲──────ready─────┤
//!    └──────── report ◄─Report──┘
//! ```
//!
//! The next state is requested only after a sync and a pause of [`PAUSE`]. If states change faster, the brain merges them
//! into one answer, so that a thousand changes per second cost neither a thousand requests nor a thousand syncs.
//!
//! The three parts run concurrently in one task. A slow sync or a repair therefore never discards a state that is
//! partly received, and an unavailable brain never delays a repair.

mod applied;

use std::{
    convert::Infallible,
    io::{self, Write as _},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use localnet_core::{Code, Diagnostic, Subject};
use localnet_proto::{ByFamily, Changes, Digest, Revision, Snapshot, Update, traffic::TrafficReport};
use tokio::{
    pin, select,
    sync::{Notify, mpsc, watch},
    time::{self, Instant},
};
use tracing::{debug, info, warn};

use self::applied::Applied;
use crate::{
    backend::{Backend, Synced},
    counts::Counts,
    retry::{Backoff, Refusals},
    source::{Outcome, Report, Source, SourceError},
};

/// The options of the loop.
#[derive(Clone, Debug)]
pub struct Options {
    /// Whether to sync once and return.
    pub once: bool,
    /// The revision of the state that the caller already has. The first sync waits for a state with another revision.
    pub resume: Revision,
    /// Shortest time between the end of a sync and the start of the next one. Changes in between are merged.
    pub min_interval: Duration,
    /// Longest delay between two attempts after failures. Requests to the source and syncs of the backend have separate
    /// delays.
    pub max_backoff: Duration,
    /// Whether to report the backend's progress to the brain. A reader that programs nothing must not report: after it
    /// exits, the brain's health answers would wait for its progress. For the same reason, a run with `once` never
    /// reports.
    pub report: bool,
    /// Whether the configuration recognizes this node's pods by the Node's `spec.podCIDRs`. The loop then warns if
    /// there are none.
    pub needs_pod_cidrs: bool,
    /// Whether the backend only prints what it would do.
    pub dry_run: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            once: false,
            resume: Revision::default(),
            min_interval: Duration::ZERO,
            max_backoff: Duration::from_secs(10),
            report: true,
            needs_pod_cidrs: false,
            dry_run: false,
        }
    }
}

/// The shortest pause between two syncs. The first change after a pause does not wait.
const PAUSE: Duration = Duration::from_millis(5);

/// Runs a backend on a source until `shutdown`; with [`Options::once`], until the first sync succeeds.
///
/// # Errors
/// With [`Options::once`], returns the first failure of the source or the backend. Without it, returns no errors:
/// failures are logged and retried.
pub async fn run(
    backend: impl Backend,
    source: impl Source,
    options: Options,
    shutdown: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let (updates, inbox) = mpsc::channel(1);
    let ready = Notify::new();
    ready.notify_one();
    let (outbox, reports) = watch::channel(None);
    let sync = Sync {
        state: Snapshot { revision: options.resume, ..Snapshot::default() },
        changes: Changes::everything(),
        digest: None,
        applied: ByFamily::default(),
        attempts: Default::default(),
        counts: backend.counts(),
        counts_due: None,
        reported: None,
        skipped: Vec::new(),
        log: Applied::default(),
        refusals: Refusals::default(),
        logged_error: None,
        of_node: None,
        backoff: Backoff::new(options.max_backoff),
        retry_at: None,
        backend,
        inbox,
        ready: &ready,
        outbox,
        options: options.clone(),
    };
    pin!(shutdown);
    select! {
        biased;
        result = sync.run(shutdown) => result,
        result = read(&source, &updates, &ready, &options) => result.map(|never| match never {}),
        never = report(&source, reports, &options) => match never {},
    }
}

/// Requests a state from the source each time the sync is ready for one. Never returns, except after a failure with
/// [`Options::once`].
async fn read(
    source: &impl Source,
    updates: &mpsc::Sender<Update>,
    ready: &Notify,
    options: &Options,
) -> anyhow::Result<Infallible> {
    let mut backoff = Backoff::new(options.max_backoff);
    // `have` is ahead of `Sync::state` only by the update in the channel. Only these updates change `Sync::state`, in the
    // order in which they arrived. Each delta is therefore applied to the state for which it was requested. `fold` is set
    // only after the first update, which is a full state.
    let (mut have, mut fold, mut failing) = (options.resume, false, false);
    ready.notified().await;
    loop {
        match source.next(have, fold).await {
            Ok(update) => {
                if std::mem::take(&mut failing) {
                    info!(source = source.describe(), "connected to the brain");
                }
                backoff.reset();
                (have, fold) = (update.revision(), true);
                if updates.send(update).await.is_err() {
                    // The sync has ended, and this task ends with it.
                    std::future::pending::<()>().await;
                }
                ready.notified().await;
            }
            Err(error) if options.once => {
                return Err(error).with_context(|| format!("failed to get the state from {}", source.describe()));
            }
            Err(error) => {
                let source = source.describe();
                if std::mem::replace(&mut failing, true) {
                    debug!(source, %error, "still cannot get the state");
                } else {
                    warn!(source, %error, "cannot get the state from the brain; the kernel stays unchanged; retrying with backoff");
                }
                time::sleep(backoff.next()).await;
            }
        }
    }
}

/// Offers the newest report to the brain until the brain accepts it, because the brain's health answers depend on the
/// report. Without the retry, the brain would get no report until the next change.
async fn report(source: &impl Source, mut reports: watch::Receiver<Option<Report>>, options: &Options) -> Infallible {
    let mut backoff = Backoff::new(options.max_backoff);
    let mut logged: Option<SourceError> = None;
    let mut counted = None;
    loop {
        let newest = reports.borrow_and_update().clone();
        let delivered = match &newest {
            Some(report) => deliver(source, report, &mut counted).await,
            None => Ok(()),
        };
        match delivered {
            Ok(()) => {
                if logged.take().is_some() {
                    info!("the brain accepts reports again");
                }
                backoff.reset();
                if reports.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
            Err(error) => {
                // `read` already logs an unavailable brain. A brain that runs but refuses reports needs its own warning.
                let is_news = matches!(error, SourceError::Refused(_) | SourceError::Invalid(_))
                    && logged.as_ref() != Some(&error);
                if is_news {
                    warn!(%error, "the brain refuses this backend's reports, so the brain's health checks cannot see that this node is programmed");
                    logged = Some(error);
                } else {
                    debug!(%error, "the brain did not accept the report");
                }
                time::sleep(backoff.next()).await;
            }
        }
    }
}

/// Delivers a report. Also delivers the traffic, if it was counted after `counted`, which was delivered last.
async fn deliver(
    source: &impl Source,
    report: &Report,
    counted: &mut Option<Arc<TrafficReport>>,
) -> Result<(), SourceError> {
    source.report(report).await?;
    if let Some(traffic) = report.counts.as_ref().and_then(|counts| counts.traffic.as_ref())
        && !counted.as_ref().is_some_and(|counted| Arc::ptr_eq(counted, traffic))
    {
        match source.report_traffic(traffic).await {
            Ok(()) => *counted = Some(traffic.clone()),
            // The brain has the report. The next one sends the newer counts.
            Err(error) => debug!(%error, "cannot deliver the counted traffic"),
        }
    }
    Ok(())
}

struct Sync<'a, B> {
    backend: B,
    options: Options,
    inbox: mpsc::Receiver<Update>,
    /// Lets [`read`] request the next state.
    ready: &'a Notify,
    outbox: watch::Sender<Option<Report>>,
    /// The newest state received.
    state: Snapshot,
    /// What has changed in `state` since the last sync that succeeded.
    changes: Changes,
    /// The digest of `state`; `None` from a full state until the sync of this state has ended, so that the digest delays no sync.
    digest: Option<Digest>,
    /// The newest state that the kernel subsystem holds, by family: its revision and digest.
    applied: ByFamily<(Revision, Option<Digest>)>,
    /// For each family: counts of the attempts, and the error of the last one.
    attempts: ByFamily<Outcome>,
    /// The backend's own counters.
    counts: Option<watch::Receiver<Counts>>,
    /// When to report again; set if a counter has changed since the last report.
    counts_due: Option<Instant>,
    /// When the last report was made.
    reported: Option<Instant>,
    /// The parts of Services that are skipped.
    skipped: Vec<Diagnostic>,
    /// The syncs that succeeded and are not logged yet.
    log: Applied,
    /// The Services that the kernel refused, and when to retry them.
    refusals: Refusals,
    /// The warning about the Node, if there is one.
    of_node: Option<Diagnostic>,
    /// The error of the last sync, if it was logged.
    logged_error: Option<String>,
    backoff: Backoff,
    /// After a failure: when to retry, even without a newer state.
    retry_at: Option<Instant>,
}

impl<B: Backend> Sync<'_, B> {
    /// Runs until `shutdown`, but finishes a sync in progress first.
    async fn run(mut self, mut shutdown: Pin<&mut impl Future<Output = ()>>) -> anyhow::Result<()> {
        let mut received = false;
        loop {
            let mut taken = false;
            select! {
                biased;
                () = shutdown.as_mut() => return Ok(()),
                // These branches come before the inbox. Otherwise a burst of new states could delay them. The sync
                // below also applies a state that waits in the inbox.
                () = self.backend.disturbed(), if received => info!("resyncing: the kernel may differ from the applied state"),
                () = at(self.refusals.due()), if received => self.retry_refused(),
                update = self.inbox.recv() => match update {
                    Some(update) => {
                        taken = true;
                        self.fold(update);
                    }
                    None => return Ok(()),
                },
                () = at(self.retry_at) => {}
                () = changed(&mut self.counts), if self.counts_due.is_none() && self.reported.is_some() => {
                    self.counts_due = self.reported.map(|last| last + COUNTS_PAUSE);
                    continue;
                }
                () = at(self.counts_due) => {
                    self.report();
                    continue;
                }
                () = at(self.log.due()) => {
                    self.log.log(Instant::now());
                    continue;
                }
            }
            received = true;
            if let Ok(update) = self.inbox.try_recv() {
                taken = true;
                self.fold(update);
            }
            self.check_node();
            let result = self.sync().await;
            self.retry_at = result.is_err().then(|| Instant::now() + self.backoff.next());
            if self.options.once {
                if result.is_ok() {
                    let Revision { instance, rev } = self.state.revision;
                    let text = format!("to resume this watch, use --instance-id {instance} --rev {rev}\n");
                    // A closed standard error must not stop the program.
                    _ = io::stderr().write_all(text.as_bytes());
                }
                return result;
            }
            select! {
                () = shutdown.as_mut() => return Ok(()),
                () = time::sleep(self.options.min_interval.max(PAUSE)) => {}
            }
            if taken {
                self.ready.notify_one();
            }
        }
    }

    fn fold(&mut self, update: Update) {
        self.digest = match &update {
            Update::Full(_) => None,
            Update::Delta { changes, .. } => self
                .digest
                .map(|digest| changes.iter().fold(digest, |digest, change| digest.after(&self.state, change))),
        };
        let changed = self.state.apply(update);
        self.changes.merge(changed);
    }

    /// Warns once about a Node without `spec.podCIDRs` if the configuration needs them.
    fn check_node(&mut self) {
        let node = &self.state.node;
        let missing = self.options.needs_pod_cidrs && node.pod_cidrs.is_empty();
        let warning = missing.then(|| no_pod_cidrs(&node.name));
        if warning != self.of_node {
            match &warning {
                Some(warning) => warn!("{warning}"),
                None => info!(node = node.name, "the Node has spec.podCIDRs now"),
            }
            self.of_node = warning;
        }
    }

    /// Makes one attempt. If one family fails, the other family keeps the new state, and the attempt returns the error.
    async fn sync(&mut self) -> anyhow::Result<()> {
        let revision = self.state.revision;
        let started = Instant::now();
        let result = self.backend.sync(&self.state, &self.changes).await;
        if result.is_err() {
            // What disturbed the sync may also be why the kernel refused Services.
            self.backend.retry_refused();
        }
        if self.reports() {
            self.digest.get_or_insert_with(|| Digest::of(&self.state));
        }
        for (family, attempts) in self.attempts.iter_mut() {
            let error = match &result {
                Ok(Synced { failed, .. }) => {
                    let errors = failed.iter().filter(|(of, _)| *of == family);
                    errors.map(|(_, error)| format!("{error:#}")).reduce(|all, one| format!("{all}; {one}"))
                }
                Err(error) => Some(format!("{error:#}")),
            };
            let is_full = self.changes.everything || result.as_ref().is_ok_and(|synced| synced.full.contains(&family));
            if is_full { &mut attempts.full } else { &mut attempts.partial }.add(started.elapsed());
            match error {
                None => self.applied[family] = (revision, self.digest),
                Some(_) => {
                    attempts.failures += 1;
                    attempts.partial_failures += u64::from(!is_full);
                }
            }
            attempts.error = error;
        }
        let result = result.and_then(|synced| {
            self.skipped.clone_from(&synced.skipped);
            self.refusals.seen(&synced.refused, Instant::now());
            synced.whole()
        });
        match &result {
            Ok(()) => {
                let (changed, services) = (self.changes.services.len(), self.state.services.len());
                if self.options.dry_run {
                    info!(%revision, services, "the plan was printed; nothing was changed");
                } else {
                    self.log.add(revision, changed, services, started.elapsed(), Instant::now());
                }
                self.changes = Changes::default();
                self.logged_error = None;
                self.backoff.reset();
            }
            Err(error) => {
                let error = format!("{error:#}");
                // Attempts continue for as long as the error lasts, but an equal error is logged only once.
                if self.logged_error.as_ref() == Some(&error) {
                    debug!(%revision, error, "still cannot apply the state");
                } else {
                    warn!(%revision, error, "cannot apply the state; retrying with backoff");
                }
                self.logged_error = Some(error);
            }
        }
        self.report();
        result
    }

    fn retry_refused(&mut self) {
        info!(services = self.refusals.count(), "retrying the Services that the kernel refused");
        self.refusals.tried();
        self.backend.retry_refused();
    }

    fn reports(&self) -> bool {
        self.options.report && !self.options.once
    }

    /// Offers a report to the brain.
    fn report(&mut self) {
        if !self.reports() {
            return;
        }
        (self.counts_due, self.reported) = (None, Some(Instant::now()));
        let families = self.attempts.iter().map(|(family, attempts)| {
            let (applied, digest) = self.applied[family];
            let of_this_instance = applied.instance == self.state.revision.instance;
            let (applied, digest) = if of_this_instance { (applied.rev, digest) } else { (0, None) };
            (family, Outcome { applied, digest, ..attempts.clone() })
        });
        self.outbox.send_replace(Some(Report {
            backend: self.backend.name(),
            mode: self.backend.mode(),
            received: self.state.revision,
            families: families.collect(),
            skipped: self.skipped.clone(),
            warnings: self.backend.warnings().into_iter().chain(self.of_node.clone()).collect(),
            configuration: self.backend.configuration(),
            counts: self.counts.as_mut().map(|counts| counts.borrow_and_update().clone()),
        }));
    }
}

/// The diagnostic for a Node without `spec.podCIDRs`. kube-proxy waits five minutes for `spec.podCIDRs` and then exits.
/// localnet programs the node without them, and uses them as soon as the Node has them.
fn no_pod_cidrs(node: &str) -> Diagnostic {
    let problem = "has no spec.podCIDRs, so detectLocalMode NodeCIDR cannot recognize this node's pods: no traffic to ClusterIPs is masqueraded";
    let remedy = "let kube-controller-manager allocate pod CIDRs (--allocate-node-cidrs), or configure detectLocalMode ClusterCIDR with detectLocal.clusterCIDRs";
    Diagnostic::new(Code::PodCidrsMissing, Subject::node(node), problem).remedy(remedy)
}

/// Shortest time between a report and the next one if only counters have changed.
const COUNTS_PAUSE: Duration = Duration::from_secs(1);

/// Resolves when a counter has changed. Never resolves if there are no counters, or if the backend no longer updates
/// them.
async fn changed(counts: &mut Option<watch::Receiver<Counts>>) {
    let has_changed = match counts {
        Some(counts) => counts.changed().await.is_ok(),
        None => false,
    };
    if !has_changed {
        std::future::pending::<()>().await;
    }
}

/// Resolves at `instant`. Never resolves if there is none.
async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}
