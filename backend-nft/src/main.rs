//! The program `localnet-nft`.

use std::process::ExitCode;

use localnet_client::program;
use localnet_nft::Nft;

/// An allocator that returns memory that is only needed while a state is read or written for the first time.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    program::main::<Nft>()
}
