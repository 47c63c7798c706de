//! What differs between operating systems. Each system has a file with the same items.
//!
//! Three modules also differ: the sockets within a machine (`serve`), the CPU profiles (`status`), and the metrics of the
//! process (`exposition`).

mod unix;

pub use unix::*;
