//! What differs between Linux and Windows. Each system has a file with the same items.
//!
//! Three modules also differ: the sockets within a machine (`serve`), the CPU profiles (`status`), and the metrics of the
//! process (`exposition`).

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
pub use unix::*;
#[cfg(windows)]
pub use windows::*;
