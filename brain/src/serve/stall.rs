//! Ends answers that nobody reads.
//!
//! An answer holds its state, and what has changed since then is kept for it alone. HTTP/2 asks an answer for more only when
//! the peer reads, so one that is stuck is never asked and cannot notice by itself: a sweep drops its state.

use std::{
    collections::HashMap,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use tokio::time::{self, Instant};
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tracing::warn;

/// How long a reader may read nothing of an answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

type Items = Box<dyn Iterator<Item = Bytes> + Send>;

/// The answers under way: an answer that has ended, or that nobody waits for any more, is not among them.
#[derive(Clone, Default)]
pub(super) struct Stalls(Arc<Mutex<UnderWay>>);

#[derive(Default)]
struct UnderWay {
    /// Numbers are not used twice.
    next: u64,
    paces: HashMap<u64, Arc<Mutex<Pace>>>,
}

impl Stalls {
    /// Watches over the pace at which `items` are read.
    pub(super) fn pace(&self, items: Items) -> Paced {
        let pace = Arc::new(Mutex::new(Pace { items: Some(items), read: Instant::now() }));
        let mut under_way = lock(&self.0);
        let number = under_way.next;
        under_way.next += 1;
        under_way.paces.insert(number, Arc::clone(&pace));
        Paced { pace, number, of: self.clone() }
    }

    /// Gives up the answers that were not read for too long, and logs their number in one line.
    fn sweep(&self, now: Instant) {
        let mut given_up = 0_u32;
        lock(&self.0).paces.retain(|_, pace| {
            let mut pace = lock(pace);
            let stalled = now.duration_since(pace.read) > PATIENCE;
            given_up += u32::from(stalled && pace.items.take().is_some());
            !stalled
        });
        if given_up > 0 {
            warn!(readers = given_up, patience = ?PATIENCE, "readers have stopped reading in the middle of an answer; they have to call again");
        }
    }
}

/// Looks for stalled answers until `stop`.
pub(super) async fn sweep(stalls: Stalls, stop: CancellationToken) {
    let mut ticks = time::interval(PATIENCE / 4);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            now = ticks.tick() => stalls.sweep(now),
        }
    }
}

struct Pace {
    /// `None` once the answer was given up.
    items: Option<Items>,
    /// When the reader was last ready for more.
    read: Instant,
}

/// An answer whose pace is watched.
pub(super) struct Paced {
    pace: Arc<Mutex<Pace>>,
    number: u64,
    of: Stalls,
}

impl Drop for Paced {
    fn drop(&mut self) {
        lock(&self.of.0).paces.remove(&self.number);
    }
}

impl futures::Stream for Paced {
    type Item = Result<Bytes, Status>;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut pace = lock(&self.pace);
        pace.read = Instant::now();
        Poll::Ready(match &mut pace.items {
            Some(items) => items.next().map(Ok),
            None => Some(Err(Status::aborted("nothing was read for too long; call again"))),
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;

    use super::*;

    fn items() -> Items {
        Box::new(["a", "b", "c"].map(Bytes::from).into_iter())
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_not_read_is_given_up() {
        let stalls = Stalls::default();
        let mut answer = stalls.pace(items());
        assert_eq!(answer.next().await.unwrap().unwrap(), "a");
        stalls.sweep(Instant::now() + PATIENCE + Duration::from_secs(1));
        assert_eq!(answer.next().await.unwrap().unwrap_err().code(), tonic::Code::Aborted);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_has_ended_is_forgotten_at_once() {
        let stalls = Stalls::default();
        let under_way = stalls.pace(items());
        for read in 0..4 {
            let answer = stalls.pace(items());
            assert_eq!(answer.take(read).count().await, read.min(3));
        }
        assert_eq!(lock(&stalls.0).paces.len(), 1);
        drop(under_way);
        assert_eq!(lock(&stalls.0).paces.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_read_slowly_goes_on() {
        let stalls = Stalls::default();
        let mut answer = stalls.pace(items());
        for expected in ["a", "b", "c"] {
            time::advance(PATIENCE).await;
            stalls.sweep(Instant::now());
            assert_eq!(answer.next().await.unwrap().unwrap(), expected);
        }
        assert!(answer.next().await.is_none());
    }
}
