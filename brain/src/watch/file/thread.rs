//! Starts the thread that reads files. The stack of this thread is large enough for the maximum nesting. The program can
//! exit without waiting for the thread.

use std::{
    io,
    thread::{Builder, JoinHandle},
};

/// The stack size in bytes: 0.5 MiB for each level of [`DEEPEST`](super::limits::DEEPEST). Unused stack takes no memory.
const STACK: usize = 64 << 20;

/// Starts work on a new thread.
///
/// # Errors
/// Returns an error if the thread cannot be started.
pub(super) fn start<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<JoinHandle<T>> {
    Builder::new().name("files".to_owned()).stack_size(STACK).spawn(work)
}
