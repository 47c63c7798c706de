//! [`Channel`]: one HTTP/2 connection to the brain, which all calls share. The first request opens it, and so does the first
//! request after it broke.
//!
//! tonic has such a channel, too, but its channel also balances, limits and queues requests to several servers. That needs five
//! more crates (decision 38).

use std::{
    fmt, io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::{
    HeaderValue, Request, Response, Uri,
    header::USER_AGENT,
    uri::{Authority, Scheme},
};
use http_body_util::BodyExt as _;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::Mutex,
    task::JoinHandle,
    time::timeout,
};
use tonic::{Status, body::Body};
use tower_service::Service;
use tracing::debug;

/// How often an idle connection is pinged. It is closed if no answer arrives within [`PING_TIMEOUT`].
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an attempt to connect may take, including DNS and the TLS handshake.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

const AGENT: HeaderValue = HeaderValue::from_static(concat!("localnet-client/", env!("CARGO_PKG_VERSION")));

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Connecting = BoxFuture<io::Result<Box<dyn Stream>>>;

/// The stream that a connection uses.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A connection that is opened when it is needed. Clones share it.
#[derive(Clone)]
pub(super) struct Channel(Arc<Shared>);

struct Shared {
    scheme: Scheme,
    authority: Authority,
    connect: Box<dyn Fn() -> Connecting + Send + Sync>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The connection that was opened last; `None` before the first one.
    open: Option<SendRequest<Body>>,
    /// The attempt to open the next connection.
    attempt: Option<Attempt>,
}

/// A task that opens a connection. It continues if the call that started it is cancelled, because other calls may wait for it.
/// It ends when the channel is dropped.
struct Attempt(JoinHandle<Result<SendRequest<Body>, Status>>);

impl Drop for Attempt {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Channel {
    /// A channel whose requests name `authority`, and that uses `connect` to open its connections.
    pub(super) fn new<F, S>(
        scheme: Scheme,
        authority: Authority,
        connect: impl Fn() -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = io::Result<S>> + Send + 'static,
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let connect = move || -> Connecting {
            let connecting = connect();
            Box::pin(async move { Ok(Box::new(connecting.await?) as Box<dyn Stream>) })
        };
        Self(Arc::new(Shared { scheme, authority, connect: Box::new(connect), state: Mutex::default() }))
    }
}

impl Shared {
    async fn send(&self, mut request: Request<Body>) -> Result<Response<Body>, Status> {
        let mut parts = std::mem::take(request.uri_mut()).into_parts();
        (parts.scheme, parts.authority) = (Some(self.scheme.clone()), Some(self.authority.clone()));
        *request.uri_mut() = Uri::from_parts(parts).map_err(|error| Status::internal(error.to_string()))?;
        request.headers_mut().insert(USER_AGENT, AGENT);
        let response = self.connection().await?.send_request(request).await.map_err(status)?;
        Ok(response.map(|body| Body::new(body.map_err(status))))
    }

    /// The open connection, or a new one. Requests that arrive meanwhile wait for it.
    async fn connection(&self) -> Result<SendRequest<Body>, Status> {
        let mut state = self.state.lock().await;
        // The calls that waited for this attempt were cancelled. If it failed, that may be long ago.
        if let Some(mut attempt) = state.attempt.take_if(|attempt| attempt.0.is_finished()) {
            state.open = (&mut attempt.0).await.ok().and_then(Result::ok);
        }
        if let Some(connection) = state.open.as_ref().filter(|connection| !connection.is_closed()) {
            return Ok(connection.clone());
        }
        let attempt = state.attempt.get_or_insert_with(|| Attempt(tokio::spawn(open((self.connect)()))));
        let opened = (&mut attempt.0).await.unwrap_or_else(|error| Err(Status::internal(error.to_string())));
        state.attempt = None;
        Ok(state.open.insert(opened?).clone())
    }
}

/// Waits for the stream, and opens a connection on it.
async fn open(connecting: Connecting) -> Result<SendRequest<Body>, Status> {
    let late = || io::Error::new(io::ErrorKind::TimedOut, format!("no connection within {CONNECT_TIMEOUT:?}"));
    let connected = timeout(CONNECT_TIMEOUT, connecting).await.unwrap_or_else(|_| Err(late()));
    let stream = connected.map_err(|error| {
        let mut status = Status::unavailable(error.to_string());
        status.set_source(Arc::new(error));
        status
    })?;
    let (connection, driver) = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(true)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(status)?;
    // Ends with the connection, or after the channel and its answers are dropped.
    tokio::spawn(async move {
        if let Err(error) = driver.await {
            debug!(error = &error as &dyn std::error::Error, "the connection to the brain broke");
        }
    });
    Ok(connection)
}

/// The status for an error of the connection.
fn status(error: hyper::Error) -> Status {
    let text = error.to_string();
    let mut status = if error.is_timeout() {
        // The brain did not answer a ping.
        Status::unavailable(text)
    } else if error.is_canceled() {
        Status::cancelled(text)
    } else {
        Status::unknown(text)
    };
    status.set_source(Arc::new(error));
    status
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Channel({})", self.0.authority)
    }
}

