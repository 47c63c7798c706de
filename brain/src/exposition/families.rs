//! Metrics of the newest state and of the latest report of each backend.

use std::collections::BTreeMap;

use localnet_config::Mode;
use localnet_proto::{ByFamily, Family, wire::Attempts};
use prometheus::proto::{Bucket, Histogram, Metric, MetricFamily, MetricType};

use crate::{
    feed::State,
    metrics::{
        families::{counter, gauge, labels, of_type},
        family,
    },
    reports::Received,
};

/// The metrics of the newest state.
pub(super) fn of_state(state: &State) -> Vec<MetricFamily> {
    let counts = state.counts();
    let without = [("external", counts.without_external), ("internal", counts.without_internal)];
    let without = without.iter().flat_map(|(policy, counts)| {
        counts.iter().map(move |(family, count)| {
            (vec![("ip_family", family.as_str()), ("traffic_policy", *policy)], f64::from(*count))
        })
    });
    vec![
        gauge(
            "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
            "Service ports with traffic policy Local that have endpoints, but none on this node.",
            without.collect(),
        ),
        gauge(
            "localnet_revision",
            "Newest revision of the state that the brain serves.",
            vec![(vec![], state.revision().rev as f64)],
        ),
        gauge("localnet_services", "Services that this node serves.", vec![(vec![], state.len() as f64)]),
        gauge(
            "localnet_endpoints",
            "Endpoints of the Services that this node serves.",
            vec![(vec![], f64::from(counts.endpoints))],
        ),
        gauge(
            "localnet_build_info",
            "Always 1; the label names the version of the brain.",
            vec![(vec![("version", env!("CARGO_PKG_VERSION"))], 1.0)],
        ),
    ]
}

/// The metrics of the backends' reports.
pub(super) fn of_reports(reports: &BTreeMap<String, Received>) -> Vec<MetricFamily> {
    let (mut full, mut partial) = (ByFamily::<Total>::default(), ByFamily::<Total>::default());
    let (mut revisions, mut failures, mut skipped) = (Vec::new(), Vec::new(), Vec::new());
    let mut repairs = Vec::new();
    let (mut nftables, mut iptables, mut partly) = (Vec::new(), Vec::new(), Vec::new());
    let (mut searches, mut ended) = (ByFamily::<Total>::default(), ByFamily::<Option<u64>>::default());
    let (mut rules, mut written) = (Vec::new(), Vec::new());
    for (backend, received) in reports {
        let report = &received.report;
        repairs.push((vec![("backend", backend.as_str())], report.repairs as f64));
        skipped.push((vec![("backend", backend.as_str())], f64::from(report.skipped_count)));
        for of_family in &report.families {
            let Some(family) = family(of_family.family()) else { continue };
            full[family].add(of_family.full.as_ref());
            partial[family].add(of_family.partial.as_ref());
            let labels = vec![("backend", backend.as_str()), ("ip_family", family.as_str())];
            revisions.push((labels.clone(), of_family.applied_rev as f64));
            failures.push((labels, of_family.failures as f64));
            // The metric has the name that kube-proxy's modes use.
            let of_mode = (vec![("ip_family", family.as_str())], of_family.failures as f64);
            match received.mode() {
                Some(Mode::Nftables) => nftables.push(of_mode),
                Some(Mode::Iptables) => {
                    iptables.push(of_mode);
                    partly.push((vec![("ip_family", family.as_str())], of_family.partial_failures as f64));
                }
                Some(Mode::Ipvs | Mode::Kernelspace) | None => {}
            }
            if let Some(flows) = &of_family.flows {
                searches[family].add(flows.took.as_ref());
                *ended[family].get_or_insert(0) += flows.ended;
            }
            for count in &of_family.rules {
                let labels = vec![("ip_family", family.as_str()), ("table", count.table.as_str())];
                rules.push((labels.clone(), count.total as f64));
                written.push((labels, count.last as f64));
            }
        }
    }
    let both = ByFamily::from_fn(|family| full[family].and(&partial[family]));
    let ended =
        ended.into_iter().filter_map(|(family, ended)| Some((vec![("ip_family", family.as_str())], ended? as f64)));
    let mut families = vec![
        histogram(
            "kubeproxy_sync_proxy_rules_duration_seconds",
            "Seconds that backends took for each attempt to apply a revision.",
            &both,
        ),
        histogram(
            "kubeproxy_sync_full_proxy_rules_duration_seconds",
            "Seconds that backends took for each attempt to apply the full state.",
            &full,
        ),
        histogram(
            "kubeproxy_sync_partial_proxy_rules_duration_seconds",
            "Seconds that backends took for each attempt to apply only the changes.",
            &partial,
        ),
        gauge("localnet_backend_revision", "Newest revision that the backend has applied.", revisions),
        counter(
            "localnet_backend_failures_total",
            "Failed attempts of the backend to apply a revision; it retries each.",
            failures,
        ),
        counter(
            "localnet_backend_repairs_total",
            "Repairs by the backend, each after another process changed or deleted what it had programmed.",
            repairs,
        ),
        gauge(
            "localnet_backend_skipped",
            "Parts of Services that the backend does not program; its log names them.",
            skipped,
        ),
        counter(
            "kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
            "Failed attempts to apply a revision to nf_tables.",
            nftables,
        ),
        counter(
            "kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
            "Failed runs of iptables-restore.",
            iptables,
        ),
        counter(
            "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total",
            "Failed runs of iptables-restore that wrote only the changes.",
            partly,
        ),
        gauge("kubeproxy_sync_proxy_rules_iptables_total", "Rules that the iptables backend has in the table.", rules),
        gauge(
            "kubeproxy_sync_proxy_rules_iptables_last",
            "Rules that the last run of iptables-restore wrote.",
            written,
        ),
        histogram(
            "kubeproxy_conntrack_reconciler_sync_duration_seconds",
            "Seconds that backends took for each search for stale flows, which are pinned to endpoints that are no longer eligible.",
            &searches,
        ),
        counter(
            "kubeproxy_conntrack_reconciler_deleted_entries_total",
            "Stale flows that backends have deleted from connection tracking.",
            ended.collect(),
        ),
    ];
    families.retain(|family| !family.get_metric().is_empty());
    families
}

