//! Detects misuse of a connection: no calls at all, calls beyond the quota, or calls that are abandoned over and over.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use tokio::time::{self, Instant};
use tokio_util::sync::CancellationToken;
use tonic::{Status, body::Body};
use tower::{BoxError, Service};

use super::{
    quota::{Calls, InProgress},
    routes::Routes,
};

/// How long a connection may have no call in progress. A backend nearly always has its long poll.
pub(super) const IDLE: Duration = Duration::from_secs(120);
/// How long a peer may take to send a request.
const REQUEST: Duration = Duration::from_secs(10);
/// Maximum number of calls that a connection may abandon within [`WINDOW`].
pub(super) const MAX_ABANDONED: u32 = 500;
const WINDOW: Duration = Duration::from_secs(10);

/// Maximum number of refused calls in a row. A peer that does not read their answers makes the server buffer them.
const MAX_REFUSED: u32 = 8;

/// Why the server closes a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Misuse {
    /// It had no call for [`IDLE`].
    Idle,
    /// Its peer keeps calling beyond its quota.
    Refused,
    /// Its peer keeps starting calls and abandoning them ("rapid reset", CVE-2023-44487).
    Abandons,
}

/// The usage of one connection. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Usage(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    calls: Calls,
    counted: Mutex<Counted>,
    /// Cancelled when `Counted::misuse` is set.
    misused: CancellationToken,
}

#[derive(Debug)]
struct Counted {
    in_progress: usize,
    /// When the last call ended.
    idle_since: Instant,
    /// Start of the window in which `abandoned` counts.
    window: Instant,
    abandoned: u32,
    /// Calls that were refused since the last accepted one.
    refused: u32,
    misuse: Option<Misuse>,
}

impl Usage {
    /// The usage of a new connection. `calls` counts the calls of its peer.
    pub(super) fn new(calls: Calls) -> Self {
        let now = Instant::now();
        let counted = Counted { in_progress: 0, idle_since: now, window: now, abandoned: 0, refused: 0, misuse: None };
        Self(Arc::new(Inner { calls, counted: Mutex::new(counted), misused: CancellationToken::new() }))
    }

    /// Resolves when the server has to close the connection.
    pub(super) async fn misuse(&self) -> Misuse {
        let mut ticks = time::interval(IDLE / 4);
        loop {
            tokio::select! {
                () = self.0.misused.cancelled() => return self.lock().misuse.unwrap_or(Misuse::Abandons),
                now = ticks.tick() => {
                    let counted = self.lock();
                    if counted.in_progress == 0 && now.duration_since(counted.idle_since) >= IDLE {
                        return Misuse::Idle;
                    }
                }
            }
        }
    }

    /// Counts one more call. Returns `None` if it exceeds a quota.
    fn begin(&self) -> Option<Call> {
        let in_progress = self.0.calls.begin();
        let mut counted = self.lock();
        let Some(in_progress) = in_progress else {
            counted.refused += 1;
            if counted.refused > MAX_REFUSED {
                self.report(&mut counted, Misuse::Refused);
            }
            return None;
        };
        (counted.in_progress, counted.refused) = (counted.in_progress + 1, 0);
        Some(Call { usage: self.clone(), complete: false, _in_progress: in_progress })
    }

    fn report(&self, counted: &mut Counted, misuse: Misuse) {
        counted.misuse = Some(misuse);
        self.0.misused.cancel();
    }

