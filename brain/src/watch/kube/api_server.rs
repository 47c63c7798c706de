//! An API server that can be asked, and who is told of its answers.

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

/// How long the API server may take to begin an answer.
const ANSWER: Duration = Duration::from_secs(30);

/// An API server that can be asked.
#[derive(Clone)]
pub struct ApiServer {
    url: watch::Receiver<String>,
    service: Connection,
    /// How many watches cannot reach it.
    lost: Arc<AtomicUsize>,
    /// Tells of every answer, whatever it says.
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
    /// Reads the configuration: `kubeconfig`, or else the usual places (`KUBECONFIG`, `~/.kube/config`, the service account of
    /// a pod). Nothing is sent yet, so an API server that is away does not matter. Credentials may change at any time: what
    /// the files say is looked at before each request.
    ///
    /// # Errors
    /// There is no configuration, or it cannot be used.
    pub async fn from_kubeconfig(kubeconfig: Option<&Path>, keep_alive: KeepAlive) -> anyhow::Result<Self> {
        Self::at_server(kubeconfig, None, keep_alive).await
    }

    /// The same, with another URL than the configuration says: kube-proxy's `--master`. With one, there may be no
    /// configuration at all.
    ///
    /// # Errors
    /// There is no configuration and no URL, or the configuration cannot be used.
    pub async fn at_server(
        kubeconfig: Option<&Path>,
        server: Option<http::Uri>,
        keep_alive: KeepAlive,
    ) -> anyhow::Result<Self> {
        let configured = Configured::read(kubeconfig, server, keep_alive).await?;
        let url = configured.url();
        Ok(Self::at(url, service_fn(move |request| configured.clone().ask(request))))
    }

    /// An API server at the other end of `service`, which `url` names in the log.
    pub fn new<S, B>(url: impl Into<String>, service: S) -> Self
    where
        S: Service<http::Request<Body>, Response = http::Response<B>> + Clone + Send + 'static,
        S::Error: Into<BoxError>,
        S::Future: Send + 'static,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Self::at(watch::Sender::new(url.into()).subscribe(), service)
    }

    fn at<S, B>(url: watch::Receiver<String>, service: S) -> Self
    where
        S: Service<http::Request<Body>, Response = http::Response<B>> + Clone + Send + 'static,
        S::Error: Into<BoxError>,
        S::Future: Send + 'static,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Self {
            url,
            service: boxed(service),
            lost: Arc::default(),
            reached: watch::Sender::default(),
            requests: Requests::default(),
            troubles: Troubles::default(),
        }
    }

    /// The same, whose requests are counted, and whose troubles are known.
    #[must_use]
    pub fn told_to(mut self, metrics: &Metrics) -> Self {
        (self.requests, self.troubles) = (metrics.requests(), metrics.troubles());
        self
    }

    /// What keeps watches from telling what is new.
    pub(super) fn troubles(&self) -> &Troubles {
        &self.troubles
    }

    /// Host and port, as requests are counted.
    fn host(&self) -> String {
        let uri = self.url().parse::<http::Uri>().unwrap_or_default();
        uri.authority().map(ToString::to_string).unwrap_or_default()
    }

    /// Where it is.
    pub(super) fn url(&self) -> String {
        self.url.borrow().clone()
    }

    /// Tells of every answer to any of the watches.
    pub(super) fn reached(&self) -> watch::Receiver<()> {
        self.reached.subscribe()
    }

    /// A watch cannot reach it; whether it is the first one.
    pub(super) fn lost(&self) -> bool {
        self.lost.fetch_add(1, Ordering::Relaxed) == 0
    }

    /// A watch reaches it again; whether it is the last one.
    pub(super) fn found(&self) -> bool {
        self.lost.fetch_sub(1, Ordering::Relaxed) == 1
    }

    /// A client for whatever is asked.
    pub(crate) fn client(&self) -> Client {
        let this = self.clone();
        let observed = service_fn(move |request: http::Request<Body>| {
            let (service, reached) = (this.service.clone(), this.reached.clone());
            let bytes = http_body::Body::size_hint(request.body()).exact();
            let watch = request.uri().query().is_some_and(|query| query.split('&').any(|part| part == "watch=true"));
            let mut asked = this.requests.ask(this.host(), request.method(), bytes, watch);
            async move {
                let answer = time::timeout(ANSWER, service.oneshot(request)).await;
                let answer =
                    answer.map_err(|_| BoxError::from(format!("no answer within {} s", ANSWER.as_secs())))??;
                reached.send_replace(());
                asked.answered(answer.status());
                let counted = move |frame: Frame<Bytes>| {
                    asked.received(frame.data_ref().map_or(0, Bytes::len));
                    frame
                };
                Ok::<_, BoxError>(answer.map(|body| body.map_frame(counted)))
            }
        });
        Client::new(observed, "default")
    }
}
