//! The program `localnet-win`.

use std::process::ExitCode;

#[cfg(windows)]
fn main() -> ExitCode {
    use clap::Parser as _;

    let arguments = localnet_win::windows::Arguments::parse_from(localnet_config::flags::spelled(std::env::args_os()));
    localnet_client::args::exit(localnet_win::windows::run(arguments))
}

/// On other systems, the program can be built and tested, but not used.
#[cfg(not(windows))]
fn main() -> ExitCode {
    localnet_client::args::exit(Err(anyhow::anyhow!("localnet-win programs HNS, which exists only on Windows")))
}
