//! `localnet-brain`: watches Services, EndpointSlices and one Node, and serves the state of that node to backends.

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

use clap::Parser as _;
use localnet_brain::{
    args::{Arguments, Command},
    check, run,
};
use localnet_config::{KubeProxyFlags, Mode, Platform, Reader};
use localnet_config_file::{Begin, Running, begin};

/// It gives memory back that is used only while a state is read or written for the first time.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

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
    if let Some(Command::Check(check)) = &arguments.command {
        // kube-proxy's empty mode, with which ours is compared.
        let Some(running) = read(&check.kube_proxy, Mode::Iptables)? else { return Ok(()) };
        check.log.start(running.config())?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        return runtime.block_on(check::run(check, running.config()));
    }
    let Some(running) = read(&arguments.kube_proxy, Mode::Nftables)? else { return Ok(()) };
    arguments.log.start(running.config())?;
    running.say();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async { run::run(arguments, *running, run::terminated()?).await })
}

/// The configuration; `None` when it was only to be written.
fn read(flags: &KubeProxyFlags, empty_mode: Mode) -> anyhow::Result<Option<Box<Running>>> {
    match begin(flags.clone(), Reader { platform: Platform::Linux, empty_mode })? {
        Begin::Run(running) => Ok(Some(running)),
        Begin::Done { said } => {
            let lines: String = said.iter().map(|line| format!("{line}\n")).collect();
            _ = io::stderr().write_all(lines.as_bytes());
            Ok(None)
        }
    }
}
