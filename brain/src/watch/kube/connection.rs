//! The connection to the API server.
//!
//! All watches share one HTTP/2 connection. A watch may be silent for minutes, so pings detect a dead peer. If the
//! connection does not use HTTP/2, TCP keep-alive detects it.

use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http_body_util::{BodyExt as _, combinators::UnsyncBoxBody};
use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use kube::{
    Config,
    client::{Body, ConfigExt as _},
};
use tower::{BoxError, Service, ServiceBuilder, ServiceExt as _, util::BoxCloneService};

/// When to ping the peer of a silent connection, and how long the peer may take to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    /// How long the connection may be silent before a ping.
    pub idle: Duration,
    /// How long the peer may take to answer the ping.
    pub answer: Duration,
}

impl Default for KeepAlive {
    fn default() -> Self {
        Self { idle: Duration::from_secs(15), answer: Duration::from_secs(10) }
    }
}

/// The body of an answer.
pub(super) type AnyBody = UnsyncBoxBody<Bytes, BoxError>;

/// A service that sends requests to the API server.
pub(super) type Connection = BoxCloneService<http::Request<Body>, http::Response<AnyBody>, BoxError>;

/// Erases the types of a service.
pub(super) fn boxed<S, B>(service: S) -> Connection
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
    BoxCloneService::new(service)
}

/// A connection with this configuration. It is established by the first request.
///
/// # Errors
/// Returns an error if the configuration requests a proxy, or if its certificates or credentials are invalid.
pub(super) fn connect(config: &Config, keep_alive: KeepAlive) -> anyhow::Result<Connection> {
    if let Some(proxy) = &config.proxy_url {
        bail!("proxy-url {proxy} is not supported; remove it, and connect to the API server directly");
    }
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(keep_alive.answer));
    tcp.set_keepalive(Some(keep_alive.idle));
    tcp.set_keepalive_interval(Some(keep_alive.answer / 2));
    tcp.set_keepalive_retries(Some(2));
    // Windows has no such option. The keep-alive of HTTP/2 below detects a dead connection on both systems.
    #[cfg(unix)]
    tcp.set_tcp_user_timeout(Some(keep_alive.idle + keep_alive.answer));

    let mut https = HttpsConnectorBuilder::new().with_tls_config(config.rustls_client_config()?).https_or_http();
    if let Some(name) = &config.tls_server_name {
        let name = name.clone().try_into().with_context(|| format!("tls-server-name {name:?} is not a DNS name"))?;
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
    Ok(boxed(service))
}
