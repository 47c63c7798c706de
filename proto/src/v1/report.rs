//! The reports of backends: what a `ReportStatusRequest` may contain, and its conversion to and from the report of `localnetv1`, which
//! is the form that all of the brain uses.

mod check;
mod configuration;
mod older;
#[cfg(test)]
mod tests;

use tonic::Status;

use super::{ErrorInfo, decode, wire};
use crate::{
    digest::Digest,
    model::{Node, Revision},
    wire::BackendReport,
};

/// Maximum size of a request, in bytes. The lists and texts that `check` allows fit into it.
pub const LARGEST: usize = 1 << 20;

/// What the brain knows about its states.
pub struct Known<'a> {
    /// The newest revision.
    pub newest: Revision,
    /// The facts about the node.
    pub node: &'a Node,
    /// The digests of the state with a sequence number. `None` if they are no longer known.
    pub digests: &'a dyn Fn(u64) -> Option<Digests>,
}

impl Known<'_> {
    /// The digests of the state with a revision. `None` if they are unknown, or if the revision belongs to another brain.
    fn digests_of(&self, revision: Revision) -> Option<Digests> {
        (revision.instance == self.newest.instance).then(|| (self.digests)(revision.rev)).flatten()
    }
}

/// The digests of one state in both packages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digests {
    /// The digest in `localnetv1`.
    pub items: Digest,
    /// The sum of the digests of all records.
    pub records: Digest,
}

impl Digests {
    /// The digest in `localnetv1` for a sum that a backend has reported. It differs from [`items`](Self::items) by as much as the sum
    /// differs from [`records`](Self::records), so it is right only if the sum is.
    pub fn to_items(self, sum: Digest) -> Digest {
        self.items.and(sum).without(self.records)
    }

    /// The inverse of [`to_items`](Self::to_items).
    pub fn to_records(self, digest: Digest) -> Digest {
        self.records.and(digest).without(self.items)
    }
}

/// A valid report without unset fields that stand for earlier ones.
#[derive(Clone, Debug, PartialEq)]
pub struct BackendStatus(wire::ReportStatusRequest);

impl BackendStatus {
    /// Checks a report. `newest` is the newest revision of the brain.
    ///
    /// # Errors
    /// Returns `INVALID_REQUEST` or `REVISION_UNKNOWN`.
    pub fn checked(request: wire::ReportStatusRequest, newest: Revision) -> Result<Self, Status> {
        check::check(&request).map_err(|(field, problem)| ErrorInfo::invalid(&field, &problem))?;
        let revisions = request.families.iter().filter_map(|family| family.applied.as_ref()).chain(&request.received);
        for named in revisions.filter_map(|revision| decode::revision(revision).ok()) {
            if named.instance == newest.instance && named.rev > newest.rev {
                return Err(unknown(named, newest));
            }
        }
        Ok(Self(request))
    }

    /// The name of the backend.
    pub fn name(&self) -> &str {
        &self.0.reader_name
    }

    /// The report with the values of the last one for the fields that may be left unset.
    #[must_use]
    pub fn after(self, last: Option<&Self>) -> Self {
        let Some(Self(last)) = last else { return self };
        let skipped = self.0.skipped.or_else(|| last.skipped.clone());
        let traffic = self.0.traffic.or_else(|| last.traffic.clone());
        Self(wire::ReportStatusRequest { skipped, traffic, ..self.0 })
    }

    /// Whether the report says what the backend skips.
    pub fn is_complete(&self) -> bool {
        self.0.skipped.is_some()
    }

    /// The message.
    pub fn message(&self) -> &wire::ReportStatusRequest {
        &self.0
    }

    /// The report of `localnetv1` with the same content. It has no counts besides the repairs.
    pub fn to_older(&self, known: &Known<'_>) -> BackendReport {
        older::encode(&self.0, known)
    }

    /// The message with the content of a report of `localnetv1`, without its counts.
    pub fn message_of(report: &BackendReport, known: &Known<'_>) -> wire::ReportStatusRequest {
        older::decode(report, known)
    }
}

fn unknown(named: Revision, newest: Revision) -> Status {
    let text = |revision: Revision| format!("{:016x}:{}", revision.instance, revision.rev);
    let info =
        ErrorInfo::new(wire::ErrorReason::RevisionUnknown).with("revision", text(named)).with("newest", text(newest));
    info.status(format!(
        "revision {} does not exist: the newest one is {}; report revisions that the brain has sent",
        named.rev, newest.rev
    ))
}
