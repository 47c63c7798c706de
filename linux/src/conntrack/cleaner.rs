//! Deletes stale flows after each commit, on a thread of its own, so that programming rules never waits for conntrack.
//!
//! ```text
//!  backend ─ Commit ─▶ Inbox: Queue ─▶ Cleaner's thread: Reconciler ─▶ Conntrack
//! ```
//!
//! If a run fails, it stays due, and the thread retries it with backoff. The log has one line when failures begin and one
//! when they end. A panic counts as a failure; the thread survives it.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use localnet_core::ByFamily;
use tracing::{debug, error, info, warn};

use super::{Commit, Conntrack, Due, Error, Flow, Kernel, Queue, Reconciler, Report, Selection};

/// A thread that deletes stale flows. Dropping it waits for a run that is in progress or due now, but not for follow-ups.
#[derive(Debug)]
pub struct Cleaner {
    inbox: Arc<Inbox>,
    thread: Option<JoinHandle<()>>,
}

/// The commits that the thread has not processed.
#[derive(Debug, Default)]
struct Inbox {
    waiting: Mutex<Waiting>,
    woken: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    commits: Queue,
    /// Whether the cleaner is being dropped, so that no more commits come.
    ended: bool,
    /// How many syncs have begun.
    syncs: u64,
    /// Whether the last one is in progress.
    syncing: bool,
}

impl Inbox {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        // A panic cannot leave the commits inconsistent: each change to them is complete before the next call that may
        // panic.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, commit: Commit) {
        self.waiting().commits.put(commit);
        self.woken.notify_one();
    }

    fn end(&self) {
        self.waiting().ended = true;
        self.woken.notify_one();
    }

    fn begin_sync(&self) {
        let mut waiting = self.waiting();
        waiting.syncs += 1;
        waiting.syncing = true;
    }

    fn end_sync(&self) {
        self.waiting().syncing = false;
        self.woken.notify_one();
    }

    /// Waits for the end of the sync that is in progress, if there is one, and returns those flows that no waiting commit makes right.
    fn still_stale(&self, flows: &[Flow]) -> Vec<Flow> {
        let mut waiting = self.waiting();
        let sync = waiting.syncs;
        while waiting.syncing && waiting.syncs == sync && !waiting.ended {
            waiting = self.woken.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
        flows.iter().filter(|flow| !waiting.commits.spares(flow)).copied().collect()
    }

    /// Waits for pending commits and takes all of them. Returns `None` if `until` passes first.
    fn take(&self, until: Option<Instant>) -> Option<Waiting> {
        let mut waiting = self.waiting();
        while waiting.is_empty() {
            let Some(until) = until else {
                waiting = self.woken.wait(waiting).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            (waiting, _) = self.woken.wait_timeout(waiting, left).unwrap_or_else(PoisonError::into_inner);
        }
        Some(Waiting { commits: std::mem::take(&mut waiting.commits), ..*waiting })
    }
}

/// A table whose flows may lead to endpoints that the rules have, but the reconciler does not know yet: a sync changes the rules before
/// its commit arrives. It deletes no such flow. Their frontends are checked again, because a commit waits.
struct Current<'a, C> {
    table: &'a mut C,
    inbox: &'a Inbox,
}

impl<C: Conntrack> Conntrack for Current<'_, C> {
    fn dump(&mut self, selection: Selection, visit: &mut dyn FnMut(&Flow)) -> Result<(), Error> {
        self.table.dump(selection, visit)
    }

    fn delete(&mut self, flows: &[Flow]) -> Result<usize, Error> {
        if flows.is_empty() {
            return Ok(0);
        }
        self.table.delete(&self.inbox.still_stale(flows))
    }
}

impl Waiting {
    fn is_empty(&self) -> bool {
        self.commits.is_empty() && !self.ended
    }
}