    fn lock(&self) -> MutexGuard<'_, Counted> {
        self.0.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call in progress. Dropping it ends the call.
#[derive(Debug)]
struct Call {
    usage: Usage,
    /// Whether the whole answer was sent. If not, the peer has abandoned the call.
    complete: bool,
    _in_progress: InProgress,
}

impl Drop for Call {
    fn drop(&mut self) {
        let mut counted = self.usage.lock();
        let now = Instant::now();
        counted.in_progress -= 1;
        counted.idle_since = now;
        if self.complete {
            return;
        }
        if now.duration_since(counted.window) > WINDOW {
            (counted.window, counted.abandoned) = (now, 0);
        }
        counted.abandoned += 1;
        if counted.abandoned > MAX_ABANDONED {
            self.usage.report(&mut counted, Misuse::Abandons);
        }
    }
}

/// The gRPC services behind one connection, with its usage counted.
#[derive(Clone)]
pub(super) struct Metered {
    routes: Routes,
    usage: Usage,
}

impl Metered {
    pub(super) fn new(routes: Routes, usage: Usage) -> Self {
        Self { routes, usage }
    }
}

impl<B> Service<http::Request<B>> for Metered
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = http::Response<Answer>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let Some(call) = self.usage.begin() else {
            let refused = Status::resource_exhausted("too many calls are in progress");
            return Box::pin(std::future::ready(Ok(refused.into_http().map(Answer::refused))));
        };
        // Streaming calls return immediately; unary calls return once the request has arrived and was handled.
        let answered = time::timeout(REQUEST, self.routes.call(request));
        Box::pin(async move {
            let response = match answered.await {
                Ok(Ok(response)) => response,
                Ok(Err(never)) => match never {},
                Err(_) => Status::deadline_exceeded("the request did not arrive in time").into_http(),
            };
            Ok(response.map(|body| Answer::of(body, call)))
        })
    }
}

/// The body of an answer. Its end completes the call.
#[derive(Debug)]
pub(super) struct Answer {
    body: Body,
    call: Option<Call>,
}

impl Answer {
    fn of(body: Body, call: Call) -> Self {
        let mut answer = Self { body, call: Some(call) };
        if answer.body.is_end_stream() {
            answer.complete();
        }
        answer
    }

    fn refused(body: Body) -> Self {
        Self { body, call: None }
    }

    fn complete(&mut self) {
        if let Some(mut call) = self.call.take() {
            call.complete = true;
        }
    }
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        let is_last = |frame: &Result<Frame<Bytes>, Status>| frame.as_ref().map_or(true, Frame::is_trailers);
        if let Poll::Ready(frame) = &polled
            && frame.as_ref().is_none_or(is_last)
        {
            self.complete();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::quota::{PeerId, Peers},
        *,
    };

    /// The calls of a peer of a new listener.
    fn calls() -> Calls {
        Peers::default().admit(PeerId::User(0)).unwrap().calls().clone()
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_calls_is_idle() {
        let usage = Usage::new(calls());
        let call = usage.begin().unwrap();
        assert!(time::timeout(10 * IDLE, usage.misuse()).await.is_err(), "a call is in progress");
        let start = Instant::now();
        drop(call);
        assert_eq!(usage.misuse().await, Misuse::Idle);
        let silence = start.elapsed();
        assert!(IDLE <= silence && silence <= 2 * IDLE, "{silence:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn rapid_resets_are_misuse() {
        let usage = Usage::new(calls());
        let abandon = |count: u32| (0..count).for_each(|_| drop(usage.begin().unwrap()));
        let complete = |count: u32| {
            (0..count).for_each(|_| drop(Answer::of(Body::empty(), usage.begin().unwrap())));
        };
        complete(100 * MAX_ABANDONED);
        for _ in 0..10 {
            abandon(MAX_ABANDONED - 1);
            time::advance(WINDOW + Duration::from_secs(1)).await;
        }
        assert!(!usage.0.misused.is_cancelled());
        abandon(MAX_ABANDONED + 1);
        assert_eq!(usage.misuse().await, Misuse::Abandons);
    }

    #[tokio::test(start_paused = true)]
    async fn repeated_calls_beyond_the_quota_are_misuse() {
        let calls = calls();
        let usage = Usage::new(calls.clone());
        let mut all: Vec<_> = std::iter::from_fn(|| calls.begin()).collect();
        for _ in 0..10 {
            assert!((0..MAX_REFUSED).all(|_| usage.begin().is_none()));
            drop(all.pop());
            assert!(usage.begin().is_some());
            all.extend(calls.begin());
        }
        assert!(!usage.0.misused.is_cancelled());
        assert!((0..=MAX_REFUSED).all(|_| usage.begin().is_none()));
        assert_eq!(usage.misuse().await, Misuse::Refused);
    }
}
