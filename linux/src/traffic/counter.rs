//! [`Counter`]: a thread that counts the traffic of a network namespace.

use std::{
    collections::HashMap,
    mem,
    net::SocketAddr,
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread::JoinHandle,
    time::{Duration, Instant, SystemTime},
};

use localnet_core::Family;
use tracing::{debug, info, warn};

use super::{Change, Ledger, Reason, Served, Tally, Total, Traffic, ends::Ends};
use crate::conntrack::{Error, Frontend, Kernel, Volume, processor_time};

/// How often to read the events of ended flows. The receive buffer has room for the events of this time, even if 30,000 flows end
/// per second.
const TICK: Duration = Duration::from_millis(200);
/// The shortest time between two dumps.
const PERIOD: Duration = Duration::from_secs(5);
/// How long to rest after a dump, as a multiple of the processor time that it took: dumps take at most 1 % of one processor.
const REST: u32 = 99;
/// How long to wait after a failure.
const RETRY: Duration = Duration::from_secs(10);

/// Counters of the kernel, apart from those of flows. Each has a value that grows while the counter exists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Packets that were refused.
    pub refused: Vec<((Frontend, Reason), u64)>,
    /// Traffic of the endpoints of frontends.
    pub balanced: Vec<((Frontend, SocketAddr), Total)>,
}

/// Reads counters of the kernel. Called in the thread of the counter.
pub trait Source: Send {
    /// Reads all counters.
    ///
    /// # Errors
    /// Returns an error if they cannot be read now.
    fn read(&mut self) -> anyhow::Result<Reading>;
}

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
    /// [`Self::changed`]. `max_ports` is the largest number of Service ports that have totals of their own. `flows`: whether to
    /// count flows of connection tracking. `source`: other counters. `report` converts the traffic, with the time until which it
    /// was counted. If the system refuses another thread, this logs a warning and returns `None`.
    pub fn start(
        max_ports: usize,
        flows: bool,
        source: Option<Box<dyn Source>>,
        report: impl Fn(SystemTime, Traffic) -> R + Send + 'static,
    ) -> Option<Self> {
        let (inbox, woken, counted) = Default::default();
        let shared = Arc::new(Shared { inbox, woken, counted });
        let inner = Arc::clone(&shared);
        let work = move || Worker::new(max_ports, flows, source).run(&inner, report);
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
    /// Whether to count flows.
    flows: bool,
    kernel: Option<(Kernel, Ends)>,
    source: Option<Counters>,
    next_dump: Instant,
    failing: bool,
}

/// Counters apart from those of flows.
struct Counters {
    source: Box<dyn Source>,
    refused: Tally<(Frontend, Reason), 1>,
    balanced: Tally<(Frontend, SocketAddr), 5>,
    failing: bool,
}

impl Counters {
    fn count(&mut self, ledger: &mut Ledger) {
        let Reading { refused, balanced } = match self.source.read() {
            Ok(reading) => reading,
            Err(error) if mem::replace(&mut self.failing, true) => return debug!("still failing to count: {error:#}"),
            Err(error) => return warn!("failed to read what the rules have counted; retrying: {error:#}"),
        };
        self.failing = false;
        for ((frontend, reason), [packets]) in
            self.refused.read(refused.into_iter().map(|(key, packets)| (key, [packets])))
        {
            ledger.refused(frontend, reason, packets);
        }
        let numbers = |Total { connections, original, reply }| {
            [connections, original.packets, original.bytes, reply.packets, reply.bytes]
        };
        let balanced = balanced.into_iter().map(|(key, total)| (key, numbers(total)));
        for ((frontend, endpoint), [connections, packets, bytes, reply_packets, reply_bytes]) in
            self.balanced.read(balanced)
        {
            let original = Volume { packets, bytes };
            let reply = Volume { packets: reply_packets, bytes: reply_bytes };
            ledger.balanced(frontend, endpoint, Total { connections, original, reply });
        }
    }
}

impl Worker {
    fn new(max_ports: usize, flows: bool, source: Option<Box<dyn Source>>) -> Self {
        let source = source.map(|source| Counters {
            source,
            refused: Tally::default(),
            balanced: Tally::default(),
            failing: false,
        });
        Self { ledger: Ledger::new(max_ports), flows, kernel: None, source, next_dump: Instant::now(), failing: false }
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

    /// Counts the flows that have ended. If a dump is due, also counts the open flows and the other counters, and returns true.
    fn count(&mut self, now: Instant) -> Result<bool, Error> {
        let is_due = now >= self.next_dump;
        let began = processor_time();
        let counted = if self.flows { self.count_flows(is_due) } else { Ok(()) };
        if is_due {
            if let Some(source) = &mut self.source {
                source.count(&mut self.ledger);
            }
            if !self.flows {
                self.ledger.begin_dump();
                self.ledger.end_dump(true);
            }
            self.next_dump = now + PERIOD.max(processor_time().saturating_sub(began) * REST);
        }
        counted.map(|()| is_due)
    }

    fn count_flows(&mut self, is_due: bool) -> Result<(), Error> {
        let Self { ledger, kernel, .. } = self;
        let (kernel, ends) = match kernel {
            Some(kernel) => kernel,
            None => kernel.insert((Kernel::open()?, Ends::subscribe()?)),
        };
        drain(ends, ledger)?;
        if !is_due {
            return Ok(());
        }
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
        result
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
