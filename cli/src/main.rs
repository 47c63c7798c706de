//! `localnet`, also `kubectl localnet`: see the library.

use std::process::ExitCode;

use localnet::args;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    args::main(std::env::args_os()).await
}
