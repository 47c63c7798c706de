//! Limits the full states of `localnet.v1` that one connection gets. A reader that reads the full state again and again, because it
//! wants no changes or loses its token, would otherwise keep a processor busy.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, sleep_until},
};

/// How many bytes of full states a connection gets per second, after the first one.
const BYTES_PER_SECOND: u32 = 8 << 20;

/// The pace of one connection: its full states are sent one after the other. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Pace {
    one: Arc<Semaphore>,
    /// When the next full state may begin.
    begins: Arc<Mutex<Option<Instant>>>,
}

impl Default for Pace {
    fn default() -> Self {
        Self { one: Arc::new(Semaphore::new(1)), begins: Arc::default() }
    }
}

/// One full state. The next one may begin after this is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    begins: Arc<Mutex<Option<Instant>>>,
    _one: Option<OwnedSemaphorePermit>,
}

impl Pace {
    /// Waits until another full state may begin. The first one may begin at once.
    pub(super) async fn turn(&self) -> Turn {
        // The semaphore is never closed.
        let one = Arc::clone(&self.one).acquire_owned().await.ok();
        let begins = *lock(&self.begins);
        if let Some(begins) = begins {
            sleep_until(begins).await;
        }
        Turn { begins: Arc::clone(&self.begins), _one: one }
    }
}

impl Turn {
    /// Counts a part of a full state.
    pub(super) fn sent(&self, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let (now, mut begins) = (Instant::now(), lock(&self.begins));
        let from = begins.map_or(now, |begins| begins.max(now));
        *begins = Some(from + Duration::from_secs(1) * bytes / BYTES_PER_SECOND);
    }
}

fn lock(begins: &Mutex<Option<Instant>>) -> MutexGuard<'_, Option<Instant>> {
    // Code that holds the lock never panics.
    begins.lock().unwrap_or_else(PoisonError::into_inner)
}
