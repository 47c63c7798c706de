//! [`LiveBackend`]: the backend on a live node. Besides programming, it repairs changes that other programs make to its
//! tables, follows the node's addresses, and deletes stale flows.
//!
//! ```text
//!  Monitor (nf_tables) ──┐
//!                        ├─► disturbed() ─► drive ─► sync ─► NftBackend ─► Cleaner
//!  Addresses (rtnetlink)─┘
//! ```

use std::time::{Duration, Instant};

use anyhow::Context as _;
use localnet_client::{
    Backend, Counts, Mode, Synced,
    vips::{Config, Effective},
};
use localnet_linux::{
    addresses::NodeAddresses,
    conntrack::{Cleaner, Recheck},
    nft::{Commit, Event, Subscription},
    pace::Pace,
};
use localnet_proto::{Changes, Snapshot};
use tokio::{select, sync::watch, time};
use tracing::{info, warn};

use crate::{Netlink, NftBackend, backend::blocking};

/// The nft backend of the node, or of the network namespace in which it was opened.
#[derive(Debug)]
pub struct LiveBackend {
    backend: NftBackend<Netlink>,
    cleaner: Option<Cleaner>,
    /// The backend's own counters.
    counts: watch::Sender<Counts>,
    rules: Subscription,
    addresses: NodeAddresses,
    pace: Pace,
    /// When to repair the tables, if they were changed.
    repair_at: Option<Instant>,
    /// Whether flows must be checked again, because rules were missing or wrong since the last check.
    recheck: Recheck,
    /// The process ID of another localnet backend on this node, if a warning has named it already.
    rival: Option<u32>,
    /// The period of resyncs without a notification of a change, and when the next one is due.
    resync: Option<(Duration, Instant)>,
}

impl LiveBackend {
    /// Subscribes to notifications, but programs nothing yet. Must be called in a tokio runtime.
    ///
    /// # Errors
    /// Returns an error if nf_tables cannot be used at all, for instance without privileges.
    pub async fn open(config: Config) -> anyhow::Result<Self> {
        let kernel = Netlink::open()?;
        let port = kernel.port();
        let mut backend = NftBackend::new(config, kernel);
        backend.check().context("program nf_tables")?;
        let counts = watch::Sender::new(Counts::default());
        let count = counts.clone();
        let cleaner = Cleaner::start(move |families| count.send_modify(|counts| counts.flows_checked(families)));
        let mut live = Self {
            backend,
            cleaner,
            counts,
            rules: Subscription::subscribe(port),
            addresses: NodeAddresses::default(),
            pace: Pace::default(),
            repair_at: None,
            recheck: Recheck::default(),
            rival: None,
            resync: None,
        };
        if let Some(addresses) = live.addresses.list_or_warn().await {
            live.backend.set_local_addresses(addresses);
        }
        Ok(live)
    }

    /// Sets the period for checking the tables without a notification, kube-proxy's `syncPeriod`. A check is cheap if
    /// no program has changed them.
    #[must_use]
    pub fn resync_every(mut self, period: Duration) -> Self {
        self.resync = Some((period, Instant::now() + period));
        self
    }

    /// Records a periodic check. Returns whether the tables need a repair.
    fn is_resync_needed(&mut self) -> bool {
        if let Some((period, next)) = &mut self.resync {
            *next = Instant::now() + *period;
        }
        let changed = self.backend.lost_sight();
        if changed {
            info!("another program may have changed the tables unnoticed; resyncing");
        }
        changed
    }

    /// Processes an event. Returns whether the tables need a repair.
    fn noticed(&mut self, event: &Event) -> bool {
        match event {
            Event::Committed(commit) if self.backend.committed_elsewhere(&commit.tables, commit.generation) => {
                self.log_author(commit);
                true
            }
            Event::Committed(_) => false,
            Event::Lost if self.backend.lost_sight() => {
                info!("nf_tables changed faster than the notifications; resyncing");
                true
            }
            Event::Lost => false,
        }
    }

