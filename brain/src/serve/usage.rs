//! What a connection is used for: one that is used for nothing, or only to begin calls and to abandon them, is ended.

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
    peers::{Calls, UnderWay},
    routes::Routes,
};

/// How long a connection may be there without a call. A backend has one under way nearly always.
pub(super) const IDLE: Duration = Duration::from_secs(120);
/// How long a peer may take to send a request.
const REQUEST: Duration = Duration::from_secs(10);
/// A connection may abandon so many calls within [`WINDOW`].
pub(super) const MAX_ABANDONED: u32 = 500;
const WINDOW: Duration = Duration::from_secs(10);

/// A connection may begin so many calls in a row that are refused: the answers to them may wait in memory, too.
const MAX_REFUSED: u32 = 8;

/// Why a connection is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Misuse {
    /// There was no call for long.
    Idle,
    /// Calls are begun although there are too many.
    Refused,
    /// Calls are begun and abandoned, over and over: "rapid reset".
    Abandons,
}

/// The usage of one connection.
#[derive(Clone, Debug)]
pub(super) struct Usage(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    calls: Calls,
    counted: Mutex<Counted>,
    /// Cancelled when `Counted::misuse` is known.
    misused: CancellationToken,
}

#[derive(Debug)]
struct Counted {
    under_way: usize,
    idle_since: Instant,
    window: Instant,
    abandoned: u32,
    /// Calls that were refused since one was not.
    refused: u32,
    misuse: Option<Misuse>,
}

impl Usage {
    /// A connection of a peer with these calls.
    pub(super) fn new(calls: Calls) -> Self {
        let now = Instant::now();
        let counted = Counted { under_way: 0, idle_since: now, window: now, abandoned: 0, refused: 0, misuse: None };
        Self(Arc::new(Inner { calls, counted: Mutex::new(counted), misused: CancellationToken::new() }))
    }

    /// Resolves when the connection is to be ended.
    pub(super) async fn misuse(&self) -> Misuse {
        let mut ticks = time::interval(IDLE / 4);
        loop {
            tokio::select! {
                () = self.0.misused.cancelled() => return self.lock().misuse.unwrap_or(Misuse::Abandons),
                now = ticks.tick() => {
                    let counted = self.lock();
                    if counted.under_way == 0 && now.duration_since(counted.idle_since) >= IDLE {
                        return Misuse::Idle;
                    }
                }
            }
        }
    }

    /// One more call; `None` if the peer has too many.
    fn begin(&self) -> Option<Call> {
        let under_way = self.0.calls.begin();
        let mut counted = self.lock();
        let Some(under_way) = under_way else {
            counted.refused += 1;
            if counted.refused > MAX_REFUSED {
                self.ends(&mut counted, Misuse::Refused);
            }
            return None;
        };
        (counted.under_way, counted.refused) = (counted.under_way + 1, 0);
        Some(Call { of: self.clone(), complete: false, _under_way: under_way })
    }

    fn ends(&self, counted: &mut Counted, misuse: Misuse) {
        counted.misuse = Some(misuse);
        self.0.misused.cancel();
    }

    fn lock(&self) -> MutexGuard<'_, Counted> {
        self.0.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call, until this is dropped.
#[derive(Debug)]
struct Call {
    of: Usage,
    complete: bool,
    _under_way: UnderWay,
}

impl Drop for Call {
    fn drop(&mut self) {
        let mut counted = self.of.lock();
        let now = Instant::now();
        counted.under_way -= 1;
        counted.idle_since = now;
        if self.complete {
            return;
        }
        if now.duration_since(counted.window) > WINDOW {
            (counted.window, counted.abandoned) = (now, 0);
        }
        counted.abandoned += 1;
        if counted.abandoned > MAX_ABANDONED {
            self.of.ends(&mut counted, Misuse::Abandons);
        }
    }
}

/// The routes of one connection.
#[derive(Clone)]
pub(super) struct Used {
    routes: Routes,
    usage: Usage,
}

impl Used {
    pub(super) fn new(routes: Routes, usage: Usage) -> Self {
        Self { routes, usage }
    }
}

impl<B> Service<http::Request<B>> for Used
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
            let refused = Status::resource_exhausted("too many calls are under way");
            return Box::pin(std::future::ready(Ok(refused.into_http().map(Answer::refused))));
        };
        // What is answered as a stream is answered at once; of the rest the request has to arrive first.
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

/// The body of an answer; its end is the end of the call.
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
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_calls_is_idle() {
        let usage = Usage::new(Calls::default());
        let call = usage.begin().unwrap();
        assert!(time::timeout(10 * IDLE, usage.misuse()).await.is_err(), "a call is under way");
        let began = Instant::now();
        drop(call);
        assert_eq!(usage.misuse().await, Misuse::Idle);
        let silence = began.elapsed();
        assert!(IDLE <= silence && silence <= 2 * IDLE, "{silence:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn calls_that_are_abandoned_all_the_time_are_noticed() {
        let usage = Usage::new(Calls::default());
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
    async fn calls_that_are_refused_over_and_over_end_the_connection() {
        let calls = Calls::default();
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
