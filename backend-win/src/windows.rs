//! The parts that only exist on Windows: HNS itself, and the node's interfaces.

mod host;

use localnet_client::program::{self, BackendProgram as _, execute};
use localnet_config_file::windows::{run_service, terminated};

use crate::program::{Win, wants_service};

pub use host::Host;

/// The command line of `localnet-win`.
pub type Arguments = program::Arguments<Win<Host>>;

/// Runs the program, in the foreground or as a Windows service if the configuration requests it.
///
/// # Errors
/// Returns an error of [`execute`], or an error if the service control manager did not start this process.
pub fn run(arguments: Arguments) -> anyhow::Result<()> {
    if wants_service(&arguments)? {
        run_service(Win::<Host>::PROGRAM, |stopped| block_on(arguments, stopped))
    } else {
        block_on(arguments, terminated())
    }
}

/// The number of threads. While one thread waits for a call to HNS, which may take long, the other thread answers the
/// brain.
const WORKERS: usize = 2;

fn block_on(arguments: Arguments, shutdown: impl Future<Output = ()>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build()?;
    runtime.block_on(execute(arguments, shutdown))
}
