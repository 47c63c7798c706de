//! A fake API server at the HTTP layer: the test receives each request and answers it.

use std::{
    collections::VecDeque,
    future::Future,
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use kube::client::Body;
use localnet_brain::{
    batch::Batch,
    exposition::text,
    feed::Feed,
    metrics::{Metrics, Troubles},
    reports::Reports,
    watch::kube::{self as watch, ApiServer},
};
use localnet_cluster::{
    Options,
    objects::{Event, Kind, Object},
};
use serde_json::{Value, json};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::{Instant, sleep_until, timeout},
};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tokio_util::sync::CancellationToken;
use tower::BoxError;

type Answer = http::Response<UnsyncBoxBody<Bytes, BoxError>>;

/// Longer than every delay of the watches. Time is paused in most tests, so a long timeout costs nothing.
const TIMEOUT: Duration = Duration::from_secs(3600);

#[track_caller]
pub(crate) fn soon<T>(future: impl Future<Output = T>) -> impl Future<Output = T> {
    let caller = std::panic::Location::caller();
    async move { timeout(TIMEOUT, future).await.unwrap_or_else(|_| panic!("timed out at {caller}")) }
}

/// A pending request.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) kind: Kind,
    /// The query, percent-decoded.
    pub(crate) query: String,
    answer: oneshot::Sender<io::Result<Answer>>,
}

fn kind_of(path: &str) -> Kind {
    match path {
        "/api/v1/services" => Kind::Service,
        "/apis/discovery.k8s.io/v1/endpointslices" => Kind::Slice,
        "/api/v1/nodes" => Kind::Node,
        "/apis/networking.k8s.io/v1/servicecidrs" => Kind::ServiceCidr,
        _ => panic!("unexpected request for {path}"),
    }
}

impl Request {
    pub(crate) fn is_watch(&self) -> bool {
        self.query.contains("watch=true")
    }

    /// The value of a query parameter.
    pub(crate) fn parameter(&self, name: &str) -> Option<&str> {
        self.query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
    }

    fn respond(self, status: u16, body: UnsyncBoxBody<Bytes, BoxError>) {
        let answer = http::Response::builder().status(status).body(body).unwrap();
        self.answer.send(Ok(answer)).unwrap();
    }

    fn respond_json(self, status: u16, body: &Value) {
        let body = Full::new(Bytes::from(body.to_string())).map_err(|never| match never {}).boxed_unsync();
        self.respond(status, body);
    }

    /// Answers with a page of a list.
    pub(crate) fn page(self, objects: &[Value], version: &str, more: &str) {
        assert!(!self.is_watch(), "{}", self.query);
        let metadata = json!({ "resourceVersion": version, "continue": more });
        self.respond_json(200, &json!({ "metadata": metadata, "items": objects }));
    }

    /// Answers with a complete list.
    pub(crate) fn list(self, objects: &[Value], version: &str) {
        self.page(objects, version, "");
    }

    pub(crate) fn error(self, code: u16) {
        self.respond_json(code, &status(code));
    }

    /// Answers as an API server that does not know the field of the request's field selector.
    pub(crate) fn unknown_field(self, field: &str) {
        let mut status = status(400);
        status["message"] =
            format!(r#""{field}" is not a known field selector: only "metadata.name", "metadata.namespace""#).into();
        self.respond_json(400, &status);
    }

    /// Answers with a page of HTML, as a proxy without its server does.
    pub(crate) fn html(self) {
        let body = Full::new(Bytes::from_static(b"<html>\n<body>Bad day</body>\n</html>\n"));
        self.respond(200, body.map_err(|never| match never {}).boxed_unsync());
    }

    /// Breaks the connection.
    pub(crate) fn break_off(self) {
        self.answer.send(Err(io::ErrorKind::ConnectionReset.into())).unwrap();
    }

    /// Answers with a stream of changes.
    pub(crate) fn stream(self) -> Changes {
        assert!(self.is_watch(), "{}", self.query);
        let (sender, receiver) = mpsc::unbounded_channel();
        self.respond(200, BodyExt::boxed_unsync(StreamBody::new(UnboundedReceiverStream::new(receiver))));
        Changes(sender)
    }
}

fn status(code: u16) -> Value {
    json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": "set by the test", "reason": "Test" })
}

type Frame = Result<http_body::Frame<Bytes>, BoxError>;

/// An open stream of changes.
pub(crate) struct Changes(mpsc::UnboundedSender<Frame>);

impl Changes {
    pub(crate) fn send(&self, changes: &[(&str, Value)]) {
        let lines: String =
            changes.iter().map(|(kind, object)| json!({ "type": kind, "object": object }).to_string() + "\n").collect();
        self.0.send(Ok(http_body::Frame::data(lines.into()))).unwrap();
    }

    pub(crate) fn error(&self, code: u16) {
        self.send(&[("ERROR", status(code))]);
    }

    /// Breaks the connection.
    pub(crate) fn break_off(self) {
        self.0.send(Err("connection reset".into())).unwrap();
    }
}

/// The fake API server, and a source that uses it.
pub(crate) struct Fake {
    requests: mpsc::UnboundedReceiver<Request>,
    /// Requests that the test has not taken yet.
    early: VecDeque<Request>,
    pub(crate) events: mpsc::Receiver<Batch>,
    pub(crate) troubles: Troubles,
    pub(crate) metrics: Metrics,
    /// The version in the answers to lists with `limit=1`, which are answered automatically.
    pub(crate) version: Arc<AtomicU64>,
    _cancel: tokio_util::sync::DropGuard,
    _task: JoinHandle<anyhow::Result<()>>,
}

impl Fake {
    pub(crate) fn start(service_proxy_name: Option<&str>) -> Self {
        let service_proxy_name = service_proxy_name.map(str::to_owned);
        Self::start_with(Options { service_proxy_name, ..Options::of_node("node-a") })
    }

