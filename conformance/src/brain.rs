//! A brain that answers correctly, or with a fault that a check requests. It serves `localnetv1` and the draft of `localnet.v1`: the
//! backend decides which of them it reads.
//!
//! The states come from the feed of `localnet-brain`, so answers without a fault are those of a real brain. The brain has a
//! runtime of its own. When the brain stops, its connections break like those of a killed process.
//!
//! | file | content |
//! |---|---|
//! | `log` | the faults of answers, and what the backend has done |
//! | `service` | the gRPC services |
//! | `package`, `localnetv1`, `v1` | the answers of each package, and their modifications |

mod localnetv1;
mod log;
mod package;
mod service;
mod v1;

use std::{
    fmt, net, process,
    sync::{
        Arc, PoisonError,
        atomic::{AtomicU16, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use localnet_brain::feed::Feed;
use localnet_cluster::localize::Localized;
use localnet_lab::Namespace;
use localnet_proto::{
    Address, Revision, Snapshot,
    v1::wire::{NextStateRequest, backend_service_server::BackendServiceServer},
    wire::{NextFilter, backends_server::BackendsServer},
};
use tokio::runtime::Runtime;

pub use log::{Call, Edit, Fault, Log, Package};
use log::{Shared, lock};
use service::{Reports, States};

use crate::connections::{self, Listener};

/// The instance ID of the first brain. Neither an int64 nor a double can represent it, so a backend that rounds the ID is
/// found.
const INSTANCE: u64 = 0xfedc_ba98_7654_3211;

/// The interval between two checks while waiting for a condition.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// A brain for one backend.
pub struct Brain {
    address: Address,
    shared: Arc<Shared>,
    feed: Feed,
    state: Snapshot,
    runtime: Option<Runtime>,
    /// The TCP listener, while the brain listens on a TCP address.
    listener: Option<net::TcpListener>,
}

impl Brain {
    /// A brain without a state, which does not listen yet.
    pub fn new(address: &Address) -> Self {
        Self {
            address: address.clone(),
            shared: Arc::default(),
            feed: feed(INSTANCE),
            state: Snapshot::default(),
            runtime: None,
            listener: None,
        }
    }

    /// Starts to serve. A TCP address belongs to the namespace `inside`, if there is one; a unix socket needs no namespace.
    ///
    /// # Errors
    /// Returns an error if the address cannot be bound.
    pub fn start(&mut self, inside: Option<&Namespace>) -> anyhow::Result<()> {
        let (shared, feed) = (Arc::clone(&self.shared), &self.feed);
        let reports = Reports { shared: Arc::clone(&shared), feed: feed.clone() };
        let server = tonic::transport::Server::builder()
            .add_service(States::<NextFilter>::new(Arc::clone(&shared), feed.clone()))
            .add_service(States::<NextStateRequest>::new(Arc::clone(&shared), feed.clone()))
            .add_service(BackendsServer::new(reports.clone()))
            .add_service(BackendServiceServer::new(reports));
        self.listen(inside, |listener| {
            let changed = move |by| shared.log(|log| log.open = log.open.saturating_add_signed(by));
            tokio::spawn(server.serve_with_incoming(listener.incoming(changed)));
        })
    }

    /// Closes each new connection immediately, like a brain that is starting or stopping. [`Log::refused_connections`] counts
    /// them.
    ///
    /// # Errors
    /// Returns an error if the address cannot be bound.
    pub fn refuse_connections(&mut self, inside: Option<&Namespace>) -> anyhow::Result<()> {
        let shared = Arc::clone(&self.shared);
        shared.log(|log| log.refused_connections = 0);
        self.listen(inside, |listener| {
            tokio::spawn(listener.refuse_connections(move || shared.log(|log| log.refused_connections += 1)));
        })
    }

    fn listen(&mut self, inside: Option<&Namespace>, serve: impl FnOnce(Listener)) -> anyhow::Result<()> {
        self.stop();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let inside_runtime = runtime.enter();
        let listening = || format!("failed to listen on {}", self.address);
        let listener = match &self.address {
            Address::Unix(path) => Listener::unix(path).with_context(listening)?,
            Address::Tcp { .. } => {
                let listener = connections::tcp(&self.address, inside).with_context(listening)?;
                let listener = listener.with_context(listening)?;
                self.listener = Some(listener.try_clone().with_context(listening)?);
                Listener::tcp(listener).with_context(listening)?
            }
            Address::Pipe(_) => bail!("{}: only Windows has named pipes", self.address),
        };
        serve(listener);
        drop(inside_runtime);
        self.runtime = Some(runtime);
        Ok(())
    }

    /// Stops the brain as abruptly as if its process were killed.
    pub fn stop(&mut self) {
        if let Some(listener) = self.listener.take() {
            release(&listener);
        }
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(5));
        }
        if let Address::Unix(path) = &self.address {
            // The path does not exist before the first start.
            _ = std::fs::remove_file(path);
        }
    }

    /// Publishes a state and returns its revision.
    pub fn publish(&mut self, state: &Snapshot) -> Revision {
        let removed = self.state.services.keys().filter(|key| !state.services.contains_key(*key));
        let removed = removed.map(|key| (key.clone(), None));
        let set = state.services.iter().map(|(key, service)| (key.clone(), Some(Arc::clone(service))));
        let mut services: Vec<_> = removed.chain(set).collect();
        services.sort_by(|(one, _), (other, _)| one.cmp(other));
        self.feed.publish(Localized { node: Some(state.node.clone()), services, ..Localized::default() });
        self.state = state.clone();
        self.feed.state().revision()
    }

    /// Replaces the brain with a new one that has another instance ID and no state. The new brain takes over at the next start.
    pub fn forget(&mut self) {
        let instance = self.feed.state().revision().instance + 1;
        self.feed = feed(instance);
        self.state = Snapshot::default();
    }

    /// Adds faults for the next answers. Each answer gets one of them, in order.
    pub fn faults(&self, faults: impl IntoIterator<Item = Fault>) {
        lock(&self.shared.faults).extend(faults);
    }

    /// Starts the answer that [`Fault::Hold`] delays.
    pub fn release(&self) {
        self.shared.release.notify_one();
    }

    /// Waits until `condition`, called with the log, returns a value.
    ///
    /// # Errors
    /// Returns an error if `condition` returns no value within `patience`. The error contains `what`, the description of the
    /// condition.
    pub fn wait<T>(
        &self,
        patience: Duration,
        what: &str,
        condition: impl FnMut(&Log) -> Option<T>,
    ) -> anyhow::Result<T> {
        self.wait_while(patience, what, || Ok(()), condition)
    }

    /// Like [`Self::wait`], but stops waiting as soon as `check` fails.
    ///
    /// # Errors
    /// Returns an error if `condition` returns no value within `patience`, or if `check` fails.
    pub fn wait_while<T>(
        &self,
        patience: Duration,
        what: &str,
        mut check: impl FnMut() -> anyhow::Result<()>,
        mut condition: impl FnMut(&Log) -> Option<T>,
    ) -> anyhow::Result<T> {
        let deadline = Instant::now() + patience;
        let mut log = lock(&self.shared.log);
        loop {
            if let Some(value) = condition(&log) {
                return Ok(value);
            }
            check()?;
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let (calls, last) = (log.calls.len(), log.calls.last());
                let last = last.map_or(String::new(), |call| format!(", last from {call}"));
                bail!("expected {what} within {patience:?}; the backend requested a state {calls} times{last}");
            }
            let until_check = left.min(CHECK_INTERVAL);
            log = self.shared.changed.wait_timeout(log, until_check).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// How many answers were started.
    pub fn answers_started(&self) -> usize {
        lock(&self.shared.log).answers_started
    }

    /// How many requests for a state there were.
    pub fn calls(&self) -> usize {
        lock(&self.shared.log).calls.len()
    }
}

impl Drop for Brain {
    fn drop(&mut self) {
        self.stop();
    }
}

impl fmt::Debug for Brain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Brain").field("address", &self.address).finish_non_exhaustive()
    }
}

