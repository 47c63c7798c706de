//! The flags that every backend has.

use std::{
    io::{self, Write as _},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use clap::Args;
use localnet_proto::{Address, DEFAULT_ADDRESS, Revision};
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    Options,
    backend::Backend,
    grpc::{Brain, TlsFiles},
    source::Source,
    telemetry::LogFormat,
};

/// Where the state comes from, and how the loop runs. Flatten it into the backend's own arguments.
#[derive(Args, Clone, Debug)]
pub struct ClientArgs {
    /// Where the brain is served: unix:///path or tcp://host:port
    #[arg(long, value_name = "ADDR", default_value = DEFAULT_ADDRESS)]
    pub api: Address,
    /// Apply one state, print how to resume, and exit
    #[arg(long)]
    pub once: bool,
    /// The brain's instance whose state was seen last (with --rev)
    #[arg(long, value_name = "NUMBER", default_value_t = 0, requires = "rev")]
    pub instance_id: u64,
    /// The revision that was seen last: wait for another one
    #[arg(long, value_name = "NUMBER", default_value_t = 0, requires = "instance_id")]
    pub rev: u64,
    /// Certificates of the authorities that the brain's TLS certificate may come from
    #[arg(long, value_name = "FILE")]
    pub tls_ca: Option<PathBuf>,
    /// Own TLS certificate
    #[arg(long, value_name = "FILE", requires = "tls_ca", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Key of the own TLS certificate
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Shortest time between two syncs, in milliseconds; changes in between are joined
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pub min_sync_interval: u64,
    /// How log lines look
    #[arg(long, value_enum, default_value_t)]
    pub log_format: LogFormat,
}

impl ClientArgs {
    /// The source that the flags name. Must be called in a tokio runtime.
    ///
    /// # Errors
    /// A TLS file cannot be read.
    pub fn source(&self) -> anyhow::Result<Brain> {
        let identity = self.tls_cert.clone().zip(self.tls_key.clone());
        let tls = self.tls_ca.clone().map(|ca| TlsFiles { ca, identity });
        Brain::new(self.api.clone(), tls.as_ref())
    }

    /// The loop's options that the flags name.
    pub fn options(&self) -> Options {
        Options {
            once: self.once,
            resume: Revision { instance: self.instance_id, rev: self.rev },
            min_interval: Duration::from_millis(self.min_sync_interval),
            ..Options::default()
        }
    }
}

/// Runs a backend's program to its end: until SIGTERM, SIGINT or SIGHUP, or with `--once` until one state is applied.
///
/// # Errors
/// See [`crate::run`].
pub async fn run(backend: impl Backend, source: impl Source, options: Options) -> anyhow::Result<()> {
    crate::run(backend, source, options, terminated()).await
}

/// The end of a program: a failure becomes one line on standard error, and exit code 1.
pub fn exit(result: anyhow::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // There is nobody to tell that standard error cannot be written.
            _ = writeln!(io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Resolves on SIGTERM, SIGINT or SIGHUP (the terminal is gone).
pub async fn terminated() {
    let wait = |kind| async move {
        match signal(kind) {
            Ok(mut signals) => _ = signals.recv().await,
            // Without a handler the signal ends the process anyway.
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        () = wait(SignalKind::terminate()) => {}
        () = wait(SignalKind::interrupt()) => {}
        () = wait(SignalKind::hangup()) => {}
    }
}
