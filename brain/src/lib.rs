//! The brain: turns cluster objects into the state of one node, and serves this state through a long poll.
//!
//! ```text
//! watch (kube, file) ──Event──► cluster ──► localize ──Localized──► feed ──State──► serve
//! push  (programs)     └─────────────── pump ─────────────────────────┘         └──► health
//! ```
//!
//! The steps `cluster` and `localize` are in the crate `localnet_cluster`, which is synchronous and pure: it returns
//! diagnostics, which [`pump`] logs. `guard` decides which removals to hold, and reads no clock. These modules do I/O:
//! - sources: [`watch`], [`push`]
//! - servers and clients: [`serve`], [`health`], [`status`], [`events`]
//! - this machine: `platform` and `stamp`, with which others read files and the addresses of interfaces ([`configured`],
//!   [`settings`]); [`exposition`], which reads `/proc`
//! - a file: [`feed::History`], which writes it in a thread of its own (`--history-file`)
//!
//! Modules depend on each other in one direction. [`run`] is at the top, because it connects all other modules.
//! [`batch`], [`metrics`] and [`reports`] are near the bottom, because several modules write or read them.

pub mod args;
pub mod batch;
pub mod check;
pub mod configured;
pub mod events;
pub mod exposition;
pub mod feed;
mod guard;
pub mod health;
mod intake;
pub mod journal;
pub mod kpng;
pub mod metrics;
pub mod peer;
pub mod platform;
pub mod pump;
pub mod push;
pub mod reports;
pub mod run;
pub mod serve;
pub mod settings;
pub mod source;
mod stamp;
pub mod status;
mod throttle;
pub mod views;
pub mod watch;

pub use run::{Brain, start, start_on};