    /// Starts a source with these options.
    pub(crate) fn start_with(options: Options) -> Self {
        let (sender, requests) = mpsc::unbounded_channel();
        let version = Arc::new(AtomicU64::new(u64::MAX));
        let of_server = Arc::clone(&version);
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let query = request.uri().query().unwrap_or_default();
            let query = percent_decoded(query);
            let (answer, answered) = oneshot::channel();
            let request = Request { kind: kind_of(request.uri().path()), query, answer };
            if request.parameter("limit") == Some("1") {
                request.list(&[], &of_server.load(Ordering::Relaxed).to_string());
            } else {
                sender.send(request).unwrap();
            }
            async move { answered.await.unwrap_or_else(|_| Err(io::ErrorKind::ConnectionRefused.into())) }
        });
        let (events, received) = mpsc::channel(64);
        let cancel = CancellationToken::new();
        let metrics = Metrics::default();
        let api = ApiServer::new("https://api.test", service).with_metrics(&metrics);
        let run = watch::run(api, options, events, cancel.clone());
        Self {
            requests,
            early: VecDeque::new(),
            events: received,
            troubles: metrics.troubles(),
            metrics,
            version,
            _cancel: cancel.drop_guard(),
            _task: tokio::spawn(run),
        }
    }

    /// The next request for a kind.
    pub(crate) async fn request(&mut self, kind: Kind) -> Request {
        if let Some(place) = self.early.iter().position(|request| request.kind == kind) {
            return self.early.remove(place).unwrap();
        }
        loop {
            let request = soon(self.requests.recv()).await.unwrap();
            if request.kind == kind {
                return request;
            }
            self.early.push_back(request);
        }
    }

    /// Answers the requests for a kind with `answer` for the duration `time`. Returns their number.
    pub(crate) async fn play(&mut self, kind: Kind, time: Duration, mut answer: impl FnMut(Request)) -> usize {
        let until = Instant::now() + time;
        let mut requests = 0;
        loop {
            tokio::select! {
                biased;
                () = sleep_until(until) => return requests,
                request = self.request(kind) => {
                    requests += 1;
                    answer(request);
                }
            }
            while self.events.try_recv().is_ok() {}
        }
    }

    /// The current trouble of a kind.
    pub(crate) fn trouble(&self, of: &str) -> Option<String> {
        self.troubles.all().remove(of).map(|trouble| trouble.diagnostic.to_string())
    }

    /// Waits until a kind has no trouble.
    pub(crate) async fn well(&self, of: &str) {
        soon(self.troubles.subscribe().wait_for(|troubles| !troubles.contains_key(of))).await.unwrap();
    }

    /// The value of a metric.
    pub(crate) fn metric(&self, series: &str) -> Option<f64> {
        let text = text(&self.metrics, &Feed::new(1).state(), &Reports::default().all());
        text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
    }

    /// The next event.
    pub(crate) async fn event(&mut self) -> Event {
        let mut batch = soon(self.events.recv()).await.unwrap().events;
        assert_eq!(batch.len(), 1, "{batch:?}");
        batch.remove(0)
    }

    /// Lists these objects of a kind, and opens the stream of their changes.
    pub(crate) async fn open(&mut self, kind: Kind, objects: &[Value], version: &str) -> Changes {
        self.request(kind).await.list(objects, version);
        let Event::Replace { kind: listed, objects: sent } = self.event().await else { panic!("expected a list") };
        assert_eq!((listed, sent.len()), (kind, objects.len()));
        let request = self.request(kind).await;
        assert_eq!(request.parameter("resourceVersion"), Some(version));
        request.stream()
    }
}

fn percent_decoded(text: &str) -> String {
    let mut decoded = Vec::new();
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let digits = [bytes.next().unwrap(), bytes.next().unwrap()];
                u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
            }
            b'+' => b' ',
            other => other,
        });
    }
    String::from_utf8(decoded).unwrap()
}

/// A Service as the API server sends it.
pub(crate) fn service(name: &str, version: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "namespace": "default", "name": name, "resourceVersion": version },
        "spec": { "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ports": [{ "port": 80 }] },
    })
}

/// A Node as the API server sends it.
pub(crate) fn node(version: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "node-a", "resourceVersion": version } })
}

/// A ServiceCIDR as the API server sends it.
pub(crate) fn service_cidr(version: &str) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "ServiceCIDR",
        "metadata": { "name": "kubernetes", "resourceVersion": version },
        "spec": { "cidrs": ["10.0.0.0/16"] },
    })
}

/// A short form of an event: `+a` for an applied object, `-a` for a deleted one, `=a,b` for a list.
pub(crate) fn brief(event: &Event) -> String {
    match event {
        Event::Apply(object) => format!("+{}", object.name()),
        Event::Delete { name, .. } => format!("-{name}"),
        Event::Replace { objects, .. } => {
            format!("={}", objects.iter().map(Object::name).collect::<Vec<_>>().join(","))
        }
    }
}
