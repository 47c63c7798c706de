//! The configuration of a running program. It is read at the start from the flags and the file of `--config`, and again
//! whenever that file changes. This crate does the I/O for the pure `localnet-config`, for brain and backends.
//!
//! ```text
//!  flags ─┐
//!         ├─► begin ─► Begin::Run(Running) ─► follow ─► Current, for each part of the program
//!  file ──┘         └► Begin::Done            --write-config-to
//! ```
//!
//! At the start, an invalid file is an error. Later, an invalid file is reported, and the program keeps its configuration.
//!
//! [`start_log`] starts the log of a program, as the configuration describes it.

mod begin;
mod log;
mod read;
mod running;
mod watch;

pub use begin::{Begin, begin};
pub use log::start_log;
pub use read::last_words;
pub use running::{Current, Following, Running};
