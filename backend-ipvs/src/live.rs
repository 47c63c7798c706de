//! [`LiveBackend`]: the backend on a live node. It also drains removed endpoints.
//!
//! nf_tables reports the commits of other programs, but IPVS sends no notifications. So the backend periodically reads its
//! virtual servers. The pauses between these reads are so long that reading takes about 1 % of the time.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use localnet_client::vips::Config;
use localnet_linux::{
    addresses::NodeAddresses,
    ipvs,
    nft::{Event, Subscription},
    sysctl::Settings,
};
use localnet_linux_backend::{
    live::{Live, Watch},
    traffic,
};
use tokio::{select, time};
use tracing::{debug, error, info, warn};

use crate::{
    Host, IpvsBackend, Options,
    backend::DEPRECATION,
    plan::{self, INTERFACE},
    statistics::Statistics,
};

/// The ipvs backend of the node, or network namespace, in which it was opened.
pub type LiveBackend = Live<IpvsBackend<Host>, Servers>;

/// Opens the backend, which programs nothing yet, and applies the kernel settings. `max_counted`: how many Service ports' traffic is counted
/// separately; 0 to count none. Must be called in a tokio runtime.
///
/// # Errors
/// Returns an error if privileges or the modules of IPVS are missing.
pub async fn open(config: Config, options: Options, max_counted: usize) -> anyhow::Result<LiveBackend> {
    // kube-proxy logs this at the same level.
    error!("{DEPRECATION}");
    let mut kernel = Host::open()?;
    for result in ipvs::apply_settings(&Settings::default(), options.strict_arp) {
        match result {
            Ok((name, set)) => debug!(name, ?set, "kernel setting"),
            Err(error) => warn!(%error, "cannot apply a setting that virtual servers need"),
        }
    }
    kernel.set_timeouts(&options.timeouts)?;
    let commits = Subscription::subscribe(kernel.nft_port());
    let mut backend = IpvsBackend::new(config, options, kernel);
    backend.check().context("cannot program IPVS")?;
    let source = || Some(Box::new(Statistics::open().ok()?) as Box<_>);
    let backend = backend.counting(traffic::start_reading("ipvs", max_counted, source));
    let now = Instant::now();
    let servers = Servers { commits, list_at: now + LIST, unreadable: false, drain_at: now, began: now };
    Ok(Live::new(backend, servers, NodeAddresses::except(INTERFACE)).await)
}

/// Notices when other programs change virtual servers or tables. Also deletes destinations that have drained.
#[derive(Debug)]
pub struct Servers {
    commits: Subscription,
    /// When to read the virtual servers again.
    list_at: Instant,
    /// Whether the last read of the virtual servers failed. If so, the log already contains a warning.
    unreadable: bool,
    /// When to check the draining destinations again.
    drain_at: Instant,
    began: Instant,
}

/// The pause between two reads of the virtual servers is 100 times as long as the last read took, but at least 2 s and at most
/// 30 s, the default interval at which kube-proxy writes all virtual servers.
const LIST: Duration = Duration::from_secs(2);
const LIST_REST: u32 = 100;
const LIST_AT_LEAST: Duration = Duration::from_secs(30);
/// The pause between two checks of the draining destinations is 50 times as long as the last check took, but at least 1 s.
const DRAIN: Duration = Duration::from_secs(1);
const DRAIN_REST: u32 = 50;

impl Servers {
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

    /// Reads virtual servers and addresses. Returns whether they need a repair. If a call is cancelled, the next call continues
    /// the check.
    async fn check_servers(&mut self, backend: &mut IpvsBackend<Host>) -> bool {
        let began = Instant::now();
        self.list_at = began + LIST_AT_LEAST;
        let result = backend.is_undisturbed().await;
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

    /// Deletes destinations that have drained. May be cancelled, like `check_servers`.
    async fn drain(&mut self, backend: &mut IpvsBackend<Host>) {
        let began = Instant::now();
        self.drain_at = began + DRAIN;
        if let Err(error) = backend.drain(began - self.began).await {
            debug!("cannot check draining endpoints; retrying: {error:#}");
        }
        self.drain_at = Instant::now() + DRAIN.max(began.elapsed() * DRAIN_REST);
    }
}

impl Watch<IpvsBackend<Host>> for Servers {
    const OBJECTS: &'static str = "virtual servers, kube-ipvs0 or the tables";

    async fn changed(&mut self, backend: &mut IpvsBackend<Host>) {
        loop {
            let drains = backend.is_draining();
            let repair = select! {
                event = self.commits.next() => Self::noticed(&event),
                () = time::sleep_until(self.drain_at.into()), if drains => {
                    self.drain(backend).await;
                    false
                }
                () = time::sleep_until(self.list_at.into()) => self.check_servers(backend).await,
            };
            if repair {
                return;
            }
        }
    }
}
