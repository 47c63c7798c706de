//! Keeps the latest report of each backend in memory.

mod bounds;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use localnet_config::Mode;
use localnet_proto::{
    traffic::{BackendTraffic, TrafficReport},
    v1::report::{BackendStatus, Known},
    wire::BackendReport,
};
use tokio::{sync::watch, time::Instant};

use crate::{feed::History, throttle::Throttle};

/// Maximum number of backends to remember. A node has a handful of backends. More names than this are the sign of a
/// fault or an attack. The limit bounds the memory that reports can occupy.
const MAX_BACKENDS: usize = 64;
/// Maximum length of a backend's name, in bytes.
const MAX_NAME: usize = 253;

/// A report and the time at which it was received.
#[derive(Clone, Debug, PartialEq)]
pub struct Received {
    /// The report of `localnetv1`, or a report of `localnet.v1` converted to it.
    pub report: BackendReport,
    /// When the brain received it.
    pub at: Instant,
    /// The traffic that the backend has counted, and when the brain received the newest counts.
    traffic: Option<(Arc<BackendTraffic>, Instant)>,
    /// The report of `localnet.v1`. `None` for one of `localnetv1`.
    status: Option<Arc<BackendStatus>>,
}

/// How old counts may be. Backends report traffic at intervals of a few seconds, or of a few minutes if there are a million flows.
/// Older counts are from a run of the backend that counted, before one that does not.
const MAX_AGE: Duration = Duration::from_secs(600);

impl Received {
    /// The mode of kube-proxy that the backend corresponds to. `None` if it reports none, or an unknown one.
    pub fn mode(&self) -> Option<Mode> {
        Mode::named(&self.report.proxy_mode)
    }

    /// The report of `localnet.v1`, with all fields that the backend has ever set. `None` for a report of `localnetv1`.
    pub fn status(&self) -> Option<&BackendStatus> {
        self.status.as_deref()
    }

    /// The traffic that the backend has counted; `None` if it counts none.
    pub fn traffic(&self) -> Option<&BackendTraffic> {
        self.traffic.as_ref().filter(|(_, at)| at.elapsed() < MAX_AGE).map(|(traffic, _)| &**traffic)
    }
}

/// The latest report of each backend, by name. Clones share the reports.
#[derive(Clone, Debug, Default)]
pub struct Reports {
    received: watch::Sender<BTreeMap<String, Received>>,
    evictions: Throttle,
    history: History,
}

/// The error for a report with an invalid backend name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the name in the field Backend is empty, longer than {MAX_NAME} bytes, or contains control characters")]
pub struct BadName;

impl Reports {
    /// No reports yet. Their progress is recorded in `history`.
    pub fn recorded(history: History) -> Self {
        Self { history, ..Self::default() }
    }

    /// Stores `report` in place of the backend's previous report. If there are too many backends, forgets the backend
    /// whose report is the oldest.
    ///
    /// # Errors
    /// Returns an error if the backend's name in the report is invalid.
    pub fn record(&self, report: BackendReport) -> Result<(), BadName> {
        let name = report.backend.clone();
        if name.is_empty() || name.len() > MAX_NAME || name.contains(char::is_control) {
            return Err(BadName);
        }
        self.received.send_modify(|reports| self.store(reports, name, report, None));
        Ok(())
    }

    /// Stores a report of `localnet.v1` in place of the backend's previous report, which contains what this one leaves unset. Returns
    /// whether the result is complete.
    pub fn record_status(&self, status: BackendStatus, known: &Known<'_>) -> bool {
        let mut is_complete = false;
        self.received.send_modify(|reports| {
            let name = status.name().to_owned();
            let status = status.after(reports.get(&name).and_then(Received::status));
            is_complete = status.is_complete();
            self.store(reports, name, status.to_older(known), Some(status.into()));
        });
        is_complete
    }

