//! [`LiveBackend`]: the backend on a live node. Beside programming it notices and repairs what others change in its chains,
//! follows the node's addresses, and ends stale flows.
//!
//! ```text
//!  Watch (nf_tables, or a check each second) ──┐
//!                                              ├─► disturbed() ─► Adapter says all anew ─► commit ─► Cleaner
//!  Addresses (rtnetlink) ──────────────────────┘
//! ```

use std::{
    collections::VecDeque,
    net::IpAddr,
    ops::RangeInclusive,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use localnet_client::{
    Synced,
    incremental::{Listener, PortEndpoint},
    vips::Config,
};
use localnet_linux::{
    addresses::{self, NodeAddresses},
    conntrack::Cleaner,
    nft::{self, Event, Monitor, Socket},
    pace::Pace,
};
use localnet_proto::{Family, Node, Service, ServiceKey};
use tokio::{select, time};
use tracing::{debug, info, warn};

use crate::{Flavour, IptablesBackend, Kernel as _, Tools, backend::blocking, plan::Table};

/// The iptables backend of the node, or network namespace, in which it was opened.
#[derive(Debug)]
pub struct LiveBackend {
    backend: IptablesBackend<Tools>,
    cleaner: Option<Cleaner>,
    watch: Watch,
    addresses: NodeAddresses,
    /// They could not be listed, which was said.
    addresses_unknown: bool,
    pace: Pace,
    /// The chains may have been changed: when to look.
    look_at: Option<Instant>,
    /// They could not be read, which was said.
    unreadable: bool,
    /// Something was missing or wrong; it is written anew by the next commit.
    repairing: bool,
    /// Rules were missing or wrong, and stale flows were not looked for since.
    recheck: bool,
}

/// After this what failed is tried again.
const AGAIN: Duration = Duration::from_secs(1);

impl LiveBackend {
    /// Subscribes to what it follows; nothing is programmed yet. Must be called in a tokio runtime.
    ///
    /// # Errors
    /// iptables cannot be used at all, as without privileges.
    pub async fn open(config: Config, tools: Tools) -> anyhow::Result<Self> {
        let watch = Watch::new(tools.flavour());
        let mut tools = tools;
        // Reading needs the same privileges as writing.
        tools.save(Family::V4).context("read the tables (CAP_NET_ADMIN is needed)")?;
        let cleaner = Cleaner::start().inspect_err(|error| warn!(%error, "stale flows are not ended")).ok();
        let mut live = Self {
            backend: IptablesBackend::new(config, tools),
            cleaner,
            watch,
            addresses: NodeAddresses::default(),
            addresses_unknown: false,
            pace: Pace::default(),
            look_at: None,
            unreadable: false,
            repairing: false,
            recheck: false,
        };
        let addresses = live.addresses.list().await;
        live.told(addresses);
        Ok(live)
    }

    /// The addresses are these; says whether NodePorts move.
    fn told(&mut self, addresses: Result<Vec<IpAddr>, addresses::Error>) -> bool {
        match addresses {
            Ok(addresses) => {
                self.addresses_unknown = false;
                self.backend.set_local_addresses(addresses)
            }
            Err(error) => {
                if std::mem::replace(&mut self.addresses_unknown, true) {
                    debug!(%error, "the node's addresses are still not known");
                } else {
                    warn!(%error, "the node's addresses are not known; will be asked for again");
                }
                false
            }
        }
    }

    /// Reads the tables; says whether they are to be repaired.
    fn look(&mut self) -> bool {
        let began = Instant::now();
        let result = self.backend.look();
        self.watch.looked(began.elapsed());
        match result {
            Ok(wrong) => {
                self.unreadable = false;
                wrong
            }
            Err(error) => {
                if !std::mem::replace(&mut self.unreadable, true) {
                    warn!(%error, "the tables cannot be read; will be tried again");
                }
                self.look_at = Some(Instant::now() + AGAIN);
                false
            }
        }
    }

    fn commit_now(&mut self) -> anyhow::Result<Synced> {
        let began = Instant::now();
        let repairs = std::mem::take(&mut self.repairing);
        self.recheck |= repairs;
        let before = self.watch.generation();
        let commits = self.backend.kernel().commits();
        let result = self.backend.apply();
        self.watch.wrote(before, self.backend.kernel().commits() - commits);
        if repairs && self.pace.repaired(Instant::now(), began.elapsed()) {
            warn!("someone keeps changing the chains of Services: repairs slow down until that ends");
        }
        let synced = result?;
        let mut commit = self.backend.take_commit();
        commit.recheck = std::mem::take(&mut self.recheck);
        if let Some(cleaner) = &self.cleaner {
            cleaner.committed(commit);
        }
        Ok(synced)
    }
}

impl Listener for LiveBackend {
    fn name(&self) -> &'static str {
        self.backend.name()
    }

    fn set_node(&mut self, node: &Node) {
        self.backend.set_node(node);
    }

    fn set_service(&mut self, service: &Service) {
        self.backend.set_service(service);
    }

    fn delete_service(&mut self, key: &ServiceKey) {
        self.backend.delete_service(key);
    }

    fn set_endpoint(&mut self, service: &ServiceKey, endpoint: &PortEndpoint) {
        self.backend.set_endpoint(service, endpoint);
    }

    fn delete_endpoint(&mut self, service: &ServiceKey, endpoint: &PortEndpoint) {
        self.backend.delete_endpoint(service, endpoint);
    }

    fn reset(&mut self) {
        self.backend.reset();
    }

    async fn commit(&mut self) -> anyhow::Result<Synced> {
        blocking(|| self.commit_now())
    }

    async fn cleanup(&mut self) -> anyhow::Result<()> {
        self.backend.cleanup().await
    }

    async fn disturbed(&mut self) {
        loop {
            if let Some(at) = self.look_at {
                time::sleep_until(at.into()).await;
                self.look_at = None;
                if blocking(|| self.look()) {
                    info!("the chains of Services were changed by someone else, repairing");
                    self.repairing = true;
                    return;
                }
                continue;
            }
            select! {
                hint = self.watch.next() => {
                    let suspicious = match hint {
                        Hint::Look => true,
                        Hint::Check(table) => {
                            let began = Instant::now();
                            let entered = blocking(|| self.backend.is_entered(table));
                            self.watch.checked(table, began.elapsed());
                            !entered
                        }
                    };
                    if suspicious {
                        self.look_at = Some(self.pace.when(Instant::now()));
                    }
                }
                addresses = self.addresses.next() => {
                    if self.told(addresses) {
                        info!("the node's addresses changed: its NodePorts follow");
                        return;
                    }
                }
            }
        }
    }
}

