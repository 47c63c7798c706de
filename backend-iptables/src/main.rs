//! The program `localnet-iptables`.

use std::process::ExitCode;

use localnet_client::program;
use localnet_iptables::Iptables;

/// jemalloc returns memory to the kernel that is needed only while the first state is read or written.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    program::main::<Iptables>()
}
