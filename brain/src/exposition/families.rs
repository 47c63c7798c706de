//! Metrics of the newest state, of the revisions that backends still have to apply, and of the latest report of each
//! backend.

use std::{collections::BTreeMap, time::Duration};

use localnet_config::Mode;
use localnet_proto::{
    ByFamily, Family,
    wire::{Attempts, FamilyReport},
};

use super::page::Page;
use crate::{feed::State, metrics::Metrics, reports::Received};

/// Adds the metrics of the newest state.
pub(super) fn of_state(page: &mut Page, state: &State) {
    let counts = state.counts();
    for (policy, counts) in [("external", counts.without_external), ("internal", counts.without_internal)] {
        for (family, count) in counts {
            let help = "Service ports with traffic policy Local that have endpoints, but none on this node.";
            page.gauge(
                "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
                help,
                &[("ip_family", family.as_str()), ("traffic_policy", policy)],
                f64::from(count),
            );
        }
    }
    let rev = state.revision().rev as f64;
    page.gauge("localnet_revision", "Sequence number of the newest revision.", &[], rev);
    page.gauge("localnet_services", "Services in the newest revision.", &[], state.len() as f64);
    let endpoints = f64::from(counts.endpoints);
    page.gauge("localnet_endpoints", "Endpoints in the newest revision.", &[], endpoints);
    let version = [("version", env!("CARGO_PKG_VERSION"))];
    page.gauge("localnet_build_info", "Always 1; the label `version` contains the brain's version.", &version, 1.0);
}

/// Adds the metrics of the revisions that backends still have to apply.
pub(super) fn of_pending(page: &mut Page, metrics: &Metrics) {
    let (services, slices) = metrics.pending();
    let help = "Changes of Services that no backend has applied yet.";
    page.gauge("kubeproxy_sync_proxy_rules_service_changes_pending", help, &[], services as f64);
    let help = "Changes of EndpointSlices that no backend has applied yet.";
    page.gauge("kubeproxy_sync_proxy_rules_endpoint_changes_pending", help, &[], slices as f64);
    metrics.lags(|backend, family, seconds| {
        let help = "Age in seconds of the oldest revision that the backend has not applied; 0 if it is up to date.";
        page.gauge(
            "localnet_backend_behind_seconds",
            help,
            &[("backend", backend), ("ip_family", family.as_str())],
            seconds,
        );
    });
}

/// Adds the metrics of the backends' reports.
pub(super) fn of_reports(page: &mut Page, reports: &BTreeMap<String, Received>) {
    let mut totals = ByFamily::<Totals>::default();
    for (backend, received) in reports {
        let (report, of_backend) = (&received.report, ("backend", backend.as_str()));
        let help = "Syncs in which the backend restored what another process had changed or deleted; always 0 with backends \
                    that do not count repairs, such as `win`.";
        page.counter("localnet_backend_repairs_total", help, &[of_backend], report.repairs as f64);
        let help = "Services, and parts of Services such as a single VIP, that the backend does not program; the \
                    backend's log contains the reasons.";
        page.gauge("localnet_backend_skipped", help, &[of_backend], f64::from(report.skipped_count));
        if let Some(packets) = report.packets.filter(|_| received.mode() == Some(Mode::Iptables)) {
            let mut count = |name, help, packets: u64| page.counter(name, help, &[], packets as f64);
            count(
                "kubeproxy_iptables_ct_state_invalid_dropped_packets_total",
                "packets dropped by iptables to work around conntrack problems",
                packets.invalid_dropped,
            );
            count(
                "kubeproxy_iptables_localhost_nodeports_accepted_packets_total",
                "Number of packets accepted on nodeports of loopback interface",
                packets.localhost_node_ports_accepted,
            );
        }
        for of_family in &report.families {
            let Some(family) = of_family.family().known() else { continue };
            totals[family].add(of_family);
            let labels = [of_backend, ("ip_family", family.as_str())];
            let help = "Sequence number of the newest revision that the backend has applied.";
            page.gauge("localnet_backend_revision", help, &labels, of_family.applied_rev as f64);
            let help = "Failed attempts of the backend to apply a revision. The backend retries after each failure.";
            page.counter("localnet_backend_failures_total", help, &labels, of_family.failures as f64);
            of_mode(page, received.mode(), family, of_family);
        }
    }
    for (family, totals) in totals {
        totals.write(page, &[("ip_family", family.as_str())]);
    }
}

