//! `localnet-brain`: watches Services, EndpointSlices and one Node, and serves the state of that node to backends.

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

use clap::Parser as _;
use localnet_brain::{args::Arguments, run, telemetry};

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match brain(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // There is nobody to tell that standard error cannot be written.
            _ = writeln!(io::stderr(), "error: {}", format!("{error:#}").replace('\n', " "));
            ExitCode::FAILURE
        }
    }
}

fn brain(arguments: Arguments) -> anyhow::Result<()> {
    telemetry::init(arguments.log.log_format, &arguments.log.log_level)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async { run::run(arguments, run::terminated()?).await })
}
