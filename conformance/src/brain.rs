//! The other end of the stream: a brain that answers as it should, or as a check wants it.
//!
//! States are the feed's of the real brain, so an answer is what a brain would send; faults change it on its way. The brain has
//! a runtime of its own: when it is stopped, its connections break as those of a process that was killed.

use std::{
    collections::VecDeque,
    convert::Infallible,
    fmt,
    future::Future,
    net,
    pin::Pin,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU16, Ordering},
    },
    task::{Context as Waking, Poll},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use bytes::{BufMut as _, Bytes};
use futures::{Stream, StreamExt as _, stream};
use localnet_brain::{feed::Feed, localize::Localized};
use localnet_lab::Namespace;
use localnet_proto::{
    Address, Revision, Snapshot,
    wire::{
        BackendReport, BackendReportReply, NextFilter,
        backends_server::{Backends, BackendsServer},
        endpoints_server,
    },
};
use tokio::{runtime::Runtime, sync::Notify};
use tonic::{
    Code, Request, Response, Status,
    body::Body,
    codec::{BufferSettings, Codec, EncodeBuf, Encoder},
    server::{Grpc, NamedService, ServerStreamingService},
};
use tonic_prost::ProstDecoder;

use crate::connections::{self, Listener};

/// What happens to an answer.
pub enum Fault {
    /// It ends with an error after so many items.
    Cut(usize, Code),
    /// After so many items nothing comes any more.
    Hang(usize),
    /// It is not begun before [`Brain::release`].
    Hold,
    /// It is the full state, whatever was asked for.
    Full,
    /// There is a pause before each item.
    Slow(Duration),
    /// Its items are others.
    Edit(fn(Vec<Bytes>) -> Vec<Bytes>),
}

/// What the backend has done so far.
#[derive(Debug, Default)]
pub struct Log {
    /// Its calls of `Next`, in order.
    pub calls: Vec<NextFilter>,
    /// How many answers were begun.
    pub begun: usize,
    /// How many answers have stopped where they hang.
    pub hung: usize,
    /// How many calls wait to be released.
    pub held: usize,
    /// How many connections are open.
    pub open: usize,
    /// How many connections were closed as they came.
    pub turned_away: usize,
    /// What it has reported.
    pub reports: Vec<BackendReport>,
}

#[derive(Default)]
struct Shared {
    log: Mutex<Log>,
    changed: Condvar,
    faults: Mutex<VecDeque<Fault>>,
    release: Notify,
}

impl Shared {
    fn log(&self, change: impl FnOnce(&mut Log)) {
        change(&mut lock(&self.log));
        self.changed.notify_all();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The brain.
pub struct Brain {
    address: Address,
    shared: Arc<Shared>,
    feed: Feed,
    state: Snapshot,
    runtime: Option<Runtime>,
    /// What it listens on by TCP.
    listener: Option<net::TcpListener>,
}

impl Brain {
    /// A brain that has no state yet, and does not listen yet.
    pub fn new(address: &Address) -> Self {
        Self {
            address: address.clone(),
            shared: Arc::default(),
            feed: Feed::new(1_000_001),
            state: Snapshot::default(),
            runtime: None,
            listener: None,
        }
    }

    /// Listens; by TCP in a namespace, if there is one. A unix socket can be reached from any.
    ///
    /// # Errors
    /// It cannot.
    pub fn start(&mut self, inside: Option<&Namespace>) -> anyhow::Result<()> {
        let service = Endpoints { shared: Arc::clone(&self.shared), feed: self.feed.clone() };
        let reports = BackendsServer::new(Reports(Arc::clone(&self.shared)));
        let server = tonic::transport::Server::builder().add_service(service).add_service(reports);
        let shared = Arc::clone(&self.shared);
        self.listen(inside, |listener| {
            let changed = move |by| shared.log(|log| log.open = log.open.saturating_add_signed(by));
            tokio::spawn(server.serve_with_incoming(listener.incoming(changed)));
        })
    }

    /// Closes each connection as it comes, as a brain that is starting or ending: [`Log::turned_away`] counts them.
    ///
    /// # Errors
    /// It cannot listen.
    pub fn turn_away(&mut self, inside: Option<&Namespace>) -> anyhow::Result<()> {
        let shared = Arc::clone(&self.shared);
        shared.log(|log| log.turned_away = 0);
        self.listen(inside, |listener| {
            tokio::spawn(listener.turn_away(move || shared.log(|log| log.turned_away += 1)));
        })
    }

    fn listen(&mut self, inside: Option<&Namespace>, serve: impl FnOnce(Listener)) -> anyhow::Result<()> {
        self.stop();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let inside_runtime = runtime.enter();
        let listening = || format!("listening on {}", self.address);
        let listener = match &self.address {
            Address::Unix(path) => Listener::unix(path).with_context(listening)?,
            Address::Tcp { .. } => {
                let listener = connections::tcp(&self.address, inside).with_context(listening)?;
                let listener = listener.with_context(listening)?;
                self.listener = Some(listener.try_clone().with_context(listening)?);
                Listener::tcp(listener).with_context(listening)?
            }
            Address::Pipe(_) => bail!("{}: only Windows has named pipes", self.address),
        };
        serve(listener);
        drop(inside_runtime);
        self.runtime = Some(runtime);
        Ok(())
    }

    /// Ends as a process that was killed.
    pub fn stop(&mut self) {
        if let Some(listener) = self.listener.take() {
            // A program that is being started has a copy for a moment: closed here, it would still keep the port.
            _ = rustix::net::shutdown(&listener, rustix::net::Shutdown::Both);
        }
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(5));
        }
        if let Address::Unix(path) = &self.address {
            // It is not there before the first start.
            _ = std::fs::remove_file(path);
        }
    }

