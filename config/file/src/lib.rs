//! The configuration of a program that runs: read at the start, from flags and from the file of `--config`, and again whenever
//! that file changes. The I/O beside the pure `localnet-config`; brain and backends use it alike.
//!
//! ```text
//!  flags ─┐
//!         ├─► begin ─► Begin::Run(Running) ─► follow ─► Current, for each part of the program
//!  file ──┘         └► Begin::Done            --write-config-to
//! ```
//!
//! A file that is invalid at the start is an error. Later it is reported, and the configuration that runs stays.

mod read;
mod running;
mod watch;

pub use read::{Begin, Invalid, begin, last_words};
pub use running::{Current, Following, Running};
