//! [`Source`]: where the state of the node comes from.

use localnet_proto::{Family, Revision, ServiceKey, Update, wire};

use crate::backend::Skipped;

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
}

/// What came of the last attempt in one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Newest revision that the kernel holds; 0 for none of this instance.
    pub applied: u64,
    /// Why the newest could not be applied.
    pub error: Option<String>,
}

/// So many are named in a report; the others are counted.
const MAX_SKIPPED: usize = 256;

fn skipped(skipped: &Skipped) -> wire::SkippedService {
    let ServiceKey { namespace, name } = &skipped.service;
    let key = wire::ServiceKey { namespace: namespace.to_string(), name: name.to_string() };
    wire::SkippedService { service: Some(key), reason: skipped.reason.clone() }
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
        });
        Self {
            backend: report.backend.to_owned(),
            instance_id: report.received.instance,
            rev: report.received.rev,
            families: families.collect(),
            skipped: report.skipped.iter().take(MAX_SKIPPED).map(skipped).collect(),
            skipped_count: report.skipped.len().try_into().unwrap_or(i32::MAX),
        }
    }
}
