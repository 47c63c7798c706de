//! Captures the log of a test.

use std::{
    io,
    sync::{Arc, Mutex},
};

use tracing::subscriber::DefaultGuard;

/// The log of this thread, at level `info` and above.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    pub(crate) fn begin() -> (Self, DefaultGuard) {
        let log = Self::default();
        let writer = log.clone();
        let subscriber =
            tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).without_time().finish();
        let guard = tracing::subscriber::set_default(subscriber);
        (log, guard)
    }

    /// The lines of the brain that contain all of these words.
    pub(crate) fn lines(&self, words: &[&str]) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        let lines = text.lines().filter(|line| line.contains("localnet_brain"));
        lines.filter(|line| words.iter().all(|word| line.contains(word))).map(str::to_owned).collect()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
