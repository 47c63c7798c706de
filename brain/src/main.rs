//! `localnet-brain`: watches Services, EndpointSlices and one Node, and serves the state of that node to backends.

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

use clap::Parser as _;
use localnet_brain::{args::Arguments, run};
use localnet_config::{Mode, Platform, Reader};
use localnet_config_file::{Begin, begin};

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
    let reader = Reader { platform: Platform::Linux, empty_mode: Mode::Nftables };
    let running = match begin(arguments.kube_proxy.clone(), reader)? {
        Begin::Run(running) => running,
        Begin::Done { said } => {
            let lines: String = said.iter().map(|line| format!("{line}\n")).collect();
            _ = io::stderr().write_all(lines.as_bytes());
            return Ok(());
        }
    };
    arguments.log.start(running.config())?;
    running.say();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async { run::run(arguments, *running, run::terminated()?).await })
}
