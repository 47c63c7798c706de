//! Ends answers whose readers have stopped reading.
//!
//! An answer keeps its state in memory, including old versions of everything that has changed since. HTTP/2 polls an
//! answer only when the peer reads, so a stalled answer is never polled and cannot end on its own. Instead, a periodic
//! sweep drops the answer's state. A timeout of hyper or tower cannot do this, because it would also have to be polled.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use tokio::time::{self, Instant};
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tracing::warn;

/// How long a reader may pause in the middle of an answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

type Items = Box<dyn Iterator<Item = Bytes> + Send>;

/// The answers in progress. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Stalls(Arc<Mutex<Vec<Weak<Mutex<Pace>>>>>);

impl Stalls {
    /// Wraps `items` in a stream that the sweep can end.
    pub(super) fn pace(&self, items: Items) -> Paced {
        let pace = Arc::new(Mutex::new(Pace { items: Some(items), read: Instant::now() }));
        let mut answers = lock(&self.0);
        if answers.len() == answers.capacity() {
            answers.retain(|answer| answer.strong_count() > 0);
        }
        answers.push(Arc::downgrade(&pace));
        Paced(pace)
    }

    /// Ends the answers that have stalled for longer than [`PATIENCE`], and logs their number in one line.
    fn sweep(&self, now: Instant) {
        let mut ended = 0_u32;
        lock(&self.0).retain(|answer| {
            let Some(answer) = answer.upgrade() else { return false };
            let mut answer = lock(&answer);
            let stalled = now.duration_since(answer.read) > PATIENCE;
            ended += u32::from(stalled && answer.items.take().is_some());
            !stalled
        });
        if ended > 0 {
            warn!(readers = ended, patience = ?PATIENCE, "the answers to readers that stopped reading were ended; these readers have to retry");
        }
    }
}

/// Ends stalled answers periodically, until `stop` is cancelled.
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
    /// `None` once [`Stalls::sweep`] has ended the answer.
    items: Option<Items>,
    /// When HTTP/2 last polled the answer.
    read: Instant,
}

/// A stream of the items of an answer. It ends with `ABORTED` after a sweep has found it stalled.
pub(super) struct Paced(Arc<Mutex<Pace>>);

impl futures::Stream for Paced {
    type Item = Result<Bytes, Status>;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut pace = lock(&self.0);
        pace.read = Instant::now();
        Poll::Ready(match &mut pace.items {
            Some(items) => items.next().map(Ok),
            None => Some(Err(Status::aborted("the reader has read nothing for too long; retry the call"))),
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
    async fn a_stalled_answer_is_aborted() {
        let stalls = Stalls::default();
        let mut answer = stalls.pace(items());
        assert_eq!(answer.next().await.unwrap().unwrap(), "a");
        stalls.sweep(Instant::now() + PATIENCE + Duration::from_secs(1));
        assert_eq!(answer.next().await.unwrap().unwrap_err().code(), tonic::Code::Aborted);
    }

    #[tokio::test(start_paused = true)]
    async fn a_complete_or_dropped_answer_is_forgotten() {
        let stalls = Stalls::default();
        let in_progress = stalls.pace(items());
        for read in 0..4 {
            let answer = stalls.pace(items());
            assert_eq!(answer.take(read).count().await, read.min(3));
        }
        let remembered = || {
            stalls.sweep(Instant::now());
            lock(&stalls.0).len()
        };
        assert_eq!(remembered(), 1);
        drop(in_progress);
        assert_eq!(remembered(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slowly_read_answer_continues() {
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
