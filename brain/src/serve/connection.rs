//! One connection, from the handshake to its end.
//!
//! A peer has [`HANDSHAKE`] to say that it speaks HTTP/2, then to use the connection ([`super::usage`]), and always to answer
//! pings. What it may make the server keep is bounded: streams, headers, windows, bytes to send.

use std::{fmt::Display, io, time::Duration};

use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
    service::TowerToHyperService,
};
use tokio::time;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::{
    listen::{Accepted, Established},
    peers::Admitted,
    routes::Routes,
    usage::{Misuse, Usage, Used},
};
use crate::throttle::Throttle;

/// Streams of one connection.
const MAX_STREAMS: u32 = 32;
/// Bytes of an answer that wait for a reader who does not take them. Each call may cost this much: with 64 KiB for each, 600
/// connections cost 250 MiB.
const SEND_BUFFER: usize = 4 << 10;
/// Bytes of a request that wait to be read.
const STREAM_WINDOW: u32 = 8 << 10;
/// The same of a connection: the least that HTTP/2 can say.
const WINDOW: u32 = 65_535;
/// Bytes of the headers of a request.
const HEADERS: u32 = 16 << 10;
/// Streams that were reset before they were looked at, and that the peer made the server reset: more end the connection.
const RESETS: (usize, usize) = (20, 64);
/// How long a connection may be silent before it is asked whether it still lives, and how long it has to answer.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(15), Duration::from_secs(10));
/// How long a peer may take until it has said who it is, and what it speaks.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long streams that are being read may take to end when the connection is to end.
pub(super) const GRACE: Duration = Duration::from_secs(2);

/// Serves a peer until it goes, or has to.
pub(super) async fn serve(
    accepted: Accepted,
    admitted: Admitted,
    routes: Routes,
    refusals: Refusals,
    stop: CancellationToken,
) {
    let peer = accepted.peer().to_owned();
    let established = tokio::select! {
        () = stop.cancelled() => return,
        established = time::timeout(HANDSHAKE, accepted.establish()) => established,
    };
    let Established { io, retired } = match established.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
        Ok(established) => established,
        Err(error) => return refusals.say(&peer, &error),
    };
    let usage = Usage::new(admitted.calls().clone());
    let service = TowerToHyperService::new(Used::new(routes, usage.clone()));
    let server = http2_server();
    let mut connection = std::pin::pin!(server.serve_connection(TokioIo::new(io), service));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        // The server waits for its connections, and cuts those that take too long.
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
        why = retired => {
            debug!(peer, why, "a connection has to be made anew");
            connection.as_mut().graceful_shutdown();
            time::timeout(GRACE, connection).await.unwrap_or(Ok(()))
        }
        misuse = usage.misuse() => match misuse {
            Misuse::Idle => {
                debug!(peer, "a connection that nobody uses is ended");
                connection.as_mut().graceful_shutdown();
                time::timeout(GRACE, connection).await.unwrap_or(Ok(()))
            }
            Misuse::Refused => return refusals.say(&peer, &"it goes on calling although too many calls are under way"),
            Misuse::Abandons => return refusals.say(&peer, &"it begins calls and abandons them, over and over"),
        }
    };
    if let Err(error) = ended {
        debug!(peer, %error, "a connection was cut");
    }
}

/// Pings peers, so that dead ones are noticed; answers theirs whenever they come.
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

/// Logs who was refused and why.
#[derive(Clone, Debug, Default)]
pub(super) struct Refusals(Throttle);

impl Refusals {
    pub(super) fn say(&self, peer: &str, why: &dyn Display) {
        match self.0.pass() {
            Some(0) => warn!(peer, error = %why, "refused a connection"),
            Some(others) => warn!(peer, error = %why, others, "refused connections"),
            None => debug!(peer, %why, "refused a connection"),
        }
    }
}
