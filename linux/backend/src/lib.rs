//! Code that Linux backends share: [`live`] runs a backend on a node, and [`table`] tracks the desired and applied state of an
//! nf_tables table.
//!
//! ```text
//!  sets      the sets and maps of a table
//!  elements  the elements of VIPs in these sets, and how to read the elements back
//!  rules     rules and chains of VIPs
//!  table ──► portions   the transactions from the applied state to the desired state
//!  traffic   the traffic of Services, as a backend counts and reports it
//! ```

pub mod elements;
pub mod live;
pub mod moved;
pub mod portions;
pub mod rules;
pub mod sets;
pub mod table;
pub mod traffic;

/// Runs `work`, which may block for a while, such as a large transaction. The other tasks of this thread move to another
/// thread.
pub fn blocking<T>(work: impl FnOnce() -> T) -> T {
    use tokio::runtime::{Handle, RuntimeFlavor};
    match Handle::try_current().map(|handle| handle.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}
