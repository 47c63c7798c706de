//! `localnet`, also `kubectl localnet`. The library contains the implementation.

use std::process::ExitCode;

use localnet::args;

/// The other programs run for a long time. This program exits soon and has to be fast
/// (docs/decisions/0013-allocator.md).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    args::main(std::env::args_os()).await
}
