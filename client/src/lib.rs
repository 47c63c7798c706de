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
//!
//! The default features are for programs like those of this repository. With `default-features = false`, the library
//! contains everything in the figure, for brains on a unix socket or on TCP without TLS, and needs 60 crates in all.
//!
//! - `program` adds the flags, logging and commands that all backends of this repository have, and reads kube-proxy's
//!   configuration: the modules `args`, `program`, `telemetry` and `vips::flags`.
//! - `tls` adds TLS to connections over TCP.

#[cfg(feature = "program")]
pub mod args;
mod backend;
mod counts;
mod diff_store;
mod drive;
pub mod grpc;
pub mod incremental;
pub mod inspect;
#[cfg(feature = "program")]
pub mod program;
mod retry;
pub mod route;
pub mod served;
mod source;
#[cfg(feature = "program")]
pub mod telemetry;
pub mod vips;

pub use backend::{Backend, Synced};
pub use counts::{Attempts, Counts, FlowChecks};
pub use diff_store::{Diff, DiffStore, Difference, KeyRange, Set};
pub use drive::{Options, run};
pub use localnet_core::{Code, Diagnostic, Mode, Severity, Subject};
pub use localnet_proto::{
    Address, Changes, DEFAULT_ADDRESS, Endpoint, EndpointPort, Family, Node, Port, Protocol, Revision, Scopes, Service,
    ServiceKey, Snapshot, SourceFilter, Verdict, WhenEmpty,
};
pub use source::{Outcome, Report, Source, SourceError};

/// Compiles the example in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
