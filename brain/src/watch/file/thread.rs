//! Starts the thread that reads files. Its stack is large enough for the maximum nesting, and the program can exit without
//! waiting for it.

use std::{
    io,
    thread::{Builder, JoinHandle},
};

/// 0.5 MiB for each level of [`DEEPEST`](super::limits::DEEPEST). Unused stack costs no memory.
const STACK: usize = 64 << 20;

/// Starts work on a new thread.
///
/// # Errors
/// Returns an error if the thread cannot be started.
pub(super) fn start<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<JoinHandle<T>> {
    Builder::new().name("files".to_owned()).stack_size(STACK).spawn(work)
}
