//! Flows that stick to endpoints which no longer serve: ended after each commit, on a thread of its own, so that
//! programming never waits for it.
//!
//! ```text
//!  backend ─ Commit ─▶ Inbox: all that waits, joined ─▶ Cleaner's thread: Reconciler ─▶ Conntrack
//! ```
//!
//! What fails stays due and is tried again, with growing delays; it is said once, and so is its end. A panic is a failure like
//! others: the thread outlives it.

use std::{
    collections::{BTreeSet, HashMap},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use tracing::{debug, error, info, warn};

use super::{Conntrack, Due, Endpoints, Error, Frontend, Kernel, Reconciler, Report};

/// What a commit changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Commit {
    /// Frontends whose endpoints changed, and the endpoints that may answer now; none if it is no frontend any more.
    pub frontends: Vec<(Frontend, Option<Endpoints>)>,
    /// Frontends that the kernel held before this process.
    pub remembered: Vec<Frontend>,
    /// Rules were missing or wrong for a while: any flow may have gone astray.
    pub recheck: bool,
}

/// A thread that ends stale flows. Dropping it waits for a run that is under way or due, and for no other.
#[derive(Debug)]
pub struct Cleaner {
    inbox: Arc<Inbox>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread has not taken yet. However long it is busy, this holds each frontend once, as it is now.
#[derive(Debug, Default)]
struct Inbox {
    waiting: Mutex<Waiting>,
    woken: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    frontends: HashMap<Frontend, Option<Endpoints>>,
    remembered: BTreeSet<Frontend>,
    recheck: bool,
    /// Nothing more comes.
    ended: bool,
}

impl Inbox {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        // Nothing in it is half done when a panic leaves it.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, commit: Commit) {
        let mut waiting = self.waiting();
        for (frontend, now) in commit.frontends {
            // What was in force for a moment is joined with what came after it, and its flows would never be looked for.
            let before = waiting.frontends.get(&frontend).and_then(Option::as_ref);
            if before.is_some_and(|before| before.loses(now.as_ref())) {
                waiting.remembered.insert(frontend);
            }
            waiting.frontends.insert(frontend, now);
        }
        waiting.remembered.extend(commit.remembered);
        waiting.recheck |= commit.recheck;
        drop(waiting);
        self.woken.notify_one();
    }

    fn end(&self) {
        self.waiting().ended = true;
        self.woken.notify_one();
    }

    /// All that waits, as soon as anything does; nothing when that instant has come before.
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
        let ended = waiting.ended;
        Some(std::mem::replace(&mut *waiting, Waiting { ended, ..Waiting::default() }))
    }
}

impl Waiting {
    fn is_empty(&self) -> bool {
        self.frontends.is_empty() && self.remembered.is_empty() && !self.recheck && !self.ended
    }
}

impl Cleaner {
    /// Starts it for the flows of this thread's network namespace. It tells of each look, by family, IPv4 first: how long it took and how
    /// many flows it ended, or none where no flows were looked at. Without room for one more thread there is none, which is said.
    pub fn telling(mut told: impl FnMut([Option<(Duration, usize)>; 2]) + Send + 'static) -> Option<Self> {
        let told = move |run: &Report| told(run.families.map(|of| of.map(|of| (of.took, of.deleted))));
        let started = Self::with(Kernel::open, told, Timing::default());
        started.inspect_err(|error| warn!(%error, "stale flows are not ended")).ok()
    }

    fn with<C: Conntrack>(
        open: impl FnMut() -> Result<C, Error> + Send + 'static,
        told: impl FnMut(&Report) + Send + 'static,
        timing: Timing,
    ) -> std::io::Result<Self> {
        let inbox = Arc::new(Inbox::default());
        let taken = Arc::clone(&inbox);
        let work = move || Worker::new(open, told, timing).run(&taken);
        let thread = std::thread::Builder::new().name("conntrack".to_owned()).spawn(work)?;
        Ok(Self { inbox, thread: Some(thread) })
    }

