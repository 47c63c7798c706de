//! `localnet-ipvs`: see `localnet_ipvs::args`.

use std::process::ExitCode;

use clap::Parser as _;
use localnet_ipvs::args::{self, Arguments};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    localnet_client::args::exit(args::run(Arguments::parse()).await)
}
