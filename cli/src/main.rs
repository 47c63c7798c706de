//! `localnet`, also `kubectl localnet`. The library contains the implementation.

use std::process::ExitCode;

use localnet::args;

/// Unlike the other programs, this program runs only briefly. Its allocator therefore favours speed over returning memory to the
/// kernel (docs/decisions/0013-allocator.md).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    args::main(std::env::args_os()).await
}