    /// Tells of a commit that is in force.
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
            warn!("the thread that ends stale flows has panicked");
        }
    }
}

/// How long the worker waits for what.
#[derive(Clone, Copy, Debug)]
struct Timing {
    /// From a look to the second look.
    second_look: Duration,
    /// From a failure to the next attempt; doubled each time.
    first_retry: Duration,
    longest_retry: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            second_look: Duration::from_secs(1),
            first_retry: Duration::from_millis(200),
            longest_retry: Duration::from_secs(30),
        }
    }
}

/// Reading a big table over and over takes at most this share of one processor: a quarter.
const REST: u32 = 3;

struct Worker<C, O, T> {
    open: O,
    told: T,
    conntrack: Option<C>,
    reconciler: Reconciler,
    timing: Timing,
    failures: u32,
    /// When the last run ended.
    ended: Instant,
    /// How long to rest after it.
    rest: Duration,
}

impl<C: Conntrack, O: FnMut() -> Result<C, Error>, T: FnMut(&Report)> Worker<C, O, T> {
    fn new(open: O, told: T, timing: Timing) -> Self {
        let (ended, rest) = (Instant::now(), Duration::ZERO);
        Self { open, told, conntrack: None, reconciler: Reconciler::new(), timing, failures: 0, ended, rest }
    }

    /// Until nothing more comes.
    fn run(&mut self, inbox: &Inbox) {
        loop {
            // All that is waiting is taken before the next run.
            let Some(waiting) = inbox.take(self.next_run()) else {
                self.unpanicking(Self::clean);
                continue;
            };
            let ended = waiting.ended;
            self.unpanicking(|worker| worker.take(waiting));
            if ended {
                if self.reconciler.is_due() {
                    self.unpanicking(Self::clean);
                }
                return;
            }
        }
    }

    /// Without this thread no stale flow would be ended, and nothing would say so: what panics has failed, and is tried again.
    fn unpanicking(&mut self, step: impl FnOnce(&mut Self)) {
        // What may be half done: the connection, which is made anew, and what is to be looked at, which is all.
        if catch_unwind(AssertUnwindSafe(|| step(self))).is_err() {
            self.conntrack = None;
            self.reconciler.recheck();
            self.ended = Instant::now();
            if self.failures == 0 {
                error!(
                    "ending stale flows has panicked: some may stick to endpoints that are gone; will be tried again"
                );
            }
            self.put_off();
        }
    }

    fn put_off(&mut self) {
        self.rest = self.timing.first_retry.saturating_mul(1 << self.failures.min(16));
        self.rest = self.rest.min(self.timing.longest_retry);
        self.failures = self.failures.saturating_add(1);
    }

    fn next_run(&self) -> Option<Instant> {
        match self.reconciler.due() {
            Due::Nothing => None,
            Due::Later => Some(self.ended + self.rest.max(self.timing.second_look)),
            Due::Now => Some(self.ended + self.rest),
        }
    }

    fn take(&mut self, waiting: Waiting) {
        for frontend in waiting.remembered {
            self.reconciler.remember(frontend);
        }
        for (frontend, endpoints) in waiting.frontends {
            // No run has looked at what was in force until now.
            if self.reconciler.forgets(&frontend, endpoints.as_ref()) {
                self.reconciler.remember(frontend);
            }
            match endpoints {
                Some(endpoints) => self.reconciler.set(frontend, endpoints),
                None => self.reconciler.remove(&frontend),
            }
        }
        if waiting.recheck {
            self.reconciler.recheck();
        }
    }

    fn clean(&mut self) {
        let began = Instant::now();
        let result = self.clean_once();
        self.ended = Instant::now();
        match result {
            Ok(report) => {
                if self.failures > 0 {
                    info!("stale flows are ended again");
                }
                self.failures = 0;
                self.rest = (self.ended - began) * REST;
                (self.told)(&report);
                if report.deleted > 0 {
                    info!(
                        ended = report.deleted,
                        of = report.dumped,
                        took_ms = report.took.as_secs_f64() * 1000.0,
                        "stale flows ended"
                    );
                } else {
                    debug!(of = report.dumped, took = ?report.took, "no stale flows");
                }
            }
            Err(error) => {
                if self.failures == 0 {
                    warn!(%error, "stale flows cannot be ended: some may stick to endpoints that are gone; will be tried again");
                } else {
                    debug!(%error, "stale flows still cannot be ended");
                }
                self.put_off();
            }
        }
    }

