//! A DNS server for one node. It reads the view for DNS from the brain on the node, and answers questions about the cluster domain, such
//! as `web.shop.svc.cluster.local`. It needs no connection to the API server.
//!
//! ```text
//! brain ──localnet.v1──► reader ──► names ──► answer ──► hickory-server ──► clients
//! ```
//!
//! It forwards nothing: a resolver, such as dnsmasq or CoreDNS, has to send it the questions about the cluster domain, and about the
//! addresses of Services and Pods.

mod answer;
mod names;
mod reader;
mod serve;
mod tcp;
#[cfg(test)]
mod tests;

use std::{
    net::SocketAddr,
    sync::{Arc, RwLock},
};

use anyhow::Context as _;
use clap::Parser;
use hickory_server::proto::rr::Name;
use tokio::net::{TcpListener, UdpSocket};
use tracing::Level;
use tracing_subscriber::{filter::Targets, fmt, layer::SubscriberExt as _, util::SubscriberInitExt as _};

use names::Names;

#[derive(Parser)]
#[command(about = "Answer DNS questions about the Services of a cluster")]
struct Arguments {
    /// The brain, which must run with --draft-v1 and --dns
    #[arg(long, value_name = "ADDR", default_value = "unix:///run/localnet/brain.sock")]
    api: String,
    /// Address and port for UDP and TCP
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:53")]
    listen: SocketAddr,
    /// The domain of the cluster
    #[arg(long, value_name = "NAME", default_value = "cluster.local")]
    domain: Name,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // hickory logs each question.
    let targets = Targets::new().with_default(Level::INFO).with_target("hickory_server", Level::WARN);
    tracing_subscriber::registry().with(targets).with(fmt::layer().with_writer(std::io::stderr)).init();
    let Arguments { api, listen, mut domain } = Arguments::parse();
    domain.set_fqdn(true);
    let udp = UdpSocket::bind(listen).await.with_context(|| format!("failed to bind UDP {listen}"))?;
    let tcp = TcpListener::bind(listen).await.with_context(|| format!("failed to bind TCP {listen}"))?;
    // `None` until the first complete state.
    let names: Arc<RwLock<Option<Names>>> = Arc::default();
    tokio::select! {
        result = reader::follow(api, Arc::clone(&names)) => result,
        result = serve::run(udp, tcp, domain, names) => result,
    }
}