impl Cleaner {
    /// Starts the thread for the flows of the calling thread's network namespace. After each run it calls `on_run` with the
    /// duration and the number of deleted flows of each family; `None` for a family whose flows were not read. If the system
    /// refuses another thread, this logs a warning and returns `None`.
    pub fn start(mut on_run: impl FnMut(ByFamily<Option<(Duration, usize)>>) + Send + 'static) -> Option<Self> {
        let on_run = move |run: &Report| on_run(run.families.map(|family| family.map(|of| (of.took, of.deleted))));
        let started = Self::with(Kernel::open, on_run, Timing::default());
        started.inspect_err(|error| warn!(%error, "failed to start the thread that deletes stale flows")).ok()
    }

    fn with<C: Conntrack>(
        open: impl FnMut() -> Result<C, Error> + Send + 'static,
        on_run: impl FnMut(&Report) + Send + 'static,
        timing: Timing,
    ) -> std::io::Result<Self> {
        let inbox = Arc::new(Inbox::default());
        let taken = Arc::clone(&inbox);
        let work = move || Worker::new(open, on_run, timing).run(&taken);
        let thread = std::thread::Builder::new().name("conntrack".to_owned()).spawn(work)?;
        Ok(Self { inbox, thread: Some(thread) })
    }

    /// Records that a sync begins, which may change rules. Until [`Self::end_sync`], no flow is deleted, because it may lead to an endpoint
    /// that the sync has added.
    pub fn begin_sync(&self) {
        self.inbox.begin_sync();
    }

    /// Records that a sync has ended, and that its commit is queued.
    pub fn end_sync(&self) {
        self.inbox.end_sync();
    }

    /// Queues a commit whose rules are in force.
    pub fn committed(&self, commit: Commit) {
        if commit != Commit::default() {
            self.inbox.put(commit);
        }
    }
}

impl Drop for Cleaner {
    fn drop(&mut self) {
        self.inbox.end();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            warn!("the thread that deletes stale flows has panicked");
        }
    }
}

/// The worker's delays.
#[derive(Clone, Copy, Debug)]
struct Timing {
    /// From a run to its follow-up.
    follow_up: Duration,
    /// From a failure to the first retry. The delay doubles after each further failure.
    first_retry: Duration,
    longest_retry: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            follow_up: Duration::from_secs(1),
            first_retry: Duration::from_millis(200),
            longest_retry: Duration::from_secs(30),
        }
    }
}

/// How long to rest after a run, as a multiple of the processor time that the run took. With 9, a backend that receives changes
/// without a pause spends at most a tenth of one processor on this, and less if they concern only TCP. A run takes some milliseconds
/// even if no flow is stale, because the kernel walks its whole hash table. On a busy machine, a run waits for a processor, and this
/// must not delay the next one.
const REST: u32 = 9;

struct Worker<C, O, T> {
    open: O,
    on_run: T,
    conntrack: Option<C>,
    reconciler: Reconciler,
    timing: Timing,
    failures: u32,
    /// When the last run ended.
    ended: Instant,
    /// How long to rest after that run.
    rest: Duration,
}

impl<C: Conntrack, O: FnMut() -> Result<C, Error>, T: FnMut(&Report)> Worker<C, O, T> {
    fn new(open: O, on_run: T, timing: Timing) -> Self {
        let (ended, rest) = (Instant::now(), Duration::ZERO);
        Self { open, on_run, conntrack: None, reconciler: Reconciler::new(), timing, failures: 0, ended, rest }
    }

    /// Processes commits until the cleaner is dropped.
    fn run(&mut self, inbox: &Inbox) {
        loop {
            // Merge all pending commits before the next run.
            let Some(waiting) = inbox.take(self.next_run()) else {
                self.catching_panics(|worker| worker.clean(inbox));
                continue;
            };
            let Waiting { commits, ended, .. } = waiting;
            self.catching_panics(|worker| commits.apply(&mut worker.reconciler));
            if ended {
                if self.reconciler.is_due() {
                    self.catching_panics(|worker| worker.clean(inbox));
                }
                return;
            }
        }
    }

