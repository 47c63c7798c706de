//! Reading takes place on a thread of its own: its stack is enough for all that may be nested, and nobody has to wait for
//! it when the program ends.

use std::{
    io,
    thread::{Builder, JoinHandle},
};

/// Half a MiB for each level of [`DEEPEST`](super::limits::DEEPEST). What is not used of it costs nothing.
const STACK: usize = 64 << 20;

/// Begins some work.
///
/// # Errors
/// The thread cannot be started.
pub(super) fn start<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<JoinHandle<T>> {
    Builder::new().name("files".to_owned()).stack_size(STACK).spawn(work)
}
