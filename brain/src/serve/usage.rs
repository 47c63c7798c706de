//! Detects misuse of a connection: no calls at all, calls beyond the quota, or calls that are abandoned over and over.
//!
//! hyper limits the streams of a connection, but not what peers do with them. The tests in
//! `brain/tests/protocol/hostile.rs` require [`Misuse::Idle`] (an idle peer that answers pings), [`Misuse::Abandons`]
//! (rapid resets of accepted streams) and [`REQUEST`] (a request that never completes).

use std::{convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use http_body::{Body as _, Frame};
use http_body_util::BodyExt as _;
use localnet_proto::v1::{ErrorInfo, wire::ErrorReason};
use tokio::{
    sync::watch,
    time::{self, Instant},
};
use tonic::{Status, body::Body};
use tower::BoxError;

use super::{
    quota::{Calls, InProgress},
    routes::Routes,
};

/// How long a connection may have no call in progress. A backend nearly always has a long poll in progress.
pub(super) const IDLE: Duration = Duration::from_secs(120);
/// How long a peer may take to send a request.
const REQUEST: Duration = Duration::from_secs(10);
/// Maximum number of calls that a connection may abandon within [`WINDOW`].
pub(super) const MAX_ABANDONED: u32 = 500;
const WINDOW: Duration = Duration::from_secs(10);

/// Maximum number of consecutive refused calls. If the peer does not read the answers, the server has to buffer them.
const MAX_REFUSED: u32 = 8;

/// Why the server closes a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Misuse {
    /// The connection had no call for [`IDLE`].
    #[error("the connection is idle")]
    Idle,
    /// The peer continues to start calls although its quota is used up.
    #[error("the peer keeps calling although it has too many calls in progress")]
    Refused,
    /// The peer continues to start calls and abandon them ("rapid reset", CVE-2023-44487).
    #[error("the peer keeps starting calls and abandoning them")]
    Abandons,
}

/// The usage of one connection. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Usage {
    calls: Calls,
    counted: Arc<watch::Sender<Counted>>,
}

#[derive(Clone, Copy, Debug)]
struct Counted {
    in_progress: usize,
    /// When the last call ended.
    idle_since: Instant,
    /// The start of the time window in which `abandoned` is counted.
    window: Instant,
    abandoned: u32,
    /// Calls that were refused since the last accepted one.
    refused: u32,
}

impl Counted {
    fn misuse(&self, now: Instant) -> Option<Misuse> {
        if self.abandoned > MAX_ABANDONED {
            Some(Misuse::Abandons)
        } else if self.refused > MAX_REFUSED {
            Some(Misuse::Refused)
        } else {
            (self.in_progress == 0 && now.duration_since(self.idle_since) >= IDLE).then_some(Misuse::Idle)
        }
    }
}

impl Usage {
    /// The usage of a new connection. `calls` counts the calls of its peer.
    pub(super) fn new(calls: Calls) -> Self {
        let now = Instant::now();
        let counted = Counted { in_progress: 0, idle_since: now, window: now, abandoned: 0, refused: 0 };
        Self { calls, counted: Arc::new(watch::Sender::new(counted)) }
    }

    /// Resolves when the server has to close the connection.
    pub(super) async fn misuse(&self) -> Misuse {
        let (mut counted, mut ticks) = (self.counted.subscribe(), time::interval(IDLE / 4));
        loop {
            if let Some(misuse) = counted.borrow_and_update().misuse(Instant::now()) {
                return misuse;
            }
            tokio::select! {
                Ok(()) = counted.changed() => {}
                _ = ticks.tick() => {}
            }
        }
    }

    /// Changes the counts. Wakes [`Self::misuse`] if the new counts show a misuse.
    fn count(&self, change: impl FnOnce(&mut Counted)) {
        self.counted.send_if_modified(|counted| {
            change(counted);
            counted.abandoned > MAX_ABANDONED || counted.refused > MAX_REFUSED
        });
    }

    /// Counts one more call. Returns `None` if it exceeds a quota.
    fn begin(&self) -> Option<Call> {
        let Some(in_progress) = self.calls.begin() else {
            self.count(|counted| counted.refused += 1);
            return None;
        };
        self.count(|counted| (counted.in_progress, counted.refused) = (counted.in_progress + 1, 0));
        Some(Call { usage: self.clone(), complete: false, _in_progress: in_progress })
    }

    /// Answers a request if it is within the quota of its peer. The call ends with the end of the answer's body.
    pub(super) async fn answer<B>(
        self,
        routes: Routes,
        request: http::Request<B>,
    ) -> Result<http::Response<Body>, Infallible>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let Some(mut call) = self.begin() else {
            return Ok(too_many(request.uri().path()).into_http());
        };
        // Streaming calls return immediately; unary calls return once the request has arrived and been handled.
        let response = match time::timeout(REQUEST, routes.answer(request)).await {
            Ok(response) => response,
            Err(_) => Status::deadline_exceeded("the request did not arrive in time").into_http(),
        };
        call.complete = response.body().is_end_stream();
        let counted = move |frame: Frame<Bytes>| {
            call.sent(&frame);
            frame
        };
        Ok(response.map(|body| Body::new(body.map_frame(counted))))
    }
}

/// The status of a call beyond the quota.
fn too_many(path: &str) -> Status {
    const MESSAGE: &str = "too many calls are in progress";
    if path.starts_with("/localnet.v1.") || path.starts_with("/localnet.reasons.") {
        ErrorInfo::new(ErrorReason::TooManyCalls).status(MESSAGE)
    } else {
        Status::resource_exhausted(MESSAGE)
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

impl Call {
    fn sent(&mut self, frame: &Frame<Bytes>) {
        self.complete |= frame.is_trailers();
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let now = Instant::now();
        self.usage.count(|counted| {
            counted.in_progress -= 1;
            counted.idle_since = now;
            if self.complete {
                return;
            }
            if now.duration_since(counted.window) > WINDOW {
                (counted.window, counted.abandoned) = (now, 0);
            }
            counted.abandoned += 1;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::quota::{PeerId, Peers},
        *,
    };

    #[test]
    fn a_call_of_the_draft_beyond_the_quota_has_a_reason() {
        let draft = too_many("/localnet.v1.StateService/NextState");
        let reports = too_many("/localnet.v1.BackendService/ReportStatus");
        let reasons = too_many("/localnet.reasons.v1alpha1.ReasonsService/GetStatus");
        for draft in [&draft, &reports, &reasons] {
            assert_eq!(ErrorInfo::of(draft), Some(ErrorInfo::new(ErrorReason::TooManyCalls)));
        }
        let other = too_many("/localnetv1.Endpoints/Next");
        assert_eq!((draft.code(), ErrorInfo::of(&other)), (other.code(), None));
    }

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
            (0..count).for_each(|_| usage.begin().unwrap().complete = true);
        };
        complete(100 * MAX_ABANDONED);
        for _ in 0..10 {
            abandon(MAX_ABANDONED - 1);
            time::advance(WINDOW + Duration::from_secs(1)).await;
        }
        assert_eq!(usage.counted.borrow().misuse(Instant::now()), None);
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
        assert_eq!(usage.counted.borrow().misuse(Instant::now()), None);
        assert!((0..=MAX_REFUSED).all(|_| usage.begin().is_none()));
        assert_eq!(usage.misuse().await, Misuse::Refused);
    }
}
