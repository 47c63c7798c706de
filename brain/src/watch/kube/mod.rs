//! The `kube` source: watches a Kubernetes API server.
//!
//! Four watches, one for each kind, run concurrently over one connection. Each watch lists its objects and then follows
//! their changes. A list is collected in a buffer and sent as one `Replace`, so the cluster never contains only a part of
//! a list. While the API server is unavailable, the source sends nothing, and the cluster keeps its objects.
//!
//! The selectors are those of kube-proxy. They exclude the objects that this node must not serve or does not need. DNS needs all
//! Services and EndpointSlices.

mod api_server;
mod backoff;
mod configuration;
mod connection;
mod decode;
mod follow;
mod steps;
mod trouble;
mod watch_health;

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
use crate::batch::Batch;
use localnet_cluster::{
    Options,
    objects::{
        Event, Kind, Object,
        reduce::{self, HEADLESS, SERVICE_PROXY_NAME},
    },
};

/// Selects the Services that belong to this proxy and are not headless; all Services if the brain serves the view for DNS.
fn services(options: &Options) -> Selectors {
    if options.dns {
        return Selectors::default();
    }
    let proxy = match &options.service_proxy_name {
        Some(name) => format!("{SERVICE_PROXY_NAME}={name}"),
        None => format!("!{SERVICE_PROXY_NAME}"),
    };
    let canary = options.canary.iter().map(|selector| format!(",{selector}"));
    Selectors { labels: Some(proxy + &canary.collect::<String>()), fields: Some("spec.clusterIP!=None".to_owned()) }
}

/// Selects the slices of the Services that are not headless; all slices if the brain serves the view for DNS.
fn slices(options: &Options) -> Selectors {
    if options.dns {
        return Selectors::default();
    }
    Selectors { labels: Some(format!("!{HEADLESS}")), fields: None }
}

fn node(options: &Options) -> Selectors {
    Selectors { labels: None, fields: Some(format!("metadata.name={}", options.node_name)) }
}

/// Watches until `cancel`, or until the receiver of `events` is dropped.
///
/// # Errors
/// Returns an error if a watch has panicked. Failures of the API server are no errors: the watches log them and retry.
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
    let publish = options.publish.clone();
    watches.spawn(services.run(move |service: Service| Object::Service(reduce::service(service, publish.as_deref()))));
    let slices = follow(Kind::Slice, Absent::Empty, slices(options));
    let publish = options.publish.clone();
    watches.spawn(slices.run(move |slice: EndpointSlice| Object::Slice(reduce::slice(slice, publish.as_deref()))));
    let node = follow(Kind::Node, Absent::Awaited { name: options.node_name.clone() }, node(options));
    watches.spawn(node.run(|node: Node| Object::Node(node.into())));
    if options.canary.is_some() {
        // Other addresses of the ServiceCIDRs belong to the other proxy.
        let none = vec![Event::Replace { kind: Kind::ServiceCidr, objects: Vec::new() }];
        let events = events.clone();
        watches.spawn(async move { _ = events.send(none.into()).await });
    } else {
        let cidrs = follow(Kind::ServiceCidr, Absent::Tolerated, Selectors::default());
        watches.spawn(cidrs.run(|cidr: ServiceCIDR| Object::ServiceCidr(cidr.into())));
    }
    watches
}
