//! The parts that only exist on Windows: HNS itself, the node's interfaces, and the service control manager.

mod host;
mod service;

use localnet_client::{
    args::terminated,
    program::{self, execute},
};

use crate::program::{Win, wants_service};

pub use host::Host;

/// The command line of `localnet-win`.
pub type Arguments = program::Arguments<Win<Host>>;

/// Runs the program, in the foreground or as a Windows service if the configuration requests it.
///
/// # Errors
/// Returns an error of [`execute`], or an error if the service control manager did not start this process.
pub fn run(arguments: Arguments) -> anyhow::Result<()> {
    if wants_service(&arguments)? { service::run() } else { block_on(arguments, terminated()) }
}

/// The number of threads. While one thread waits for a call to HNS, which may take long, the other thread answers the
/// brain.
const WORKERS: usize = 2;

fn block_on(arguments: Arguments, shutdown: impl Future<Output = ()>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build()?;
    runtime.block_on(execute(arguments, shutdown))
}