    /// Runs `step` and turns a panic into a failure with a retry. Without this, a panic would end the thread, and stale
    /// flows would remain unnoticed.
    fn catching_panics(&mut self, step: impl FnOnce(&mut Self)) {
        // A panic may leave the connection and the list of pending checks incomplete: reconnect, and check all flows.
        if catch_unwind(AssertUnwindSafe(|| step(self))).is_err() {
            self.conntrack = None;
            self.reconciler.recheck();
            self.ended = Instant::now();
            if self.failures == 0 {
                error!("the thread that deletes stale flows panicked; no stale flow is deleted until a retry succeeds");
            }
            self.back_off();
        }
    }

    fn back_off(&mut self) {
        self.rest = self.timing.first_retry.saturating_mul(1 << self.failures.min(16));
        self.rest = self.rest.min(self.timing.longest_retry);
        self.failures = self.failures.saturating_add(1);
    }

    fn next_run(&self) -> Option<Instant> {
        let due = match self.reconciler.due() {
            Due::Nothing => None,
            Due::Later | Due::Soon => Some(self.ended + self.rest.max(self.timing.follow_up)),
            Due::Now => Some(self.ended + self.rest),
        };
        let closes = self.reconciler.closes_at().map(|at| at.max(self.ended + self.rest));
        due.into_iter().chain(closes).min()
    }

    fn clean(&mut self, inbox: &Inbox) {
        let began = processor_time();
        let result = self.clean_once(inbox);
        self.ended = Instant::now();
        match result {
            Ok(report) => {
                if self.failures > 0 {
                    info!("deleting stale flows works again");
                }
                self.failures = 0;
                self.rest = processor_time().saturating_sub(began) * REST;
                (self.on_run)(&report);
                let took_ms = report.took.as_secs_f64() * 1000.0;
                if report.deleted > 0 {
                    info!(deleted = report.deleted, checked = report.dumped, took_ms, "stale flows were deleted");
                } else {
                    debug!(checked = report.dumped, took_ms, "no stale flows");
                }
            }
            Err(error) => {
                if self.failures == 0 {
                    warn!(%error, "failed to delete stale flows; until a retry succeeds, their packets go to endpoints that are no longer eligible");
                } else {
                    debug!(%error, "still failing to delete stale flows");
                }
                self.back_off();
            }
        }
    }

    fn clean_once(&mut self, inbox: &Inbox) -> Result<Report, Error> {
        let table = match &mut self.conntrack {
            Some(table) => table,
            None => self.conntrack.insert((self.open)()?),
        };
        self.reconciler.run(&mut Current { table, inbox })
    }
}

