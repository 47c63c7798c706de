//! [`LiveBackend`]: the backend on a live node. Beside programming it notices and repairs what others change, lets endpoints that
//! are gone drain, follows the node's addresses, and ends stale flows.
//!
//! ```text
//!  Follow (nf_tables) ───┐
//!  Addresses (rtnetlink)─┼─► disturbed() ─► drive ─► sync ─► IpvsBackend ─► Cleaner
//!  clock (IPVS) ─────────┘
//! ```
//!
//! IPVS tells nobody what changes in it: its virtual servers are listed now and then, which costs a hundredth of the time.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use localnet_client::{
    Backend, Counts, Synced, Warning,
    vips::{Config, Effective},
};
use localnet_linux::{
    addresses::NodeAddresses,
    conntrack::{Cleaner, Recheck},
    ipvs,
    nft::{Event, Follow},
    pace::Pace,
    sysctl::Settings,
};
use localnet_proto::{Changes, Snapshot};
use tokio::{select, sync::watch, time};
use tracing::{debug, error, info, warn};

use crate::{
    Host, IpvsBackend, Options,
    backend::DEPRECATION,
    plan::{self, INTERFACE},
};

/// The ipvs backend of the node, or network namespace, in which it was opened.
#[derive(Debug)]
pub struct LiveBackend {
    backend: IpvsBackend<Host>,
    cleaner: Option<Cleaner>,
    /// What is counted beside the syncs.
    counts: watch::Sender<Counts>,
    rules: Follow,
    addresses: NodeAddresses,
    pace: Pace,
    /// Something was changed by others: when to repair it.
    repair_at: Option<Instant>,
    /// Something was missing or wrong, and stale flows were not looked for since.
    recheck: Recheck,
    /// When to list virtual servers again.
    look_at: Instant,
    /// They could not be listed, which was said.
    unreadable: bool,
    /// When to see again which destinations have no connections any more.
    drain_at: Instant,
    began: Instant,
}

/// How often virtual servers are listed, and for how many times as long as that took they are not. However long it takes, they are
/// listed as often as kube-proxy, by default, writes them anew.
const LOOK: Duration = Duration::from_secs(2);
const LOOK_REST: u32 = 100;
const LOOK_AT_LEAST: Duration = Duration::from_secs(30);
/// How often draining destinations are looked at.
const DRAIN: Duration = Duration::from_secs(1);
const DRAIN_REST: u32 = 50;

impl LiveBackend {
    /// Makes the kernel's settings and subscribes to what it follows; nothing is programmed yet. Must be called in a tokio runtime.
    ///
    /// # Errors
    /// IPVS cannot be used at all: without privileges, or without its modules.
    pub async fn open(config: Config, options: Options) -> anyhow::Result<Self> {
        error!("{DEPRECATION}");
        let mut kernel = Host::open()?;
        for result in ipvs::apply_settings(&Settings::default(), options.strict_arp) {
            match result {
                Ok((name, set)) => debug!(name, ?set, "kernel setting"),
                Err(error) => warn!(%error, "a setting that virtual servers need is not made"),
            }
        }
        kernel.set_timeouts(&options.timeouts)?;
        let port = kernel.nft_port();
        let mut backend = IpvsBackend::new(config, options, kernel);
        backend.check().context("program IPVS")?;
        let counts = watch::Sender::new(Counts::default());
        let count = counts.clone();
        let cleaner = Cleaner::telling(move |families| count.send_modify(|counts| counts.looked(families)));
        let now = Instant::now();
        let mut live = Self {
            backend,
            cleaner,
            counts,
            rules: Follow::subscribe(port),
            addresses: NodeAddresses::except(INTERFACE),
            pace: Pace::default(),
            repair_at: None,
            recheck: Recheck::default(),
            look_at: now + LOOK,
            unreadable: false,
            drain_at: now,
            began: now,
        };
        if let Some(addresses) = live.addresses.known().await {
            live.backend.set_local_addresses(addresses);
        }
        Ok(live)
    }