/// The upper limits of the buckets of `Attempts`, in seconds.
fn limits() -> impl Iterator<Item = f64> {
    (0..LIMITS).map(|place| f64::from(1_u32 << place) / 1000.0)
}

const LIMITS: usize = 15;

/// The sum of the attempts of all backends.
#[derive(Clone, Debug, Default)]
struct Total {
    counts: [u64; LIMITS + 1],
    micros: u64,
    reported: bool,
}

impl Total {
    fn add(&mut self, attempts: Option<&Attempts>) {
        let Some(Attempts { counts, sum_micros }) = attempts else { return };
        for (total, count) in self.counts.iter_mut().zip(counts) {
            *total = total.saturating_add(*count);
        }
        self.micros = self.micros.saturating_add(*sum_micros);
        self.reported = true;
    }

    fn and(&self, other: &Self) -> Self {
        let counts = std::array::from_fn(|place| self.counts[place].saturating_add(other.counts[place]));
        Self { counts, micros: self.micros.saturating_add(other.micros), reported: self.reported || other.reported }
    }
}

fn histogram(of: &str, help: &str, totals: &ByFamily<Total>) -> MetricFamily {
    let reported = totals.iter().filter(|(_, total)| total.reported);
    let metric = |(family, total): (Family, &Total)| {
        let mut sum = 0;
        let buckets = limits().zip(total.counts).map(|(limit, count)| {
            sum += count;
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(limit);
            bucket.set_cumulative_count(sum);
            bucket
        });
        let mut histogram = Histogram::default();
        histogram.set_bucket(buckets.collect());
        histogram.set_sample_count(total.counts.iter().sum());
        histogram.set_sample_sum(std::time::Duration::from_micros(total.micros).as_secs_f64());
        let mut metric = Metric::from_label(labels(vec![("ip_family", family.as_str())]));
        metric.set_histogram(histogram);
        metric
    };
    of_type(MetricType::HISTOGRAM, of, help, reported.map(metric).collect())
}
