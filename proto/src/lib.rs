//! The `localnetv1` API: generated wire types, and the typed model of a node's state.
//!
//! ```text
//!            Service, Endpoint … (model)         NextItem … (wire)
//!  brain ──► Snapshot ──► encode ──► gRPC ──► Assembler ──► Update ──► Snapshot::apply ──► backend
//! ```
//!
//! - [`wire`] is generated from `localnetv1.proto`, which documents every message and field.
//! - [`model`] has the same content in types that cannot hold invalid values. All code except the conversions uses it.
//! - [`Address`] is the address of a brain, in the syntax of Docker's hosts. The brain and its clients both parse it.
//! - [`Digest`] identifies the content of a state.
//! - [`history`] describes the changes of a state, and goes back to earlier states.
//! - [`reasons`] explains a state: the typed form of the answers of `Reasons.Why`, and its conversions.
//! - [`source`] is generated from the API through which other programs push Services to the brain.
//! - [`sysdump`] is everything that is needed to examine a node elsewhere.
//! - [`traffic`] is the traffic of Services, as backends count it.
//! - [`trace`] is a recorded history, which can be replayed.
//! - [`v1`] is the draft of the next contract, `localnet.v1`.
//! - [`encode`] (model → wire) and [`decode`] (wire → model) handle the items of an answer. The module `convert` converts
//!   single objects in both directions.

mod address;
mod convert;
pub mod decode;
mod difference;
mod digest;
pub mod encode;
pub mod history;
pub mod model;
pub mod node_ports;
pub mod reasons;
mod report;
pub mod sysdump;
pub mod trace;
mod update;
pub mod v1;

pub use address::{Address, DEFAULT_ADDRESS, InvalidAddress};
pub use difference::{difference, node_difference};
pub use digest::Digest;
pub use model::{
    Affinity, ByFamily, Endpoint, EndpointPort, Facts, Family, HashBy, Node, Origin, Port, Protocol, Revision, Scopes,
    Service, ServiceKey, Snapshot, SourceFilter, TargetRef, Verdict, WhenEmpty,
};
pub use update::{Change, Changes, Update};

/// Types and services generated from `localnetv1.proto`.
#[expect(clippy::all, clippy::allow_attributes, reason = "generated code; the proto file documents it")]
pub mod wire {
    include!("generated/localnetv1.rs");
}

/// The RPC `Watch` under the package name of newer versions of KPNG, generated from `localv1.proto`.
#[expect(clippy::allow_attributes, reason = "generated code; the proto file documents it")]
pub mod localv1 {
    include!("generated/localv1.rs");
}
/// The API through which other programs push Services, generated from `localnet/source/v1alpha1/source.proto`.
#[expect(clippy::allow_attributes, reason = "generated code; the proto file documents it")]
pub mod source {
    include!("generated/localnet.source.v1alpha1.rs");
}

/// The history of the state, generated from `historyv1alpha1.proto`. [`history`] contains it as well.
#[expect(clippy::allow_attributes, reason = "generated code; the proto file documents it")]
mod historyv1alpha1 {
    include!("generated/historyv1alpha1.rs");
}
/// The content of a sysdump, generated from `sysdumpv1alpha1.proto`. [`sysdump`] contains it as well.
mod sysdumpv1alpha1 {
    include!("generated/sysdumpv1alpha1.rs");
}
/// The traffic of Services, generated from `trafficv1alpha1.proto`.
#[expect(clippy::allow_attributes, reason = "generated code; the proto file documents it")]
pub mod traffic {
    include!("generated/trafficv1alpha1.rs");
}
// The generated code of these packages refers to the package `localnetv1`.
use wire as localnetv1;