/// What other processes do to the tables: nf_tables tells; ip_tables does not, and is asked.
#[derive(Debug)]
enum Watch {
    Nft(Rules),
    Legacy(Clock),
}

/// What is to be done.
enum Hint {
    /// See whether the chains of a table are still entered.
    Check(Table),
    /// Read the tables.
    Look,
}

impl Watch {
    fn new(flavour: Flavour) -> Self {
        match flavour {
            Flavour::Nft => {
                let socket = Socket::open().inspect_err(|error| debug!(%error, "no nf_tables socket")).ok();
                let mut rules = Rules { socket, monitor: None, again: None, own: VecDeque::new() };
                rules.subscribe();
                Self::Nft(rules)
            }
            Flavour::Legacy => Self::Legacy(Clock {
                checks: Table::ALL.map(|table| (table, Instant::now() + CHECK)),
                look: Instant::now() + LOOK,
            }),
        }
    }

    /// Cancel-safe.
    async fn next(&mut self) -> Hint {
        match self {
            Self::Nft(rules) => {
                rules.next().await;
                Hint::Look
            }
            Self::Legacy(clock) => {
                let [one, other] = clock.checks;
                let (table, check) = if one.1 <= other.1 { one } else { other };
                time::sleep_until(check.min(clock.look).into()).await;
                if clock.look <= Instant::now() { Hint::Look } else { Hint::Check(table) }
            }
        }
    }

