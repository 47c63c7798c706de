//! `localnet-node`: brain and one backend in one process.

use std::process::ExitCode;

use clap::Parser as _;
use localnet_config::flags::spelled;
use localnet_node::args::{self, Arguments};

/// It gives memory back that is used only while a state is read or written for the first time.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[tokio::main]
async fn main() -> ExitCode {
    localnet_client::args::exit(args::run(Arguments::parse_from(spelled(std::env::args_os()))).await)
}
