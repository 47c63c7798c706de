//! The chart on a real API server: server-side apply accepts all manifests, and helm installs, upgrades, rolls back and
//! uninstalls it.

use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams, ValidationDirective},
    core::GroupVersionKind,
    runtime::wait::{await_condition, conditions::is_crd_established},
};
use localnet_controlplane::{ControlPlane, Options};
use serde_json::{Value, json};

use localnet_e2e::PATIENCE;
use tokio::time::{sleep, timeout};

use crate::{VALUES, chart, documents, helm, template};

/// The interval of checking whether a kind is served.
const POLL: Duration = Duration::from_millis(50);
/// The namespace of the release.
pub(crate) const NAMESPACE: &str = "kube-system";
/// The kinds of the chart's objects, and of those in which helm stores releases.
const KINDS: [(&str, &str, &str); 9] = [
    ("", "v1", "ServiceAccount"),
    ("", "v1", "ConfigMap"),
    ("", "v1", "Secret"),
    ("rbac.authorization.k8s.io", "v1", "ClusterRole"),
    ("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding"),
    ("apps", "v1", "DaemonSet"),
    ("apps", "v1", "ControllerRevision"),
    ("monitoring.coreos.com", "v1", "PodMonitor"),
    ("monitoring.coreos.com", "v1", "PrometheusRule"),
];

/// A control plane with the kinds of the Prometheus operator, without schemas.
async fn plane() -> anyhow::Result<ControlPlane> {
    let plane = ControlPlane::start(Options { controllers: false, ..Options::default() }).await?;
    let definitions: Api<CustomResourceDefinition> = Api::all(plane.client());
    for (plural, kind) in [("podmonitors", "PodMonitor"), ("prometheusrules", "PrometheusRule")] {
        let name = format!("{plural}.monitoring.coreos.com");
        let definition = serde_json::from_value(json!({
            "metadata": { "name": name },
            "spec": {
                "group": "monitoring.coreos.com",
                "names": { "plural": plural, "kind": kind },
                "scope": "Namespaced",
                "versions": [{
                    "name": "v1",
                    "served": true,
                    "storage": true,
                    "schema": { "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } },
                }],
            },
        }))?;
        definitions.create(&PostParams::default(), &definition).await?;
        await_condition(definitions.clone(), &name, is_crd_established()).await?;
        // An established kind is served a moment later.
        let (api, all) = (api(&plane.client(), ("monitoring.coreos.com", "v1", kind)), ListParams::default());
        let served = async {
            while api.list(&all).await.is_err() {
                sleep(POLL).await;
            }
        };
        timeout(PATIENCE, served).await.with_context(|| format!("{name} is not served"))?;
    }
    Ok(plane)
}

/// Objects of a kind, which consists of group, version and name.
pub(crate) fn api(client: &Client, (group, version, kind): (&str, &str, &str)) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    if kind.starts_with("ClusterRole") {
        Api::all_with(client.clone(), &resource)
    } else {
        Api::namespaced_with(client.clone(), NAMESPACE, &resource)
    }
}

/// Kind and name of all objects of the release, including those in which helm stores it.
async fn there(client: &Client) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for kind in KINDS {
        for labels in ["app.kubernetes.io/instance=localnet", "owner=helm"] {
            let list = api(client, kind).list(&ListParams::default().labels(labels)).await;
            let list = list.with_context(|| format!("listing {}", kind.2))?;
            names.extend(
                list.items.into_iter().map(|item| format!("{} {}", kind.2, item.metadata.name.unwrap_or_default())),
            );
        }
    }
    Ok(names)
}

