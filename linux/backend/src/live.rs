//! [`Live`]: a backend on a live node. It repairs changes by other programs, follows the node's addresses, and deletes stale flows.
//!
//! ```text
//!  Watch (others change the kernel) ─┐
//!  NodeAddresses (rtnetlink) ────────┴─► disturbed() ─► drive ─► sync ─► the backend ─► Cleaner
//! ```

use std::{net::IpAddr, time::Duration};

use localnet_client::{Backend, Counts, Diagnostic, Mode, Synced, vips::Effective};
use localnet_linux::{
    addresses::NodeAddresses,
    conntrack::{Cleaner, Commit, Recheck},
    pace::Pace,
};
use localnet_proto::{Changes, Family, Snapshot};
use tokio::{
    select,
    sync::watch,
    time::{self, Instant, Interval},
};
use tracing::{info, warn};

/// A backend that a [`Live`] can run.
pub trait LinuxBackend: Backend {
    /// Sets the addresses of the node's interfaces. Returns whether the next sync changes anything because of them.
    fn set_local_addresses(&mut self, addresses: Vec<IpAddr>) -> bool;

    /// Marks the applied state as unknown, so that the next sync reads the live state.
    fn forget(&mut self);

    /// The VIPs whose flows may be stale after the last sync. The sync has `failed` for some families: what it could not remove there
    /// follows when a sync succeeds.
    fn take_commit(&mut self, failed: &[Family]) -> Commit;

    /// Updates the backend's own counters, after each sync and every 5 s.
    fn count(&self, _: &mut Counts) {}
}

/// Notices when other programs change what a backend has programmed.
pub trait Watch<B: LinuxBackend>: Send {
    /// What the backend programs, for the log, such as `the tables ip localnet and ip6 localnet`.
    const OBJECTS: &'static str;

    /// Waits until another program may have changed something. Cancel-safe.
    fn changed(&mut self, backend: &mut B) -> impl Future<Output = ()> + Send;

    /// Decides whether the next sync has to repair something. Called some time after [`Self::changed`] returned.
    fn verify(&mut self, backend: &mut B) -> Verdict {
        backend.forget();
        Verdict::Repair
    }

    /// Called before each sync, with what changed since the last one.
    fn before_sync(&mut self, _: &mut B, _: &Changes) {}

    /// Called after each sync.
    fn after_sync(&mut self, _: &mut B) {}
}

/// The node around a backend.
pub trait Node: Send {
    /// The addresses of the node's interfaces; `None` if they cannot be listed now.
    fn addresses(&mut self) -> impl Future<Output = Option<Vec<IpAddr>>> + Send;

    /// Waits until the addresses change, and returns them. Cancel-safe.
    fn changed_addresses(&mut self) -> impl Future<Output = Vec<IpAddr>> + Send;

    /// A sync begins, which may change rules. Flows to endpoints that it adds must stay, although no commit names them yet.
    fn begin_sync(&mut self);

    /// The sync has ended, also if it was cancelled. [`Self::committed`] has been called before, if the sync succeeded.
    fn end_sync(&mut self);

    /// Lets the flows that a commit made stale be deleted. Does not wait for it.
    fn committed(&mut self, commit: Commit);
}

/// A sync in progress, which ends when this is dropped.
struct Syncing<'a, N: Node>(&'a mut N);

impl<'a, N: Node> Syncing<'a, N> {
    fn begin(node: &'a mut N) -> Self {
        node.begin_sync();
        Self(node)
    }
}

impl<N: Node> Drop for Syncing<'_, N> {
    fn drop(&mut self) {
        self.0.end_sync();
    }
}

/// The network namespace of the thread that opened the backend.
#[derive(Debug)]
pub struct Namespace {
    addresses: NodeAddresses,
    cleaner: Option<Cleaner>,
}

impl Node for Namespace {
    async fn addresses(&mut self) -> Option<Vec<IpAddr>> {
        self.addresses.list_or_warn().await
    }

    async fn changed_addresses(&mut self) -> Vec<IpAddr> {
        self.addresses.next().await
    }

    fn begin_sync(&mut self) {
        self.cleaner.iter().for_each(Cleaner::begin_sync);
    }

    fn end_sync(&mut self) {
        self.cleaner.iter().for_each(Cleaner::end_sync);
    }

    fn committed(&mut self, commit: Commit) {
        if let Some(cleaner) = &self.cleaner {
            cleaner.committed(commit);
        }
    }
}

