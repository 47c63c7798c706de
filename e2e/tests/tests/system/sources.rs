//! An API server and a folder as sources of one brain: how their objects are merged, and that neither takes away what the other has.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Service;
use kube::{Api, api::DeleteParams};
use localnet_brain::{feed::Feed, run::Brain, source::Source};
use localnet_cluster::{self as cluster, localize::NodeIps};
use localnet_controlplane::{ControlPlane, NewNode, Options};
use localnet_e2e::PATIENCE;
use serde_json::json;
use tokio::{sync::watch, time::timeout};

const NAMESPACE: &str = "shop";
const EXTRA: &str = "10.200.0.1";
const LATER: &str = "10.200.0.2";
const SHADOWED: &str = "10.200.0.9";

/// The Services of the namespace that are served, each with its ClusterIP.
fn services(feed: &Feed) -> BTreeMap<String, String> {
    let state = feed.state().snapshot();
    let services = state.into_iter().flat_map(|state| state.services.into_values());
    let in_namespace = services.filter(|service| *service.key.namespace == *NAMESPACE);
    in_namespace.map(|service| (service.key.name.to_string(), service.cluster_ips[0].to_string())).collect()
}

async fn await_services(feed: &Feed, expected: &[(&str, &str)]) -> anyhow::Result<()> {
    let expected = expected.iter().map(|(name, ip)| ((*name).to_owned(), (*ip).to_owned())).collect();
    let mut revisions = feed.subscribe();
    let equal = async {
        while services(feed) != expected {
            revisions.changed().await?;
        }
        anyhow::Ok(())
    };
    let awaited = timeout(PATIENCE, equal).await;
    awaited.with_context(|| format!("the brain serves {:?}, expected {expected:?}", services(feed)))?
}

/// Waits until exactly these of the sources' parts fail.
async fn await_failing(feed: &Feed, expected: &[&str]) -> anyhow::Result<()> {
    let mut troubles = feed.metrics().troubles().subscribe();
    let equal = troubles.wait_for(|all| all.keys().map(|of| &**of).eq(expected.iter().copied()));
    let awaited = timeout(PATIENCE, equal).await.map(|_| ());
    awaited.with_context(|| format!("{:?} fail, expected {expected:?}", feed.metrics().troubles().all()))
}

/// Replaces the folder's only file.
fn write(folder: &Path, services: &[(&str, &str)]) -> anyhow::Result<()> {
    let items: Vec<_> = services
        .iter()
        .map(|(name, ip)| {
            json!({
                "apiVersion": "v1", "kind": "Service", "metadata": { "name": name, "namespace": NAMESPACE },
                "spec": { "clusterIP": ip, "ports": [{ "port": 80 }] },
            })
        })
        .collect();
    replace(folder, &json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string())
}

fn replace(folder: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(folder.join("new"), text)?;
    Ok(fs::rename(folder.join("new"), folder.join("services.yaml"))?)
}

async fn create(plane: &ControlPlane, name: &str) -> anyhow::Result<String> {
    let service = plane.objects(NAMESPACE).ensure_service(name, json!({ "ports": [{ "port": 80 }] })).await?;
    service.spec.and_then(|spec| spec.cluster_ip).context("no ClusterIP")
}

async fn start(sources: &[Source]) -> anyhow::Result<(watch::Sender<NodeIps>, Brain)> {
    let (choice, node_ips) = watch::channel(NodeIps::default());
    Ok((choice, localnet_brain::start(sources, cluster::Options::of_node("node-a"), node_ips).await?))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_and_a_folder_are_merged_and_outlive_each_other() -> anyhow::Result<()> {
    let mut plane = ControlPlane::start(Options { controllers: false, ..Options::default() }).await?;
    let objects = plane.objects(NAMESPACE);
    objects.ensure_namespace().await?;
    let addresses = ["192.0.2.1".parse()?];
    objects.ensure_node(NewNode { name: "node-a", addresses: &addresses, labels: &[], pod_cidrs: &[] }).await?;
    let web = &*create(&plane, "web").await?;
    let folder = tempfile::tempdir()?;
    // The API server has a Service of the same name, and the ClusterIP of the thief.
    let of_folder = [("extra", EXTRA), ("web", SHADOWED), ("a-thief", web)];
    write(folder.path(), &of_folder)?;
    let kube = Source::Kube { kubeconfig: Some(plane.kube_proxy_kubeconfig().to_owned()), server: None };
    let sources = [kube, Source::File(folder.path().to_owned())];
    let (_choice, brain) = start(&sources).await?;
    let feed = brain.feed();
    await_services(feed, &[("extra", EXTRA), ("web", web)]).await?;
    let node = feed.state().node().addresses.clone();
    anyhow::ensure!(node == addresses, "the Node of the API server has {addresses:?}, the brain {node:?}");

    // Without the API server, the brain keeps its objects and follows the folder.
    plane.stop_apiserver()?;
    write(folder.path(), &[&of_folder[..], &[("later", LATER)]].concat())?;
    await_services(feed, &[("extra", EXTRA), ("later", LATER), ("web", web)]).await?;

    // A brain that starts now has no state, because it does not know the objects of the API server.
    let (_choice, restarted) = start(&sources).await?;
    let mut troubles = restarted.feed().metrics().troubles().subscribe();
    let awaited = timeout(PATIENCE, troubles.wait_for(|all| all.contains_key("sources")));
    awaited.await.context("the brain does not report the source that it waits for")??;
    anyhow::ensure!(restarted.feed().state().revision().rev == 0, "{:?}", services(restarted.feed()));
    plane.start_apiserver().await?;
    for feed in [feed, restarted.feed()] {
        await_services(feed, &[("extra", EXTRA), ("later", LATER), ("web", web)]).await?;
        await_failing(feed, &[]).await?;
    }
    drop(restarted);

    // Without valid files, the brain keeps the folder's objects and follows the API server.
    replace(folder.path(), "kind: [")?;
    await_failing(feed, &["files"]).await?;
    let newest = &*create(&plane, "newest").await?;
    await_services(feed, &[("extra", EXTRA), ("later", LATER), ("newest", newest), ("web", web)]).await?;

    // If the API server deletes an object, that of the folder takes effect.
    write(folder.path(), &of_folder)?;
    await_services(feed, &[("extra", EXTRA), ("newest", newest), ("web", web)]).await?;
    await_failing(feed, &[]).await?;
    let services: Api<Service> = Api::namespaced(plane.client(), NAMESPACE);
    services.delete("web", &DeleteParams::default()).await?;
    await_services(feed, &[("a-thief", web), ("extra", EXTRA), ("newest", newest), ("web", SHADOWED)]).await
}