/// Adds the metrics whose names kube-proxy uses in only one of its modes.
fn of_mode(page: &mut Page, mode: Option<Mode>, family: Family, report: &FamilyReport) {
    let labels = ("ip_family", family.as_str());
    let mut count = |name, help, value: u64| page.counter(name, help, &[labels], value as f64);
    match mode {
        Some(Mode::Nftables) => count(
            "kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
            "Failed attempts to apply a revision to nf_tables.",
            report.failures,
        ),
        Some(Mode::Iptables) => {
            count(
                "kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
                "Failed runs of iptables-restore.",
                report.failures,
            );
            count(
                "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total",
                "Failed runs of iptables-restore that wrote only the changes.",
                report.partial_failures,
            );
        }
        Some(Mode::Ipvs | Mode::Kernelspace) | None => {}
    }
    for count in &report.rules {
        let labels = [labels, ("table", count.table.as_str())];
        let help = "Rules that the iptables backend has in the table.";
        page.gauge("kubeproxy_sync_proxy_rules_iptables_total", help, &labels, count.total as f64);
        let help = "Rules that the last run of iptables-restore wrote.";
        page.gauge("kubeproxy_sync_proxy_rules_iptables_last", help, &labels, count.last as f64);
    }
}

/// The sums over all backends in one family.
#[derive(Clone, Debug, Default)]
struct Totals {
    both: Total,
    full: Total,
    partial: Total,
    searches: Total,
    ended: Option<u64>,
}

impl Totals {
    fn add(&mut self, report: &FamilyReport) {
        for (attempts, total) in [(&report.full, &mut self.full), (&report.partial, &mut self.partial)] {
            total.add(attempts.as_ref());
            self.both.add(attempts.as_ref());
        }
        if let Some(flows) = &report.flows {
            self.searches.add(flows.took.as_ref());
            *self.ended.get_or_insert(0) += flows.ended;
        }
    }

    fn write(&self, page: &mut Page, labels: &[(&str, &str)]) {
        let histograms = [
            (
                &self.both,
                "kubeproxy_sync_proxy_rules_duration_seconds",
                "Seconds that backends took for each attempt to apply a revision.",
            ),
            (
                &self.full,
                "kubeproxy_sync_full_proxy_rules_duration_seconds",
                "Seconds that backends took for each attempt to apply the full state.",
            ),
            (
                &self.partial,
                "kubeproxy_sync_partial_proxy_rules_duration_seconds",
                "Seconds that backends took for each attempt to apply only the changes.",
            ),
            (
                &self.searches,
                "kubeproxy_conntrack_reconciler_sync_duration_seconds",
                "Seconds that backends took for each search for stale flows, which are pinned to endpoints that are no longer eligible.",
            ),
        ];
        for (Total { counts, took }, name, help) in histograms.into_iter().filter(|(total, ..)| total.took.is_some()) {
            // The upper limits of the buckets of `Attempts`, in seconds. The last bucket has no upper limit.
            let limits = (0..LIMITS).map(|place| f64::from(1_u32 << place) / 1000.0);
            let all = (counts.iter().sum(), took.unwrap_or_default());
            page.histogram(name, help, labels, limits.zip(*counts), all);
        }
        if let Some(ended) = self.ended {
            let help = "Stale flows that backends have deleted from connection tracking.";
            page.counter("kubeproxy_conntrack_reconciler_deleted_entries_total", help, labels, ended as f64);
        }
    }
}

/// The number of buckets of `Attempts` that have an upper limit.
const LIMITS: usize = 15;

/// The counts and the total duration of attempts of one sort, such as attempts to apply the full state.
#[derive(Clone, Debug, Default)]
struct Total {
    counts: [u64; LIMITS + 1],
    /// How long these attempts took in total. `None` if no backend has reported attempts of this sort.
    took: Option<Duration>,
}

impl Total {
    fn add(&mut self, attempts: Option<&Attempts>) {
        let Some(Attempts { counts, sum_micros }) = attempts else { return };
        for (total, count) in self.counts.iter_mut().zip(counts) {
            *total = total.saturating_add(*count);
        }
        let took = Duration::from_micros(*sum_micros);
        self.took = Some(self.took.unwrap_or_default().saturating_add(took));
    }
}