/// How often the backend's own counters are updated between syncs.
const COUNT: Duration = Duration::from_secs(5);

/// What to do after a change by another program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Sync now.
    Repair,
    /// Nothing has to be repaired.
    Fine,
    /// Decide again after this time.
    Later(Duration),
}

/// The backend of a node: by default, of the network namespace in which it was opened.
#[derive(Debug)]
pub struct Live<B, W, N = Namespace> {
    backend: B,
    watch: W,
    node: N,
    /// The backend's own counters, which also change between syncs.
    counts: watch::Sender<Counts>,
    /// When to update the counters between syncs.
    count: Interval,
    pace: Pace,
    /// When to verify that another program has changed something.
    verify_at: Option<Instant>,
    /// Whether the next sync repairs something.
    repairing: bool,
    /// Decides whether a commit has to check all flows.
    recheck: Recheck,
}

impl<B: LinuxBackend, W: Watch<B>> Live<B, W> {
    /// Follows the node's addresses, but programs nothing yet. Must be called in a tokio runtime.
    pub async fn new(backend: B, watch: W, addresses: NodeAddresses) -> Self {
        let counts = watch::Sender::default();
        let count: watch::Sender<Counts> = watch::Sender::clone(&counts);
        let cleaner = Cleaner::start(move |families| count.send_modify(|counts| counts.flows_checked(families)));
        Self::on(Namespace { addresses, cleaner }, backend, watch, counts).await
    }
}

impl<B: LinuxBackend, W: Watch<B>, N: Node> Live<B, W, N> {
    /// The same on any node. It shares its counters with the node. Must be called in a tokio runtime.
    pub async fn on(mut node: N, mut backend: B, watch: W, counts: watch::Sender<Counts>) -> Self {
        if let Some(addresses) = node.addresses().await {
            backend.set_local_addresses(addresses);
        }
        Self {
            backend,
            watch,
            node,
            counts,
            count: time::interval(COUNT),
            pace: Pace::default(),
            verify_at: None,
            repairing: false,
            recheck: Recheck::default(),
        }
    }
}

impl<B: LinuxBackend, W: Watch<B>, N: Node> Backend for Live<B, W, N> {
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
        Some(self.counts.subscribe())
    }

    fn configuration(&self) -> Option<Effective> {
        self.backend.configuration()
    }

    async fn sync(&mut self, state: &Snapshot, changes: &Changes) -> anyhow::Result<Synced> {
        let began = Instant::now();
        let repairs = std::mem::take(&mut self.repairing);
        if repairs {
            self.recheck.rules_changed();
            self.counts.send_modify(|counts| counts.repairs += 1);
        }
        self.watch.before_sync(&mut self.backend, changes);
        let syncing = Syncing::begin(&mut self.node);
        let result = self.backend.sync(state, changes).await;
        self.watch.after_sync(&mut self.backend);
        if repairs && self.pace.repaired(Instant::now().into_std(), began.elapsed()) {
            let objects = W::OBJECTS;
            warn!("another program keeps changing {objects}; until it stops, the backend repairs them less often");
        }
        self.counts.send_if_modified(|counts| {
            self.backend.count(counts);
            // The report of this sync carries the counts, so no notification is needed.
            false
        });
        let synced = result?;
        let failed: Vec<_> = synced.failed.iter().map(|(family, _)| *family).collect();
        let commit = self.backend.take_commit(&failed);
        let commit = self.recheck.after_sync(!failed.is_empty(), !synced.full.is_empty(), commit);
        syncing.0.committed(commit);
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
            if let Some(at) = self.verify_at {
                time::sleep_until(at).await;
                self.verify_at = None;
                match self.watch.verify(&mut self.backend) {
                    Verdict::Repair => {
                        self.repairing = true;
                        return;
                    }
                    Verdict::Fine => {}
                    Verdict::Later(pause) => self.verify_at = Some(Instant::now() + pause),
                }
                continue;
            }
            select! {
                _ = self.count.tick() => {
                    self.counts.send_if_modified(|counts| {
                        let before = counts.clone();
                        self.backend.count(counts);
                        *counts != before
                    });
                }
                () = self.watch.changed(&mut self.backend) => {
                    self.verify_at = Some(self.pace.next_at(Instant::now().into_std()).into());
                }
                addresses = self.node.changed_addresses() => {
                    if self.backend.set_local_addresses(addresses) {
                        info!("the node's addresses changed; updating the VIPs that depend on them");
                        return;
                    }
                }
            }
        }
    }
}
