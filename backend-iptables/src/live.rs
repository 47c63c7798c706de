//! [`LiveBackend`]: the backend on a live node. After a hint that another program changed the tables, the backend reads
//! them.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use localnet_linux::addresses::NodeAddresses;
use localnet_linux_backend::{
    blocking,
    live::{Live, Verdict},
    traffic,
};
use localnet_proto::{Changes, Family};
use tracing::{info, warn};

use crate::{
    IptablesBackend, Kernel as _, Tools,
    watch::{Before, Hint, Watch},
};

/// The iptables backend of the node, or network namespace, in which it was opened.
pub type LiveBackend = Live<IptablesBackend<Tools>, Tables>;

/// Opens the backend, which programs nothing yet. `max_counted`: how many Service ports' traffic is counted separately; 0 to count
/// none. Must be called in a tokio runtime.
///
/// # Errors
/// Returns an error if the tables cannot be read, for instance without privileges.
pub async fn open(mut backend: IptablesBackend<Tools>, max_counted: usize) -> anyhow::Result<LiveBackend> {
    let watch = Watch::new(backend.kernel().flavour());
    // Reading needs the same privileges as writing, so this finds missing privileges at the start.
    backend.kernel_mut().save(Family::V4, &mut |_| {}).context("cannot read the tables (CAP_NET_ADMIN is needed)")?;
    // Reading the table `nat` makes the kernel load connection tracking, which counts the traffic.
    let backend = backend.counting(traffic::start("iptables", max_counted, || None));
    let tables = Tables { watch, before: None, unreadable: false };
    Ok(Live::new(backend, tables, NodeAddresses::default()).await)
}

/// Notices when other programs change the tables.
#[derive(Debug)]
pub struct Tables {
    watch: Watch,
    /// The counters from before the sync in progress.
    before: Option<Before>,
    /// Whether the last attempt to read the tables failed. The log then already has a warning.
    unreadable: bool,
}

/// How long to wait before the next attempt to read the tables, after a failed one.
const AGAIN: Duration = Duration::from_secs(1);

impl localnet_linux_backend::live::Watch<IptablesBackend<Tools>> for Tables {
    const OBJECTS: &'static str = "the chains of Services";

    async fn changed(&mut self, backend: &mut IptablesBackend<Tools>) {
        loop {
            let Hint::Check(table) = self.watch.next().await else { return };
            let began = Instant::now();
            let before = self.watch.before(backend.kernel());
            let entered = blocking(|| backend.is_entered(table));
            self.watch.checked(table, began.elapsed(), before, backend.kernel());
            if !entered {
                return;
            }
        }
    }

    /// Reads the tables.
    fn verify(&mut self, backend: &mut IptablesBackend<Tools>) -> Verdict {
        let began = Instant::now();
        let result = blocking(|| backend.needs_repair());
        self.watch.tables_read(began.elapsed());
        let was_unreadable = std::mem::replace(&mut self.unreadable, result.is_err());
        match result {
            Ok(true) => {
                info!("another program changed the chains of Services; repairing them");
                Verdict::Repair
            }
            Ok(false) => Verdict::Fine,
            Err(error) => {
                if !was_unreadable {
                    warn!(%error, "cannot read the tables; retrying every second");
                }
                Verdict::Later(AGAIN)
            }
        }
    }

    fn before_sync(&mut self, backend: &mut IptablesBackend<Tools>, _: &Changes) {
        self.before = Some(self.watch.before(backend.kernel()));
    }

    fn after_sync(&mut self, backend: &mut IptablesBackend<Tools>) {
        if let Some(before) = self.before.take() {
            self.watch.wrote(before, backend.kernel());
        }
    }
}