/// A feed for the readers of both packages.
fn feed(instance: u64) -> Feed {
    Feed::with_records(instance, Arc::default())
}

/// A free port of the loopback interface, in a namespace if there is one. It is outside the kernel's ephemeral range: otherwise
/// a backend that tries to reach a stopped brain could connect to itself.
///
/// # Errors
/// Returns an error if no port is free, or if the namespace cannot be entered.
pub fn free_port(inside: Option<&Namespace>) -> anyhow::Result<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let mut ports = std::iter::repeat_with(|| port(process::id(), NEXT.fetch_add(1, Ordering::Relaxed))).take(1_000);
    let is_free = |port: &u16| {
        connections::tcp(&loopback(*port), inside)
            .is_ok_and(|listener| listener.is_some_and(|listener| release(&listener)))
    };
    ports.find(is_free).context("no port is free")
}

/// Frees the port of a listener, and returns whether this succeeded. Closing the socket is not enough: if another thread is
/// starting a program, the program holds a copy of the socket for a short time, and the port stays in use.
fn release(listener: &net::TcpListener) -> bool {
    rustix::net::shutdown(listener, rustix::net::Shutdown::Both).is_ok()
}

/// The port to try next, from 12,100 to 32,099. Kits that run at the same time try different ports. Otherwise two kits
/// could find the same free port, and only the first kit could listen there.
fn port(process_id: u32, index: u16) -> u16 {
    let offset = (process_id % 20_000 * 97 + u32::from(index)) % 20_000;
    12_100 + offset as u16
}

/// The address of a port of the loopback interface.
pub(crate) fn loopback(port: u16) -> Address {
    Address::Tcp { host: "127.0.0.1".to_owned(), port }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two kits that ran at the same time failed with "Address already in use": both started at port 12,100.
    #[test]
    fn kits_at_the_same_time_try_different_ports() {
        for id in [1, 4_691, u32::MAX - 1] {
            assert!(port(id, 0).abs_diff(port(id + 1, 0)) >= 97, "{id}");
        }
        // 32,768 is the first port of the kernel's ephemeral range.
        assert!((0..20_000).all(|index| (12_100..32_768).contains(&port(u32::MAX, index))));
    }
}
