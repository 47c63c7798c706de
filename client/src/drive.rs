//! The one loop that every backend runs in: newest state wins, failures are retried, nothing is ever undone by a lost stream.
//!
//! ```text
//! source ──► read ──Update──► sync ──► backend
//!    ▲                          │
//!    └──────── report ◄─Report──┘
//! ```
//!
//! The three run side by side in one task: a sync that takes long, or a repair, never throws away what is half read, and a
//! brain that is away never holds up a repair.

mod applied;

use std::{
    convert::Infallible,
    io::{self, Write as _},
    pin::Pin,
    time::Duration,
};

use anyhow::Context as _;
use localnet_proto::{Changes, Family, Revision, Snapshot, Update};
use tokio::{
    pin, select,
    sync::{mpsc, watch},
    time::{self, Instant},
};
use tracing::{debug, info, warn};

use self::applied::Applied;
use crate::{
    backend::{Backend, Counts, Skipped, Synced, Warning, index},
    retry::{Backoff, Refusals},
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
    /// The configuration tells this node's pods by the Node's `spec.podCIDRs`: without any, something is wrong.
    pub needs_pod_cidrs: bool,
    /// The backend only prints what it would do.
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

/// Updates that may wait for the backend; the reader then waits too.
const WAITING: usize = 16;

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
    let (updates, inbox) = mpsc::channel(WAITING);
    let (outbox, reports) = watch::channel(None);
    let sync = Sync {
        state: Snapshot { revision: options.resume, ..Snapshot::default() },
        changes: Changes::everything(),
        applied: [Revision::default(); 2],
        attempts: Default::default(),
        counts: backend.counts(),
        counts_due: None,
        reported: None,
        skipped: Vec::new(),
        log: Applied::default(),
        refusals: Refusals::default(),
        said: None,
        of_node: None,
        backoff: Backoff::new(options.max_backoff),
        retry_at: None,
        backend,
        inbox,
        outbox,
        options: options.clone(),
    };
    pin!(shutdown);
    select! {
        biased;
        result = sync.run(shutdown) => result,
        result = read(&source, &updates, &options) => result.map(|never| match never {}),
        never = report(&source, reports, &options) => match never {},
    }
}

/// Asks the source for one state after the other. Ends only with [`Options::once`], at the first failure.
async fn read(source: &impl Source, updates: &mpsc::Sender<Update>, options: &Options) -> anyhow::Result<Infallible> {
    let mut backoff = Backoff::new(options.max_backoff);
    // `have` is ahead of `Sync::state` by the updates that wait in the channel, and never of anything else: they are folded in the
    // order in which they were asked for, each exactly once, and nothing but they changes that state. So when a delta's turn comes,
    // the state that it was asked for is there. `fold` is said only after a first update, which is a full state.
    let (mut have, mut fold, mut failing) = (options.resume, false, false);
    loop {
        match source.next(have, fold).await {
            Ok(update) => {
                if std::mem::take(&mut failing) {
                    info!(source = source.describe(), "connected again");
                }
                backoff.reset();
                (have, fold) = (update.revision(), true);
                if updates.send(update).await.is_err() {
                    // The sync has ended, and so has all of this.
                    std::future::pending::<()>().await;
                }
            }
            Err(error) if options.once => {
                return Err(error).with_context(|| format!("getting the state from {}", source.describe()));
            }
            Err(error) => {
                let source = source.describe();
                if std::mem::replace(&mut failing, true) {
                    debug!(source, %error, "still no state");
                } else {
                    warn!(source, %error, "no state from the brain; the kernel stays as it is, retrying");
                }
                time::sleep(backoff.next()).await;
            }
        }
    }
}

