//! `localnet-nft`: see `localnet_nft::args`.

use std::process::ExitCode;

use clap::Parser as _;
use localnet_nft::args::{self, Arguments};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    localnet_client::args::exit(args::run(Arguments::parse()).await)
}
