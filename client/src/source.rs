//! [`Source`]: where the state of the node comes from.

use std::time::Duration;

use localnet_proto::{Family, Revision, ServiceKey, Update, wire};

use crate::{
    backend::{Looks, RuleCount, Skipped, Warning},
    vips::Effective,
};

/// Delivers complete states, and takes reports. Implemented by the gRPC client ([`crate::grpc::Brain`]) and by the feed of a
/// brain in the same process.
pub trait Source: Send + Sync {
    /// Waits until there is a state other than `have`, and gives it. `fold` says that the caller holds `have` and can fold
    /// changes into it; otherwise the answer is a full state. Never a partial state.
    fn next(&self, have: Revision, fold: bool) -> impl Future<Output = Result<Update, SourceError>> + Send;

    /// Tells the brain how far the backend has come.
    fn report(&self, report: &Report) -> impl Future<Output = Result<(), SourceError>> + Send;

    /// Where the states come from, for messages to people.
    fn describe(&self) -> String;
}

/// Why there is no answer. The kernel is left as it is, and the call is made again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// Nobody answers there.
    #[error("cannot be reached, is localnet-brain running and serving there? {0}")]
    Unreachable(String),
    /// The stream broke before its end; what it had delivered is thrown away.
    #[error("the stream broke: {0}")]
    Broken(String),
    /// The peer sent something that is no state.
    #[error("sent what is no state: {0}")]
    Invalid(String),
    /// The peer is there, and does not take what it is told: the same again is of no use.
    #[error("does not take it: {0}")]
    Refused(String),
}

/// How far a backend has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Name of the backend.
    pub backend: &'static str,
    /// Newest state it has received.
    pub received: Revision,
    /// How far each family has come.
    pub families: Vec<(Family, Outcome)>,
    /// What is left out of services.
    pub skipped: Vec<Skipped>,
    /// What operators should know about the backend.
    pub warnings: Vec<Warning>,
    /// The configuration that it works with, if it reports it.
    pub configuration: Option<Effective>,
    /// Repairs since the start, see [`Counts::repairs`](crate::Counts::repairs).
    pub repairs: u64,
}

/// What came of the last attempt in one family, and of all before it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Newest revision that the kernel holds; 0 for none of this instance.
    pub applied: u64,
    /// Why the newest could not be applied.
    pub error: Option<String>,
    /// Attempts that went through everything: the first one, and those for which it was not known what the kernel holds.
    pub full: Attempts,
    /// Attempts that had only changes to write.
    pub partial: Attempts,
    /// How many of them failed.
    pub failures: u64,
    /// How many of `partial` failed.
    pub partial_failures: u64,
    /// Looks for flows that stick to endpoints which no longer serve; none of a backend that does not look for them.
    pub flows: Option<Looks>,
    /// The rules that the backend has in the kernel's tables.
    pub rules: Vec<RuleCount>,
}

/// Attempts by how long they took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attempts {
    /// Those of at most 1 ms, 2 ms, 4 ms and so on up to 16.384 s, and last those that took longer.
    counts: [u64; Self::LIMITS + 1],
    sum: Duration,
}

impl Attempts {
    const LIMITS: usize = 15;

    /// Counts one more.
    pub fn add(&mut self, took: Duration) {
        let limit = |place: usize| Duration::from_millis(1 << place);
        let place = (0..Self::LIMITS).find(|place| took <= limit(*place)).unwrap_or(Self::LIMITS);
        self.counts[place] += 1;
        self.sum += took;
    }
}

impl From<&Attempts> for wire::Attempts {
    fn from(attempts: &Attempts) -> Self {
        let Attempts { counts, sum } = attempts;
        Self { counts: counts.to_vec(), sum_micros: sum.as_micros().try_into().unwrap_or(u64::MAX) }
    }
}

/// So many are named in a report; the others are counted.
const MAX_SKIPPED: usize = 256;

fn skipped(skipped: &Skipped) -> wire::SkippedService {
    let ServiceKey { namespace, name } = &skipped.service;
    let key = wire::ServiceKey { namespace: namespace.to_string(), name: name.to_string() };
    wire::SkippedService { service: Some(key), reason: skipped.reason.clone() }
}

fn warning(warning: &Warning) -> wire::BackendWarning {
    wire::BackendWarning { reason: warning.reason.to_owned(), note: warning.note.clone().into_owned() }
}

fn flows(looks: &Looks) -> wire::FlowLooks {
    wire::FlowLooks { took: Some((&looks.took).into()), ended: looks.ended }
}

fn rules(count: &RuleCount) -> wire::RuleCount {
    wire::RuleCount { table: count.table.to_owned(), total: count.total, last: count.last }
}

impl From<&Report> for wire::BackendReport {
    fn from(report: &Report) -> Self {
        let number = |family| match family {
            Family::V4 => wire::IpFamily::IPv4.into(),
            Family::V6 => wire::IpFamily::IPv6.into(),
        };
        let families = report.families.iter().map(|(family, outcome)| wire::FamilyReport {
            family: number(*family),
            applied_rev: outcome.applied,
            error: outcome.error.clone().unwrap_or_default(),
            full: Some((&outcome.full).into()),
            partial: Some((&outcome.partial).into()),
            failures: outcome.failures,
            partial_failures: outcome.partial_failures,
            flows: outcome.flows.as_ref().map(flows),
            rules: outcome.rules.iter().map(rules).collect(),
        });
        Self {
            backend: report.backend.to_owned(),
            instance_id: report.received.instance,
            rev: report.received.rev,
            families: families.collect(),
            skipped: report.skipped.iter().take(MAX_SKIPPED).map(skipped).collect(),
            skipped_count: report.skipped.len().try_into().unwrap_or(i32::MAX),
            warnings: report.warnings.iter().map(warning).collect(),
            configuration: report.configuration.as_ref().map(Into::into),
            repairs: report.repairs,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_are_counted_by_limits_that_double() {
        let mut attempts = Attempts::default();
        for micros in [1, 1_000, 1_001, 2_000, 16_384_000, 16_384_001, 60_000_000] {
            attempts.add(Duration::from_micros(micros));
        }
        let mut counts = vec![0; 16];
        counts[..2].copy_from_slice(&[2, 2]);
        counts[14..].copy_from_slice(&[1, 2]);
        assert_eq!(wire::Attempts::from(&attempts), wire::Attempts { counts, sum_micros: 92_772_003 });
    }
}
