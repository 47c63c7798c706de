//! `localnet-brain`: watches Services, EndpointSlices and one Node, and serves the state of that node to backends.

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

use anyhow::ensure;
use clap::Parser as _;
use localnet_brain::{
    args::{Arguments, Command},
    check, platform, run,
};
use localnet_config::{
    KubeProxyFlags, Mode, Reader,
    flags::{Part, spelled},
};
use localnet_config_file::{Begin, Running, begin, last_words};
use tracing::warn;

/// jemalloc returns memory to the kernel. Otherwise the brain would keep the memory that only the first list and the
/// first full state need.
#[cfg(unix)]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The exit code of `localnet-brain check` if it fails.
const CHECK_FAILED: u8 = 2;

fn main() -> ExitCode {
    let arguments = Arguments::parse_from(spelled(std::env::args_os()));
    let failed = if arguments.command.is_some() { ExitCode::from(CHECK_FAILED) } else { ExitCode::FAILURE };
    match execute(arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            // If standard error cannot be written, there is no other place to report it.
            _ = io::stderr().write_all(last_words(&error).as_bytes());
            failed
        }
    }
}

/// Runs the command. Returns false only if `check` finds differences.
fn execute(arguments: Arguments) -> anyhow::Result<bool> {
    if let Some(Command::Check(check)) = &arguments.command {
        ensure!(cfg!(unix), "check: the command knows kube-proxy's modes on Linux only; run it on a Linux machine");
        programs_nothing(&check.kube_proxy)?;
        // `check` compares with kube-proxy, so a configuration without a mode means kube-proxy's default mode.
        let Some(running) = read(&check.kube_proxy, Mode::Iptables)? else { return Ok(true) };
        check.log.start(running.config())?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        return Ok(!runtime.block_on(check::run(check, running.config()))?);
    }
    programs_nothing(&arguments.kube_proxy)?;
    let Some(running) = read(&arguments.kube_proxy, platform::BACKEND_MODE)? else { return Ok(true) };
    arguments.log.start(running.config())?;
    running.log_warnings();
    for problem in arguments.kube_proxy.elsewhere(Part::Brain) {
        warn!("{problem}");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    let _entered = handle.enter();
    let as_service = running.config().windows.run_as_service;
    platform::run(as_service, move |ended| runtime.block_on(run::run(arguments, *running, ended)))?;
    Ok(true)
}

/// Refuses those of kube-proxy's flags that only a backend can obey.
fn programs_nothing(flags: &KubeProxyFlags) -> anyhow::Result<()> {
    let to_do = flags.to_do()?;
    ensure!(!to_do.cleanup, "--cleanup: localnet-brain does not program the node; run the backend's command `cleanup`");
    ensure!(!to_do.init_only, "--init-only: localnet-brain needs no privileges; run the backend's command `init`");
    Ok(())
}

/// Reads the configuration. With the flag `--write-config-to`, writes the configuration to that file and returns
/// `None`.
fn read(flags: &KubeProxyFlags, empty_mode: Mode) -> anyhow::Result<Option<Box<Running>>> {
    match begin(flags.clone(), Reader { platform: platform::PLATFORM, empty_mode })? {
        Begin::Run(running) => Ok(Some(running)),
        Begin::Done { messages } => {
            let lines: String = messages.iter().map(|line| format!("{line}\n")).collect();
            _ = io::stderr().write_all(lines.as_bytes());
            Ok(None)
        }
    }
}
