//! What a backend author needs: source, loop, full-state and incremental models, DiffStore.
//!
//! ```text
//!  brain ──gRPC──► grpc::Brain ┐                      ┌► Backend (full state: look at the Snapshot)
//!                              ├─ Source ─► drive ────┤
//!  feed in the same process ───┘                      └► incremental::Adapter ─► Listener (one call for each change)
//! ```
//!
//! Implement [`Backend`] (or [`incremental::Listener`]) and hand it to [`run`]. A [`DiffStore`] remembers what the kernel
//! holds, so that a backend can fill in the whole desired state and send only the difference. [`vips`] says what a backend that
//! proxies packets is to answer, so that all of them say the same.

pub mod args;
mod backend;
mod diff_store;
mod drive;
pub mod grpc;
pub mod incremental;
pub mod program;
mod retry;
pub mod route;
pub mod served;
mod source;
pub mod telemetry;
pub mod vips;

pub use backend::{Backend, Counts, Looks, RuleCount, Skipped, Synced, Warning};
pub use diff_store::{Diff, DiffStore, Set};
pub use drive::{Options, run};
pub use localnet_proto::{
    Changes, Endpoint, EndpointPort, Family, Node, Port, Protocol, Revision, Scopes, Service, ServiceKey, Snapshot,
    SourceFilter, Verdict, WhenEmpty,
};
pub use source::{Attempts, Outcome, Report, Source, SourceError};
