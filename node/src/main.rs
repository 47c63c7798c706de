//! `localnet-node`: brain and one backend in one process.

use std::process::ExitCode;

use clap::Parser as _;
use localnet_node::args::{self, Arguments};

#[tokio::main]
async fn main() -> ExitCode {
    localnet_client::args::exit(args::run(Arguments::parse()).await)
}
