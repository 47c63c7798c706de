//! The flags that every backend has.

use std::{
    env,
    fs::File,
    io::{self, Write as _},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use anyhow::ensure;
use clap::Args;
use localnet_config::Config;
use localnet_proto::{Address, DEFAULT_ADDRESS, Revision};

use crate::{
    Options,
    backend::Backend,
    grpc::{Brain, TlsFiles},
    source::Source,
    telemetry::{self, LogFormat},
};

/// The source of the state, and the options of the loop. Flatten this struct into the backend's own arguments.
#[derive(Args, Clone, Debug)]
pub struct ClientArgs {
    #[cfg_attr(not(windows), doc = "Address of the brain: unix:///path or tcp://host:port")]
    #[cfg_attr(windows, doc = "Address of the brain: tcp://host:port or npipe:////./pipe/name")]
    #[arg(long, value_name = "ADDR", default_value = DEFAULT_ADDRESS)]
    pub api: Address,
    /// Apply one state, print how to resume, and exit
    #[arg(long)]
    pub once: bool,
    /// Brain instance of the last applied state; needs --rev
    #[arg(long, value_name = "NUMBER", default_value_t = 0, requires = "rev")]
    pub instance_id: u64,
    /// Revision of the last applied state: wait for a state with another revision
    #[arg(long, value_name = "NUMBER", default_value_t = 0, requires = "instance_id")]
    pub rev: u64,
    /// Read the draft of localnet.v1, which the brain must serve (--draft-v1) and which may change in any release
    #[arg(long)]
    pub draft_v1: bool,
    /// The files for TLS.
    #[command(flatten)]
    pub tls: TlsArgs,
    /// Minimum time between two syncs, in milliseconds; changes in between are merged [default: 0, or as configured]
    #[arg(long, value_name = "MS")]
    pub min_sync_interval: Option<u64>,
    /// Format of log lines; the variable RUST_LOG sets their level, such as debug [default: text, or as configured]
    #[arg(long, value_enum)]
    pub log_format: Option<LogFormat>,
}

/// The files for TLS to a brain on TCP.
#[derive(Args, Clone, Debug)]
pub struct TlsArgs {
    /// CA certificates that verify the brain's TLS certificate
    #[arg(long, value_name = "FILE")]
    pub tls_ca: Option<PathBuf>,
    /// Client TLS certificate
    #[arg(long, value_name = "FILE", requires = "tls_ca", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Private key of the client TLS certificate
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
}

impl TlsArgs {
    /// The files; `None` without `--tls-ca`.
    pub fn files(&self) -> Option<TlsFiles> {
        let identity = self.tls_cert.clone().zip(self.tls_key.clone());
        self.tls_ca.clone().map(|ca| TlsFiles { ca, identity })
    }
}

impl ClientArgs {
    /// The brain that the flags name as the source of the state. Does not connect yet.
    ///
    /// # Errors
    /// Returns an error if a TLS file cannot be read, or if `--tls-ca` is given for an address that does not use TLS.
    pub fn source(&self) -> anyhow::Result<Brain> {
        ensure!(
            self.tls.tls_ca.is_none() || matches!(self.api, Address::Tcp { .. }),
            "--tls-ca: {} does not use TLS; use --api tcp://HOST:PORT, or remove --tls-ca",
            self.api
        );
        let brain = Brain::new(self.api.clone(), self.tls.files().as_ref())?;
        Ok(if self.draft_v1 { brain.reading_draft_v1(reader_name()) } else { brain })
    }

    /// The loop's options from the flags.
    pub fn options(&self) -> Options {
        Options {
            once: self.once,
            resume: Revision { instance: self.instance_id, rev: self.rev },
            min_interval: Duration::from_millis(self.min_sync_interval.unwrap_or_default()),
            ..Options::default()
        }
    }

    /// The loop's options. If no flag sets an option, the configuration does.
    pub fn configured_options(&self, config: &Config) -> Options {
        let options = self.options().configured(config);
        let min_interval = self.min_sync_interval.map_or(options.min_interval, Duration::from_millis);
        Options { min_interval, ..options }
    }

    /// Starts logging to `file`, or to standard error if `file` is `None`. If no flag sets the format or the level, the
    /// configuration does.
    ///
    /// # Errors
    /// Returns an error if `RUST_LOG` contains an invalid level.
    pub fn start_log(&self, config: &Config, file: Option<File>) -> anyhow::Result<()> {
        telemetry::init(self.log_format.unwrap_or(config.logging.format), config.logging.level(), file)
    }
}

/// The name under which this program reads: that of its file, without `localnet-` and without characters that names do not have.
fn reader_name() -> String {
    let program = env::current_exe().unwrap_or_default();
    let name = program.file_stem().unwrap_or_default().to_string_lossy().to_lowercase();
    let name = name.strip_prefix("localnet-").unwrap_or(&name);
    name.chars().filter(|of| of.is_ascii_lowercase() || of.is_ascii_digit() || *of == '-').take(63).collect()
}

/// Runs a backend's program until SIGTERM, SIGINT or SIGHUP, or with `--once` until one state is applied.
///
/// # Errors
/// Returns the errors of [`crate::run`].
pub async fn run(backend: impl Backend, source: impl Source, options: Options) -> anyhow::Result<()> {
    crate::run(backend, source, options, terminated()).await
}

/// The exit code of a program. A failure prints one line to standard error, or one line for each problem of a
/// configuration, and becomes exit code 1.
pub fn exit(result: anyhow::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // If standard error cannot be written, there is no other place to report the failure.
            _ = io::stderr().write_all(localnet_config_file::last_words(&error).as_bytes());
            ExitCode::FAILURE
        }
    }
}

/// Resolves when the program should end: on SIGTERM, SIGINT or SIGHUP (its terminal was closed).
#[cfg(unix)]
pub async fn terminated() {
    use tokio::signal::unix::{SignalKind, signal};

    let wait = |kind| async move {
        match signal(kind) {
            Ok(mut signals) => _ = signals.recv().await,
            // Without a handler, the signal ends the process anyway.
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        () = wait(SignalKind::terminate()) => {}
        () = wait(SignalKind::interrupt()) => {}
        () = wait(SignalKind::hangup()) => {}
    }
}

#[cfg(windows)]
pub use localnet_config_file::windows::terminated;
