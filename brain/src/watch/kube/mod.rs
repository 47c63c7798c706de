//! Watches a Kubernetes API server.
//!
//! Four watches, one for each kind, run side by side over one connection. Each lists, then follows the changes; a list goes to
//! a buffer and is sent as one `Replace`, so nobody ever sees half of it. While the API server is away nothing is sent, and
//! everything that was stays.
//!
//! The selectors are kube-proxy's: what this node must not serve, and what is of no use to it, is not even sent.

mod api_server;
mod backoff;
mod configuration;
mod connection;
mod decode;
mod follow;
mod standing;
mod steps;
mod trouble;

use anyhow::Context as _;
use k8s_openapi::api::{
    core::v1::{Node, Service},
    discovery::v1::EndpointSlice,
    networking::v1::ServiceCIDR,
};
use tokio::{sync::mpsc, task::JoinSet};
use tokio_util::sync::CancellationToken;

pub use self::{api_server::ApiServer, connection::KeepAlive};
use self::{
    follow::{Absent, Follow},
    steps::Selectors,
};
use crate::{
    cluster::{
        Kind, Object, Options,
        reduce::{HEADLESS, SERVICE_PROXY_NAME},
    },
    pump::Batch,
};

/// Services of this proxy that are not headless.
fn services(options: &Options) -> Selectors {
    let proxy = match &options.service_proxy_name {
        Some(name) => format!("{SERVICE_PROXY_NAME}={name}"),
        None => format!("!{SERVICE_PROXY_NAME}"),
    };
    Selectors { labels: Some(proxy), fields: Some("spec.clusterIP!=None".to_owned()) }
}

fn slices() -> Selectors {
    Selectors { labels: Some(format!("!{HEADLESS}")), fields: None }
}

fn node(options: &Options) -> Selectors {
    Selectors { labels: None, fields: Some(format!("metadata.name={}", options.node_name)) }
}

/// Watches until `cancel`, or until nobody takes the events.
///
/// # Errors
/// A watch has crashed. Whatever the API server does is not an error: it is said in the log and waited out.
pub async fn run(
    api: ApiServer,
    options: Options,
    events: mpsc::Sender<Batch>,
    cancel: CancellationToken,
) -> anyhow::Result<()> {
    let mut watches = watches(&api, &options, &events);
    drop((api, events));
    let ended = async {
        while let Some(ended) = watches.join_next().await {
            ended.context("a watch has crashed")?;
        }
        Ok(())
    };
    cancel.run_until_cancelled(ended).await.unwrap_or(Ok(()))
}

fn watches(api: &ApiServer, options: &Options, events: &mpsc::Sender<Batch>) -> JoinSet<()> {
    let mut watches = JoinSet::new();
    let follow = |kind, absent, selectors| Follow { api: api.clone(), kind, absent, selectors, events: events.clone() };

    let services = follow(Kind::Service, Absent::Empty, services(options));
    watches.spawn(services.run(|service: Service| Object::Service(service.into())));
    let slices = follow(Kind::Slice, Absent::Empty, slices());
    watches.spawn(slices.run(|slice: EndpointSlice| Object::Slice(slice.into())));
    let node = follow(Kind::Node, Absent::Awaited { name: options.node_name.clone() }, node(options));
    watches.spawn(node.run(|node: Node| Object::Node(node.into())));
    let cidrs = follow(Kind::ServiceCidr, Absent::Tolerated, Selectors::default());
    watches.spawn(cidrs.run(|cidr: ServiceCIDR| Object::ServiceCidr(cidr.into())));
    watches
}
