//! Runs the backend's loop in a node, with one state.

use std::{
    fmt::Debug,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread::JoinHandle,
    time::Duration,
};

use localnet_client::{Counts, Options, Report, Revision, Source, SourceError, vips::Config};
use localnet_iptables::{Flavour, IptablesBackend, Tools, desired::Desired, live};
use localnet_lab::Network;
use localnet_proto::{Snapshot, Update, wire::PacketCounts};
use tokio::sync::oneshot;

/// How long to wait for anything that must happen, on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A backend that runs until this value is dropped.
pub(crate) struct Live {
    reports: Receiver<Report>,
    newest: Report,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Live {
    /// Starts the backend and waits until it has applied `state`.
    pub(crate) fn start(network: &Arc<Network>, config: Config, flavour: Flavour, state: Snapshot) -> Self {
        let (reports, reported) = channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let network = network.clone();
        let work = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let state = Snapshot { revision: Revision { instance: 1, rev: 1 }, ..state };
                let source = OneState { state, given: AtomicBool::new(false), reports };
                let backend = live::open(IptablesBackend::new(Desired::new(config), Tools::find(flavour)?), 1).await?;
                let shutdown = async { _ = stopped.await };
                localnet_client::run(backend, source, Options::default(), shutdown).await
            })
        };
        let thread = std::thread::spawn(move || network.node().run(work).unwrap());
        let newest: Report = reported.recv_timeout(PATIENCE).expect("a sync");
        assert!(newest.families.iter().all(|(_, outcome)| outcome.error.is_none()), "{newest:?}");
        Self { reports: reported, newest, stop: Some(stop), thread: Some(thread) }
    }

    /// Waits until the backend reports these counted packets.
    pub(crate) fn await_packets(&mut self, expected: PacketCounts) {
        self.await_counts(&Some(expected), |counts| counts.packets);
    }

    /// Waits until the backend has counted so many connections of one port.
    pub(crate) fn await_connections(&mut self, expected: u64) {
        self.await_counts(&Some(expected), |counts| {
            let totals = counts.traffic.as_ref()?.ports.iter().filter_map(|port| port.total);
            Some(totals.map(|total| total.connections).sum())
        });
    }

    fn await_counts<T: PartialEq + Debug>(&mut self, expected: &T, counted: impl Fn(&Counts) -> T) {
        let counted = |report: &Report| report.counts.as_ref().map(&counted);
        while counted(&self.newest).as_ref() != Some(expected) {
            let next = self.reports.recv_timeout(PATIENCE);
            self.newest = next.unwrap_or_else(|_| panic!("{:?} instead of {expected:?}", counted(&self.newest)));
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            assert!(thread.join().is_ok() || std::thread::panicking());
        }
    }
}

struct OneState {
    state: Snapshot,
    given: AtomicBool,
    reports: Sender<Report>,
}

impl Source for OneState {
    async fn next(&self, _have: Revision, _fold: bool) -> Result<Update, SourceError> {
        if self.given.swap(true, Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        Ok(Update::Full(self.state.clone()))
    }

    async fn report(&self, report: &Report) -> Result<(), SourceError> {
        // After the test, there is no receiver.
        _ = self.reports.send(report.clone());
        Ok(())
    }

    fn describe(&self) -> String {
        "the test".to_owned()
    }
}