    fn store(
        &self,
        reports: &mut BTreeMap<String, Received>,
        name: String,
        mut report: BackendReport,
        status: Option<Arc<BackendStatus>>,
    ) {
        bounds::report(&mut report);
        self.history.reported(reports.get(&name).map(|last| &last.report), &report);
        let oldest = reports.iter().min_by_key(|(_, received)| received.at).map(|(name, _)| name.clone());
        if let Some(oldest) = oldest.filter(|_| reports.len() >= MAX_BACKENDS && !reports.contains_key(&name)) {
            if let Some(others) = self.evictions.pass() {
                tracing::warn!(
                    backend = %oldest, by = %name, others,
                    "more than {MAX_BACKENDS} backends have reported; forgetting the backend with the oldest report; let each backend always report under the same name"
                );
            }
            reports.remove(&oldest);
        }
        let traffic = reports.remove(&name).and_then(|last| last.traffic);
        reports.insert(name, Received { report, at: Instant::now(), traffic, status });
    }

    /// Stores the traffic that a backend has counted. Ignores backends that have not reported.
    pub fn record_traffic(&self, mut report: TrafficReport) {
        bounds::traffic(&mut report);
        self.received.send_if_modified(|reports| {
            if let Some(received) = reports.get_mut(&report.backend) {
                let previous = received.traffic.take().and_then(|(traffic, _)| traffic.last.clone());
                self.history.drained(previous.as_ref(), &report);
                let traffic = BackendTraffic { last: Some(report), previous };
                received.traffic = Some((Arc::new(traffic), Instant::now()));
            }
            // The readers that wait for reports wait for revisions.
            false
        });
    }

    /// The latest report of each backend, by name.
    pub fn all(&self) -> BTreeMap<String, Received> {
        self.received.borrow().clone()
    }

    /// The latest report of one backend.
    pub fn last(&self, backend: &str) -> Option<Received> {
        self.received.borrow().get(backend).cloned()
    }

    /// The latest report of each backend, by name. The receiver is notified of each new report.
    pub fn subscribe(&self) -> watch::Receiver<BTreeMap<String, Received>> {
        self.received.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(backend: &str, rev: u64) -> BackendReport {
        BackendReport { backend: backend.to_owned(), rev, ..BackendReport::default() }
    }

    #[tokio::test]
    async fn the_latest_report_of_each_backend_is_kept() {
        let reports = Reports::default();
        let mut notices = reports.subscribe();
        for (backend, rev) in [("nft", 1), ("ipvs", 1), ("nft", 2)] {
            reports.record(report(backend, rev)).unwrap();
        }
        assert!(notices.has_changed().unwrap());
        assert_eq!(notices.borrow_and_update()["nft"].report, report("nft", 2));
        assert_eq!(reports.last("ipvs").unwrap().report, report("ipvs", 1));
        assert_eq!(reports.last("iptables"), None);
        assert_eq!(reports.all().into_keys().collect::<Vec<_>>(), ["ipvs", "nft"]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_two_counts_of_a_backend_are_kept() {
        let reports = Reports::default();
        let traffic =
            |time_millis| TrafficReport { backend: "nft".to_owned(), time_millis, ..TrafficReport::default() };
        let kept = || reports.last("nft").and_then(|received| received.traffic().cloned());
        reports.record_traffic(traffic(1));
        reports.record(report("nft", 1)).unwrap();
        assert_eq!(kept(), None, "the backend was unknown");
        let mut notices = reports.subscribe();
        notices.mark_unchanged();
        reports.record_traffic(traffic(1));
        reports.record_traffic(traffic(2));
        assert!(!notices.has_changed().unwrap());
        reports.record(report("nft", 2)).unwrap();
        assert_eq!(kept(), Some(BackendTraffic { last: Some(traffic(2)), previous: Some(traffic(1)) }));
        tokio::time::advance(MAX_AGE).await;
        assert_eq!(kept(), None, "the backend counts no more");
    }

    #[tokio::test]
    async fn memory_for_reports_is_bounded() {
        let reports = Reports::default();
        assert_eq!(reports.record(report("", 1)), Err(BadName));
        assert_eq!(reports.record(report(&"x".repeat(MAX_NAME + 1), 1)), Err(BadName));
        for number in 0..MAX_BACKENDS {
            reports.record(report(&number.to_string(), 1)).unwrap();
        }
        // A peer that reports under new names displaces only silent backends.
        reports.record(report("0", 2)).unwrap();
        reports.record(report("one more", 1)).unwrap();
        assert_eq!((reports.all().len(), reports.last("1")), (MAX_BACKENDS, None));
        assert_eq!(reports.last("0").unwrap().report, report("0", 2));
        assert_eq!(reports.record(report("\x1b[2J", 1)), Err(BadName));
    }
}