/// The containers of the DaemonSet, with the init containers first.
async fn containers(client: &Client) -> anyhow::Result<Vec<String>> {
    let daemon_set = api(client, ("apps", "v1", "DaemonSet")).get("localnet").await?;
    let pod = &daemon_set.data["spec"]["template"]["spec"];
    let all = ["initContainers", "containers"].map(|kind| pod[kind].as_array().cloned().unwrap_or_default());
    Ok(all.concat().iter().map(|container| container["name"].as_str().unwrap_or_default().to_owned()).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_server_accepts_all_manifests_and_a_second_apply_changes_nothing() -> anyhow::Result<()> {
    let plane = plane().await?;
    let client = plane.client();
    let mut apply = PatchParams::apply("test").force();
    apply.field_validation = Some(ValidationDirective::Strict);
    for values in VALUES {
        let rendered = documents(&template(values, &[])?)?;
        for document in &rendered {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let (kind, name) = (text(&document["kind"]), text(&document["metadata"]["name"]));
            let version = text(&document["apiVersion"]);
            let (group, version) = version.split_once('/').unwrap_or(("", &version));
            let api = api(&client, (group, version, &kind));
            let mut seen = Vec::new();
            for _ in 0..2 {
                let applied = api.patch(&name, &apply, &Patch::Apply(document)).await;
                let applied = applied.with_context(|| format!("{values}: {kind} {name}"))?;
                seen.push(applied.metadata.resource_version);
            }
            assert_eq!(seen[0], seen[1], "{values}: {kind} {name} changes when it is applied again");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn upgrade_rollback_and_uninstall_leave_nothing_behind() -> anyhow::Result<()> {
    let plane = plane().await?;
    let client = plane.client();
    let before = there(&client).await?;
    assert!(before.is_empty(), "{before:?}");
    let kubeconfig = plane.kubeconfig().display().to_string();
    let run = |verb: &[&str], more: &[&str]| {
        let mut arguments = verb.to_vec();
        arguments.extend(["--kubeconfig", &kubeconfig, "--namespace", NAMESPACE]);
        arguments.extend(more);
        helm(&arguments)
    };
    let folder = chart("").display().to_string();
    let with = |values: &str| chart(&format!("tests/values/{values}.yaml")).display().to_string();

    let notes = run(&["install", "localnet", &folder], &["--values", &with("nft")])?;
    assert!(notes.contains("rollout status daemonset/localnet") && notes.contains("--set apiServer.host"), "{notes}");
    let installed = there(&client).await?;
    assert_eq!(
        installed,
        [
            "ServiceAccount localnet",
            "ConfigMap localnet",
            "Secret sh.helm.release.v1.localnet.v1",
            "ClusterRole localnet",
            "ClusterRoleBinding localnet",
            "DaemonSet localnet",
        ]
    );
    assert_eq!(containers(&client).await?, ["init", "brain", "nft"]);

    // Upgrades to each of the other backends, with every intermediate step, and back.
    for (values, expected) in [
        ("iptables", &["init", "cleanup-nft", "brain", "iptables"][..]),
        ("everything", &["init", "cleanup-ipvs", "cleanup-kube-proxy-nftables", "brain", "nft"]),
        ("ipvs", &["init", "cleanup-iptables", "cleanup-kube-proxy-nftables", "brain", "ipvs"]),
        ("ebpf", &["init", "cleanup-iptables", "brain", "ebpf"]),
        ("shadow", &["brain", "shadow"]),
    ] {
        run(&["upgrade", "localnet", &folder], &["--values", &with(values)])?;
        assert_eq!(containers(&client).await?, expected, "{values}");
        let all = there(&client).await?;
        assert_eq!(all.contains(&"PodMonitor localnet".to_owned()), values == "everything", "{all:?}");
    }
    run(&["rollback", "localnet", "1"], &[])?;
    assert_eq!(containers(&client).await?, ["init", "brain", "nft"]);
    let mut back = there(&client).await?;
    back.retain(|name| !name.starts_with("Secret "));
    let mut first = installed;
    first.retain(|name| !name.starts_with("Secret "));
    assert_eq!(back, first, "a rollback restores the first release");

    run(&["uninstall", "localnet"], &["--wait"])?;
    let left = there(&client).await?;
    assert!(left.is_empty(), "{left:?}");
    Ok(())
}
