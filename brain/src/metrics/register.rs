//! Creates metrics that a registry exports.

use prometheus::{
    GaugeVec, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, Opts, Registry, Result, core::Collector,
};

/// A registry whose metrics have constant names, labels and buckets.
#[derive(Default)]
pub(super) struct Register(pub(super) Registry);

impl Register {
    pub(super) fn counter(&self, name: &str, help: &str) -> IntCounter {
        self.add(IntCounter::new(name, help))
    }

    pub(super) fn counters(&self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        self.add(IntCounterVec::new(Opts::new(name, help), labels))
    }

    pub(super) fn gauge(&self, name: &str, help: &str) -> IntGauge {
        self.add(IntGauge::new(name, help))
    }

    pub(super) fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> GaugeVec {
        self.add(GaugeVec::new(Opts::new(name, help), labels))
    }

    pub(super) fn histograms(&self, name: &str, help: &str, labels: &[&str], limits: Vec<f64>) -> HistogramVec {
        self.add(HistogramVec::new(HistogramOpts::new(name, help).buckets(limits), labels))
    }

    fn add<C: Collector + Clone + 'static>(&self, made: Result<C>) -> C {
        let made = made.expect("names and buckets are valid constants");
        self.0.register(Box::new(made.clone())).expect("each name is registered once");
        made
    }
}
