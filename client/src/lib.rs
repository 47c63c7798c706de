//! Library for backend authors: source, sync loop, full-state model, incremental model and DiffStore.
//!
//! ```text
//!  brain ──gRPC──► grpc::Brain ┐                      ┌► Backend (full state: reads the Snapshot)
//!                              ├─ Source ─► drive ────┤
//!  feed in the same process ───┘                      └► incremental::Adapter ─► Listener (one call for each change)
//! ```
//!
//! Implement [`Backend`] or [`incremental::Listener`] and pass it to [`run`]. A [`DiffStore`] remembers what the kernel
//! holds, so a backend can fill in the whole desired state and send only the difference to the kernel. [`vips`] computes
//! the VIPs that a proxying backend answers. All backends of this repository use it, so they make the same decisions.

pub mod args;
mod backend;
mod counts;
mod diff_store;
mod drive;
pub mod grpc;
pub mod incremental;
pub mod inspect;
pub mod program;
mod retry;
pub mod route;
pub mod served;
mod source;
pub mod telemetry;
pub mod vips;

pub use backend::{Backend, Synced};
pub use counts::{Attempts, Counts, FlowChecks};
pub use diff_store::{Diff, DiffStore, Difference, KeyRange, Set};
pub use drive::{Options, run};
pub use localnet_config::Mode;
pub use localnet_core::{Code, Diagnostic, Severity, Subject};
pub use localnet_proto::{
    Changes, Endpoint, EndpointPort, Family, Node, Port, Protocol, Revision, Scopes, Service, ServiceKey, Snapshot,
    SourceFilter, Verdict, WhenEmpty,
};
pub use source::{Outcome, Report, Source, SourceError};
