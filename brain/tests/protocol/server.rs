//! Helpers: a server on a socket of its own, values to publish in its feed, and a reader.

use std::{future::Future, sync::Arc, time::Duration};

use hyper_util::rt::TokioIo;
use localnet_brain::{
    feed::Feed,
    pump::{self, Queries},
    reports::Reports,
    serve::{self, Listener, Options, ServerState},
};
use localnet_cluster::{localize::Localized, objects::Publish};
use localnet_proto::{
    Address, Node, Port, Revision, Service, ServiceKey, Update,
    decode::Assembler,
    encode,
    wire::{NextItem, endpoints_client::EndpointsClient},
};
use tempfile::TempDir;
use tokio::{
    net::{TcpStream, UnixStream},
    task::JoinHandle,
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use tonic::{
    Status, Streaming,
    transport::{Channel, Endpoint, Uri},
};

/// Limit for every wait, so that a failing test does not hang.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The instance ID of every feed in these tests.
pub(crate) const INSTANCE: u64 = 7;

/// A revision of the feed.
pub(crate) fn at(rev: u64) -> Revision {
    Revision { instance: INSTANCE, rev }
}

/// Waits for `future`, and panics after [`TIMEOUT`].
#[track_caller]
pub(crate) fn soon<T>(future: impl Future<Output = T>) -> impl Future<Output = T> {
    let caller = std::panic::Location::caller();
    async move { timeout(TIMEOUT, future).await.unwrap_or_else(|_| panic!("timed out at {caller}")) }
}

/// A running server.
pub(crate) struct Server {
    pub(crate) feed: Feed,
    pub(crate) reports: Reports,
    pub(crate) address: Address,
    /// The requests for explanations. A test that answers them takes it.
    pub(crate) questions: Option<Queries>,
    stop: CancellationToken,
    task: JoinHandle<anyhow::Result<()>>,
    _folder: TempDir,
}

impl Server {
    pub(crate) async fn unix() -> Self {
        Self::unix_with(&Options::default()).await
    }

    pub(crate) async fn unix_with(options: &Options) -> Self {
        let folder = TempDir::new().unwrap();
        let address = Address::Unix(folder.path().join("brain.sock"));
        Self::start(address, options, folder, Feed::new(INSTANCE)).await
    }

    /// A server that also serves the draft of `localnet.v1`.
    pub(crate) async fn draft() -> Self {
        Self::publishing(Publish::default()).await
    }

    /// The same, with labels and annotations that readers may select.
    pub(crate) async fn publishing(publish: Publish) -> Self {
        let folder = TempDir::new().unwrap();
        let address = Address::Unix(folder.path().join("brain.sock"));
        Self::start(address, &Options::default(), folder, Feed::with_records(INSTANCE, publish.into())).await
    }

    /// A server that also serves the view for DNS.
    pub(crate) async fn dns() -> Self {
        let folder = TempDir::new().unwrap();
        let address = Address::Unix(folder.path().join("brain.sock"));
        Self::start(address, &Options::default(), folder, Feed::with_dns(INSTANCE, Publish::default().into())).await
    }

    pub(crate) async fn tcp(options: &Options) -> Self {
        let address = Address::Tcp { host: "127.0.0.1".to_owned(), port: 0 };
        Self::start(address, options, TempDir::new().unwrap(), Feed::new(INSTANCE)).await
    }

    async fn start(address: Address, options: &Options, folder: TempDir, feed: Feed) -> Self {
        let listener = Listener::bind(&address, options).await.unwrap();
        let address = listener.address().clone();
        let stop = CancellationToken::new();
        let reports = Reports::recorded(feed.history().clone());
        let (questions, receiver) = pump::questions();
        let state = ServerState { views: feed.clone().into(), reports: reports.clone(), questions, pushers: None };
        let run = serve::run(vec![listener], state, stop.clone().cancelled_owned());
        Self { feed, reports, address, questions: Some(receiver), stop, task: tokio::spawn(run), _folder: folder }
    }

    /// Opens a new connection.
    pub(crate) async fn channel(&self) -> Channel {
        soon(connect(self.address.clone(), Endpoint::from_static("http://brain"))).await.unwrap()
    }

    pub(crate) async fn reader(&self) -> Reader {
        Reader(EndpointsClient::new(self.channel().await))
    }

    pub(crate) fn begin_shutdown(&self) {
        self.stop.cancel();
    }

    pub(crate) async fn shutdown(self) {
        self.begin_shutdown();
        soon(self.task).await.unwrap().unwrap();
    }
}

pub(crate) async fn connect(address: Address, endpoint: Endpoint) -> Result<Channel, tonic::transport::Error> {
    let connect = tower::service_fn(move |_: Uri| {
        let address = address.clone();
        async move {
            let io: Box<dyn Io> = match address {
                Address::Unix(path) => Box::new(UnixStream::connect(path).await?),
                Address::Tcp { host, port } => Box::new(TcpStream::connect((host, port)).await?),
                Address::Pipe(name) => panic!("{name}: the server has no named pipes"),
            };
            Ok::<_, std::io::Error>(TokioIo::new(io))
        }
    });
    endpoint.connect_with_connector(connect).await
}

trait Io: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin {}

impl<T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin> Io for T {}

/// A client of `Next` on its own connection.
#[derive(Clone)]
pub(crate) struct Reader(pub(crate) EndpointsClient<Channel>);

impl Reader {
    /// Calls `Next`, and returns once the server has accepted the call.
    pub(crate) async fn request(&mut self, held: Revision, delta: bool) -> Streaming<NextItem> {
        soon(self.0.next(encode::next_filter(held, delta))).await.unwrap().into_inner()
    }

    /// The complete answer.
    pub(crate) async fn read(&mut self, held: Revision, delta: bool) -> Update {
        let answer = self.request(held, delta).await;
        soon(assemble(answer)).await.unwrap()
    }
}

/// Reads an answer to its end.
pub(crate) async fn assemble(mut answer: Streaming<NextItem>) -> Result<Update, Status> {
    let mut assembler = Assembler::default();
    while let Some(item) = answer.message().await? {
        assembler.push(item).unwrap();
    }
    Ok(assembler.finish().unwrap())
}

/// A Service with one port, which distinguishes its versions. `size` is its approximate encoded size, in bytes.
pub(crate) fn service(name: &str, port: u16, size: usize) -> Arc<Service> {
    Arc::new(Service {
        kind: "x".repeat(size).into(),
        ports: vec![Port { name: "".into(), port, ..Port::default() }],
        ..Service::new(ServiceKey::new("default", name), vec![[10, 0, 0, 1].into()])
    })
}

/// The changes that the pump publishes when these Services are applied.
pub(crate) fn applied(services: impl IntoIterator<Item = Arc<Service>>) -> Localized {
    let services = services.into_iter().map(|service| (service.key.clone(), Some(service)));
    Localized { services: services.collect(), ..Localized::default() }
}

/// The changes that the pump publishes when a Service is deleted.
pub(crate) fn removed(name: &str) -> Localized {
    Localized { services: vec![(ServiceKey::new("default", name), None)], ..Localized::default() }
}

/// The changes that the pump publishes for a Node.
pub(crate) fn node(name: &str) -> Localized {
    Localized { node: Some(Node { name: name.to_owned(), ..Node::default() }), ..Localized::default() }
}
