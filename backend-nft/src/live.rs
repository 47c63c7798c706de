//! [`LiveBackend`]: the backend on a live node. Beside programming it notices and repairs what others change in its tables,
//! follows the node's addresses, and ends stale flows.
//!
//! ```text
//!  Monitor (nf_tables) ──┐
//!                        ├─► disturbed() ─► drive ─► sync ─► NftBackend ─► Cleaner
//!  Addresses (rtnetlink)─┘
//! ```

use std::time::{Duration, Instant};

use anyhow::Context as _;
use localnet_client::{
    Backend, Counts, Synced,
    vips::{Config, Effective},
};
use localnet_linux::{
    addresses::NodeAddresses,
    conntrack::{Cleaner, Recheck},
    nft::{Commit, Event, Follow},
    pace::Pace,
};
use localnet_proto::{Changes, Snapshot};
use tokio::{select, sync::watch, time};
use tracing::{info, warn};

use crate::{Netlink, NftBackend, backend::blocking};

/// The nft backend of the node, or network namespace, in which it was opened.
#[derive(Debug)]
pub struct LiveBackend {
    backend: NftBackend<Netlink>,
    cleaner: Option<Cleaner>,
    /// What is counted beside the syncs.
    counts: watch::Sender<Counts>,
    rules: Follow,
    addresses: NodeAddresses,
    pace: Pace,
    /// The tables were changed: when to repair them.
    repair_at: Option<Instant>,
    /// Rules were missing or wrong, and stale flows were not looked for since.
    recheck: Recheck,
    /// Another instance of ours that was warned of already.
    rival: Option<u32>,
    /// How often the tables are looked at without being told of a change, and when next.
    look: Option<(Duration, Instant)>,
}

impl LiveBackend {
    /// Subscribes to what it follows; nothing is programmed yet. Must be called in a tokio runtime.
    ///
    /// # Errors
    /// nf_tables cannot be used at all, as without privileges.
    pub async fn open(config: Config) -> anyhow::Result<Self> {
        let kernel = Netlink::open()?;
        let port = kernel.port();
        let mut backend = NftBackend::new(config, kernel);
        backend.check().context("program nf_tables")?;
        let counts = watch::Sender::new(Counts::default());
        let count = counts.clone();
        let cleaner = Cleaner::telling(move |families| count.send_modify(|counts| counts.looked(families)));
        let mut live = Self {
            backend,
            cleaner,
            counts,
            rules: Follow::subscribe(port),
            addresses: NodeAddresses::default(),
            pace: Pace::default(),
            repair_at: None,
            recheck: Recheck::default(),
            rival: None,
            look: None,
        };
        if let Some(addresses) = live.addresses.known().await {
            live.backend.set_local_addresses(addresses);
        }
        Ok(live)
    }

    /// Looks at the tables so often without being told of a change: kube-proxy's `syncPeriod`. A look costs nothing when
    /// nobody has changed them.
    #[must_use]
    pub fn looking_every(mut self, period: Duration) -> Self {
        self.look = Some((period, Instant::now() + period));
        self
    }

    /// Says whether the tables are to be repaired.
    fn looked(&mut self) -> bool {
        if let Some((period, next)) = &mut self.look {
            *next = Instant::now() + *period;
        }
        let changed = self.backend.lost_sight();
        if changed {
            info!("the tables may have been changed unseen: reading them");
        }
        changed
    }

    /// Says whether the tables are to be repaired.
    fn noticed(&mut self, event: &Event) -> bool {
        match event {
            Event::Committed(commit) if self.backend.committed_elsewhere(&commit.tables, commit.generation) => {
                self.say_who(commit);
                true
            }
            Event::Committed(_) => false,
            Event::Lost if self.backend.lost_sight() => {
                info!("too much changed in nf_tables to follow it: reading the tables");
                true
            }
            Event::Lost => false,
        }
    }

    fn say_who(&mut self, commit: &Commit) {
        let name = commit.process_name.as_deref().unwrap_or("an unknown process");
        let pid = commit.process_id.unwrap_or_default();
        if ["localnet-nft", "localnet-node"].contains(&name) && self.rival != Some(pid) {
            self.rival = Some(pid);
            warn!(pid, "another {name} writes the same tables: only one may run on a node, stop the other");
        } else {
            info!(by = name, pid, "the tables were changed by someone else, repairing");
        }
    }

    fn sync_now(&mut self, state: &Snapshot, changes: &Changes) -> anyhow::Result<Synced> {
        let began = Instant::now();
        let repairs = self.repair_at.is_some_and(|at| at <= began);
        if repairs {
            self.repair_at = None;
            self.recheck.disturbed();
            self.backend.forget();
            self.counts.send_modify(|counts| counts.repairs += 1);
        }
        let result = self.backend.apply(state, changes);
        if repairs && self.pace.repaired(Instant::now(), began.elapsed()) {
            warn!("someone keeps changing the tables ip localnet and ip6 localnet: repairs slow down until that ends");
        }
        let synced = result?;
        let commit = self.recheck.after(!synced.failed.is_empty(), self.backend.take_commit());
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
                        self.repair_at = Some(self.pace.when(Instant::now()));
                    }
                }
                () = at(self.look.map(|(_, next)| next)) => {
                    if self.looked() {
                        self.repair_at = Some(self.pace.when(Instant::now()));
                    }
                }
                addresses = self.addresses.next() => {
                    if self.backend.set_local_addresses(addresses) {
                        info!("the node's addresses changed: its NodePorts follow");
                        return;
                    }
                }
            }
        }
    }
}

/// Resolves at an instant; never without one.
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

    /// Of what it is not told it learns by looking.
    #[test]
    fn tables_are_looked_at_now_and_then() {
        let in_namespace = thread::spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("these tests need root");
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let backend = LiveBackend::open(vips::Config::default()).await.unwrap();
                let mut backend = backend.looking_every(Duration::from_millis(20));
                // Nobody tells it of changes any more.
                backend.rules = Follow::deaf();
                let (state, everything) = (Snapshot::default(), Changes::everything());
                assert!(backend.sync(&state, &everything).await.unwrap().failed.is_empty());
                nft("delete table ip localnet");
                time::timeout(Duration::from_secs(60), backend.disturbed()).await.expect("it looks");
                assert!(backend.sync(&state, &Changes::default()).await.unwrap().failed.is_empty());
                assert!(nft("list tables").contains("table ip localnet\n"));
                let counts = backend.counts().map(|counts| counts.borrow().clone());
                assert_eq!(counts.map(|counts| counts.repairs), Some(1));
            });
        });
        in_namespace.join().unwrap();
    }
}
