//! The life of one connection, from the handshake to the end.
//!
//! A peer must finish the handshake and send the HTTP/2 preface within [`HANDSHAKE`]. After that it must use the
//! connection ([`super::usage`]) and answer pings. hyper limits the memory that a peer can occupy: it restricts the
//! streams, the headers, the flow control windows and the send buffer. hyper has no deadline for the preface, but the
//! test `a_peer_without_a_complete_preface_is_disconnected_after_10_s` requires one.

use std::{fmt::Display, io, sync::Arc, time::Duration};

use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
    service::TowerToHyperService,
};
use tokio::time::{self, Instant};
use tokio_util::{io::InspectReader, sync::CancellationToken};
use tower::service_fn;
use tracing::{debug, warn};

use super::{
    listen::{Accepted, Established, Io},
    quota::Admitted,
    routes::Routes,
    usage::{Misuse, Usage},
};
use crate::throttle::Throttle;

/// The HTTP/2 connection preface (RFC 9113 §3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Maximum number of concurrent streams of one connection.
const MAX_STREAMS: u32 = 32;
/// Maximum number of buffered bytes of one answer, if the reader does not read. Every call can take this much memory. If
/// this value were 64 KiB, the calls of 600 connections could take 250 MiB.
const SEND_BUFFER: usize = 4 << 10;
/// Flow control window of one stream, in bytes: what a peer can send before the server reads it.
const STREAM_WINDOW: u32 = 8 << 10;
/// Flow control window of one connection, in bytes. RFC 9113 §6.9.2 allows no smaller initial value.
const WINDOW: u32 = 65_535;
/// Maximum size of the headers of one request, in bytes.
const HEADERS: u32 = 16 << 10;
/// Maximum numbers of reset streams before the server closes the connection: streams that the peer resets before the server
/// accepts them, and streams that the server resets because of an error of the peer.
const RESETS: (usize, usize) = (20, 64);
/// Two times: how long a connection may be silent before the server pings the peer, and how long the peer may take to
/// answer.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(15), Duration::from_secs(10));
/// How long a peer may take to authenticate and to send the HTTP/2 preface.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long streams in progress may take to finish once the connection is being closed.
pub(super) const GRACE: Duration = Duration::from_secs(2);

/// Serves a peer until it disconnects, until `stop` is cancelled, or until a limit makes the server close the connection.
pub(super) async fn serve(
    accepted: Accepted,
    admitted: Admitted,
    routes: Routes,
    refusals: Refusals,
    stop: CancellationToken,
) {
    let peer = accepted.peer.clone();
    let deadline = Instant::now() + HANDSHAKE;
    let established = tokio::select! {
        () = stop.cancelled() => return,
        established = time::timeout_at(deadline, accepted.establish()) => established,
    };
    let Established { io, peer: identity, retired } =
        match established.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(established) => established,
            Err(error) => return refusals.log(&peer, &error),
        };
    let (io, greeted) = observe_preface(io);
    let usage = Usage::new(admitted.calls().clone());
    let (answering, routes) = (usage.clone(), routes.of_connection());
    let identity = Arc::new(identity);
    // hyper keeps the memory of this future until the whole answer is sent, so it must be small.
    let service = service_fn(move |mut request: http::Request<_>| {
        // Only this service uses the identity. In other requests, it would take memory.
        if request.uri().path().starts_with(super::push::PATH) {
            request.extensions_mut().insert(Arc::clone(&identity));
        }
        Box::pin(answering.clone().answer(routes.clone(), request))
    });
    let server = http2_server();
    let mut connection = std::pin::pin!(server.serve_connection(TokioIo::new(io), TowerToHyperService::new(service)));
    let closing = async {
        tokio::select! {
            why = retired => Ok(why),
            misuse = usage.misuse() => if misuse == Misuse::Idle { Ok("the connection had no call for too long") } else { Err(misuse) },
        }
    };
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = missed(deadline, &greeted) => return refusals.log(&peer, &"the peer sent no HTTP/2 preface in time"),
        // `accept` waits for this connection, but at most for GRACE.
        () = stop.cancelled() => {
            // Before the preface, hyper does not end a connection gracefully.
            if !greeted.is_cancelled() {
                return;
            }
            connection.as_mut().graceful_shutdown();
            connection.await
        }
        why = closing => match why {
            Err(misuse) => return refusals.log(&peer, &misuse),
            Ok(why) => {
                debug!(peer, why, "closing a connection; the client has to reconnect");
                connection.as_mut().graceful_shutdown();
                time::timeout(GRACE, connection).await.unwrap_or(Ok(()))
            }
        }
    };
    if let Err(error) = ended {
        if !greeted.is_cancelled() {
            return refusals.log(&peer, &"the peer does not speak HTTP/2");
        }
        debug!(peer, %error, "a connection failed");
    }
}

/// Wraps `io`. Cancels the returned token once the whole HTTP/2 preface has been read. hyper closes a connection at the
/// first byte that differs from the preface.
fn observe_preface<I: Io>(io: I) -> (impl Io, CancellationToken) {
    let greeted = CancellationToken::new();
    let (complete, mut expected) = (greeted.clone(), PREFACE);
    let io = InspectReader::new(io, move |bytes: &[u8]| {
        expected = expected.strip_prefix(bytes).unwrap_or(expected);
        if expected.is_empty() {
            complete.cancel();
        }
    });
    (io, greeted)
}

/// Resolves at the deadline. Never resolves if the peer has sent the preface by then.
async fn missed(deadline: Instant, greeted: &CancellationToken) {
    if time::timeout_at(deadline, greeted.cancelled()).await.is_ok() {
        std::future::pending::<()>().await;
    }
}

/// Returns an HTTP/2 server with our limits. It pings peers to detect dead peers, and answers any number of pings from
/// peers.
fn http2_server() -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new()).http2_only();
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEP_ALIVE.0)
        .keep_alive_timeout(KEEP_ALIVE.1)
        .max_send_buf_size(SEND_BUFFER)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_header_list_size(HEADERS)
        .max_pending_accept_reset_streams(RESETS.0)
        .max_local_error_reset_streams(RESETS.1)
        .max_concurrent_streams(MAX_STREAMS);
    builder
}

/// Logs refused connections, at most one line every 5 s.
#[derive(Clone, Debug, Default)]
pub(super) struct Refusals(Throttle);

impl Refusals {
    pub(super) fn log(&self, peer: &str, why: &dyn Display) {
        match self.0.pass() {
            Some(0) => warn!(peer, error = %why, "a connection was refused"),
            Some(others) => warn!(peer, error = %why, others, "connections were refused"),
            None => debug!(peer, %why, "a connection was refused"),
        }
    }
}
