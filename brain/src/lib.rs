//! Cluster objects in, the state of one node out, served as a long poll.
//!
//! ```text
//! watch (kube, file) ──Event──► cluster ──► localize ──Localized──► feed ──State──► serve
//!                      └─────────────── pump ─────────────────────────┘
//! ```
//!
//! Only [`watch`], `serve` and the command do I/O. [`cluster`] and [`localize`] are synchronous and pure: they return what
//! they skipped and why, and [`pump`] says it in the log.

pub mod args;
pub mod cluster;
pub mod feed;
pub mod localize;
pub mod pump;
pub mod run;
pub mod serve;
pub mod telemetry;
pub mod watch;

pub use run::{Brain, start};
