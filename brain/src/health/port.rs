//! Opens one port, with retries, and lets hyper serve HTTP/1 on it. hyper applies one deadline to the head of every
//! request. This module adds a shorter deadline for the first request; see the test
//! `a_connection_without_a_request_is_closed`.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    future::{pending, ready},
    io,
    net::{Ipv6Addr, SocketAddr},
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::Context as _;
use http::{Request, Uri};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
    service::TowerToHyperService,
};
use localnet_proto::ServiceKey;
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    sync::watch,
    task::JoinSet,
    time,
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{answer::Answer, connections::Connections};
use crate::{platform, serve::PeerId, throttle::Throttle};

/// Length of the accept queue.
const BACKLOG: u32 = 1024;
/// How long a peer may take to send the head of its first request. A probe sends the head immediately after it has
/// connected.
const FIRST_REQUEST: Duration = Duration::from_secs(1);
/// How long a peer may take to send the head of a further request. The time includes the idle time before the request.
const REQUEST: Duration = Duration::from_secs(10);
/// Pause after a failed accept, for instance when the process has no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A port to keep open.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Port {
    /// The Service whose health the port reports. `None` for `/healthz` and metrics.
    pub service: Option<ServiceKey>,
    /// The address and port to bind.
    pub address: SocketAddr,
}

/// The status of one port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listening {
    /// The port is open at this address.
    At(SocketAddr),
    /// The port is closed, and the brain retries to open it.
    Failed {
        /// The error of the last attempt.
        error: String,
        /// The number of failed attempts.
        attempts: u32,
    },
}

/// The status of all ports that have been tried at least once.
pub type Status = BTreeMap<Port, Listening>;

/// Running servers. Dropping this value closes all of their ports.
#[derive(Debug)]
pub struct Servers {
    work: JoinSet<()>,
    status: watch::Receiver<Status>,
}

impl Servers {
    pub(crate) fn new(work: JoinSet<()>, status: watch::Receiver<Status>) -> Self {
        Self { work, status }
    }

    /// The status of all ports. The receiver is notified of each change.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.clone()
    }

    /// Resolves when a task has panicked. A task that ends without a panic is no failure: its feed was dropped, and the
    /// owner of the feed notices this. Cancel safe.
    pub async fn failed(&mut self) -> anyhow::Error {
        while let Some(ended) = self.work.join_next().await {
            if let Err(error) = ended {
                return anyhow::Error::new(error).context("a task of the health and metrics servers has crashed");
            }
        }
        pending().await
    }

    /// Closes all ports, and returns once they are closed.
    pub async fn stop(mut self) {
        self.work.shutdown().await;
    }
}

/// The handler of requests.
pub(crate) type Answers = Arc<dyn Fn(&Uri) -> Answering + Send + Sync>;

/// The future of an answer.
pub(crate) type Answering = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// Wraps an answer that is available immediately.
pub(crate) fn at_once(answer: Answer) -> Answering {
    Box::pin(ready(answer))
}

/// When to try again to open a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retry {
    /// Every five seconds, as kube-proxy does for `/healthz`.
    Steady,
    /// With exponential backoff from 1 s to 60 s, because there may be many ports.
    BackOff,
}

impl Retry {
    fn after(self, attempts: u32) -> Duration {
        match self {
            Self::Steady => Duration::from_secs(5),
            Self::BackOff => Duration::from_secs(1 << attempts.saturating_sub(1).min(6)).min(Duration::from_secs(60)),
        }
    }
}

/// Keeps a port open until this future is dropped. `what` is the purpose of the port, for the log.
pub(crate) async fn keep(
    port: Port,
    answers: Answers,
    retry: Retry,
    status: watch::Sender<Status>,
    what: &'static str,
) {
    let entry = Entry { port: &port, status };
    let service = port.service.as_ref().map(ToString::to_string);
    for attempts in 1.. {
        let error = match listen(&port).and_then(|listener| Ok((listener.local_addr()?, listener))) {
            Ok((address, listener)) => {
                info!(%address, service, "answering {what}");
                entry.set(Listening::At(address));
                return accept(listener, answers).await;
            }
            Err(error) => error,
        };
        if attempts == 1 {
            let address = port.address;
            warn!(%address, service, %error, "failed to listen for {what}; retrying; free the port, or choose another one");
        } else {
            debug!(address = %port.address, service, %error, attempts, "failed to listen for {what} again");
        }
        entry.set(Listening::Failed { error: error.to_string(), attempts });
        time::sleep(retry.after(attempts)).await;
    }
}

/// The port's entry in the status. Dropping it removes the entry.
struct Entry<'a> {
    port: &'a Port,
    status: watch::Sender<Status>,
}

impl Entry<'_> {
    fn set(&self, listening: Listening) {
        self.status.send_modify(|status| {
            status.insert(self.port.clone(), listening);
        });
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        self.status.send_modify(|status| {
            status.remove(self.port);
        });
    }
}

