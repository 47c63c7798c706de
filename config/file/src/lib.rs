//! The configuration of a running program. The program reads it at the start from the flags and the file of `--config`,
//! and reads the file again whenever the file changes. This crate does the I/O for `localnet-config`, which is pure. The brain
//! and the backends use this crate.
//!
//! ```text
//!  flags ─┐
//!         ├─► begin ─► Begin::Run(Running) ─► follow ─► Current, for each part of the program
//!  file ──┘         └► Begin::Done            --write-config-to
//! ```
//!
//! At the start, an invalid file is an error. Later, the program reports an invalid file and keeps its previous
//! configuration.
//!
//! [`start_log`] starts the log of a program. On Windows, the module `windows` tells when a program has to end.

mod begin;
mod log;
mod read;
mod running;
mod watch;
#[cfg(windows)]
pub mod windows;

pub use begin::{Begin, begin};
pub use log::start_log;
pub use read::last_words;
pub use running::{Current, Following, Running};
pub use watch::Watch;
