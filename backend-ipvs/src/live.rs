//! [`LiveBackend`]: the backend on a live node. It programs IPVS, repairs changes by other programs, drains removed endpoints,
//! follows the node's addresses, and deletes stale flows.
//!
//! ```text
//!  Subscription (nf_tables) ──┐
//!  NodeAddresses (rtnetlink) ─┼─► disturbed() ─► drive ─► sync ─► IpvsBackend ─► Cleaner
//!  clock (IPVS) ──────────────┘
//! ```
//!
//! IPVS sends no notifications. So the backend lists its virtual servers periodically, which takes about 1 % of the time.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use localnet_client::{
    Backend, Code, Counts, Diagnostic, Mode, Subject, Synced,
    vips::{Config, Effective},
};
use localnet_linux::{
    addresses::NodeAddresses,
    conntrack::{Cleaner, Recheck},
    ipvs,
    nft::{Event, Subscription},
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
    /// Counters that change between syncs.
    counts: watch::Sender<Counts>,
    rules: Subscription,
    addresses: NodeAddresses,
    pace: Pace,
    /// When to repair a change by another program.
    repair_at: Option<Instant>,
    /// Whether stale flows have to be checked again because something was missing or wrong.
    recheck: Recheck,
    /// When to list the virtual servers again.
    list_at: Instant,
    /// Whether the virtual servers could not be listed. The log already has a warning.
    unreadable: bool,
    /// When to check the draining destinations again.
    drain_at: Instant,
    began: Instant,
}

/// The minimum interval between lists of the virtual servers. After a list that took time t, the backend rests 100 × t, but at
/// most 30 s, which is how often kube-proxy writes all virtual servers by default.
const LIST: Duration = Duration::from_secs(2);
const LIST_REST: u32 = 100;
const LIST_AT_LEAST: Duration = Duration::from_secs(30);
/// How often the backend checks draining destinations.
const DRAIN: Duration = Duration::from_secs(1);
const DRAIN_REST: u32 = 50;

impl LiveBackend {
    /// Applies the kernel settings and subscribes to changes. It programs nothing yet. Must be called in a tokio runtime.
    ///
    /// # Errors
    /// IPVS is unusable, because privileges or its modules are missing.
    pub async fn open(config: Config, options: Options) -> anyhow::Result<Self> {
        error!("{DEPRECATION}");
        let mut kernel = Host::open()?;
        for result in ipvs::apply_settings(&Settings::default(), options.strict_arp) {
            match result {
                Ok((name, set)) => debug!(name, ?set, "kernel setting"),
                Err(error) => warn!(%error, "cannot apply a setting that virtual servers need"),
            }
        }
        kernel.set_timeouts(&options.timeouts)?;
        let port = kernel.nft_port();
        let mut backend = IpvsBackend::new(config, options, kernel);
        backend.check().context("program IPVS")?;
        let counts = watch::Sender::new(Counts::default());
        let count = counts.clone();
        let cleaner = Cleaner::start(move |families| count.send_modify(|counts| counts.flows_checked(families)));
        let now = Instant::now();
        let mut live = Self {
            backend,
            cleaner,
            counts,
            rules: Subscription::subscribe(port),
            addresses: NodeAddresses::except(INTERFACE),
            pace: Pace::default(),
            repair_at: None,
            recheck: Recheck::default(),
            list_at: now + LIST,
            unreadable: false,
            drain_at: now,
            began: now,
        };
        if let Some(addresses) = live.addresses.list_or_warn().await {
            live.backend.set_local_addresses(addresses);
        }
        Ok(live)
    }

    /// Whether an event requires a repair of the tables.
    fn noticed(event: &Event) -> bool {
        match event {
            Event::Committed(commit) => {
                let ours = commit.tables.iter().any(|table| *table.name == *plan::TABLE);
                if ours {
                    let by = commit.process_name.as_deref().unwrap_or("an unknown process");
                    info!(by, pid = commit.process_id, "another program changed the tables; repairing them");
                }
                ours
            }
            Event::Lost => true,
        }
    }

    /// Lists virtual servers and addresses. Returns whether they need a repair. If it is cancelled, the next call continues.
    async fn check_servers(&mut self) -> bool {
        let began = Instant::now();
        self.list_at = began + LIST_AT_LEAST;
        let result = self.backend.is_undisturbed().await;
        self.list_at = Instant::now() + (began.elapsed() * LIST_REST).clamp(LIST, LIST_AT_LEAST);
        match result {
            Ok(undisturbed) => {
                self.unreadable = false;
                if !undisturbed {
                    info!("another program changed virtual servers or addresses of {INTERFACE}; repairing them");
                }
                !undisturbed
            }
            Err(error) => {
                if !std::mem::replace(&mut self.unreadable, true) {
                    warn!("cannot list the virtual servers; retrying: {error:#}");
                }
                false
            }
        }
    }

    /// Deletes destinations that have drained. May be cancelled as well.
    async fn drain(&mut self) {
        let began = Instant::now();
        self.drain_at = began + DRAIN;
        if let Err(error) = self.backend.drain(began - self.began).await {
            debug!("cannot check draining endpoints; retrying: {error:#}");
        }
        self.drain_at = Instant::now() + DRAIN.max(began.elapsed() * DRAIN_REST);
    }
}

impl Backend for LiveBackend {
    fn name(&self) -> &'static str {
        self.backend.name()
    }

    fn mode(&self) -> Option<Mode> {
        self.backend.mode()
    }

    fn warnings(&self) -> Vec<Diagnostic> {
        vec![Diagnostic::new(Code::IpvsDeprecated, Subject::Program, DEPRECATION)]
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
            self.recheck.rules_changed();
            self.backend.forget();
            self.counts.send_modify(|counts| counts.repairs += 1);
        }
        let result = self.backend.apply(state, changes).await;
        if repairs && self.pace.repaired(Instant::now(), began.elapsed()) {
            warn!(
                "another program keeps changing virtual servers, {INTERFACE} or the tables; the backend repairs them less often until it stops"
            );
        }
        let synced = result?;
        let commit = self.recheck.after_sync(!synced.failed.is_empty(), self.backend.take_commit());
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
                        info!("the node's addresses changed; moving VIPs and NodePorts");
                        return;
                    }
                    false
                }
                () = time::sleep_until(self.drain_at.into()), if drains => {
                    self.drain().await;
                    false
                }
                () = time::sleep_until(self.list_at.into()) => self.check_servers().await,
            };
            if repair {
                self.repair_at = Some(self.pace.next_at(Instant::now()));
            }
        }
    }
}