/// Binds a port in the same way as kube-proxy does with Go's `net.Listen`. The socket of a Service has one family. For
/// `/healthz`, the unspecified address of either family stands for both families.
///
/// # Errors
/// Returns an error if another process uses the port, or if the node does not have the address.
pub(crate) fn listen(port: &Port) -> io::Result<TcpListener> {
    let both = port.service.is_none() && port.address.ip().is_unspecified();
    if !both {
        return bind(port.address, true);
    }
    match bind((Ipv6Addr::UNSPECIFIED, port.address.port()).into(), false) {
        Err(error) if rustix::io::Errno::from_io_error(&error) == Some(rustix::io::Errno::AFNOSUPPORT) => {
            bind(port.address, true)
        }
        bound => bound,
    }
}

/// Checks whether a server for `what` can listen on `address`. If there is no address, the check succeeds.
///
/// # Errors
/// Returns an error if another process uses the port, or if the node does not have the address.
pub fn check(address: Option<SocketAddr>, what: &str) -> anyhow::Result<()> {
    let Some(address) = address else { return Ok(()) };
    let listened = listen(&Port { service: None, address }).map(drop);
    listened.with_context(|| {
        format!(
            "failed to listen for {what} on {address}; free the port, choose another, or set bindAddressHardFail: false"
        )
    })
}

fn bind(address: SocketAddr, v6_only: bool) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    if platform::ASKS_TO_REUSE_PORTS {
        socket.set_reuseaddr(true)?;
    }
    if address.is_ipv6() {
        rustix::net::sockopt::set_ipv6_v6only(&socket, v6_only)?;
    }
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Accepts the connections of a port, and owns their tasks. A new connection is always accepted; see
/// [`connections`](super::connections).
async fn accept(listener: TcpListener, answers: Answers) {
    let mut tasks = JoinSet::new();
    let connections = Shared::default();
    let failures = Throttle::default();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = tasks.join_next() => continue,
        };
        match accepted {
            Ok((stream, peer)) => {
                let evicted = CancellationToken::new();
                let (number, other) = lock(&connections).admit(PeerId::host(peer.ip()), evicted.clone());
                if let Some(other) = other {
                    other.cancel();
                }
                let activity = Activity { number, connections: Arc::clone(&connections), active: Arc::default() };
                tasks.spawn(serve(stream, Arc::clone(&answers), activity, evicted));
            }
            Err(error) => {
                if let Some(suppressed) = failures.pass() {
                    warn!(%error, failures_since = suppressed, "failed to accept a health check; raise the limit of open files if it is reached");
                }
                time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

type Shared = Arc<Mutex<Connections<CancellationToken>>>;

fn lock(connections: &Shared) -> MutexGuard<'_, Connections<CancellationToken>> {
    // Code that holds the lock never panics in the middle of a change.
    connections.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The activity of one connection.
#[derive(Clone)]
struct Activity {
    number: u64,
    connections: Shared,
    /// Whether a request has arrived.
    active: Arc<AtomicBool>,
}

impl Activity {
    fn set_busy(&self, busy: bool) {
        self.active.store(true, Ordering::Relaxed);
        lock(&self.connections).set_busy(self.number, busy);
    }

    /// Resolves after [`FIRST_REQUEST`] if no request has arrived by then.
    async fn no_request(&self) {
        time::sleep(FIRST_REQUEST).await;
        if self.active.load(Ordering::Relaxed) {
            pending::<()>().await;
        }
    }
}

async fn serve(stream: TcpStream, answers: Answers, activity: Activity, evicted: CancellationToken) {
    let service = TowerToHyperService::new(service(answers, activity.clone()));
    let mut server = auto::Builder::new(TokioExecutor::new()).http1_only();
    server.http1().timer(TokioTimer::new()).header_read_timeout(REQUEST).title_case_headers(true);
    let ended = tokio::select! {
        ended = server.serve_connection(TokioIo::new(stream), service) => ended.map_err(|error| error.to_string()),
        () = activity.no_request() => Err("the peer sent no request in time".to_owned()),
        () = evicted.cancelled() => Err("the port has too many connections, and this connection was idle the longest".to_owned()),
    };
    if let Err(error) = ended {
        debug!(error, "a health check connection was closed");
    }
    lock(&activity.connections).remove(activity.number);
}

/// The HTTP service of one connection. It ignores the method and the body of a request, as kube-proxy does.
fn service<B>(
    answers: Answers,
    activity: Activity,
) -> impl tower::Service<Request<B>, Response = Answer, Error = Infallible, Future: Send> + Clone + Send {
    tower::service_fn(move |request: Request<B>| {
        let (answering, activity) = (answers(request.uri()), activity.clone());
        activity.set_busy(true);
        async move {
            let answer = answering.await;
            activity.set_busy(false);
            Ok(answer)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_grows_to_a_minute_and_steady_stays_at_five_seconds() {
        let seconds = |retry: Retry| [1, 2, 3, 6, 7, 8, u32::MAX].map(|attempts| retry.after(attempts).as_secs());
        assert_eq!(seconds(Retry::BackOff), [1, 2, 4, 32, 60, 60, 60]);
        assert_eq!(seconds(Retry::Steady), [5; 7]);
    }
}
