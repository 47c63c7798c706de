//! The machine-readable part of errors: `google.rpc.ErrorInfo`, in the details of the status.

use std::collections::BTreeMap;

use prost::Message as _;
use tonic::{Code, Status};

use super::wire::ErrorReason;

const DOMAIN: &str = "localnet.dev";
const PREFIX: &str = "ERROR_REASON_";
const TYPE: &str = "type.googleapis.com/google.rpc.ErrorInfo";

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorInfo {
    /// The reason.
    pub reason: ErrorReason,
    /// The keys that the comment of the reason lists, with their values.
    pub metadata: BTreeMap<String, String>,
}

impl ErrorInfo {
    /// A reason without metadata.
    pub fn new(reason: ErrorReason) -> Self {
        Self { reason, metadata: BTreeMap::new() }
    }

    /// Adds an entry to the metadata.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<String>) -> Self {
        self.metadata.insert(key.to_owned(), value.into());
        self
    }

    /// The code that belongs to a reason.
    pub fn code(reason: ErrorReason) -> Code {
        match reason {
            ErrorReason::Unspecified => Code::Unknown,
            ErrorReason::InvalidRequest => Code::InvalidArgument,
            ErrorReason::NodeNotServed | ErrorReason::NotPublished => Code::PermissionDenied,
            ErrorReason::CapabilityMissing => Code::FailedPrecondition,
            ErrorReason::TooManyCalls => Code::ResourceExhausted,
            ErrorReason::ReaderStalled => Code::Aborted,
            ErrorReason::ShuttingDown => Code::Unavailable,
            ErrorReason::RevisionUnknown => Code::OutOfRange,
        }
    }

    /// The status of the failed call. The message is for people.
    pub fn status(self, message: impl Into<String>) -> Status {
        let (code, message) = (Self::code(self.reason), message.into());
        let reason = self.reason.as_str_name().trim_start_matches(PREFIX).to_owned();
        let info = rpc::ErrorInfo { reason, domain: DOMAIN.to_owned(), metadata: self.metadata };
        let details = vec![rpc::Any { type_url: TYPE.to_owned(), value: info.encode_to_vec() }];
        let details = rpc::Status { code: code.into(), message: message.clone(), details }.encode_to_vec();
        Status::with_details(code, message, details.into())
    }

    /// The status for a request with an invalid field. `problem` is a predicate, such as "is missing".
    pub fn invalid(field: &str, problem: &str) -> Status {
        let info = Self::new(ErrorReason::InvalidRequest).with("field", field).with("problem", problem);
        info.status(format!("{field} {problem}"))
    }

    /// The reason in a status. `None` if there is none, or if this version does not know it.
    pub fn of(status: &Status) -> Option<Self> {
        let details = rpc::Status::decode(status.details()).ok()?.details;
        let info = details.iter().find(|detail| detail.type_url == TYPE)?;
        let info = rpc::ErrorInfo::decode(&*info.value).ok().filter(|info| info.domain == DOMAIN)?;
        let reason = ErrorReason::from_str_name(&format!("{PREFIX}{}", info.reason))?;
        Some(Self { reason, metadata: info.metadata })
    }
}

/// The messages of `google/rpc/status.proto`, `google/rpc/error_details.proto` and `google/protobuf/any.proto` that an error
/// consists of.
mod rpc {
    use std::collections::BTreeMap;

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Status {
        #[prost(int32, tag = "1")]
        pub(super) code: i32,
        #[prost(string, tag = "2")]
        pub(super) message: String,
        #[prost(message, repeated, tag = "3")]
        pub(super) details: Vec<Any>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Any {
        #[prost(string, tag = "1")]
        pub(super) type_url: String,
        #[prost(bytes = "vec", tag = "2")]
        pub(super) value: Vec<u8>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct ErrorInfo {
        #[prost(string, tag = "1")]
        pub(super) reason: String,
        #[prost(string, tag = "2")]
        pub(super) domain: String,
        #[prost(btree_map = "string, string", tag = "3")]
        pub(super) metadata: BTreeMap<String, String>,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_contains_its_reason() {
        let info =
            ErrorInfo::new(ErrorReason::InvalidRequest).with("field", "reader.name").with("problem", "is too long");
        let status = info.clone().status("reader.name: is too long");
        assert_eq!((status.code(), status.message()), (Code::InvalidArgument, "reader.name: is too long"));
        assert_eq!(ErrorInfo::of(&status), Some(info));
        assert_eq!(ErrorInfo::of(&Status::unavailable("no route")), None, "an error of a library");
    }

    /// What other implementations of gRPC send: the details of the status `UNAVAILABLE`, encoded by `protoc` from the files in
    /// the module `rpc`.
    #[test]
    fn the_encoding_is_that_of_google_rpc() {
        let status = ErrorInfo::new(ErrorReason::ShuttingDown).with("a", "b").status("bye");
        let info = b"\n\rSHUTTING_DOWN\x12\x0clocalnet.dev\x1a\x06\n\x01a\x12\x01b";
        let any = [b"\n\x28", TYPE.as_bytes(), b"\x12", &[info.len() as u8], info].concat();
        let expected = [&b"\x08\x0e\x12\x03bye\x1a"[..], &[any.len() as u8], &any].concat();
        assert_eq!(status.details(), expected);
    }
}
