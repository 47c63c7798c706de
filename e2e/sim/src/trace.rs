//! The trace of a run: what happened, and when in simulated time. Its digest shows whether two runs are equal.

use std::{
    fmt::{Display, Write as _},
    hash::{DefaultHasher, Hasher as _},
    sync::{Arc, Mutex, PoisonError},
};

use tokio::time::Instant;

/// The trace. Clones share it.
#[derive(Clone, Debug)]
pub struct Trace(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    start: Instant,
    prints: bool,
    /// The last line; its memory is used again.
    line: String,
    hasher: DefaultHasher,
}

impl Trace {
    /// A trace that starts now. If `prints` is set, it is also printed to standard error.
    pub fn new(prints: bool) -> Self {
        Self(Arc::new(Mutex::new(Inner {
            start: Instant::now(),
            prints,
            line: String::new(),
            hasher: DefaultHasher::new(),
        })))
    }

    /// Records that something happened now.
    pub fn add(&self, what: impl Display) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Inner { start, prints, line, hasher } = &mut *inner;
        line.clear();
        // Nothing can fail to write to a string.
        _ = write!(line, "{:>9} ms  {what}", start.elapsed().as_millis());
        hasher.write(line.as_bytes());
        if *prints {
            eprintln!("{line}");
        }
    }

    /// The digest of everything recorded so far.
    pub fn digest(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).hasher.finish()
    }
}
