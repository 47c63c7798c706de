//! Logging of a backend's program.

use std::{
    fs::File,
    io::{self, IsTerminal as _},
    sync::Arc,
};

use anyhow::Context as _;
use clap::ValueEnum;
use localnet_config::log::directives;
use tracing_subscriber::{EnvFilter, fmt::MakeWriter};

/// The format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object for each line.
    Json,
}

/// Starts logging to standard error. `RUST_LOG` selects what is logged, for instance `localnet=debug`; the default is
/// `level`.
///
/// # Errors
/// Returns an error if `RUST_LOG` contains an invalid level.
pub fn init(format: LogFormat, level: &str) -> anyhow::Result<()> {
    start(format, level, io::stderr, io::stderr().is_terminal())
}

/// Starts logging to a file, for a program without a standard error. Otherwise like [`init`].
///
/// # Errors
/// Returns an error if `RUST_LOG` contains an invalid level.
pub fn init_file(format: LogFormat, level: &str, file: File) -> anyhow::Result<()> {
    start(format, level, Arc::new(file), false)
}

fn start<W>(format: LogFormat, level: &str, writer: W, is_terminal: bool) -> anyhow::Result<()>
where
    W: for<'writer> MakeWriter<'writer> + Send + Sync + 'static,
{
    // An empty variable counts as unset.
    let chosen = std::env::var(EnvFilter::DEFAULT_ENV).ok().filter(|level| !level.is_empty());
    let filter = directives(chosen.as_deref().unwrap_or(level)).context("RUST_LOG")?;
    let filter = EnvFilter::try_new(filter).context("RUST_LOG")?;
    // A log that cannot be written (a full disk, a closed pipe) must not end the program that programs a node.
    let subscriber = tracing_subscriber::fmt()
        .log_internal_errors(false)
        .with_env_filter(filter)
        .with_writer(writer)
        .with_ansi(is_terminal);
    match format {
        LogFormat::Text => subscriber.with_target(false).init(),
        LogFormat::Json => subscriber.json().init(),
    }
    Ok(())
}
