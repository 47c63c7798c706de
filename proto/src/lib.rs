//! The localnetv1 contract: wire types and the typed model of one node's state.
//!
//! ```text
//!            Service, Endpoint … (model)         NextItem … (wire)
//!  brain ──► Snapshot ──► encode ──► gRPC ──► Assembler ──► Update ──► Snapshot::apply ──► backend
//! ```
//!
//! - [`wire`] is generated from `localnetv1.proto`, which documents every message and field.
//! - [`model`] is the same in types that cannot hold nonsense. Everything but the two conversions works on it.
//! - [`Address`] is where a brain is served, in docker's syntax, for both sides.
//! - [`encode`] (model → wire) and [`decode`] (wire → model) are the only places that know both.

mod address;
pub mod decode;
pub mod encode;
pub mod model;
mod update;

pub use address::{Address, BadAddress, DEFAULT_ADDRESS};
pub use model::{
    Endpoint, EndpointPort, Family, Node, Port, Protocol, Revision, Scopes, Service, ServiceKey, Snapshot,
    SourceFilter, Verdict, WhenEmpty,
};
pub use update::{Change, Changes, Update};

/// Types and services generated from `localnetv1.proto`.
#[expect(clippy::all, clippy::allow_attributes, reason = "generated code; the proto file documents it")]
pub mod wire {
    tonic::include_proto!("localnetv1");
}

/// KPNG's later name of `Watch`, generated from `localv1.proto`.
#[expect(clippy::allow_attributes, reason = "generated code; the proto file documents it")]
pub mod localv1 {
    tonic::include_proto!("localv1");
}
// Generated code calls each package by its own name.
use wire as localnetv1;

/// The serialized `FileDescriptorSet` of `localnetv1.proto` and `localv1.proto`, comments included, for gRPC reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/localnetv1.binpb"));
