//! The program `localnet-node`, which runs the brain and one backend in one process.

use std::process::ExitCode;

use clap::Parser as _;
use localnet_config::flags::spelled;
use localnet_node::args::{self, Arguments};

/// Reading and writing the first state needs much memory. jemalloc returns this memory to the kernel afterwards.
#[cfg(unix)]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    localnet_client::args::exit(args::run(&Arguments::parse_from(spelled(std::env::args_os()))))
}