/// The processor time of this thread, which includes the kernel's work for it.
pub(crate) fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.try_into().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use localnet_core::{Family, Protocol};

    use super::*;
    use crate::conntrack::{
        Frontend,
        testing::{Stage, address, flow},
    };

    /// Records each dump. The first `failures - 1` dumps fail, with a panic if `panics` is set.
    struct Table {
        failures: usize,
        panics: bool,
        dumps: Sender<(Selection, Instant)>,
    }

    impl Conntrack for Table {
        fn dump(&mut self, selection: Selection, _visit: &mut dyn FnMut(&Flow)) -> Result<(), Error> {
            self.dumps.send((selection, Instant::now())).unwrap();
            self.failures = self.failures.saturating_sub(1);
            assert!(self.failures == 0 || !self.panics, "a panic on purpose");
            if self.failures > 0 { Err(Error::Interrupted) } else { Ok(()) }
        }

        fn delete(&mut self, flows: &[Flow]) -> Result<usize, Error> {
            Ok(flows.len())
        }
    }

    const UDP: Selection = Selection { family: Family::V4, protocol: Protocol::Udp, established: false };
    const PATIENCE: Duration = Duration::from_secs(30);

    fn frontend() -> Frontend {
        Frontend::new(Protocol::Udp, "10.96.0.10:53".parse().unwrap())
    }

    fn served_by(endpoints: &[&str]) -> Commit {
        let endpoints = endpoints.iter().map(|endpoint| endpoint.parse().unwrap()).collect();
        Commit { frontends: vec![(frontend(), Some(endpoints))], ..Commit::default() }
    }

    /// A cleaner and the channel of its dumps. Opening the table fails at first, and then reading it does.
    fn cleaner(mut not_opened: usize, failures: usize, timing: Timing) -> (Cleaner, Receiver<(Selection, Instant)>) {
        let (dumps, read) = channel();
        let open = move || {
            not_opened = not_opened.saturating_sub(1);
            if not_opened > 0 {
                Err(Error::Unsupported)
            } else {
                Ok(Table { failures, panics: false, dumps: dumps.clone() })
            }
        };
        (Cleaner::with(open, |_| {}, timing).unwrap(), read)
    }

    fn fast() -> Timing {
        Timing { first_retry: Duration::from_millis(1), follow_up: Duration::from_millis(1), ..Timing::default() }
    }

    fn dumps(read: &Receiver<(Selection, Instant)>, count: usize) {
        for _ in 0..count {
            assert_eq!(read.recv_timeout(PATIENCE).unwrap().0, UDP);
        }
    }

    #[test]
    fn a_failed_run_is_retried_without_another_commit() {
        for (not_opened, failures) in [(0, 0), (3, 0), (0, 4), (3, 4)] {
            let (cleaner, read) = cleaner(not_opened, failures, fast());
            cleaner.committed(served_by(&[]));
            // The attempts that fail, the one that succeeds, and its follow-up.
            dumps(&read, failures.saturating_sub(1) + 2);
            drop(cleaner);
            assert!(read.try_recv().is_err(), "nothing is due any more");
        }
    }

    /// The rest once followed from the elapsed time: on an overloaded node, stale flows remained for eleven seconds.
    #[test]
    fn a_run_that_waits_for_a_processor_does_not_delay_the_next_one() {
        const WAIT: Duration = Duration::from_millis(200);
        /// Waits before each dump, as on a machine that is busy with something else.
        struct Slow;
        impl Conntrack for Slow {
            fn dump(&mut self, _: Selection, _: &mut dyn FnMut(&Flow)) -> Result<(), Error> {
                std::thread::sleep(WAIT);
                Ok(())
            }

            fn delete(&mut self, flows: &[Flow]) -> Result<usize, Error> {
                Ok(flows.len())
            }
        }
        let mut worker = Worker::new(|| Ok(Slow), |_| {}, fast());
        let mut commits = Queue::default();
        commits.put(served_by(&["10.244.0.2:53"]));
        commits.apply(&mut worker.reconciler);
        worker.clean(&Inbox::default());
        assert!(worker.rest < WAIT, "{:?}", worker.rest);
    }

    /// Regression: while a Deployment was updated 84 times, 4 of 120,000 new connections were reset and a datagram was lost. Their flows led
    /// to endpoints that the rules had got during a run, so the run did not know these endpoints.
    #[test]
    fn flows_to_endpoints_of_a_sync_in_progress_are_spared() {
        let [old, new] = ["10.244.0.2:53", "10.244.0.3:53"]
            .map(|endpoint| flow(Protocol::Udp, Stage::Answered, address("10.96.0.10:53"), address(endpoint)));
        let inbox = Inbox::default();
        inbox.put(served_by(&["10.244.0.2:53"]));
        drop(inbox.take(None));
        assert_eq!(inbox.still_stale(&[old, new]), [old, new], "no sync is in progress");
        inbox.begin_sync();
        let stale = std::thread::scope(|scope| {
            let run = scope.spawn(|| inbox.still_stale(&[old, new]));
            inbox.put(served_by(&["10.244.0.3:53"]));
            inbox.end_sync();
            run.join().unwrap()
        });
        assert_eq!(stale, [old]);
        inbox.begin_sync();
        inbox.end();
        assert_eq!(inbox.still_stale(&[old, new]), [old], "the cleaner is being dropped");
    }

    #[test]
    fn the_thread_survives_a_panic_and_retries() {
        let (dumps, read) = channel();
        let mut lives = [2, 0].into_iter();
        // The second connection works.
        let open = move || Ok(Table { failures: lives.next().unwrap_or(0), panics: true, dumps: dumps.clone() });
        let cleaner = Cleaner::with(open, |_| {}, fast()).unwrap();
        cleaner.committed(served_by(&["10.244.0.2:53"]));
        self::dumps(&read, 3);
        cleaner.committed(served_by(&[]));
        self::dumps(&read, 2);
        drop(cleaner);
        assert!(read.try_recv().is_err(), "nothing is due any more");
    }

    #[test]
    fn commits_are_taken_once_and_the_end_wakes_the_thread() {
        let inbox = Inbox::default();
        inbox.put(served_by(&[]));
        assert!(inbox.take(None).is_some_and(|waiting| !waiting.commits.is_empty() && !waiting.ended));
        assert!(inbox.take(Some(Instant::now())).is_none(), "taken once");
        inbox.end();
        assert!(inbox.take(None).is_some_and(|waiting| waiting.ended));
    }

    #[test]
    fn a_follow_up_waits_for_its_delay() {
        let follow_up = Duration::from_millis(50);
        let (cleaner, read) = cleaner(0, 0, Timing { follow_up, ..Timing::default() });
        cleaner.committed(served_by(&[]));
        let [(_, first), (_, second)] = std::array::from_fn(|_| read.recv_timeout(PATIENCE).unwrap());
        assert!(second - first >= follow_up);
        drop(cleaner);
    }

    #[test]
    fn only_changes_that_can_make_flows_stale_read_the_table() {
        let (cleaner, read) = cleaner(0, 0, fast());
        let (a, b) = ("10.244.0.2:53", "10.244.0.3:53");
        cleaner.committed(served_by(&[a]));
        dumps(&read, 2);
        cleaner.committed(served_by(&[a, b]));
        cleaner.committed(Commit::default());
        cleaner.committed(served_by(&[b]));
        dumps(&read, 2);
        cleaner.committed(Commit { frontends: vec![(frontend(), None)], ..Commit::default() });
        dumps(&read, 2);
        cleaner.committed(Commit { remembered: vec![frontend()], ..Commit::default() });
        dumps(&read, 2);
        drop(cleaner);
        assert!(read.try_recv().is_err());
    }

    #[test]
    fn a_recheck_reads_the_table_without_a_change() {
        let (cleaner, read) = cleaner(0, 0, fast());
        cleaner.committed(served_by(&["10.244.0.2:53"]));
        dumps(&read, 2);
        cleaner.committed(Commit { recheck: true, ..Commit::default() });
        dumps(&read, 2);
        drop(cleaner);
    }

    #[test]
    fn runs_are_reported_by_family() {
        let (report_to, reports) = channel();
        let (dumps, _read) = channel();
        let open = move || Ok(Table { failures: 0, panics: false, dumps: dumps.clone() });
        let cleaner =
            Cleaner::with(open, move |report| report_to.send(report.families.map(|of| of.is_some())).unwrap(), fast());
        let cleaner = cleaner.unwrap();
        cleaner.committed(served_by(&[]));
        assert_eq!(reports.recv_timeout(PATIENCE).unwrap(), ByFamily::new(true, false));
        drop(cleaner);
    }

    #[test]
    fn dropping_the_cleaner_waits_for_a_run_that_is_due() {
        let (cleaner, read) = cleaner(0, 0, Timing::default());
        cleaner.committed(served_by(&[]));
        drop(cleaner);
        assert_eq!(read.try_iter().count(), 1);
    }
}
