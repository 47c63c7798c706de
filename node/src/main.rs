//! The program `localnet-node`: brain and one backend in one process.

use std::process::ExitCode;

use clap::Parser as _;
use localnet_config::flags::spelled;
use localnet_node::args::{self, Arguments};

/// jemalloc returns to the kernel the memory that is needed only to read and write the first state.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[tokio::main]
async fn main() -> ExitCode {
    localnet_client::args::exit(args::run(Arguments::parse_from(spelled(std::env::args_os()))).await)
}