    fn clean_once(&mut self) -> Result<Report, Error> {
        let conntrack = match &mut self.conntrack {
            Some(conntrack) => conntrack,
            None => self.conntrack.insert((self.open)()?),
        };
        self.reconciler.run(conntrack)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;
    use crate::conntrack::{Family, Flow, Protocol, Selection};

    /// Tells each dump; the first ones fail, by a panic if so.
    struct Table {
        failures: usize,
        panics: bool,
        dumps: Sender<(Selection, Instant)>,
    }

    impl Conntrack for Table {
        fn dump(&mut self, selection: Selection, _visit: &mut dyn FnMut(&Flow)) -> Result<(), Error> {
            self.dumps.send((selection, Instant::now())).unwrap();
            self.failures = self.failures.saturating_sub(1);
            assert!(self.failures == 0 || !self.panics, "out of luck");
            if self.failures > 0 { Err(Error::Interrupted) } else { Ok(()) }
        }

        fn delete(&mut self, flows: &[Flow]) -> Result<usize, Error> {
            Ok(flows.len())
        }
    }

    const UDP: Selection = Selection { family: Family::V4, protocol: Protocol::Udp };
    const PATIENCE: Duration = Duration::from_secs(30);

    fn frontend() -> Frontend {
        Frontend::new(Protocol::Udp, "10.96.0.10:53".parse().unwrap())
    }

    fn served_by(endpoints: &[&str]) -> Commit {
        let endpoints = endpoints.iter().map(|endpoint| endpoint.parse().unwrap()).collect();
        Commit { frontends: vec![(frontend(), Some(endpoints))], ..Commit::default() }
    }

    /// The thread, and what it reads. It cannot be opened at first, and then cannot be read.
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
        Timing { first_retry: Duration::from_millis(1), second_look: Duration::from_millis(1), ..Timing::default() }
    }

    fn dumps(read: &Receiver<(Selection, Instant)>, count: usize) {
        for _ in 0..count {
            assert_eq!(read.recv_timeout(PATIENCE).unwrap().0, UDP);
        }
    }

    #[test]
    fn what_fails_is_tried_again_without_another_commit() {
        for (not_opened, failures) in [(0, 0), (3, 0), (0, 4), (3, 4)] {
            let (cleaner, read) = cleaner(not_opened, failures, fast());
            cleaner.committed(served_by(&[]));
            // The attempts that fail, the one that succeeds, and the second look.
            dumps(&read, failures.saturating_sub(1) + 2);
            drop(cleaner);
            assert!(read.try_recv().is_err(), "done is done");
        }
    }

    /// Without its thread no stale flow is ended.
    #[test]
    fn a_panic_is_a_failure_like_others() {
        let (dumps, read) = channel();
        let mut lives = [2, 0].into_iter();
        // The connection is made anew, and then it goes well.
        let open = move || Ok(Table { failures: lives.next().unwrap_or(0), panics: true, dumps: dumps.clone() });
        let cleaner = Cleaner::with(open, |_| {}, fast()).unwrap();
        cleaner.committed(served_by(&["10.244.0.2:53"]));
        self::dumps(&read, 3);
        cleaner.committed(served_by(&[]));
        self::dumps(&read, 2);
        drop(cleaner);
        assert!(read.try_recv().is_err(), "done is done");
    }

