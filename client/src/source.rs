//! [`Source`]: delivers the state of the node.

use std::{error::Error, fmt};

use localnet_core::{Diagnostic, Mode};
use localnet_proto::{Digest, Family, Revision, Update, traffic::TrafficReport, wire};

use crate::{
    counts::{Attempts, Counts},
    vips::Effective,
};

/// Delivers states and accepts reports. Implemented by the gRPC client ([`crate::grpc::Brain`]) and by the feed of a
/// brain in the same process.
pub trait Source: Send + Sync {
    /// Waits for a state other than `have`, and returns the complete answer or an error. If `fold` is set, the caller
    /// holds `have` and can apply changes to it. Otherwise the answer is a full state.
    ///
    /// # Errors
    /// Returns an error if the source cannot deliver a state. The caller retries.
    fn next(&self, have: Revision, fold: bool) -> impl Future<Output = Result<Update, SourceError>> + Send;

    /// Reports the backend's progress to the brain.
    ///
    /// # Errors
    /// Returns an error if the brain did not accept the report.
    fn report(&self, report: &Report) -> impl Future<Output = Result<(), SourceError>> + Send;

    /// Reports the traffic that the backend has counted. The default, for a source that does not keep it, does nothing.
    ///
    /// # Errors
    /// Returns an error if the brain did not accept the report.
    fn report_traffic(&self, _: &TrafficReport) -> impl Future<Output = Result<(), SourceError>> + Send {
        std::future::ready(Ok(()))
    }

    /// The address of the source, for messages to people.
    fn describe(&self) -> String;
}

/// Why a call failed. After a failure, the kernel's state stays unchanged, and the caller retries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceError {
    /// No process answers at the address.
    Unreachable(String),
    /// The stream broke before its end. The items that it had delivered are discarded.
    Broken(String),
    /// The peer sent an invalid state.
    Invalid(String),
    /// The peer answers but refuses the request. Sending the same request again cannot succeed.
    Refused(String),
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(why) => {
                write!(f, "the brain is unavailable: {why}; check that localnet-brain runs and serves this address")
            }
            Self::Broken(why) => write!(f, "the stream was interrupted: {why}"),
            Self::Invalid(why) => write!(f, "the brain sent an invalid state: {why}"),
            Self::Refused(why) => write!(f, "the brain refused the request: {why}"),
        }
    }
}

impl Error for SourceError {}

/// The progress of a backend.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// The name of the backend.
    pub backend: &'static str,
    /// The mode of kube-proxy that the backend corresponds to.
    pub mode: Option<Mode>,
    /// The newest revision that the backend has received.
    pub received: Revision,
    /// The progress of each family.
    pub families: Vec<(Family, Outcome)>,
    /// The parts of Services that are skipped.
    pub skipped: Vec<Diagnostic>,
    /// Warnings for operators about the backend.
    pub warnings: Vec<Diagnostic>,
    /// The configuration in effect, if the backend reports it.
    pub configuration: Option<Effective>,
    /// The backend's own counters, if it has any.
    pub counts: Option<Counts>,
}

/// The result of the last attempt in one family, and counts of all attempts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The newest revision that the kernel holds; 0 if it holds no revision of this instance.
    pub applied: u64,
    /// The digest of the state with that revision, computed from the state that the backend applied.
    pub digest: Option<Digest>,
    /// The error of the last attempt; `None` if it succeeded.
    pub error: Option<String>,
    /// Full syncs: the first attempt, and attempts while the applied state was unknown.
    pub full: Attempts,
    /// All other attempts: they only had to write changes.
    pub partial: Attempts,
    /// How many attempts failed, of `full` and `partial` together.
    pub failures: u64,
    /// How many of `partial` failed.
    pub partial_failures: u64,
}

/// Maximum number of skipped parts that a report lists. The report only counts the others.
const MAX_SKIPPED: usize = 256;

impl From<&Report> for wire::BackendReport {
    fn from(report: &Report) -> Self {
        let families = report.families.iter().map(|(family, outcome)| wire::FamilyReport {
            family: wire::IpFamily::from(*family).into(),
            applied_rev: outcome.applied,
            applied_digest: outcome.digest.map_or(0, |digest| digest.0),
            error: outcome.error.clone().unwrap_or_default(),
            full: Some((&outcome.full).into()),
            partial: Some((&outcome.partial).into()),
            failures: outcome.failures,
            partial_failures: outcome.partial_failures,
            ..Default::default()
        });
        let mut wire = Self {
            backend: report.backend.to_owned(),
            instance_id: report.received.instance,
            rev: report.received.rev,
            families: families.collect(),
            skipped: report.skipped.iter().take(MAX_SKIPPED).map(Into::into).collect(),
            skipped_count: report.skipped.len().try_into().unwrap_or(i32::MAX),
            warnings: report.warnings.iter().map(Into::into).collect(),
            configuration: report.configuration.as_ref().map(Into::into),
            proxy_mode: report.mode.map(|mode| mode.to_string()).unwrap_or_default(),
            ..Default::default()
        };
        if let Some(counts) = &report.counts {
            counts.add_to(&mut wire);
        }
        wire
    }
}
