//! The draft of `localnet.v1`: generated wire types, and its records in terms of the [`model`](crate::model).
//!
//! ```text
//!                 records                 messages                     records            Service, Endpoint …
//!  brain ──► encode ──────► answer of the feed ────► gRPC ──► Answer ──► Reader ──► decode ──► Update
//! ```
//!
//! - [`wire`] is generated from the files in `proto/localnet/v1`, which document every message and field.
//! - [`encode`] (model → records) and [`decode`] (records → model) handle single records.
//! - [`dns`] contains the model and the records of the view for DNS.
//! - [`raw`] contains the messages of an answer around records that are already encoded.
//! - [`Reader`] keeps what a reader keeps, checks answers, and yields the same [`Update`](crate::Update)s as `localnetv1`.
//! - [`report`] contains the reports of backends, and converts them to and from those of `localnetv1`.
//! - [`explain`] contains the explanations of `localnet.reasons.v1alpha1`.
//! - [`ErrorInfo`] is the machine-readable part of an error.

pub mod decode;
pub mod dns;
pub mod encode;
mod error;
pub mod explain;
pub mod raw;
mod reader;
pub mod report;
mod settings;

pub use error::ErrorInfo;
pub use reader::{Answer, Reader, Rejected};

use std::net::IpAddr;

use crate::{
    digest::Digest,
    model::{Revision, ServiceKey},
};

/// Types and services generated from the files in `proto/localnet/v1`.
#[expect(clippy::allow_attributes, reason = "generated code; the proto files document it")]
pub mod wire {
    include!("generated/localnet.v1.rs");
}

/// The annotations of Services that a reader may always select. The model has a field for each.
pub const PUBLISHED: [&str; 2] = ["localnet.dev/ipvs-scheduler", "preserve-destination"];

/// Maximum length of a reader's name, in bytes.
const LONGEST_NAME: usize = 63;

/// Whether a text may be the name of a reader (`Reader.name`).
pub fn is_reader_name(text: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    text.len() <= LONGEST_NAME && text.bytes().all(is_letter)
}

impl From<Revision> for wire::Revision {
    fn from(Revision { instance, rev }: Revision) -> Self {
        Self { instance: format!("{instance:016x}"), number: rev }
    }
}

impl From<&ServiceKey> for wire::ServiceKey {
    fn from(key: &ServiceKey) -> Self {
        Self { namespace: key.namespace.to_string(), name: key.name.to_string() }
    }
}

/// Identifies an endpoint within its Service. Sorts in the order of the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointKey {
    /// The address.
    pub address: IpAddr,
    /// Tells endpoints with the same address apart.
    pub ordinal: u32,
}

impl EndpointKey {
    /// The key of the endpoint that follows `last`, in a list of endpoints that is sorted by address.
    pub(crate) fn after(last: Option<Self>, address: IpAddr) -> Self {
        let same = last.filter(|last| last.address == address);
        Self { address, ordinal: same.map_or(0, |last| last.ordinal + 1) }
    }
}

impl From<EndpointKey> for wire::EndpointKey {
    fn from(EndpointKey { address, ordinal }: EndpointKey) -> Self {
        Self { address: address.to_string(), ordinal }
    }
}

/// A kind of metadata that a reader may select.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Metadata {
    /// A label.
    Label,
    /// An annotation.
    Annotation,
}

/// An encoded record: a `NodeState`, `Service` or `Endpoint`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The digest, which the record also contains.
    pub digest: Digest,
    /// The serialized message.
    pub bytes: bytes::Bytes,
}
