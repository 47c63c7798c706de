//! What the backends on Linux share above the kernel: [`live`], the running of a backend on a node.

pub mod live;

/// Runs `work`, which may block for a while, such as a large transaction. The other tasks of this thread move to another
/// thread.
pub fn blocking<T>(work: impl FnOnce() -> T) -> T {
    use tokio::runtime::{Handle, RuntimeFlavor};
    match Handle::try_current().map(|handle| handle.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}
