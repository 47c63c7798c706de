//! `localnet`, also `kubectl localnet`: see the library.

use std::process::ExitCode;

use localnet::args;

/// Tens of thousands of Services are read with a third less of the processors' time.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    args::main(std::env::args_os()).await
}