    /// Says whether the tables are to be repaired.
    fn noticed(event: &Event) -> bool {
        match event {
            Event::Committed(commit) => {
                let ours = commit.tables.iter().any(|table| *table.name == *plan::TABLE);
                if ours {
                    let by = commit.process_name.as_deref().unwrap_or("an unknown process");
                    info!(by, pid = commit.process_id, "the tables were changed by someone else, repairing");
                }
                ours
            }
            Event::Lost => true,
        }
    }

    /// Lists virtual servers and addresses; says whether they are to be repaired. If it is broken off, the next one goes on.
    async fn look(&mut self) -> bool {
        let began = Instant::now();
        self.look_at = began + LOOK_AT_LEAST;
        let result = self.backend.is_undisturbed().await;
        self.look_at = Instant::now() + (began.elapsed() * LOOK_REST).clamp(LOOK, LOOK_AT_LEAST);
        match result {
            Ok(undisturbed) => {
                self.unreadable = false;
                if !undisturbed {
                    info!("virtual servers, or addresses of {INTERFACE}, were changed by someone else, repairing");
                }
                !undisturbed
            }
            Err(error) => {
                if !std::mem::replace(&mut self.unreadable, true) {
                    warn!("virtual servers cannot be listed; will be tried again: {error:#}");
                }
                false
            }
        }
    }

    /// May be broken off as well.
    async fn drain(&mut self) {
        let began = Instant::now();
        self.drain_at = began + DRAIN;
        if let Err(error) = self.backend.drain(began - self.began).await {
            debug!("endpoints that are gone are not looked at: {error:#}");
        }
        self.drain_at = Instant::now() + DRAIN.max(began.elapsed() * DRAIN_REST);
    }
}

impl Backend for LiveBackend {
    fn name(&self) -> &'static str {
        self.backend.name()
    }

    fn warnings(&self) -> Vec<Warning> {
        vec![Warning { reason: "IPVSDeprecation", note: DEPRECATION.into() }]
    }

    fn counts(&self) -> Option<watch::Receiver<Counts>> {
        Some(self.counts.subscribe())
    }

    fn configuration(&self) -> Option<Effective> {
        self.backend.configuration()
    }

    async fn sync(&mut self, state: &Snapshot, changes: &Changes) -> anyhow::Result<Synced> {
        let began = Instant::now();
        let repairs = self.repair_at.is_some_and(|at| at <= began);
        if repairs {
            self.repair_at = None;
            self.recheck.disturbed();
            self.backend.forget();
            self.counts.send_modify(|counts| counts.repairs += 1);
        }
        let result = self.backend.apply(state, changes).await;
        if repairs && self.pace.repaired(Instant::now(), began.elapsed()) {
            warn!(
                "someone keeps changing virtual servers, {INTERFACE} or the tables: repairs slow down until that ends"
            );
        }
        let synced = result?;
        let commit = self.recheck.after(!synced.failed.is_empty(), self.backend.take_commit());
        if let Some(cleaner) = &self.cleaner {
            cleaner.committed(commit);
        }
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
            if let Some(at) = self.repair_at {
                return time::sleep_until(at.into()).await;
            }
            let drains = self.backend.is_draining();
            let repair = select! {
                event = self.rules.next() => Self::noticed(&event),
                addresses = self.addresses.next() => {
                    if self.backend.set_local_addresses(addresses) {
                        info!("the node's addresses changed: VIPs and NodePorts follow");
                        return;
                    }
                    false
                }
                () = time::sleep_until(self.drain_at.into()), if drains => {
                    self.drain().await;
                    false
                }
                () = time::sleep_until(self.look_at.into()) => self.look().await,
            };
            if repair {
                self.repair_at = Some(self.pace.when(Instant::now()));
            }
        }
    }
}
