//! The API server: its configuration, its connection, and the metrics of its requests.

use std::{
    fmt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http_body::Frame;
use http_body_util::BodyExt as _;
use kube::{Client, client::Body};
use tokio::{sync::watch, time};
use tower::{BoxError, Service, ServiceExt as _, service_fn};

use super::{
    configuration::Configured,
    connection::{Connection, KeepAlive, boxed},
};
use crate::metrics::{Metrics, Requests, Troubles};

/// How long the API server may take to send the headers of an answer.
const ANSWER: Duration = Duration::from_secs(30);

/// An API server. Clones share its connection and its state.
#[derive(Clone)]
pub struct ApiServer {
    url: watch::Receiver<String>,
    service: Connection,
    /// The number of watches that currently cannot reach the API server.
    unreachable: Arc<AtomicUsize>,
    /// Notified of every answer, whatever its status.
    reached: watch::Sender<()>,
    requests: Requests,
    troubles: Troubles,
}

impl fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiServer").field("url", &self.url()).finish_non_exhaustive()
    }
}

impl ApiServer {
    /// Reads the configuration from `kubeconfig`, or else from the default locations (`KUBECONFIG`, `~/.kube/config`, the
    /// service account of a pod). This sends no request, so the API server may be unavailable. The files are checked
    /// again before each request, because credentials may change at any time.
    ///
    /// `server` is a URL that overrides the URL in the configuration, as with kube-proxy's `--master`. If `server` is given,
    /// the configuration is optional.
    ///
    /// # Errors
    /// Returns an error if there is neither a configuration nor `server`, or if the configuration is invalid.
    pub async fn from_kubeconfig(
        kubeconfig: Option<&Path>,
        server: Option<http::Uri>,
        keep_alive: KeepAlive,
    ) -> anyhow::Result<Self> {
        let configured = Configured::read(kubeconfig, server, keep_alive).await?;
        let url = configured.url();
        Ok(Self::at(url, boxed(service_fn(move |request| configured.clone().send(request)))))
    }

    /// An API server behind `service`. `url` is for the log.
    pub fn new<S, B>(url: impl Into<String>, service: S) -> Self
    where
        S: Service<http::Request<Body>, Response = http::Response<B>> + Clone + Send + 'static,
        S::Error: Into<BoxError>,
        S::Future: Send + 'static,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Self::at(watch::Sender::new(url.into()).subscribe(), boxed(service))
    }

    fn at(url: watch::Receiver<String>, service: Connection) -> Self {
        Self {
            url,
            service,
            unreachable: Arc::default(),
            reached: watch::Sender::default(),
            requests: Requests::default(),
            troubles: Troubles::default(),
        }
    }

    /// Exports requests and troubles to `metrics`.
    #[must_use]
    pub fn with_metrics(mut self, metrics: &Metrics) -> Self {
        (self.requests, self.troubles) = (metrics.requests(), metrics.troubles());
        self
    }

    /// The troubles of all watches.
    pub(super) fn troubles(&self) -> &Troubles {
        &self.troubles
    }

    /// Host and port, for the label of request metrics.
    fn host(&self) -> String {
        let uri = self.url().parse::<http::Uri>().unwrap_or_default();
        uri.authority().map(ToString::to_string).unwrap_or_default()
    }

    /// The current URL.
    pub(super) fn url(&self) -> String {
        self.url.borrow().clone()
    }

    /// A receiver that is notified of every answer to any request.
    pub(super) fn reached(&self) -> watch::Receiver<()> {
        self.reached.subscribe()
    }

    /// Records that a watch cannot reach the server. Returns whether all other watches can.
    pub(super) fn set_unreachable(&self) -> bool {
        self.unreachable.fetch_add(1, Ordering::Relaxed) == 0
    }

    /// Records that a watch can reach the server again. Returns whether all watches now can.
    pub(super) fn set_reachable(&self) -> bool {
        self.unreachable.fetch_sub(1, Ordering::Relaxed) == 1
    }

    /// A client whose requests are counted.
    pub(crate) fn client(&self) -> Client {
        let this = self.clone();
        let observed = service_fn(move |request: http::Request<Body>| {
            let (service, reached) = (this.service.clone(), this.reached.clone());
            let bytes = http_body::Body::size_hint(request.body()).exact();
            let watch = request.uri().query().is_some_and(|query| query.split('&').any(|part| part == "watch=true"));
            let mut request_metrics = this.requests.ask(this.host(), request.method(), bytes, watch);
            async move {
                let answer = time::timeout(ANSWER, service.oneshot(request)).await;
                let answer =
                    answer.map_err(|_| BoxError::from(format!("no answer within {} s", ANSWER.as_secs())))??;
                reached.send_replace(());
                request_metrics.answered(answer.status());
                let counted = move |frame: Frame<Bytes>| {
                    request_metrics.received(frame.data_ref().map_or(0, Bytes::len));
                    frame
                };
                Ok::<_, BoxError>(answer.map(|body| body.map_frame(counted)))
            }
        });
        Client::new(observed, "default")
    }
}
