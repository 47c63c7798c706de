//! Metrics that are computed for each scrape.

use std::{collections::BTreeMap, time::Duration};

use prometheus::proto::{Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType};

/// The computed metrics, by name. Each name keeps the type and the help text of its first value.
#[derive(Default)]
pub(super) struct Page(BTreeMap<&'static str, MetricFamily>);

/// Labels and their values.
type Labels<'a> = &'a [(&'a str, &'a str)];

impl Page {
    pub(super) fn gauge(&mut self, name: &'static str, help: &str, labels: Labels<'_>, value: f64) {
        let mut gauge = Gauge::default();
        gauge.set_value(value);
        self.add(MetricType::GAUGE, name, help, labels, |metric| metric.set_gauge(gauge));
    }

    pub(super) fn counter(&mut self, name: &'static str, help: &str, labels: Labels<'_>, value: f64) {
        let mut counter = Counter::default();
        counter.set_value(value);
        self.add(MetricType::COUNTER, name, help, labels, |metric| metric.set_counter(counter));
    }

    /// Adds a histogram. `buckets` contains the upper limit of each bucket, and the number of values in this bucket without
    /// those in lower buckets. `count` is the number of all values, and `sum` is their sum.
    pub(super) fn histogram(
        &mut self,
        name: &'static str,
        help: &str,
        labels: Labels<'_>,
        buckets: impl Iterator<Item = (f64, u64)>,
        (count, sum): (u64, Duration),
    ) {
        let mut below = 0;
        let buckets = buckets.map(|(limit, values)| {
            below += values;
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(limit);
            bucket.set_cumulative_count(below);
            bucket
        });
        let mut histogram = Histogram::default();
        histogram.set_bucket(buckets.collect());
        histogram.set_sample_count(count);
        histogram.set_sample_sum(sum.as_secs_f64());
        self.add(MetricType::HISTOGRAM, name, help, labels, |metric| metric.set_histogram(histogram));
    }

    fn add(
        &mut self,
        kind: MetricType,
        name: &'static str,
        help: &str,
        labels: Labels<'_>,
        set: impl FnOnce(&mut Metric),
    ) {
        let pair = |(name, value): &(&str, &str)| {
            let mut pair = LabelPair::default();
            pair.set_name((*name).to_owned());
            pair.set_value((*value).to_owned());
            pair
        };
        let mut metric = Metric::from_label(labels.iter().map(pair).collect());
        set(&mut metric);
        let family = self.0.entry(name).or_insert_with(|| {
            let mut family = MetricFamily::default();
            family.set_name(name.to_owned());
            family.set_help(help.to_owned());
            family.set_field_type(kind);
            family
        });
        family.mut_metric().push(metric);
    }

    /// The families of all metrics.
    pub(super) fn families(self) -> impl Iterator<Item = MetricFamily> {
        self.0.into_values()
    }
}
