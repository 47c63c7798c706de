//! The metrics of a brain and its backends, for Prometheus. Metrics that kube-proxy also exports have the same names,
//! types, labels and buckets as in kube-proxy. The names of all other metrics begin with `localnet_`.
//!
//! ```text
//! feed: each revision, with what changed  ─┐
//! reports of backends                     ─┼─► Metrics ─► exposition ─► /metrics
//! health answers, readers                 ─┘
//! ```
//!
//! Backends serve no metrics. They report their totals to the brain, so that one page covers the node, as with
//! kube-proxy. A restart of the brain loses none of these totals.

mod lag;
mod register;
mod requests;
mod troubles;
mod waiting;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use localnet_proto::{
    Family, Revision,
    wire::{Attempts, BackendReport, FamilyReport},
};
use prometheus::{
    GaugeVec, HistogramVec, IntCounter, IntCounterVec, IntGauge, Registry, exponential_buckets, proto::MetricFamily,
};

use self::{
    lag::Lag,
    register::Register,
    waiting::{Published, Waiting},
};
use localnet_cluster::localize::ObjectChanges;
pub use requests::Requests;
pub use troubles::{Trouble, Troubles};

const FAMILY: &[&str] = &["ip_family"];

/// The metrics of a brain. Clones share them.
#[derive(Clone, Debug)]
pub struct Metrics(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    registry: Registry,
    started: SystemTime,
    waiting: Mutex<Waiting>,
    lag: Mutex<Lag>,
    service_changes: IntCounter,
    endpoint_changes: IntCounter,
    healthz: IntCounterVec,
    livez: IntCounterVec,
    last_queued: GaugeVec,
    last_applied: GaugeVec,
    network_programming: HistogramVec,
    apply: HistogramVec,
    served: IntCounter,
    readers: IntGauge,
    /// A vector without labels. Unlike a plain gauge, it exports no value while the brain has no certificate.
    certificate_expires: GaugeVec,
    requests: Requests,
    troubles: Troubles,
    /// The number of attempts that each backend has reported for each family.
    attempts: Mutex<BTreeMap<(String, Family), u64>>,
}

impl Default for Metrics {
    fn default() -> Self {
        let register = Register::default();
        let apply = exponential_buckets(0.000_5, 2.0, 18).expect("a start above zero and a factor above one");
        Self(Arc::new(Inner {
            started: SystemTime::now(),
            waiting: Mutex::default(),
            lag: Mutex::default(),
            service_changes: register.counter(
                "kubeproxy_sync_proxy_rules_service_changes_total",
                "Changes of Services that the brain has received.",
            ),
            endpoint_changes: register.counter(
                "kubeproxy_sync_proxy_rules_endpoint_changes_total",
                "Changes of EndpointSlices that the brain has received.",
            ),
            healthz: register.counters(
                "kubeproxy_proxy_healthz_total",
                "Requests to /healthz, by the HTTP status of the answer.",
                &["code"],
            ),
            livez: register.counters(
                "kubeproxy_proxy_livez_total",
                "Requests to /livez, by the HTTP status of the answer.",
                &["code"],
            ),
            last_queued: register.gauges(
                "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
                "Unix time at which the brain last published a revision for backends to apply.",
                FAMILY,
            ),
            last_applied: register.gauges(
                "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
                "Unix time at which a backend last applied a revision.",
                FAMILY,
            ),
            network_programming: register.histograms(
                "kubeproxy_network_programming_duration_seconds",
                "Seconds from the change of a pod or Service (the time in its EndpointSlice) until the first backend reports the change as applied.",
                FAMILY,
                network_programming_buckets(),
            ),
            apply: register.histograms(
                "localnet_apply_duration_seconds",
                "Seconds from when the brain receives an event until the first backend reports the resulting revision as applied.",
                FAMILY,
                apply,
            ),
            served: register.counter(
                "localnet_served_bytes_total",
                "Bytes of state that the brain has sent to clients that read it.",
            ),
            readers: register.gauge(
                "localnet_readers",
                "Clients that are reading the state, mostly backends: they wait for a revision or receive one.",
            ),
            certificate_expires: register.gauges(
                "localnet_server_certificate_expiration_timestamp_seconds",
                "Unix time at which the certificate of `--tls-cert` expires; absent without TLS.",
                &[],
            ),
            requests: Requests::register(&register),
            troubles: Troubles::register(&register),
            attempts: Mutex::default(),
            registry: register.0,
        }))
    }
}

/// The same buckets as in kube-proxy. They are narrow around kube-proxy's SLO, and wider up to five minutes.
fn network_programming_buckets() -> Vec<f64> {
    let seconds = (1..60).chain((60..120).step_by(5)).chain((120..=300).step_by(30));
    [0.0, 0.25, 0.5].into_iter().chain(seconds.map(f64::from)).collect()
}

impl Metrics {
    /// Records a new revision with these changes. The first of the changes was received at `since`.
    pub(crate) fn published(&self, revision: Revision, changes: &ObjectChanges, since: Instant) {
        let inner = &self.0;
        inner.service_changes.inc_by(changes.services);
        inner.endpoint_changes.inc_by(changes.slices);
        for family in Family::BOTH {
            inner.last_queued.with_label_values(&[family.as_str()]).set(seconds(SystemTime::now()));
        }
        let started = micros(inner.started);
        let triggered = changes.triggered.iter().copied().filter(|at| *at >= started).collect();
        let (services, slices) = (changes.services, changes.slices);
        self.lag().publish(revision, Instant::now());
        self.waiting().publish(revision, Published { rev: revision.rev, services, slices, since, triggered });
    }