    fn log_author(&mut self, commit: &Commit) {
        let name = commit.process_name.as_deref().unwrap_or("an unknown process");
        let pid = commit.process_id.unwrap_or_default();
        if ["localnet-nft", "localnet-node"].contains(&name) && self.rival != Some(pid) {
            self.rival = Some(pid);
            warn!(pid, "another {name} writes the same tables; stop one of the two: a node may run only one");
        } else {
            info!(by = name, pid, "another program changed the tables; repairing them");
        }
    }

    fn sync_now(&mut self, state: &Snapshot, changes: &Changes) -> anyhow::Result<Synced> {
        let began = Instant::now();
        let repairs = self.repair_at.is_some_and(|at| at <= began);
        if repairs {
            self.repair_at = None;
            self.recheck.rules_changed();
            self.backend.forget();
            self.counts.send_modify(|counts| counts.repairs += 1);
        }
        let result = self.backend.apply(state, changes);
        if repairs && self.pace.repaired(Instant::now(), began.elapsed()) {
            warn!(
                "another program keeps changing the tables ip localnet and ip6 localnet; the backend repairs them less often until it stops"
            );
        }
        let synced = result?;
        let commit = self.recheck.after_sync(!synced.failed.is_empty(), self.backend.take_commit());
        if let Some(cleaner) = &self.cleaner {
            cleaner.committed(commit);
        }
        Ok(synced)
    }
}

impl Backend for LiveBackend {
    fn name(&self) -> &'static str {
        self.backend.name()
    }

    fn mode(&self) -> Option<Mode> {
        self.backend.mode()
    }

    fn counts(&self) -> Option<watch::Receiver<Counts>> {
        Some(self.counts.subscribe())
    }

    fn configuration(&self) -> Option<Effective> {
        self.backend.configuration()
    }

    async fn sync(&mut self, state: &Snapshot, changes: &Changes) -> anyhow::Result<Synced> {
        blocking(|| self.sync_now(state, changes))
    }

    fn retry_refused(&mut self) {
        self.backend.retry_refused();
    }

    async fn cleanup(&mut self) -> anyhow::Result<()> {
        self.backend.cleanup().await
    }

    async fn disturbed(&mut self) {
        loop {
            if let Some(at) = self.repair_at {
                return time::sleep_until(at.into()).await;
            }
            select! {
                event = self.rules.next() => {
                    if self.noticed(&event) {
                        self.repair_at = Some(self.pace.next_at(Instant::now()));
                    }
                }
                () = at(self.resync.map(|(_, next)| next)) => {
                    if self.is_resync_needed() {
                        self.repair_at = Some(self.pace.next_at(Instant::now()));
                    }
                }
                addresses = self.addresses.next() => {
                    if self.backend.set_local_addresses(addresses) {
                        info!("the node's addresses changed; moving its NodePorts");
                        return;
                    }
                }
            }
        }
    }
}

/// Resolves at `instant`; without one, never.
async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => time::sleep_until(instant.into()).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::{process::Command, thread};

    use localnet_client::vips;

    use super::*;

    fn nft(words: &str) -> String {
        let run = Command::new("nft").args(words.split(' ')).output().expect("nft is installed");
        assert!(run.status.success(), "nft {words}: {}", String::from_utf8_lossy(&run.stderr));
        String::from_utf8(run.stdout).unwrap()
    }

    /// Without notifications, the periodic check must find the change.
    #[test]
    fn tables_are_resynced_periodically() {
        let in_namespace = thread::spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("these tests need root");
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let backend = LiveBackend::open(vips::Config::default()).await.unwrap();
                let mut backend = backend.resync_every(Duration::from_millis(20));
                // From here on, the backend gets no notifications.
                backend.rules = Subscription::none();
                let (state, everything) = (Snapshot::default(), Changes::everything());
                assert!(backend.sync(&state, &everything).await.unwrap().failed.is_empty());
                nft("delete table ip localnet");
                time::timeout(Duration::from_secs(60), backend.disturbed()).await.expect("a resync");
                assert!(backend.sync(&state, &Changes::default()).await.unwrap().failed.is_empty());
                assert!(nft("list tables").contains("table ip localnet\n"));
                let counts = backend.counts().map(|counts| counts.borrow().clone());
                assert_eq!(counts.map(|counts| counts.repairs), Some(1));
            });
        });
        in_namespace.join().unwrap();
    }
}
