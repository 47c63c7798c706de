//! `localnet-win`: see `localnet_win::args`.

use std::process::ExitCode;

use clap::Parser as _;
use localnet_config::flags::spelled;
use localnet_win::args::Arguments;

#[cfg(windows)]
fn main() -> ExitCode {
    localnet_client::args::exit(localnet_win::windows::run(Arguments::parse_from(spelled(std::env::args_os()))))
}

/// Elsewhere it can be built and tested, and says what it is.
#[cfg(not(windows))]
fn main() -> ExitCode {
    Arguments::parse_from(spelled(std::env::args_os()));
    localnet_client::args::exit(Err(anyhow::anyhow!("localnet-win programs HNS, which only Windows has")))
}
