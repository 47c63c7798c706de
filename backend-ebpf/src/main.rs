//! The program `localnet-ebpf`.

use std::process::ExitCode;

use localnet_client::program;
use localnet_ebpf::Ebpf;

/// Reading and writing the first state needs much memory. jemalloc returns this memory to the kernel afterwards.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    program::main::<Ebpf>()
}
