//! The program `localnet-nft`.

use std::process::ExitCode;

use localnet_client::program;
use localnet_nft::Nft;

/// jemalloc returns to the kernel the memory that is needed only to read and write the first state.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    program::main::<Nft>()
}
