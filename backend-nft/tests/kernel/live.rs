//! Runs the backend's loop in a node, with states that a test sets.

use std::{
    cell::RefCell,
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use localnet_client::vips::Config;
use localnet_client::{Options, Report, Revision, Source, SourceError};
use localnet_lab::Network;
use localnet_nft::live;
use localnet_proto::{Snapshot, Update, traffic::TrafficReport};
use tokio::sync::{oneshot, watch};

/// The longest wait for an expected event, with a margin for a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A backend that runs until this value is dropped.
pub(crate) struct Live {
    states: watch::Sender<Snapshot>,
    syncs: std::sync::mpsc::Receiver<Report>,
    /// The attempts in the last report. A report with equal attempts was not caused by a sync.
    attempts: RefCell<String>,
    traffic: watch::Receiver<TrafficReport>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Live {
    /// Starts the backend and waits until `state` is applied.
    pub(crate) fn start(network: &Arc<Network>, config: Config, state: Snapshot) -> Self {
        Self::counting(network, config, state, 0)
    }

    /// Starts the backend, which counts the traffic of `max_counted` ports, and waits until `state` is applied.
    pub(crate) fn counting(network: &Arc<Network>, config: Config, state: Snapshot, max_counted: usize) -> Self {
        let (states, receiver) = watch::channel(Snapshot::default());
        let (reports, syncs) = std::sync::mpsc::channel();
        let (count, traffic) = watch::channel(TrafficReport::default());
        let (stop, stopped) = oneshot::channel::<()>();
        let network = network.clone();
        let work = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let source = States { states: receiver, reports, traffic: count };
                let shutdown = async { _ = stopped.await };
                let backend = live::open(config, None, false, max_counted).await?;
                localnet_client::run(backend, source, Options::default(), shutdown).await
            })
        };
        let thread = std::thread::spawn(move || network.node().run(work).unwrap());
        let live =
            Self { states, syncs, attempts: RefCell::default(), traffic, stop: Some(stop), thread: Some(thread) };
        live.set(state);
        live
    }

    /// Sets the state and waits until it is applied. Returns the number of syncs since the last wait, including this
    /// one.
    pub(crate) fn set(&self, state: Snapshot) -> usize {
        let rev = self.states.borrow().revision.rev + 1;
        self.states.send(Snapshot { revision: Revision { instance: 1, rev }, ..state }).unwrap();
        1 + std::iter::from_fn(|| Some(self.next_sync())).take_while(|report| report.received.rev < rev).count()
    }

    /// The traffic as reported last.
    pub(crate) fn traffic(&self) -> TrafficReport {
        self.traffic.borrow().clone()
    }

    /// Waits for the first report of traffic.
    pub(crate) fn await_traffic(&self) {
        let began = Instant::now();
        while self.traffic().time_millis == 0 {
            assert!(began.elapsed() < PATIENCE);
        }
    }

    /// Waits for the next sync.
    pub(crate) fn next_sync(&self) -> Report {
        loop {
            let report = self.syncs.recv_timeout(PATIENCE).expect("a sync");
            let mut attempts = String::new();
            for (_, outcome) in &report.families {
                assert_eq!(outcome.error, None);
                attempts += &format!("{:?} {:?} ", outcome.full, outcome.partial);
            }
            if self.attempts.replace(attempts.clone()) != attempts {
                return report;
            }
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.stop = None;
        let ended = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            ended.unwrap().unwrap();
        }
    }
}

struct States {
    states: watch::Receiver<Snapshot>,
    reports: std::sync::mpsc::Sender<Report>,
    traffic: watch::Sender<TrafficReport>,
}

impl Source for States {
    async fn next(&self, have: Revision, _fold: bool) -> Result<Update, SourceError> {
        let is_new = |state: &Snapshot| state.revision != have && state.revision.rev > 0;
        let mut states = self.states.clone();
        let state = states.wait_for(is_new).await.ok().map(|state| state.clone());
        match state {
            Some(state) => Ok(Update::Full(state)),
            None => std::future::pending().await,
        }
    }

    async fn report(&self, report: &Report) -> Result<(), SourceError> {
        // At the end of a test nothing receives the reports.
        _ = self.reports.send(report.clone());
        Ok(())
    }

    async fn report_traffic(&self, traffic: &TrafficReport) -> Result<(), SourceError> {
        self.traffic.send_replace(traffic.clone());
        Ok(())
    }

    fn describe(&self) -> String {
        "a test".to_owned()
    }
}