    fn generation(&mut self) -> Option<u32> {
        match self {
            Self::Nft(rules) => rules.socket.as_mut()?.generation().ok(),
            Self::Legacy(_) => None,
        }
    }

    /// So many tables were written since that generation.
    fn wrote(&mut self, before: Option<u32>, commits: u32) {
        let after = self.generation();
        let Self::Nft(rules) = self else { return };
        let Some((before, after)) = before.zip(after) else { return };
        // If there were more commits, some were another's, and nobody knows which.
        if commits > 0 && after.wrapping_sub(before) == commits && before < after {
            rules.own.push_back(before + 1..=after);
            if rules.own.len() > REMEMBERED {
                rules.own.pop_front();
            }
        }
    }

    fn checked(&mut self, table: Table, took: Duration) {
        if let Self::Legacy(clock) = self {
            for (_, check) in clock.checks.iter_mut().filter(|(of, _)| *of == table) {
                *check = Instant::now() + CHECK.max(took * CHECK_REST);
            }
        }
    }

    fn looked(&mut self, took: Duration) {
        if let Self::Legacy(clock) = self {
            clock.look = Instant::now() + LOOK.max(took * LOOK_REST);
            clock.checks = Table::ALL.map(|table| (table, Instant::now() + CHECK));
        }
    }
}

/// So many commits of our own may be untold yet.
const REMEMBERED: usize = 64;
/// How often the tables of ip_tables are asked whether they lead to our chains, and how often they are read as a whole.
const CHECK: Duration = Duration::from_millis(700);
const LOOK: Duration = Duration::from_secs(30);
/// Each takes a small share of a processor only: the kernel copies whole tables to answer.
const CHECK_REST: u32 = 8;
const LOOK_REST: u32 = 100;

#[derive(Debug)]
struct Clock {
    checks: [(Table, Instant); 2],
    look: Instant,
}

#[derive(Debug)]
struct Rules {
    socket: Option<Socket>,
    monitor: Option<Monitor>,
    /// There is no subscription: when to subscribe again.
    again: Option<Instant>,
    /// Generations that our own restores began.
    own: VecDeque<RangeInclusive<u32>>,
}

impl Rules {
    fn subscribe(&mut self) -> bool {
        match Monitor::subscribe(Vec::new()) {
            Ok(monitor) => self.monitor = Some(monitor),
            Err(error) if self.again.is_some() => debug!(%error, "still no subscription to nf_tables"),
            Err(error) => warn!(%error, "changes of the tables by others are not noticed; will be tried again"),
        }
        self.again = self.monitor.is_none().then(|| Instant::now() + AGAIN);
        self.monitor.is_some()
    }

    /// Until somebody else changed the tables, or may have. Cancel-safe.
    async fn next(&mut self) {
        loop {
            if let Some(again) = self.again {
                time::sleep_until(again.into()).await;
            }
            let Some(monitor) = &mut self.monitor else {
                if self.subscribe() {
                    return;
                }
                continue;
            };
            match monitor.next().await {
                Ok(Event::Lost) => return,
                Ok(Event::Committed(commit)) => {
                    let concerns = commit.tables.iter().any(|table| ["filter", "nat"].contains(&&*table.name));
                    if concerns && !self.own.iter().any(|range| range.contains(&commit.generation)) {
                        let by = commit.process_name.as_deref().unwrap_or_default();
                        debug!(by, pid = commit.process_id, "the tables were changed, looking");
                        return;
                    }
                }
                Err(error) => self.lose(&error),
            }
        }
    }

    fn lose(&mut self, error: &nft::Error) {
        warn!(%error, "the subscription to nf_tables broke; subscribing again");
        self.monitor = None;
        self.again = Some(Instant::now() + AGAIN);
    }
}
