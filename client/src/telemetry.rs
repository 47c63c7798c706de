//! Logging of a backend's program.

use std::{
    env,
    fs::File,
    io::{self, IsTerminal as _},
    sync::Arc,
};

use anyhow::Context as _;
pub use localnet_config::LogFormat;
use localnet_config_file::start_log;

/// Starts logging to `file`, or to standard error if `file` is `None`. The variable `RUST_LOG` selects what is logged,
/// for instance `localnet=debug`; without the variable, `level` applies.
///
/// # Errors
/// Returns an error if `RUST_LOG` contains an invalid level.
pub fn init(format: LogFormat, level: &str, file: Option<File>) -> anyhow::Result<()> {
    // An empty variable counts as unset.
    let level = env::var("RUST_LOG").ok().filter(|level| !level.is_empty()).unwrap_or_else(|| level.to_owned());
    let started = match file {
        Some(file) => start_log(format, &level, Arc::new(file), false),
        None => start_log(format, &level, io::stderr, io::stderr().is_terminal()),
    };
    started.context("RUST_LOG")
}