    #[test]
    fn what_waits_for_long_is_each_frontend_once_as_it_is_now() {
        let inbox = Inbox::default();
        for count in 0..10_000 {
            inbox.put(served_by(if count % 2 == 0 { &["10.244.0.2:53"] } else { &[] }));
            inbox.put(Commit { remembered: vec![frontend()], recheck: count == 0, ..Commit::default() });
        }
        let waiting = inbox.take(None).unwrap();
        assert_eq!((waiting.frontends.len(), waiting.remembered.len(), waiting.recheck), (1, 1, true));
        assert!(waiting.frontends[&frontend()].as_ref().is_some_and(Endpoints::is_empty));
        assert!(inbox.take(Some(Instant::now())).is_none(), "taken once");
        inbox.end();
        assert!(inbox.take(None).is_some_and(|waiting| waiting.ended));
    }

    /// Two commits, of which the second takes away what the first one gave, come before there was a look: flows that began in between
    /// go to an endpoint that serves no longer.
    #[test]
    fn a_state_that_was_soon_replaced_is_looked_at() {
        const A: &str = "10.244.0.2:53";
        const B: &str = "10.244.0.3:53";
        let gone = || Commit { frontends: vec![(frontend(), None)], ..Commit::default() };
        for (commits, expected) in [
            ([served_by(&[A]), served_by(&[])], Due::Now),
            ([served_by(&[A]), served_by(&[B])], Due::Now),
            ([served_by(&[A]), gone()], Due::Now),
            ([gone(), served_by(&[])], Due::Nothing),
            ([served_by(&[]), served_by(&[])], Due::Nothing),
        ] {
            for joined in [true, false] {
                let (dumps, _read) = channel();
                let table = Table { failures: 0, panics: false, dumps };
                let mut table = Some(table);
                let mut worker =
                    Worker::new(move || Ok(table.take().expect("it is opened once")), |_: &Report| {}, fast());
                let inbox = Inbox::default();
                inbox.put(served_by(&[]));
                worker.take(inbox.take(None).unwrap());
                while worker.reconciler.due() != Due::Nothing {
                    worker.clean();
                }
                for commit in &commits {
                    inbox.put(commit.clone());
                    if !joined {
                        worker.take(inbox.take(None).unwrap());
                    }
                }
                if joined {
                    worker.take(inbox.take(None).unwrap());
                }
                assert_eq!(worker.reconciler.due(), expected, "{commits:?} {joined}");
            }
        }
    }

    #[test]
    fn the_second_look_comes_a_moment_after_the_first() {
        let second_look = Duration::from_millis(50);
        let (cleaner, read) = cleaner(0, 0, Timing { second_look, ..Timing::default() });
        cleaner.committed(served_by(&[]));
        let [(_, first), (_, second)] = std::array::from_fn(|_| read.recv_timeout(PATIENCE).unwrap());
        assert!(second - first >= second_look);
        drop(cleaner);
    }

    #[test]
    fn only_changes_that_matter_read_the_table() {
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
    fn a_recheck_reads_whatever_did_not_change() {
        let (cleaner, read) = cleaner(0, 0, fast());
        cleaner.committed(served_by(&["10.244.0.2:53"]));
        dumps(&read, 2);
        cleaner.committed(Commit { recheck: true, ..Commit::default() });
        dumps(&read, 2);
        drop(cleaner);
    }

    #[test]
    fn runs_are_told_by_family() {
        let (tell, told) = channel();
        let (dumps, _read) = channel();
        let open = move || Ok(Table { failures: 0, panics: false, dumps: dumps.clone() });
        let cleaner =
            Cleaner::with(open, move |report| tell.send(report.families.map(|of| of.is_some())).unwrap(), fast());
        let cleaner = cleaner.unwrap();
        cleaner.committed(served_by(&[]));
        assert_eq!(told.recv_timeout(PATIENCE).unwrap(), [true, false]);
        drop(cleaner);
    }

    #[test]
    fn the_end_waits_for_what_is_due() {
        let (cleaner, read) = cleaner(0, 0, Timing::default());
        cleaner.committed(served_by(&[]));
        drop(cleaner);
        assert_eq!(read.try_iter().count(), 1);
    }
}
