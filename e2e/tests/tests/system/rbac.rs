//! `deploy/rbac.yaml` allows exactly the API requests of the brain, as read from the API server's audit log.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::Context as _;
use localnet_controlplane::{ControlPlane, NewNode, Options, has_service_cidrs};
use localnet_e2e::{Programs, await_condition};
use localnet_lab::{
    Network, Topology,
    topology::{NODE, POD_CIDRS, SERVICE_CIDRS},
};
use serde::Deserialize;
use serde_json::Value;

/// Needed only if an event repeats, which does not happen in this test.
const ONLY_NOW_AND_THEN: [&str; 3] = ["events.k8s.io", "events", "patch"];

type Right = [String; 3];

#[derive(Deserialize)]
struct ClusterRole {
    rules: Vec<Rule>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Rule {
    api_groups: Vec<String>,
    resources: Vec<String>,
    verbs: Vec<String>,
}

/// Group, resource and verb of everything that the file allows.
fn allowed() -> anyhow::Result<BTreeSet<Right>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/rbac.yaml");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let mut rights = BTreeSet::new();
    for document in text.split("\n---\n").filter(|document| document.contains("\nkind: ClusterRole\n")) {
        for rule in serde_saphyr::from_str::<ClusterRole>(document)?.rules {
            for group in &rule.api_groups {
                for resource in &rule.resources {
                    rights.extend(rule.verbs.iter().map(|verb| [group.clone(), resource.clone(), verb.clone()]));
                }
            }
        }
    }
    Ok(rights)
}

/// Group, resource and verb of all requests of a user. Incomplete lines are skipped.
fn used_rights(log: &Path, user: &str) -> BTreeSet<Right> {
    let lines = fs::read_to_string(log).unwrap_or_default();
    let events = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let right = |event: Value| {
        let about = &event["objectRef"];
        (text(&event["user"]["username"]) == user && about.is_object())
            .then(|| [text(&about["apiGroup"]), text(&about["resource"]), text(&event["verb"])])
    };
    events.filter_map(right).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_brain_has_exactly_the_rights_that_it_uses() -> anyhow::Result<()> {
    let (network, programs) = (Network::build(Topology::with_pods(["10.180.0.1"])?)?, Programs::new()?);
    let (policy, log) = (programs.path().join("policy.yaml"), programs.path().join("audit.log"));
    fs::write(
        &policy,
        "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata}]\n",
    )?;
    let plane = ControlPlane::start(Options {
        netns: Some(network.node().path()),
        service_cidrs: SERVICE_CIDRS.map(str::to_owned).to_vec(),
        apiserver_arguments: vec![
            format!("--audit-policy-file={}", policy.display()),
            format!("--audit-log-path={}", log.display()),
        ],
        ..Options::default()
    })
    .await?;
    let objects = plane.objects("default");
    objects.ensure_node(NewNode { name: "node-a", addresses: &NODE, labels: &[], pod_cidrs: &POD_CIDRS }).await?;
    let source = format!("kube:{}", plane.kube_proxy_kubeconfig().display());
    let _brain = programs.start_brain(network.node(), &source)?;

    let mut expected = allowed()?;
    anyhow::ensure!(expected.remove(&ONLY_NOW_AND_THEN.map(str::to_owned)), "events that repeat are patched");
    if !has_service_cidrs() {
        // A kind that the API server does not have is listed, but never watched.
        anyhow::ensure!(
            expected.remove(&["networking.k8s.io", "servicecidrs", "watch"].map(str::to_owned)),
            "no ServiceCIDRs"
        );
    }
    let user = "system:kube-proxy";
    await_condition("the brain uses all its rights", || used_rights(&log, user).is_superset(&expected))
        .with_context(|| format!("{:?}\n{}", used_rights(&log, user), programs.log("localnet-brain")))?;
    assert_eq!(used_rights(&log, user), expected);
    Ok(())
}
