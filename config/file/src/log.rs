//! Starts the log of a program.

use localnet_config::{LogFormat, log::directives};
use tracing_subscriber::{EnvFilter, fmt::MakeWriter};

/// Starts logging to `writer`. `level` is a level such as `debug`, or directives such as `warn,localnet_brain=debug`.
///
/// # Errors
/// Returns an error if `level` is invalid.
pub fn start_log<W>(format: LogFormat, level: &str, writer: W, colours: bool) -> anyhow::Result<()>
where
    W: for<'writer> MakeWriter<'writer> + Send + Sync + 'static,
{
    // A failed write to the log, for instance to a full disk or a closed pipe, must not end the program.
    let subscriber = tracing_subscriber::fmt()
        .log_internal_errors(false)
        .with_env_filter(filter(level)?)
        .with_writer(writer)
        .with_ansi(colours);
    match format {
        LogFormat::Text => subscriber.with_target(false).init(),
        LogFormat::Json => subscriber.json().init(),
    }
    Ok(())
}

/// The log filter for `level`. It also suppresses messages of libraries.
fn filter(level: &str) -> anyhow::Result<EnvFilter> {
    Ok(EnvFilter::try_new(directives(level).map_err(anyhow::Error::msg)?)?)
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
