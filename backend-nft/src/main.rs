//! The program `localnet-nft`; see `localnet_nft::args`.

use std::process::ExitCode;

use clap::Parser as _;
use localnet_config::flags::spelled;
use localnet_nft::args::{self, Arguments};

/// An allocator that returns memory that is only needed while a state is read or written for the first time.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    localnet_client::args::exit(args::run(Arguments::parse_from(spelled(std::env::args_os()))).await)
}
