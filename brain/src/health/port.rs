//! One port: opens it, tries again while it cannot, and answers HTTP/1 on it.

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
use crate::{serve::Who, throttle::Throttle};

/// Connections that wait to be accepted.
const BACKLOG: u32 = 1024;
/// How long a peer may take until the head of its first request is there. A probe sends it as soon as it is connected.
const FIRST_REQUEST: Duration = Duration::from_secs(1);
/// How long it may take for each further request, the silence before it included.
const REQUEST: Duration = Duration::from_secs(10);
/// Pause after a failed accept, for instance when there are no more file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A port that should be open.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Port {
    /// The service that it answers for; `None` for `/healthz`.
    pub service: Option<ServiceKey>,
    /// Its address.
    pub address: SocketAddr,
}

/// Whether a port is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listening {
    /// It is, at this address.
    At(SocketAddr),
    /// It is not, and will be tried again.
    Failed {
        /// Why not.
        error: String,
        /// How many times it has been tried.
        attempts: u32,
    },
}

/// All ports that should be open. Those that have not been tried yet are not in it.
pub type Status = BTreeMap<Port, Listening>;

/// What to answer to a request for something.
pub(crate) type Answers = Arc<dyn Fn(&Uri) -> Answering + Send + Sync>;

/// An answer, which may take its time.
pub(crate) type Answering = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// An answer that is there already.
pub(crate) fn at_once(answer: Answer) -> Answering {
    Box::pin(ready(answer))
}

/// When to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retry {
    /// Each five seconds, as kube-proxy does for `/healthz`.
    Steady,
    /// After a second, and then after ever longer, up to a minute: there may be many ports.
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

/// Keeps a port open until it is dropped. `what` it answers is for the log.
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
            warn!(%address, service, %error, "failed to listen for {what}, will be tried again; free the port, or choose another");
        } else {
            debug!(address = %port.address, service, %error, attempts, "still failed to listen for {what}");
        }
        entry.set(Listening::Failed { error: error.to_string(), attempts });
        time::sleep(retry.after(attempts)).await;
    }
}

/// The port's entry in the status, for as long as the port is kept.
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

/// Go's `Listen`, to which kube-proxy leaves it: for a service, each family has a socket of its own; for `/healthz`, the
/// unspecified address is that of both families, whichever it is written in.
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

fn bind(address: SocketAddr, only_its_family: bool) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    if address.is_ipv6() {
        rustix::net::sockopt::set_ipv6_v6only(&socket, only_its_family)?;
    }
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Owns the connections of a port. A new one is always taken; see [`connections`](super::connections).
async fn accept(listener: TcpListener, answers: Answers) {
    let mut tasks = JoinSet::new();
    let present = Present::default();
    let failures = Throttle::default();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = tasks.join_next() => continue,
        };
        match accepted {
            Ok((stream, peer)) => {
                let evicted = CancellationToken::new();
                let (number, other) = lock(&present).admit(Who::host(peer.ip()), evicted.clone());
                if let Some(other) = other {
                    other.cancel();
                }
                let asks = Asks { number, present: Arc::clone(&present), asked: Arc::default() };
                tasks.spawn(serve(stream, Arc::clone(&answers), asks, evicted));
            }
            Err(error) => {
                if let Some(held) = failures.pass() {
                    warn!(%error, failures_since = held, "failed to accept a health check; raise the limit of open files if it is reached");
                }
                time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

type Present = Arc<Mutex<Connections<CancellationToken>>>;

fn lock(present: &Present) -> MutexGuard<'_, Connections<CancellationToken>> {
    // Nothing in it is half done when a panic leaves it.
    present.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is known of the requests of one connection.
#[derive(Clone)]
struct Asks {
    number: u64,
    present: Present,
    asked: Arc<AtomicBool>,
}

impl Asks {
    fn set_busy(&self, busy: bool) {
        self.asked.store(true, Ordering::Relaxed);
        lock(&self.present).set_busy(self.number, busy);
    }

    /// Resolves if the first request does not come in time.
    async fn nothing(&self) {
        time::sleep(FIRST_REQUEST).await;
        if self.asked.load(Ordering::Relaxed) {
            pending::<()>().await;
        }
    }
}

async fn serve(stream: TcpStream, answers: Answers, asks: Asks, evicted: CancellationToken) {
    let service = TowerToHyperService::new(service(answers, asks.clone()));
    let mut server = auto::Builder::new(TokioExecutor::new()).http1_only();
    server.http1().timer(TokioTimer::new()).header_read_timeout(REQUEST).title_case_headers(true);
    let ended = tokio::select! {
        ended = server.serve_connection(TokioIo::new(stream), service) => ended.map_err(|error| error.to_string()),
        () = asks.nothing() => Err("it asked nothing in time".to_owned()),
        () = evicted.cancelled() => Err("it was silent for longest, and others came".to_owned()),
    };
    if let Err(error) = ended {
        debug!(error, "a health check was cut");
    }
    lock(&asks.present).remove(asks.number);
}

/// Answers to any method, whatever the body.
fn service<B>(
    answers: Answers,
    asks: Asks,
) -> impl tower::Service<Request<B>, Response = Answer, Error = Infallible, Future: Send> + Clone + Send {
    tower::service_fn(move |request: Request<B>| {
        let (answering, asks) = (answers(request.uri()), asks.clone());
        asks.set_busy(true);
        async move {
            let answer = answering.await;
            asks.set_busy(false);
            Ok(answer)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_up_to_a_minute_or_stay() {
        let seconds = |retry: Retry| [1, 2, 3, 6, 7, 8, u32::MAX].map(|attempts| retry.after(attempts).as_secs());
        assert_eq!(seconds(Retry::BackOff), [1, 2, 4, 32, 60, 60, 60]);
        assert_eq!(seconds(Retry::Steady), [5; 7]);
    }
}