/// Offers the newest report to the brain until it takes it: nothing may change for a long time, and the brain's health
/// answers wait for it.
async fn report(source: &impl Source, mut reports: watch::Receiver<Option<Report>>, options: &Options) -> Infallible {
    let mut backoff = Backoff::new(options.max_backoff);
    let mut said: Option<SourceError> = None;
    loop {
        let newest = reports.borrow_and_update().clone();
        let delivered = match &newest {
            Some(report) => source.report(report).await,
            None => Ok(()),
        };
        match delivered {
            Ok(()) => {
                if said.take().is_some() {
                    info!("the brain takes reports again");
                }
                backoff.reset();
                if reports.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
            Err(error) => {
                // That the brain is away is said where states are read. But if it is there its health answers wait for nothing.
                let is_news =
                    matches!(error, SourceError::Refused(_) | SourceError::Invalid(_)) && said.as_ref() != Some(&error);
                if is_news {
                    warn!(%error, "the brain does not take this backend's reports: it cannot tell that this node is healthy");
                    said = Some(error);
                } else {
                    debug!(%error, "the brain did not take the report");
                }
                time::sleep(backoff.next()).await;
            }
        }
    }
}

struct Sync<B> {
    backend: B,
    options: Options,
    inbox: mpsc::Receiver<Update>,
    outbox: watch::Sender<Option<Report>>,
    /// The newest state received.
    state: Snapshot,
    /// What differs between `state` and the last sync that succeeded.
    changes: Changes,
    /// The newest state that the subsystem holds, by family.
    applied: [Revision; 2],
    /// Of each family, all attempts; and why the last one failed.
    attempts: [Outcome; 2],
    /// What the backend counts beside its syncs.
    counts: Option<watch::Receiver<Counts>>,
    /// That differs from what was reported: when to report again.
    counts_due: Option<Instant>,
    /// When there was a report.
    reported: Option<Instant>,
    /// What is left out of services.
    skipped: Vec<Skipped>,
    /// What was applied and is not logged yet.
    log: Applied,
    /// What the kernel refuses of services, and when to try it again.
    refusals: Refusals,
    /// What is wrong with the Node.
    of_node: Option<Warning>,
    /// Why the last sync failed, which was said.
    said: Option<String>,
    backoff: Backoff,
    /// After a failure: when to try again even without a newer state.
    retry_at: Option<Instant>,
}

impl<B: Backend> Sync<B> {
    /// A running sync is finished before a shutdown.
    async fn run(mut self, mut shutdown: Pin<&mut impl Future<Output = ()>>) -> anyhow::Result<()> {
        let mut received = false;
        loop {
            select! {
                biased;
                () = shutdown.as_mut() => return Ok(()),
                // These come first: there may be a new state at each turn, which then is synced with them.
                () = self.backend.disturbed(), if received => info!("the kernel is to be looked at again"),
                () = at(self.refusals.due()), if received => self.retry_refused(),
                update = self.inbox.recv() => match update {
                    Some(update) => self.fold(update),
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
            while let Ok(update) = self.inbox.try_recv() {
                self.fold(update);
            }
            self.look_at_node();
            let result = self.sync().await;
            self.retry_at = result.is_err().then(|| Instant::now() + self.backoff.next());
            if self.options.once {
                if result.is_ok() {
                    let Revision { instance, rev } = self.state.revision;
                    let text = format!("to resume this watch, use --instance-id {instance} --rev {rev}\n");
                    // Nobody to read it: that is no reason to fail.
                    _ = io::stderr().write_all(text.as_bytes());
                }
                return result;
            }
            select! {
                () = shutdown.as_mut() => return Ok(()),
                () = time::sleep(self.options.min_interval) => {}
            }
        }
    }

    fn fold(&mut self, update: Update) {
        let changed = self.state.apply(update);
        self.changes.merge(changed);
    }

    /// Warns, once, of a Node without `spec.podCIDRs` where the configuration needs them.
    fn look_at_node(&mut self) {
        let node = &self.state.node;
        let missing = self.options.needs_pod_cidrs && node.pod_cidrs.is_empty();
        let warning = missing.then(|| no_pod_cidrs(&node.name));
        if warning != self.of_node {
            match &warning {
                Some(warning) => warn!("{}", warning.note),
                None => info!(node = node.name, "the Node has spec.podCIDRs now"),
            }
            self.of_node = warning;
        }
    }

    /// One attempt. An error of one family leaves the other's work in force, and is the error of the attempt.
    async fn sync(&mut self) -> anyhow::Result<()> {
        let revision = self.state.revision;
        let started = Instant::now();
        let result = self.backend.sync(&self.state, &self.changes).await;
        let errors: [Option<String>; 2] = match &result {
            Ok(Synced { failed, .. }) => Family::BOTH.map(|family| {
                let errors = failed.iter().filter(|(of, _)| *of == family);
                errors.map(|(_, error)| format!("{error:#}")).reduce(|all, one| format!("{all}; {one}"))
            }),
            Err(error) => Family::BOTH.map(|_| Some(format!("{error:#}"))),
        };
        let everything = self.changes.everything;
        let full = Family::BOTH
            .map(|family| everything || result.as_ref().is_ok_and(|synced: &Synced| synced.full.contains(&family)));
        for (((applied, attempts), error), is_full) in
            self.applied.iter_mut().zip(&mut self.attempts).zip(errors).zip(full)
        {
            if is_full { &mut attempts.full } else { &mut attempts.partial }.add(started.elapsed());
            match error {
                None => *applied = revision,
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
                    info!(%revision, services, "printed; nothing was changed");
                } else {
                    self.log.add(revision, changed, services, started.elapsed(), Instant::now());
                }
                self.changes = Changes::default();
                self.said = None;
                self.backoff.reset();
            }
            Err(error) => {
                let error = format!("{error:#}");
                // Said once: attempts go on for as long as it lasts.
                if self.said.as_ref() == Some(&error) {
                    debug!(%revision, error, "still not applied");
                } else {
                    warn!(%revision, error, "not applied, will be tried again");
                }
                self.said = Some(error);
            }
        }
        self.report();
        result
    }

    fn retry_refused(&mut self) {
        info!(services = self.refusals.count(), "what the kernel refused of services is tried again");
        self.refusals.tried();
        self.backend.retry_refused();
    }

    /// Offers a report to the brain.
    fn report(&mut self) {
        if !self.options.report || self.options.once {
            return;
        }
        (self.counts_due, self.reported) = (None, Some(Instant::now()));
        let counts = self.counts.as_mut().map(|counts| counts.borrow_and_update().clone());
        let repairs = counts.as_ref().map_or(0, |counts| counts.repairs);
        let families =
            Family::BOTH.into_iter().zip(self.applied).zip(&self.attempts).map(|((family, applied), attempts)| {
                let of_this_instance = applied.instance == self.state.revision.instance;
                let applied = if of_this_instance { applied.rev } else { 0 };
                let flows = counts.as_ref().map(|counts| counts.looks[index(family)].clone());
                let rules = counts.as_ref().map(|counts| counts.rules[index(family)].clone()).unwrap_or_default();
                (family, Outcome { applied, flows, rules, ..attempts.clone() })
            });
        self.outbox.send_replace(Some(Report {
            backend: self.backend.name(),
            received: self.state.revision,
            families: families.collect(),
            skipped: self.skipped.clone(),
            warnings: self.backend.warnings().into_iter().chain(self.of_node.clone()).collect(),
            configuration: self.backend.configuration(),
            repairs,
        }));
    }
}

/// kube-proxy waits five minutes for `spec.podCIDRs` and then ends. The node is programmed without them here, and they count as soon as
/// they are there.
fn no_pod_cidrs(node: &str) -> Warning {
    let note = format!(
        "Node {node:?} has no spec.podCIDRs, by which detectLocalMode NodeCIDR recognizes this node's pods: nothing that is sent to a ClusterIP is masqueraded; let kube-controller-manager allocate them (--allocate-node-cidrs), or configure detectLocalMode ClusterCIDR with detectLocal.clusterCIDRs"
    );
    Warning { reason: "NoPodCIDRs", note: note.into() }
}

/// What is only counted is reported so long after the last report at the earliest.
const COUNTS_PAUSE: Duration = Duration::from_secs(1);

/// Resolves when what is counted has changed; never if nothing is, or no more.
async fn changed(counts: &mut Option<watch::Receiver<Counts>>) {
    let told = match counts {
        Some(counts) => counts.changed().await.is_ok(),
        None => false,
    };
    if !told {
        std::future::pending::<()>().await;
    }
}

/// Resolves at an instant; never without one.
async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}
