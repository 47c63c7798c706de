//! The messages of an answer around records that are already encoded. On the wire, an encoded message is the same as a field of
//! type `bytes`, so these types have the same encoding as those of the same name in [`wire`].

use bytes::Bytes;

use super::wire;

/// Part of an answer.
#[derive(Clone, PartialEq, prost::Message)]
pub struct NextStateResponse {
    /// Set in the first message only.
    #[prost(message, optional, tag = "1")]
    pub begin: Option<wire::Begin>,
    /// A `NodeState`.
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub node: Option<Bytes>,
    /// Changed Services and endpoints.
    #[prost(message, repeated, tag = "3")]
    pub services: Vec<ServiceUpdate>,
    /// Set in the last message only.
    #[prost(message, optional, tag = "4")]
    pub commit: Option<wire::Commit>,
}

/// A change of a Service and its endpoints.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ServiceUpdate {
    /// The Service.
    #[prost(message, optional, tag = "1")]
    pub key: Option<wire::ServiceKey>,
    /// Whether the Service no longer exists.
    #[prost(bool, tag = "2")]
    pub removed: bool,
    /// Whether the reader has to discard what it has of the Service.
    #[prost(bool, tag = "3")]
    pub replace: bool,
    /// A `Service`.
    #[prost(bytes = "bytes", optional, tag = "4")]
    pub service: Option<Bytes>,
    /// The endpoints that no longer exist.
    #[prost(message, repeated, tag = "5")]
    pub removed_endpoints: Vec<wire::EndpointKey>,
    /// New and changed `Endpoint`s.
    #[prost(bytes = "bytes", repeated, tag = "6")]
    pub endpoints: Vec<Bytes>,
}
