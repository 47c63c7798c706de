//! One port: opens it, tries again while it cannot, and answers HTTP/1 on it.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    future::ready,
    io,
    net::{Ipv6Addr, SocketAddr},
    pin::Pin,
    sync::Arc,
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
    sync::{Semaphore, watch},
    task::JoinSet,
    time,
};
use tracing::{debug, info, warn};

use super::answer::Answer;

/// Connections that wait to be accepted.
const BACKLOG: u32 = 1024;
/// Connections of one port. Whoever checks closes its own soon; the others have to wait.
const MAX_CONNECTIONS: usize = 256;
/// How long a peer may take for its request, and be silent between two.
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

/// Owns the connections of a port.
async fn accept(listener: TcpListener, answers: Answers) {
    let mut connections = JoinSet::new();
    let free = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let permit = tokio::select! {
            permit = Arc::clone(&free).acquire_owned() => permit,
            Some(_) = connections.join_next() => continue,
        };
        match listener.accept().await {
            Ok((stream, _)) => {
                let answers = Arc::clone(&answers);
                connections.spawn(async move {
                    serve(stream, answers).await;
                    drop(permit);
                });
            }
            Err(error) => {
                warn!(%error, "failed to accept a health check; raise the limit of open files if it is reached");
                time::sleep(ACCEPT_PAUSE).await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn serve(stream: TcpStream, answers: Answers) {
    let service = TowerToHyperService::new(service(answers));
    let mut server = auto::Builder::new(TokioExecutor::new()).http1_only();
    server.http1().timer(TokioTimer::new()).header_read_timeout(REQUEST).title_case_headers(true);
    if let Err(error) = server.serve_connection(TokioIo::new(stream), service).await {
        debug!(%error, "a health check was cut");
    }
}

/// Answers to any method, whatever the body.
fn service<B>(
    answers: Answers,
) -> impl tower::Service<Request<B>, Response = Answer, Error = Infallible, Future: Send> + Clone + Send {
    tower::service_fn(move |request: Request<B>| {
        let answering = answers(request.uri());
        async move { Ok(answering.await) }
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
