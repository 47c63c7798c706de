//! [`LiveBackend`]: the backend on a live node. It programs the tables, repairs changes by other programs, follows the node's
//! addresses, and deletes stale flows.
//!
//! ```text
//!  Watch (others change the tables) ───────────┐
//!  NodeAddresses (rtnetlink) ──────────────────┴─► disturbed() ─► drive ─► sync ─► IptablesBackend ─► Cleaner
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
    pace::Pace,
};
use localnet_proto::{Changes, Family, Snapshot};
use tokio::{select, sync::watch, time};
use tracing::{info, warn};

use crate::{
    IptablesBackend, Kernel as _, Tools,
    backend::blocking,
    watch::{Hint, Watch},
};

/// The iptables backend of the node, or network namespace, in which it was opened.
#[derive(Debug)]
pub struct LiveBackend {
    backend: IptablesBackend<Tools>,
    cleaner: Option<Cleaner>,
    /// Counters that change between syncs.
    counts: watch::Sender<Counts>,
    watch: Watch,
    addresses: NodeAddresses,
    pace: Pace,
    /// When to read the tables, after a hint that another program changed them.
    read_at: Option<Instant>,
    /// Whether the tables could not be read. The log already has a warning.
    unreadable: bool,
    /// Whether the next sync repairs the tables.
    repairing: bool,
    /// Whether stale flows have to be checked again because rules were missing or wrong.
    recheck: Recheck,
}

/// How long to wait before a retry.
const AGAIN: Duration = Duration::from_secs(1);

impl LiveBackend {
    /// Subscribes to changes of the tables and of the node's addresses. It programs nothing yet. `localhost`: whether NodePorts
    /// answer on 127.0.0.1, too. Must be called in a tokio runtime.
    ///
    /// # Errors
    /// The tables cannot be read, for instance without privileges.
    pub async fn open(config: Config, localhost: bool, tools: Tools) -> anyhow::Result<Self> {
        let watch = Watch::new(tools.flavour());
        let mut tools = tools;
        // Reading needs the same privileges as writing, so this finds missing privileges at the start.
        tools.save(Family::V4, &mut |_| {}).context("read the tables (CAP_NET_ADMIN is needed)")?;
        let counts = watch::Sender::new(Counts::default());
        let count = counts.clone();
        let cleaner = Cleaner::start(move |families| count.send_modify(|counts| counts.flows_checked(families)));
        let backend = IptablesBackend::new(config, tools);
        let mut live = Self {
            backend: if localhost { backend.with_localhost_node_ports() } else { backend },
            cleaner,
            counts,
            watch,
            addresses: NodeAddresses::default(),
            pace: Pace::default(),
            read_at: None,
            unreadable: false,
            repairing: false,
            recheck: Recheck::default(),
        };
        if let Some(addresses) = live.addresses.list_or_warn().await {
            live.backend.set_local_addresses(addresses);
        }
        Ok(live)
    }

    /// Forwards packets that connection tracking calls invalid. Call this before the first state.
    pub fn forwarding_invalid(mut self) -> Self {
        self.backend = self.backend.forwarding_invalid();
        self
    }

    /// Reads the tables. Returns whether they need a repair.
    fn read_tables(&mut self) -> bool {
        let began = Instant::now();
        let result = self.backend.needs_repair();
        self.watch.tables_read(began.elapsed());
        match result {
            Ok(wrong) => {
                self.unreadable = false;
                wrong
            }
            Err(error) => {
                if !std::mem::replace(&mut self.unreadable, true) {
                    warn!(%error, "cannot read the tables; retrying every second");
                }
                self.read_at = Some(Instant::now() + AGAIN);
                false
            }
        }
    }

    fn sync_now(&mut self, state: &Snapshot, changes: &Changes) -> anyhow::Result<Synced> {
        let began = Instant::now();
        let repairs = std::mem::take(&mut self.repairing);
        if repairs {
            self.recheck.rules_changed();
            self.counts.send_modify(|counts| counts.repairs += 1);
        }
        let before = self.watch.before(self.backend.kernel());
        let result = self.backend.apply(state, changes);
        self.watch.wrote(before, self.backend.kernel());
        if repairs && self.pace.repaired(Instant::now(), began.elapsed()) {
            warn!(
                "another program keeps changing the chains of Services; the backend repairs them less often until it stops"
            );
        }
        let rules = self.backend.rule_counts();
        self.counts.send_if_modified(|counts| {
            // The report of this sync carries the counts, so no notification is needed.
            counts.rules = rules;
            false
        });
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
            if let Some(at) = self.read_at {
                time::sleep_until(at.into()).await;
                self.read_at = None;
                if blocking(|| self.read_tables()) {
                    info!("another program changed the chains of Services; repairing them");
                    self.repairing = true;
                    return;
                }
                continue;
            }
            select! {
                hint = self.watch.next() => {
                    let suspicious = match hint {
                        Hint::Read => true,
                        Hint::Check(table) => {
                            let began = Instant::now();
                            let before = self.watch.before(self.backend.kernel());
                            let entered = blocking(|| self.backend.is_entered(table));
                            self.watch.checked(table, began.elapsed(), before, self.backend.kernel());
                            !entered
                        }
                    };
                    if suspicious {
                        self.read_at = Some(self.pace.next_at(Instant::now()));
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
