//! The program `localnet-ipvs`.

use std::process::ExitCode;

use localnet_client::program;
use localnet_ipvs::Ipvs;

/// Reading and writing the first state needs much memory. jemalloc returns this memory to the kernel afterwards.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    program::main::<Ipvs>()
}
