//! The program `localnet-ipvs`. See `localnet_ipvs::args`.

use std::process::ExitCode;

use clap::Parser as _;
use localnet_config::flags::spelled;
use localnet_ipvs::args::{self, Arguments};

/// jemalloc returns memory to the kernel that is needed only while the first state is read or written.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    localnet_client::args::exit(args::run(Arguments::parse_from(spelled(std::env::args_os()))).await)
}
