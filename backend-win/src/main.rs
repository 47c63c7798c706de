//! `localnet-win`. The program is in `localnet_win::args`.

use std::process::ExitCode;

use clap::Parser as _;
use localnet_config::flags::spelled;
use localnet_win::args::Arguments;

#[cfg(windows)]
fn main() -> ExitCode {
    localnet_client::args::exit(localnet_win::windows::run(Arguments::parse_from(spelled(std::env::args_os()))))
}

/// On other systems the program only builds and runs its tests.
#[cfg(not(windows))]
fn main() -> ExitCode {
    Arguments::parse_from(spelled(std::env::args_os()));
    localnet_client::args::exit(Err(anyhow::anyhow!("localnet-win programs HNS, which exists only on Windows")))
}
