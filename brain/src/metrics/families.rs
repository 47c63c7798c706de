//! Families of metrics that are computed for each scrape.

use localnet_proto::Family;
use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};

/// `kubeproxy_sync_proxy_rules_…_changes_pending`.
pub(super) fn pending(services: u64, slices: u64) -> [MetricFamily; 2] {
    [
        gauge(
            "kubeproxy_sync_proxy_rules_service_changes_pending",
            "Changes of Services that no backend has applied yet.",
            vec![(vec![], services as f64)],
        ),
        gauge(
            "kubeproxy_sync_proxy_rules_endpoint_changes_pending",
            "Changes of EndpointSlices that no backend has applied yet.",
            vec![(vec![], slices as f64)],
        ),
    ]
}

/// The lag of each backend, in seconds.
pub(super) fn behind<'a>(parts: impl Iterator<Item = (&'a str, Family, f64)>) -> MetricFamily {
    let values = parts.map(|(backend, family, age)| (vec![("backend", backend), ("ip_family", family.as_str())], age));
    gauge(
        "localnet_backend_behind_seconds",
        "Age in seconds of the oldest revision that the backend has not applied; 0 if it is up to date.",
        values.collect(),
    )
}

/// Labels and their values.
pub(crate) type Labels<'a> = Vec<(&'static str, &'a str)>;

/// The labels as Prometheus has them.
pub(crate) fn labels(labels: Labels<'_>) -> Vec<LabelPair> {
    let pair = |(name, value): (&str, &str)| {
        let mut pair = LabelPair::default();
        pair.set_name(name.to_owned());
        pair.set_value(value.to_owned());
        pair
    };
    labels.into_iter().map(pair).collect()
}

/// A family of any type.
pub(crate) fn of_type(kind: MetricType, name: &str, help: &str, metrics: Vec<Metric>) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(kind);
    family.set_metric(metrics);
    family
}

/// A family of gauges.
pub(crate) fn gauge(name: &str, help: &str, values: Vec<(Labels<'_>, f64)>) -> MetricFamily {
    let metric = |(of, value)| {
        let mut gauge = Gauge::default();
        gauge.set_value(value);
        let mut metric = Metric::from_label(labels(of));
        metric.set_gauge(gauge);
        metric
    };
    of_type(MetricType::GAUGE, name, help, values.into_iter().map(metric).collect())
}

/// A family of counters.
pub(crate) fn counter(name: &str, help: &str, values: Vec<(Labels<'_>, f64)>) -> MetricFamily {
    let metric = |(of, value)| {
        let mut counter = Counter::default();
        counter.set_value(value);
        let mut metric = Metric::from_label(labels(of));
        metric.set_counter(counter);
        metric
    };
    of_type(MetricType::COUNTER, name, help, values.into_iter().map(metric).collect())
}