    /// Makes this the newest state, and says which one it is.
    pub fn publish(&mut self, state: &Snapshot) -> Revision {
        let gone = self.state.services.keys().filter(|key| !state.services.contains_key(*key));
        let gone = gone.map(|key| (key.clone(), None));
        let set = state.services.iter().map(|(key, service)| (key.clone(), Some(Arc::clone(service))));
        let mut services: Vec<_> = gone.chain(set).collect();
        services.sort_by(|(one, _), (other, _)| one.cmp(other));
        self.feed.publish(Localized { node: Some(state.node.clone()), services, ..Localized::default() });
        self.state = state.clone();
        self.feed.state().revision()
    }

    /// Is another brain from the next start on: it knows nothing of the revisions of this one.
    pub fn forget(&mut self) {
        let instance = self.feed.state().revision().instance + 1;
        self.feed = Feed::new(instance);
        self.state = Snapshot::default();
    }

    /// What happens to the next answers, one after the other.
    pub fn faults(&self, faults: impl IntoIterator<Item = Fault>) {
        lock(&self.shared.faults).extend(faults);
    }

    /// Lets an answer go on that is held.
    pub fn release(&self) {
        self.shared.release.notify_one();
    }

    /// Waits until the log says so.
    ///
    /// # Errors
    /// It does not within `patience`; names `what` was waited for.
    pub fn wait<T>(
        &self,
        patience: Duration,
        what: &str,
        mut says: impl FnMut(&Log) -> Option<T>,
    ) -> anyhow::Result<T> {
        let deadline = Instant::now() + patience;
        let mut log = lock(&self.shared.log);
        loop {
            if let Some(said) = says(&log) {
                return Ok(said);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let calls = log.calls.len();
                bail!(
                    "{what}: not within {patience:?}; it has called Next {calls} times, last with {:?}",
                    log.calls.last()
                );
            }
            log = self.shared.changed.wait_timeout(log, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// How many answers were begun.
    pub fn begun(&self) -> usize {
        lock(&self.shared.log).begun
    }

    /// How many calls there have been.
    pub fn calls(&self) -> usize {
        lock(&self.shared.log).calls.len()
    }
}

impl Drop for Brain {
    fn drop(&mut self) {
        self.stop();
    }
}

impl fmt::Debug for Brain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Brain").field("address", &self.address).finish_non_exhaustive()
    }
}

/// A port of the loopback interface on which nobody listens, in a namespace if there is one. Never one that the kernel gives to who connects:
/// a backend that tries to reach a brain that is away would then connect to itself.
///
/// # Errors
/// All of them are taken, or the namespace cannot be entered.
pub fn free_port(inside: Option<&Namespace>) -> anyhow::Result<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let mut ports = std::iter::repeat_with(|| 12_100 + NEXT.fetch_add(1, Ordering::Relaxed) % 1_000).take(1_000);
    ports.find(|port| connections::tcp(&loopback(*port), inside).is_ok()).context("no port is free")
}

