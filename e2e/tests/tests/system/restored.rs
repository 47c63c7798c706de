//! Restoring etcd from a backup takes the API server back in time, and the brain follows.

use std::collections::BTreeSet;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Service;
use kube::{
    Api,
    api::{ListParams, ObjectMeta, Patch, PatchParams, PostParams},
    runtime::wait::await_condition,
};
use localnet_brain::{exposition, reports::Reports, source::Source};
use localnet_cluster::{self as cluster, localize::NodeIps};
use localnet_controlplane::{ControlPlane, NewNode, Options};
use localnet_e2e::PATIENCE;
use serde_json::json;
use tokio::{sync::watch, time::timeout};

/// The number of changes after the backup: many more than an API server itself makes while it starts.
const CHANGES: usize = 400;

async fn create(services: &Api<Service>, name: &str) -> anyhow::Result<()> {
    let service = serde_json::from_value(json!({
        "metadata": ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        "spec": { "ports": [{ "port": 80 }] },
    }))?;
    services.create(&PostParams::default(), &service).await.map(drop).with_context(|| format!("creating {name}"))
}

async fn names_at_the_server(plane: &ControlPlane) -> anyhow::Result<BTreeSet<String>> {
    let list = Api::<Service>::all(plane.client()).list(&ListParams::default()).await?;
    Ok(list.items.into_iter().filter_map(|service| service.metadata.name).collect())
}

fn names_in(feed: &localnet_brain::feed::Feed) -> BTreeSet<String> {
    let state = feed.state().snapshot();
    state.into_iter().flat_map(|state| state.services.into_keys()).map(|key| key.name.to_string()).collect()
}

async fn await_names(feed: &localnet_brain::feed::Feed, names: &BTreeSet<String>) -> anyhow::Result<()> {
    let mut revisions = feed.subscribe();
    let equal = async {
        while names_in(feed) != *names {
            revisions.changed().await?;
        }
        anyhow::Ok(())
    };
    timeout(PATIENCE, equal).await.with_context(|| format!("the brain has {:?}, expected {names:?}", names_in(feed)))?
}

/// Regression: the brain continued its watch from a version that the server had not reached yet. It silently kept 31 Services
/// where the server had 9, and never corrected this. kube-proxy does the same on the same server: 31 instead of 9, and 32 instead
/// of 10 once the server's versions have passed the old ones. client-go does not detect versions that go back.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_restore_of_etcd_the_brain_has_the_state_of_the_server() -> anyhow::Result<()> {
    let mut plane = ControlPlane::start(Options { controllers: false, ..Options::default() }).await?;
    let objects = plane.objects("shop");
    objects.ensure_namespace().await?;
    let addresses = ["192.0.2.1".parse()?];
    objects.ensure_node(NewNode { name: "node-a", addresses: &addresses, labels: &[], pod_cidrs: &[] }).await?;
    // The API server creates this Service some time after it is ready.
    let own = await_condition(Api::namespaced(plane.client(), "default"), "kubernetes", |service: Option<&Service>| {
        service.is_some()
    });
    timeout(PATIENCE, own).await.context("awaiting the Service default/kubernetes")??;
    let services: Api<Service> = Api::namespaced(plane.client(), "shop");
    for number in 0..8 {
        create(&services, &format!("old-{number}")).await?;
    }
    let folder = tempfile::tempdir()?;
    let backup = folder.path().join("backup");
    plane.back_up(&backup).await?;
    let before = names_at_the_server(&plane).await?;

    let source = Source::Kube { kubeconfig: Some(plane.kube_proxy_kubeconfig().to_owned()), server: None };
    let (_choice, node_ips) = watch::channel(NodeIps::default());
    let brain = localnet_brain::start(&[source], cluster::Options::of_node("node-a"), node_ips).await?;
    await_names(brain.feed(), &before).await?;
    for number in 0..15 {
        create(&services, &format!("new-{number}")).await?;
    }
    for change in 0..CHANGES {
        let label = json!({ "metadata": { "labels": { "change": change.to_string() } } });
        services.patch("new-0", &PatchParams::default(), &Patch::Merge(label)).await?;
    }
    let then = names_at_the_server(&plane).await?;
    anyhow::ensure!(then.len() == before.len() + 15, "{then:?}");
    await_names(brain.feed(), &then).await?;

    plane.restore(&backup).await?;
    let restored = names_at_the_server(&plane).await?;
    anyhow::ensure!(restored == before, "the server has {restored:?}, and had {before:?}");
    await_names(brain.feed(), &before).await?;
    let metrics = exposition::text(brain.feed().metrics(), &brain.feed().state(), &Reports::default().all());
    anyhow::ensure!(metrics.contains("localnet_source_restored_total{of=\"services\"} 1"), "{metrics}");

    // After that, the brain follows further changes.
    create(&services, "newest").await?;
    await_names(brain.feed(), &names_at_the_server(&plane).await?).await
}
