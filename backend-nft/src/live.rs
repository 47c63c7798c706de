//! [`LiveBackend`]: the backend on a live node. nf_tables reports the commits of other programs.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use localnet_client::{Changes, vips::Config};
use localnet_linux::{
    addresses::NodeAddresses,
    nft::{Commit, Event, Subscription},
};
use localnet_linux_backend::{
    live::{Live, Watch},
    traffic,
};
use tokio::{select, time};
use tracing::{info, warn};

use crate::{Netlink, NftBackend, refused::Refused};

/// The nft backend of the node, or of the network namespace in which it was opened.
pub type LiveBackend = Live<NftBackend<Netlink>, Tables>;

/// Opens the backend, which programs nothing yet. `resync_every` is the interval of the periodic checks, which find changes
/// that no notification reported. A check is cheap if no program has changed the tables. `canary`: another proxy serves the Services that
/// the state does not contain. `max_counted`: how many Service ports' traffic is counted separately; 0 to count none. Must be called in a tokio runtime.
///
/// # Errors
/// Returns an error if nf_tables cannot be used at all, for instance without privileges.
pub async fn open(
    config: Config,
    resync_every: Option<Duration>,
    canary: bool,
    max_counted: usize,
) -> anyhow::Result<LiveBackend> {
    let kernel = Netlink::open()?;
    let tables = Tables::new(Subscription::subscribe(kernel.port()), resync_every);
    let mut backend = NftBackend::new(config, kernel).canary(canary);
    backend.check().context("cannot program nf_tables")?;
    // The backend's use of nf_tables makes the kernel load connection tracking, which counts the traffic.
    let refused = || Some(Box::new(Refused::open().ok()?) as Box<_>);
    let backend = backend.counting(traffic::start("nft", max_counted, refused));
    Ok(Live::new(backend, tables, NodeAddresses::default()).await)
}

/// A sync with at least this many changed Services pauses the subscription.
const LARGE: usize = 256;
/// After this many disturbed large syncs in a row, the next one does not pause the subscription. A program that commits all the
/// time, even to its own tables, would otherwise cause one resync after the other.
const MAX_DISTURBED: u32 = 20;

/// Notices when other programs change the tables.
#[derive(Debug)]
pub struct Tables {
    commits: Subscription,
    /// The process ID of another localnet backend on this node, if a warning has already reported it.
    rival: Option<u32>,
    sight: Sight,
    /// How many large syncs in a row were disturbed by another program's commit.
    disturbed: u32,
    /// The interval of the periodic checks, and when the next check is due.
    resync: Option<(Duration, Instant)>,
}

/// Whether commits of other processes can go unnoticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sight {
    /// The subscription reports all commits.
    Clear,
    /// The subscription is paused during a large sync.
    Paused,
    /// A large sync has ended. Commits during it have not been checked.
    Unchecked,
}

impl Tables {
    fn new(commits: Subscription, resync_every: Option<Duration>) -> Self {
        let resync = resync_every.map(|period| (period, Instant::now() + period));
        Self { commits, rival: None, sight: Sight::Clear, disturbed: 0, resync }
    }

    /// Processes an event. Returns whether the tables need a repair.
    fn noticed(&mut self, event: &Event, backend: &mut NftBackend<Netlink>) -> bool {
        match event {
            Event::Committed(commit) if backend.committed_elsewhere(&commit.tables, commit.generation) => {
                self.log_author(commit);
                true
            }
            Event::Committed(_) => false,
            Event::Lost if backend.lost_sight() => {
                info!("the kernel dropped notifications of nf_tables; resyncing");
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
}

impl Watch<NftBackend<Netlink>> for Tables {
    const OBJECTS: &'static str = "the tables ip localnet and ip6 localnet";

    async fn changed(&mut self, backend: &mut NftBackend<Netlink>) {
        if self.sight == Sight::Unchecked {
            self.sight = Sight::Clear;
            self.disturbed = if backend.lost_sight() { self.disturbed + 1 } else { 0 };
            if self.disturbed > 0 {
                info!("another program changed nf_tables during a large sync; resyncing");
                return;
            }
        }
        loop {
            select! {
                event = self.commits.next() => {
                    if self.noticed(&event, backend) {
                        return;
                    }
                }
                () = at(self.resync.map(|(_, next)| next)) => {
                    self.resync = self.resync.map(|(period, _)| (period, Instant::now() + period));
                    if backend.lost_sight() {
                        info!("another program may have changed the tables unnoticed; resyncing");
                        return;
                    }
                }
            }
        }
    }

    /// Pauses the subscription during a large sync. Otherwise, the kernel and this process would spend as much time on the
    /// notification of each element as on its addition.
    fn before_sync(&mut self, backend: &mut NftBackend<Netlink>, changes: &Changes) {
        let is_large = !backend.knows_tables() || changes.everything || changes.services.len() >= LARGE;
        if !is_large {
            return;
        }
        if self.disturbed < MAX_DISTURBED {
            self.commits.pause();
            self.sight = Sight::Paused;
        } else {
            self.disturbed = 0;
        }
    }

    fn after_sync(&mut self, _: &mut NftBackend<Netlink>) {
        if self.sight == Sight::Paused {
            self.commits.resume();
            self.sight = Sight::Unchecked;
        }
    }
}

/// Resolves at `instant`. Never resolves if there is none.
async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => time::sleep_until(instant.into()).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::{iter, process::Command, thread};

    use localnet_client::{Backend as _, Snapshot};

    use super::*;

    fn nft(words: &str) -> String {
        let run = Command::new("nft").args(words.split(' ')).output().expect("nft is installed");
        assert!(run.status.success(), "nft {words}: {}", String::from_utf8_lossy(&run.stderr));
        String::from_utf8(run.stdout).unwrap()
    }

    /// While the subscription is paused for a large sync, another program's commit must not go unnoticed.
    #[test]
    fn a_change_during_a_large_sync_is_noticed_after_it() {
        let in_namespace = thread::spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("these tests need root");
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let kernel = Netlink::open().unwrap();
                let mut tables = Tables::new(Subscription::subscribe(kernel.port()), None);
                let mut backend = NftBackend::new(Config::default(), kernel);
                let (state, everything) = (Snapshot::default(), Changes::everything());
                let foreign =
                    (0..=MAX_DISTURBED).map(|index| (Some(format!("add table ip t{index}")), index < MAX_DISTURBED));
                let delete = (Some("delete table ip localnet".to_owned()), true);
                // The last foreign table causes no resync, because that sync does not pause.
                for (command, is_noticed) in iter::once((None, false)).chain(foreign).chain([delete]) {
                    tables.before_sync(&mut backend, &everything);
                    assert!(backend.apply(&state, &everything).unwrap().failed.is_empty());
                    if let Some(command) = &command {
                        nft(command);
                    }
                    tables.after_sync(&mut backend);
                    let noticed = time::timeout(Duration::from_millis(500), tables.changed(&mut backend)).await;
                    assert_eq!(noticed.is_ok(), is_noticed, "{command:?}");
                    if is_noticed {
                        tables.verify(&mut backend);
                    }
                }
            });
        });
        in_namespace.join().unwrap();
    }

    /// Without notifications, the periodic check must find the change.
    #[test]
    fn tables_are_resynced_periodically() {
        let in_namespace = thread::spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("these tests need root");
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                // The backend gets no notifications.
                let tables = Tables::new(Subscription::none(), Some(Duration::from_millis(20)));
                let backend = NftBackend::new(Config::default(), Netlink::open().unwrap());
                let mut backend = Live::new(backend, tables, NodeAddresses::default()).await;
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
