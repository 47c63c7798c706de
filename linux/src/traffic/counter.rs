//! [`Counter`]: a thread that counts the traffic of a network namespace.

use std::{
    collections::HashMap,
    mem,
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread::JoinHandle,
    time::{Duration, Instant, SystemTime},
};

use localnet_core::Family;
use tracing::{debug, info, warn};

use super::{Change, Ledger, Served, Traffic, ends::Ends};
use crate::conntrack::{Error, Frontend, Kernel, processor_time};

/// How often to read the events of ended flows. The receive buffer has room for the events of this time, even if 30,000 flows end
/// per second.
const TICK: Duration = Duration::from_millis(200);
/// The shortest time between two dumps.
const PERIOD: Duration = Duration::from_secs(5);
/// How long to rest after a dump, as a multiple of the processor time that it took: dumps take at most 1 % of one processor.
const REST: u32 = 99;
/// How long to wait after a failure.
const RETRY: Duration = Duration::from_secs(10);

/// A thread that counts the traffic of a network namespace. `R` is the form in which the caller reads the traffic.
#[derive(Debug)]
pub struct Counter<R> {
    shared: Arc<Shared<R>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared<R> {
    inbox: Mutex<Inbox>,
    woken: Condvar,
    counted: Mutex<Option<Arc<R>>>,
}

#[derive(Debug, Default)]
struct Inbox {
    changes: HashMap<Frontend, Option<Served>>,
    ended: bool,
}

impl<R: Send + Sync + 'static> Counter<R> {
    /// Starts the thread for the calling thread's network namespace. It begins to count after the first call of
    /// [`Self::changed`]. `max_ports` is the largest number of Service ports that have totals of their own. `report` converts
    /// the traffic, with the time until which it was counted. If the system refuses another thread, this logs a warning and
    /// returns `None`.
    pub fn start(max_ports: usize, report: impl Fn(SystemTime, Traffic) -> R + Send + 'static) -> Option<Self> {
        let (inbox, woken, counted) = Default::default();
        let shared = Arc::new(Shared { inbox, woken, counted });
        let inner = Arc::clone(&shared);
        let work = move || Worker::new(max_ports).run(&inner, report);
        let thread = std::thread::Builder::new().name("traffic".to_owned()).spawn(work);
        let thread =
            thread.inspect_err(|error| warn!(%error, "failed to start the thread that counts traffic")).ok()?;
        Some(Self { shared, thread: Some(thread) })
    }

    /// Records which frontends have changed. Call this after the rules are in force.
    pub fn changed(&self, changes: impl IntoIterator<Item = Change>) {
        let mut inbox = self.shared.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        inbox.changes.extend(changes);
        self.shared.woken.notify_one();
    }

    /// The traffic as counted last; `None` before the first dump.
    pub fn counted(&self) -> Option<Arc<R>> {
        self.shared.counted.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl<R> Drop for Counter<R> {
    fn drop(&mut self) {
        self.shared.inbox.lock().unwrap_or_else(PoisonError::into_inner).ended = true;
        self.shared.woken.notify_one();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            warn!("the thread that counts traffic has panicked");
        }
    }
}

impl<R> Shared<R> {
    /// Waits until `until`, or for changes. `None` when the counter is dropped.
    fn take(&self, until: Option<Instant>) -> Option<HashMap<Frontend, Option<Served>>> {
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if inbox.ended {
                return None;
            }
            if !inbox.changes.is_empty() || left == Some(Duration::ZERO) {
                return Some(mem::take(&mut inbox.changes));
            }
            inbox = match left {
                None => self.woken.wait(inbox).unwrap_or_else(PoisonError::into_inner),
                Some(left) => self.woken.wait_timeout(inbox, left).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
    }
}

struct Worker {
    ledger: Ledger,
    kernel: Option<(Kernel, Ends)>,
    next_dump: Instant,
    failing: bool,
}

impl Worker {
    fn new(max_ports: usize) -> Self {
        Self { ledger: Ledger::new(max_ports), kernel: None, next_dump: Instant::now(), failing: false }
    }

    fn run<R>(&mut self, shared: &Shared<R>, report: impl Fn(SystemTime, Traffic) -> R) {
        let mut next = None;
        while let Some(changes) = shared.take(next) {
            changes.into_iter().for_each(|change| self.ledger.change(change));
            let now = Instant::now();
            next = Some(now + TICK);
            match self.count(now) {
                Ok(false) => {}
                Ok(true) => {
                    let report = Arc::new(report(SystemTime::now(), self.ledger.traffic()));
                    *shared.counted.lock().unwrap_or_else(PoisonError::into_inner) = Some(report);
                    if mem::take(&mut self.failing) {
                        info!("traffic is counted again");
                    }
                }
                Err(error) => {
                    self.kernel = None;
                    next = Some(now + RETRY);
                    if mem::replace(&mut self.failing, true) {
                        debug!(%error, "still failing to count traffic");
                    } else {
                        warn!(%error, "failed to count traffic; retrying every {RETRY:?}");
                    }
                }
            }
        }
    }

    /// Counts the flows that have ended. If a dump is due, also counts the open flows, and returns true.
    fn count(&mut self, now: Instant) -> Result<bool, Error> {
        let Self { ledger, kernel, .. } = self;
        let (kernel, ends) = match kernel {
            Some(kernel) => kernel,
            None => kernel.insert((Kernel::open()?, Ends::subscribe()?)),
        };
        drain(ends, ledger)?;
        if now < self.next_dump {
            return Ok(false);
        }
        let began = processor_time();
        ledger.begin_dump();
        let mut result = Ok(());
        for family in Family::BOTH {
            let dumped = kernel.translated(family, &mut |flow| match flow {
                // The part of the dump may show flows that have ended in the meantime.
                None => result = mem::replace(&mut result, Ok(())).and_then(|()| drain(ends, ledger)),
                Some((flow, counters)) => ledger.seen(flow, counters),
            });
            result = result.and(dumped);
        }
        // The events of the flows that the dump did not show any more.
        let result = result.and_then(|()| drain(ends, ledger));
        ledger.end_dump(result.is_ok());
        self.next_dump = now + PERIOD.max(processor_time().saturating_sub(began) * REST);
        result.map(|()| true)
    }
}

fn drain(ends: &mut Ends, ledger: &mut Ledger) -> Result<(), Error> {
    let lost = ends.drain(&mut |flow, counters| ledger.ended(flow, counters))?;
    ledger.lost(lost);
    if lost > 0 {
        debug!(lost, "the kernel dropped events of ended flows");
    }
    Ok(())
}
