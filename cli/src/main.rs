//! `localnet`, also `kubectl localnet`: see the library.

use std::process::ExitCode;

use localnet::args;

/// Unlike the other programs it ends soon, and is to be quick (docs/decisions/0013-allocator.md).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    args::main(std::env::args_os()).await
}
