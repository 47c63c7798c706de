//! What backends say about how far they have come: the last report of each, in memory.

use std::{collections::BTreeMap, sync::Arc};

use localnet_proto::wire::{BackendReport, BackendReportReply, backends_server::Backends};
use tokio::{sync::watch, time::Instant};
use tonic::{Request, Response, Status};

use crate::throttle::Throttle;

/// Backends that are remembered. A node has a handful; names beyond it are a fault, or an attack, which must not keep the real one out.
const MAX_BACKENDS: usize = 64;
/// Length of a backend's name.
const MAX_NAME: usize = 253;

/// A report and when it came.
#[derive(Clone, Debug, PartialEq)]
pub struct Received {
    /// What the backend said.
    pub report: BackendReport,
    /// When.
    pub at: Instant,
}

/// The last report of each backend, by its name. Clones share it.
#[derive(Clone, Debug)]
pub struct Reports {
    received: Arc<watch::Sender<BTreeMap<String, Received>>>,
    forgets: Throttle,
}

impl Default for Reports {
    fn default() -> Self {
        Self { received: Arc::new(watch::Sender::default()), forgets: Throttle::default() }
    }
}

/// A report that is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadReport {
    /// It does not say whose it is.
    #[error("Backend is empty, longer than {MAX_NAME} bytes, or has control characters")]
    Name,
}

impl Reports {
    /// Keeps `report` in place of the backend's last one.
    pub fn record(&self, report: BackendReport) -> Result<(), BadReport> {
        let name = report.backend.clone();
        if name.is_empty() || name.len() > MAX_NAME || name.contains(char::is_control) {
            return Err(BadReport::Name);
        }
        self.received.send_modify(|reports| {
            let oldest = reports.iter().min_by_key(|(_, received)| received.at).map(|(name, _)| name.clone());
            if let Some(oldest) = oldest.filter(|_| reports.len() >= MAX_BACKENDS && !reports.contains_key(&name)) {
                if let Some(others) = self.forgets.pass() {
                    tracing::warn!(
                        backend = %oldest, by = %name, others,
                        "{MAX_BACKENDS} backends have reported; the one that has said nothing for longest is forgotten until it reports again: give a backend the same name each time"
                    );
                }
                reports.remove(&oldest);
            }
            reports.insert(name, Received { report, at: Instant::now() });
        });
        Ok(())
    }

    /// The last report of every backend.
    pub fn all(&self) -> BTreeMap<String, Received> {
        self.received.borrow().clone()
    }

    /// The last report of one backend.
    pub fn last(&self, backend: &str) -> Option<Received> {
        self.received.borrow().get(backend).cloned()
    }

    /// The last report of every backend, and a notice of each new one.
    pub fn subscribe(&self) -> watch::Receiver<BTreeMap<String, Received>> {
        self.received.subscribe()
    }
}

#[tonic::async_trait]
impl Backends for Reports {
    async fn report(&self, request: Request<BackendReport>) -> Result<Response<BackendReportReply>, Status> {
        match self.record(request.into_inner()) {
            Ok(()) => Ok(Response::new(BackendReportReply {})),
            Err(bad @ BadReport::Name) => Err(Status::invalid_argument(bad.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(backend: &str, rev: u64) -> BackendReport {
        BackendReport { backend: backend.to_owned(), rev, ..BackendReport::default() }
    }

    #[tokio::test]
    async fn the_last_report_of_each_backend_is_kept() {
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

    #[tokio::test]
    async fn memory_for_reports_is_bounded() {
        let reports = Reports::default();
        assert_eq!(reports.record(report("", 1)), Err(BadReport::Name));
        assert_eq!(reports.record(report(&"x".repeat(MAX_NAME + 1), 1)), Err(BadReport::Name));
        for number in 0..MAX_BACKENDS {
            reports.record(report(&number.to_string(), 1)).unwrap();
        }
        // Who reports under ever other names keeps nobody out, and pushes out those who are silent.
        reports.record(report("0", 2)).unwrap();
        reports.record(report("one more", 1)).unwrap();
        assert_eq!((reports.all().len(), reports.last("1")), (MAX_BACKENDS, None));
        assert_eq!(reports.last("0").unwrap().report, report("0", 2));
        assert_eq!(reports.record(report("\x1b[2J", 1)), Err(BadReport::Name));
    }
}