impl Service<Request<Body>> for Channel {
    type Response = Response<Body>;
    type Error = Status;
    type Future = BoxFuture<Result<Response<Body>, Status>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let shared = Arc::clone(&self.0);
        Box::pin(async move { shared.send(request).await })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    };

    use tokio::{
        io::DuplexStream,
        time::{Instant, sleep},
    };
    use tonic::Code;

    use super::*;

    /// Longer than any test here takes on the paused clock.
    const LIMIT: Duration = Duration::from_secs(60);

    fn channel<F>(connect: impl Fn() -> F + Send + Sync + 'static) -> Channel
    where
        F: Future<Output = io::Result<DuplexStream>> + Send + 'static,
    {
        Channel::new(Scheme::HTTP, Authority::from_static("brain"), connect)
    }

    /// A channel whose first connection leads to a silent peer, the other stream. Every other connection fails. Each needs
    /// `delay`.
    fn silent(delay: Duration) -> (Channel, DuplexStream) {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let streams = Mutex::new(Some(ours));
        let channel = channel(move || {
            let stream = streams.lock().unwrap().take();
            async move {
                sleep(delay).await;
                stream.ok_or_else(|| io::Error::other("no second connection"))
            }
        });
        (channel, theirs)
    }

    /// The status with which a call fails.
    async fn call(channel: &Channel) -> Status {
        let request = Request::builder().uri("/package.Service/Method").body(Body::empty()).unwrap();
        let answer = timeout(LIMIT, channel.clone().call(request)).await.expect("the call ends");
        answer.map(drop).unwrap_err()
    }

    /// A host that loses power closes no connection.
    #[tokio::test(start_paused = true)]
    async fn a_silent_brain_is_noticed_and_the_next_call_connects_again() {
        let (channel, _theirs) = silent(Duration::ZERO);
        let begun = Instant::now();
        let status = call(&channel).await;
        assert_eq!(status.code(), Code::Unavailable, "{status:?}");
        assert!(begun.elapsed() < PING_INTERVAL + 2 * PING_TIMEOUT);
        assert_eq!(call(&channel).await.message(), "no second connection");
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_brain_is_noticed_between_calls() {
        let (channel, _theirs) = silent(Duration::ZERO);
        timeout(Duration::from_secs(1), call(&channel)).await.expect_err("nobody answers");
        sleep(PING_INTERVAL + 2 * PING_TIMEOUT).await;
        assert_eq!(call(&channel).await.message(), "no second connection");
    }

    /// A channel that needs one second to fail, and the number of its attempts.
    fn failing() -> (Channel, Arc<AtomicUsize>) {
        let attempts = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&attempts);
        let channel = channel(move || {
            count.fetch_add(1, Ordering::Relaxed);
            async {
                sleep(Duration::from_secs(1)).await;
                Err(io::Error::other("refused"))
            }
        });
        (channel, attempts)
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_call_does_not_abort_the_attempt_that_another_call_waits_for() {
        let (channel, attempts) = failing();
        let begun = Instant::now();
        let (cancelled, status) = tokio::join!(timeout(Duration::from_millis(900), call(&channel)), call(&channel));
        assert!(cancelled.is_err());
        assert_eq!((status.message(), attempts.load(Ordering::Relaxed)), ("refused", 1));
        assert!(begun.elapsed() < Duration::from_millis(1100), "{:?}", begun.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_uses_the_connection_that_a_cancelled_call_requested_but_not_its_old_failure() {
        let (channel, attempts) = failing();
        timeout(Duration::from_millis(900), call(&channel)).await.expect_err("it was cancelled");
        sleep(Duration::from_secs(9)).await;
        assert_eq!((call(&channel).await.message(), attempts.load(Ordering::Relaxed)), ("refused", 2));

        let (channel, _theirs) = silent(Duration::from_secs(1));
        timeout(Duration::from_millis(900), call(&channel)).await.expect_err("it was cancelled");
        sleep(Duration::from_secs(1)).await;
        let status = call(&channel).await;
        assert!(status.message() != "no second connection", "{status:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_ends_with_the_channel() {
        let held = Arc::new(());
        let of_attempt = Mutex::new(Some(Arc::clone(&held)));
        let channel = channel(move || {
            let held = of_attempt.lock().unwrap().take();
            async move {
                let _held = held;
                std::future::pending().await
            }
        });
        timeout(Duration::from_secs(1), call(&channel)).await.expect_err("it does not connect");
        assert_eq!(Arc::strong_count(&held), 2);
        drop(channel);
        sleep(Duration::from_millis(1)).await;
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
