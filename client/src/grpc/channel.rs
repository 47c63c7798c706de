//! [`Channel`]: one HTTP/2 connection to the brain, which all calls share. The first request opens it, and so does the first
//! request after it broke.
//!
//! tonic has such a channel, too, but its channel also balances, limits and queues requests to several servers. The crates for
//! that would be a tenth of all crates that a backend needs (decision 38).

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
    time::timeout,
};
use tonic::{Status, body::Body};
use tower_service::Service;
use tracing::debug;

/// How often an idle connection is pinged. It is closed if no answer arrives within [`PING_TIMEOUT`].
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(5);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

const AGENT: HeaderValue = HeaderValue::from_static(concat!("localnet-client/", env!("CARGO_PKG_VERSION")));

type Pending<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Connected = Pending<io::Result<Box<dyn Stream>>>;

/// The stream that a connection uses.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A connection that is opened when it is needed. Clones share it.
#[derive(Clone)]
pub(super) struct Channel(Arc<Shared>);

struct Shared {
    scheme: Scheme,
    authority: Authority,
    connect: Box<dyn Fn() -> Connected + Send + Sync>,
    /// The connection that was opened last; `None` before the first one.
    open: Mutex<Option<SendRequest<Body>>>,
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
        let connect = move || -> Connected {
            let connected = connect();
            Box::pin(async move { Ok(Box::new(connected.await?) as Box<dyn Stream>) })
        };
        Self(Arc::new(Shared { scheme, authority, connect: Box::new(connect), open: Mutex::new(None) }))
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
        let mut open = self.open.lock().await;
        if let Some(connection) = open.as_ref().filter(|connection| !connection.is_closed()) {
            return Ok(connection.clone());
        }
        let late = || io::Error::new(io::ErrorKind::TimedOut, format!("no connection within {CONNECT_TIMEOUT:?}"));
        let connected = timeout(CONNECT_TIMEOUT, (self.connect)()).await.unwrap_or_else(|_| Err(late()));
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
        Ok(open.insert(connection).clone())
    }
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
    type Future = Pending<Result<Response<Body>, Status>>;

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
    use std::sync::Mutex;

    use tokio::time::Instant;
    use tonic::Code;

    use super::*;

    /// A host that loses power closes no connection.
    #[tokio::test(start_paused = true)]
    async fn a_silent_brain_is_noticed_and_the_next_call_connects_again() {
        let (ours, _theirs) = tokio::io::duplex(1 << 16);
        let streams = Mutex::new(Some(ours));
        let mut channel = Channel::new(Scheme::HTTP, Authority::from_static("brain"), move || {
            let stream = streams.lock().unwrap().take();
            async move { stream.ok_or_else(|| io::Error::other("no second connection")) }
        });
        let mut call = async || {
            let request = Request::builder().uri("/package.Service/Method").body(Body::empty()).unwrap();
            let status = channel.call(request).await.map(drop).unwrap_err();
            assert_eq!(status.code(), Code::Unavailable, "{status:?}");
            status
        };
        let begun = Instant::now();
        call().await;
        assert!(begun.elapsed() < PING_INTERVAL + 2 * PING_TIMEOUT);
        assert_eq!(call().await.message(), "no second connection");
    }
}