    /// Records a report of a backend, which was received at `at`.
    pub(crate) fn reported(&self, report: &BackendReport, at: Instant) {
        let inner = &self.0;
        let now = SystemTime::now().checked_sub(at.elapsed()).unwrap_or(inner.started);
        let families = report.families.iter().filter_map(|reported| Some((reported.family().known()?, reported)));
        let families: Vec<_> = families.collect();
        let revisions: Vec<_> = families.iter().map(|(family, reported)| (*family, reported.applied_rev)).collect();
        for (family, rev) in &revisions {
            self.lag().apply(&report.backend, *family, report.instance_id, *rev, at);
        }
        for (family, since, triggered) in self.waiting().apply(report.instance_id, &revisions) {
            let labels = &[family.as_str()];
            let took = at.saturating_duration_since(since);
            inner.apply.with_label_values(labels).observe(took.as_secs_f64());
            for triggered in triggered {
                let late = micros(now).saturating_sub(triggered).max(0);
                let late = Duration::from_micros(late.unsigned_abs());
                inner.network_programming.with_label_values(labels).observe(late.as_secs_f64());
            }
        }
        for (family, reported) in families {
            let attempted = self.attempted(&report.backend, family, reported);
            if attempted && reported.error.is_empty() && reported.applied_rev > 0 {
                inner.last_applied.with_label_values(&[family.as_str()]).set(seconds(now));
            }
        }
    }

    /// The number of backends and families whose attempts are known.
    #[cfg(test)]
    pub(crate) fn attempts(&self) -> usize {
        self.0.attempts.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Forgets all backends but these.
    pub(crate) fn retain(&self, is_known: impl Fn(&str) -> bool) {
        self.lag().retain(&is_known);
        let mut attempts = self.0.attempts.lock().unwrap_or_else(PoisonError::into_inner);
        attempts.retain(|(backend, _), _| is_known(backend));
    }

    /// Whether the backend has attempted to apply a revision since its last report. A backend may also report for other
    /// reasons.
    fn attempted(&self, backend: &str, family: Family, reported: &FamilyReport) -> bool {
        let count = |attempts: &Option<Attempts>| attempts.iter().flat_map(|of| &of.counts).sum::<u64>();
        let count = count(&reported.full) + count(&reported.partial);
        let mut attempts = self.0.attempts.lock().unwrap_or_else(PoisonError::into_inner);
        // A backend that does not count its attempts sends a report only after an attempt.
        count == 0 || attempts.insert((backend.to_owned(), family), count) != Some(count)
    }

    /// The metrics of requests to the API server.
    pub fn requests(&self) -> Requests {
        self.0.requests.clone()
    }

    /// The troubles of the source.
    pub fn troubles(&self) -> Troubles {
        self.0.troubles.clone()
    }

    /// Sets the Unix time at which the certificate of the listeners expires.
    pub(crate) fn certificate_expires(&self, at: u64) {
        self.0.certificate_expires.with_label_values::<&str>(&[]).set(at as f64);
    }

    /// Counts an answer to `/healthz`.
    pub(crate) fn healthz(&self, status: u16) {
        self.0.healthz.with_label_values(&[&status.to_string()]).inc();
    }

    /// Counts an answer to `/livez`.
    pub(crate) fn livez(&self, status: u16) {
        self.0.livez.with_label_values(&[&status.to_string()]).inc();
    }

    /// The number of readers that wait for a state or receive one.
    pub fn readers(&self) -> i64 {
        self.0.readers.get()
    }

    /// Counts a reader until the returned value is dropped.
    pub fn reader(&self) -> Reader {
        self.0.readers.inc();
        Reader(self.clone())
    }

    /// The families of all counted metrics.
    pub(crate) fn gather(&self) -> Vec<MetricFamily> {
        self.0.registry.gather()
    }

    /// The number of changes of Services and of EndpointSlices that no backend has applied yet.
    pub(crate) fn pending(&self) -> (u64, u64) {
        self.waiting().pending()
    }

    /// Calls `each` with the lag of each backend in each family, in seconds.
    pub(crate) fn lags(&self, mut each: impl FnMut(&str, Family, f64)) {
        self.lag().seconds(Instant::now()).for_each(|(backend, family, seconds)| each(backend, family, seconds));
    }

    fn lag(&self) -> MutexGuard<'_, Lag> {
        self.0.lag.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        // Code that holds the lock never panics in the middle of a change.
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A reader. The metrics count it until this value is dropped.
#[derive(Debug)]
pub struct Reader(Metrics);

impl Reader {
    /// Counts bytes that were sent to the reader.
    pub(crate) fn sent(&self, bytes: usize) {
        self.0.0.served.inc_by(bytes.try_into().unwrap_or(u64::MAX));
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.0.0.readers.dec();
    }
}

fn since_1970(time: SystemTime) -> Duration {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

fn seconds(time: SystemTime) -> f64 {
    since_1970(time).as_secs_f64()
}

fn micros(time: SystemTime) -> i64 {
    since_1970(time).as_micros().try_into().unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_match_kube_proxy() {
        let buckets = network_programming_buckets();
        assert_eq!(buckets.len(), 3 + 59 + 12 + 7);
        assert_eq!(buckets[..4], [0.0, 0.25, 0.5, 1.0]);
        assert_eq!(buckets[buckets.len() - 8..], [115.0, 120.0, 150.0, 180.0, 210.0, 240.0, 270.0, 300.0]);
    }
}
