//! The fake kubelet of all nodes: no container runs. It reports each new pod as running and ready at an address of its own, and
//! deletes each terminating pod after [`TERMINATION`].

use std::{
    collections::HashSet,
    net::Ipv4Addr,
    sync::mpsc::Sender,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _, channel::mpsc::unbounded};
use k8s_openapi::{api::core::v1::Pod, jiff::Timestamp};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::json;
use tokio::time::sleep;

use super::{
    ledger::News,
    objects::{LABEL, address},
};
use crate::api;

/// The time between the deletion of a pod and the end of its container, as of a server that finishes its requests.
pub(super) const TERMINATION: Duration = Duration::from_secs(1);

/// Serves all pods that change after `version`. Ends only with an error. The pods get the addresses from `first` on.
pub(super) async fn run(client: Client, version: String, first: Ipv4Addr, news: Sender<News>) -> anyhow::Result<()> {
    let (mut started, mut ended) = (HashSet::new(), HashSet::new());
    let (tell, work) = unbounded();
    let changed = |pod: Pod| {
        let Some((namespace, name, service)) = identity(&pod) else { return };
        let terminates = pod.metadata.deletion_timestamp.is_some();
        let address = if terminates {
            let own = pod.status.and_then(|status| status.pod_ip).and_then(|ip| ip.parse().ok());
            own.filter(|_| ended.insert(name.clone()))
        } else {
            started.insert(name.clone()).then(|| address(first, started.len() as u32))
        };
        if let Some(address) = address {
            let pods = Api::namespaced(client.clone(), &namespace);
            // The receiver lives as long as this function.
            _ = tell.unbounded_send((pods, name, service, address, terminates));
        }
    };
    let all = Api::all(client.clone());
    let watch = api::watch_from(&all, version, changed);
    let work = work.map(anyhow::Ok).try_for_each_concurrent(None, |(pods, name, service, address, terminates)| {
        let news = news.clone();
        async move {
            // The receiver of the news may have ended.
            if terminates {
                sleep(TERMINATION).await;
                let deleted = pods.delete(&name, &DeleteParams::default().grace_period(0)).await;
                deleted.with_context(|| format!("deleting pod {name}"))?;
                _ = news.send(News::Deleted { service, address, at: Instant::now() });
            } else {
                _ = news.send(News::Ready { service, address, at: Instant::now() });
                report(&pods, &name, address).await?;
            }
            Ok(())
        }
    });
    tokio::try_join!(watch, work).map(drop)
}

/// The namespace and the name of the pod, and the name of its Service.
fn identity(pod: &Pod) -> Option<(String, String, String)> {
    Some((
        pod.metadata.namespace.clone()?,
        pod.metadata.name.clone()?,
        pod.metadata.labels.as_ref()?.get(LABEL)?.clone(),
    ))
}

/// Writes the status of a running pod.
async fn report(pods: &Api<Pod>, name: &str, ip: Ipv4Addr) -> anyhow::Result<()> {
    // Like all times of objects, in whole seconds.
    let since = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let ready = json!({ "type": "Ready", "status": "True", "lastTransitionTime": since });
    let status = json!({ "phase": "Running", "podIP": ip, "podIPs": [{ "ip": ip }], "conditions": [ready] });
    let patch = Patch::Strategic(json!({ "status": status }));
    let written = pods.patch_status(name, &PatchParams::default(), &patch).await;
    written.map(drop).with_context(|| format!("writing the status of pod {name}"))
}
