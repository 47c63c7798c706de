//! A Kubernetes client that connects from inside of the control plane's network namespace.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use http::Uri;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::client::{Body, ClientBuilder, ConfigExt as _};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::net::TcpStream;
use tokio::task::spawn_blocking;
use tower::ServiceBuilder;

use crate::netns;

/// A client for the API server at `server`, as the user in `kubeconfig`.
pub(crate) async fn connect(kubeconfig: &Path, server: SocketAddr, netns: Option<PathBuf>) -> anyhow::Result<Client> {
    let context = || format!("making a client from {}", kubeconfig.display());
    let file = Kubeconfig::read_from(kubeconfig).with_context(context)?;
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.with_context(context)?;
    let netns: Option<Arc<Path>> = netns.map(Arc::from);
    let connector = tower::service_fn(move |_: Uri| dial(netns.clone(), server));
    let https = config.rustls_https_connector_with_connector(connector).with_context(context)?;
    let http: HttpClient<_, Body> = HttpClient::builder(TokioExecutor::new()).build(https);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer().with_context(context)?)
        .map_err(tower::BoxError::from)
        .service(http);
    Ok(ClientBuilder::new(service, config.default_namespace).build())
}

async fn dial(netns: Option<Arc<Path>>, server: SocketAddr) -> io::Result<TokioIo<TcpStream>> {
    let stream = match netns {
        None => TcpStream::connect(server).await?,
        Some(netns) => {
            let stream =
                spawn_blocking(move || netns::connect(Some(&netns), server)).await.map_err(io::Error::other)??;
            stream.set_nonblocking(true)?;
            TcpStream::from_std(stream)?
        }
    };
    stream.set_nodelay(true)?;
    Ok(TokioIo::new(stream))
}
