//! Sets up logging.

use std::io::{self, IsTerminal as _};

use anyhow::Context as _;
use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

/// The format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Text, for people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Starts logging to standard error.
///
/// # Errors
/// Returns an error if `level` is not a valid filter, such as `debug` or `warn,localnet_brain=debug`.
pub fn init(format: LogFormat, level: &str) -> anyhow::Result<()> {
    let filter = filter(level).context("--log-level, or RUST_LOG")?;
    let colours = io::stderr().is_terminal();
    // A failed write, for instance to a full disk or a closed pipe, must not stop the program.
    let subscriber = tracing_subscriber::fmt()
        .log_internal_errors(false)
        .with_env_filter(filter)
        .with_ansi(colours)
        .with_writer(io::stderr);
    match format {
        LogFormat::Text => subscriber.with_target(false).init(),
        LogFormat::Json => subscriber.json().init(),
    }
    Ok(())
}

/// The filter for a level. It limits the lines of libraries.
fn filter(level: &str) -> anyhow::Result<EnvFilter> {
    Ok(EnvFilter::try_new(localnet_config::log::directives(level)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_directives_are_parsed() {
        for level in ["info", "warn,localnet_brain=debug", "trace", "kube_client=debug"] {
            assert!(filter(level).is_ok(), "{level}");
        }
        for level in ["localnet_brain=loud", "verbose"] {
            assert!(filter(level).is_err(), "{level}");
        }
    }
}