/// That port of the loopback interface.
pub(crate) fn loopback(port: u16) -> Address {
    Address::Tcp { host: "127.0.0.1".to_owned(), port }
}

struct Reports(Arc<Shared>);

#[tonic::async_trait]
impl Backends for Reports {
    async fn report(&self, request: Request<BackendReport>) -> Result<Response<BackendReportReply>, Status> {
        self.0.log(|log| log.reports.push(request.into_inner()));
        Ok(Response::new(BackendReportReply {}))
    }
}

type Answer<T> = Pin<Box<dyn Future<Output = T> + Send>>;

#[derive(Clone)]
struct Endpoints {
    shared: Arc<Shared>,
    feed: Feed,
}

impl NamedService for Endpoints {
    const NAME: &'static str = endpoints_server::SERVICE_NAME;
}

impl tower::Service<http::Request<Body>> for Endpoints {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answer<Result<http::Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Waking<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let endpoints = self.clone();
        Box::pin(async move {
            if request.uri().path().ends_with("/Next") {
                Ok(Grpc::new(Raw).server_streaming(endpoints, request).await)
            } else {
                Ok(Status::unimplemented("only Next is served here").into_http())
            }
        })
    }
}

type Items = Pin<Box<dyn Stream<Item = Result<Bytes, Status>> + Send>>;

impl ServerStreamingService<NextFilter> for Endpoints {
    type Response = Bytes;
    type ResponseStream = Items;
    type Future = Answer<Result<Response<Items>, Status>>;

    fn call(&mut self, request: Request<NextFilter>) -> Self::Future {
        let endpoints = self.clone();
        let request = request.into_inner();
        self.shared.log(|log| log.calls.push(request));
        let items = stream::once(async move { endpoints.answer(request).await }).flatten();
        Box::pin(std::future::ready(Ok(Response::new(Box::pin(items) as Items))))
    }
}

impl Endpoints {
    async fn answer(self, request: NextFilter) -> Items {
        let known = Revision { instance: request.instance_id, rev: request.rev };
        self.feed.differing(known).await;
        let fault = lock(&self.shared.faults).pop_front();
        if let Some(Fault::Hold) = fault {
            self.shared.log(|log| log.held += 1);
            self.shared.release.notified().await;
        }
        let delta = request.delta && !matches!(fault, Some(Fault::Full));
        // What is newest now, as of a brain that was slow.
        let mut items: Vec<Bytes> = self.feed.state().answer(known, delta).items.collect();
        self.shared.log(|log| log.begun += 1);
        match fault {
            Some(Fault::Cut(after, code)) => {
                items.truncate(after);
                let cut = Err(Status::new(code, "cut on purpose"));
                Box::pin(stream::iter(items.into_iter().map(Ok).chain([cut])))
            }
            Some(Fault::Hang(after)) => {
                items.truncate(after);
                let shared = self.shared;
                let hang = stream::once(async move {
                    shared.log(|log| log.hung += 1);
                    std::future::pending::<Result<Bytes, Status>>().await
                });
                Box::pin(stream::iter(items.into_iter().map(Ok)).chain(hang))
            }
            Some(Fault::Slow(pause)) => Box::pin(stream::iter(items).then(move |item| async move {
                tokio::time::sleep(pause).await;
                Ok(item)
            })),
            Some(Fault::Edit(edit)) => Box::pin(stream::iter(edit(items).into_iter().map(Ok))),
            Some(Fault::Hold | Fault::Full) | None => Box::pin(stream::iter(items.into_iter().map(Ok))),
        }
    }
}

/// Sends bytes as they are: what no type has could not be sent otherwise.
#[derive(Clone, Copy)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = NextFilter;
    type Encoder = Self;
    type Decoder = ProstDecoder<NextFilter>;

    fn encoder(&mut self) -> Self::Encoder {
        Self
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstDecoder::new(BufferSettings::default())
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.reserve(item.len());
        buffer.put(item);
        Ok(())
    }
}
