//! The connection to the API server.
//!
//! One HTTP/2 connection for all watches. A watch may be silent for minutes, so its silence says nothing: pings find out
//! whether the peer still lives, and TCP keep-alive does the same where HTTP/2 is not spoken.

use std::{
    error::Error,
    fmt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http_body_util::{BodyExt as _, combinators::UnsyncBoxBody};
use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use kube::{
    Client, Config,
    client::{Body, ConfigExt as _},
    config::{KubeConfigOptions, Kubeconfig},
};
use tokio::{sync::watch, time};
use tower::{BoxError, Service, ServiceBuilder, ServiceExt as _, service_fn, util::BoxCloneService};

use super::trouble;

/// How long the API server may take to begin an answer.
const ANSWER: Duration = Duration::from_secs(30);

/// When a silent connection is asked whether it still lives, and how long it has to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    /// Silence before the question.
    pub idle: Duration,
    /// Time to answer it.
    pub answer: Duration,
}

impl Default for KeepAlive {
    fn default() -> Self {
        Self { idle: Duration::from_secs(15), answer: Duration::from_secs(10) }
    }
}

type AnyBody = UnsyncBoxBody<Bytes, BoxError>;

/// An API server that can be asked.
#[derive(Clone)]
pub struct ApiServer {
    url: String,
    service: BoxCloneService<http::Request<Body>, http::Response<AnyBody>, BoxError>,
    /// How many watches cannot reach it.
    lost: Arc<AtomicUsize>,
    /// Tells of every answer, whatever it says.
    reached: watch::Sender<()>,
}

impl fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiServer").field("url", &self.url).finish_non_exhaustive()
    }
}

impl ApiServer {
    /// Reads the configuration: `kubeconfig`, or else the usual places (`KUBECONFIG`, `~/.kube/config`, the service account of
    /// a pod). Nothing is sent yet, so an API server that is away does not matter.
    pub async fn from_kubeconfig(kubeconfig: Option<&Path>, keep_alive: KeepAlive) -> anyhow::Result<Self> {
        let config = match kubeconfig {
            Some(path) => read(path).await.with_context(|| format!("failed to use kubeconfig {}", path.display()))?,
            None => Config::infer().await.map_err(|error| {
                anyhow::anyhow!(
                    "failed to find an API server: {}; name a kubeconfig with --source kube:PATH",
                    trouble::cause(&error)
                )
            })?,
        };
        Self::from_config(&config, keep_alive).context("failed to use the configuration of the API server")
    }

    fn from_config(config: &Config, keep_alive: KeepAlive) -> anyhow::Result<Self> {
        if let Some(proxy) = &config.proxy_url {
            bail!("proxy-url {proxy} is not supported; remove it and let the API server be reached directly");
        }
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(keep_alive.answer));
        tcp.set_keepalive(Some(keep_alive.idle));
        tcp.set_keepalive_interval(Some(keep_alive.answer / 2));
        tcp.set_keepalive_retries(Some(2));
        tcp.set_tcp_user_timeout(Some(keep_alive.idle + keep_alive.answer));

        let mut https = HttpsConnectorBuilder::new().with_tls_config(config.rustls_client_config()?).https_or_http();
        if let Some(name) = &config.tls_server_name {
            let name = name.clone().try_into().with_context(|| format!("tls-server-name {name:?} is no name"))?;
            https = https.with_server_name_resolver(FixedServerNameResolver::new(name));
        }
        let client = legacy::Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .http2_keep_alive_interval(keep_alive.idle)
            .http2_keep_alive_timeout(keep_alive.answer)
            .http2_keep_alive_while_idle(true)
            .build(https.enable_all_versions().wrap_connector(tcp));
        let service = ServiceBuilder::new()
            .layer(config.base_uri_layer())
            .option_layer(config.auth_layer()?)
            .layer(config.extra_headers_layer()?)
            .map_err(BoxError::from)
            .service(client);
        Ok(Self::new(config.cluster_url.to_string(), service))
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
        let service = service
            .map_response(|response| response.map(|body: B| body.map_err(Into::into).boxed_unsync()))
            .map_err(Into::into);
        Self {
            url: url.into(),
            service: BoxCloneService::new(service),
            lost: Arc::default(),
            reached: watch::Sender::default(),
        }
    }

    pub(super) fn url(&self) -> &str {
        &self.url
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

    /// A client that tells `answered` of each answer that is no error.
    pub(super) fn client(&self, answered: watch::Sender<()>) -> Client {
        let (service, reached) = (self.service.clone(), self.reached.clone());
        let observed = service_fn(move |request| {
            let (service, reached, answered) = (service.clone(), reached.clone(), answered.clone());
            async move {
                let answer = time::timeout(ANSWER, service.oneshot(request)).await;
                let answer =
                    answer.map_err(|_| BoxError::from(format!("no answer within {} s", ANSWER.as_secs())))??;
                reached.send_replace(());
                if answer.status().is_success() {
                    answered.send_replace(());
                }
                Ok::<_, BoxError>(answer)
            }
        });
        Client::new(observed, "default")
    }
}

async fn read(path: &Path) -> anyhow::Result<Config> {
    let one_line = |error: &dyn Error| anyhow::anyhow!(trouble::cause(error));
    let kubeconfig = Kubeconfig::read_from(path).map_err(|error| one_line(&error))?;
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.map_err(|error| one_line(&error))
}
