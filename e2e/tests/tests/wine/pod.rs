//! The pod of the chart's DaemonSet for Windows nodes, from a real API server to load balancers. Both containers run with the command
//! line, environment and files of their manifest. The folder of their image is `C:\hpc`, where containerd puts it.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, ensure};
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    authentication::v1::{TokenRequest, TokenRequestSpec},
    core::v1::{ConfigMap, Container, EnvVar, ServiceAccount},
};
use kube::{Api, Client, api::PostParams, config::Kubeconfig};
use localnet_controlplane::{ControlPlane, NewPod, Port};
use localnet_e2e::{await_condition, web};
use localnet_lab::{Namespace, Network, Running, Topology};
use serde_json::{Value, json};

use crate::{
    follow::POD,
    node::page,
    windows::{Windows, is_possible, repository},
};

const NAMESPACE: &str = "kube-system";
/// What containerd replaces with the folder of the image.
const IMAGE: &str = "$env:CONTAINER_SANDBOX_MOUNT_POINT/";

/// Installs the chart with helm.
fn install(plane: &ControlPlane, network: &Network) -> anyhow::Result<()> {
    let (home, server) = (tempfile::tempdir()?, plane.apiserver_address());
    let helm = repository().join(".cache/helm/bin/helm");
    let helm = std::env::var_os("LOCALNET_CACHE").map_or(helm, |cache| Path::new(&cache).join("helm/bin/helm"));
    let values = [
        "windows.enabled=true".to_owned(),
        "config.winkernel.networkName=pods".to_owned(),
        format!("apiServer.host={},apiServer.port={}", server.ip(), server.port()),
    ];
    let mut command = Command::new(helm);
    command.args(["install", "localnet"]).arg(repository().join("charts/localnet")).args(["--namespace", NAMESPACE]);
    command.arg("--kubeconfig").arg(plane.kubeconfig()).env("HOME", home.path());
    command.args(values.iter().flat_map(|value| ["--set", value]));
    network.node().output(&mut command).map(drop)
}

/// The files of the pod's volumes, which the kubelet writes: the configuration, and what a client of the API server needs.
async fn write_volumes(plane: &ControlPlane, account: &str, drive: &Path) -> anyhow::Result<()> {
    let (client, token) =
        (plane.client(), TokenRequest { spec: Some(TokenRequestSpec::default()), ..Default::default() });
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    let map = maps.get("localnet").await?.data.unwrap_or_default();
    let accounts: Api<ServiceAccount> = Api::namespaced(client, NAMESPACE);
    let token = accounts.create_token_request(account, &PostParams::default(), &token).await?;
    let cluster = Kubeconfig::read_from(plane.kubeconfig())?.clusters.into_iter().find_map(|cluster| cluster.cluster);
    let authority = cluster.and_then(|cluster| cluster.certificate_authority).context("a certificate authority")?;
    let (etc, secrets) = (drive.join("etc/localnet"), drive.join("var/run/secrets/kubernetes.io/serviceaccount"));
    for folder in [&etc, &secrets] {
        fs::create_dir_all(folder)?;
    }
    fs::write(etc.join("config.yaml"), map.get("windows.yaml").context("a configuration for Windows")?)?;
    fs::write(secrets.join("token"), token.status.and_then(|status| status.token).context("a token")?)?;
    fs::copy(authority, secrets.join("ca.crt"))?;
    Ok(fs::write(secrets.join("namespace"), NAMESPACE)?)
}

/// Starts a container.
fn start(windows: &Windows, node: &Namespace, container: &Container) -> anyhow::Result<Running> {
    let value = |variable: &EnvVar| {
        let field = variable.value_from.as_ref().and_then(|from| from.field_ref.as_ref());
        match field.map(|field| field.field_path.as_str()) {
            Some("spec.nodeName") => Ok("node-a".to_owned()),
            Some(other) => anyhow::bail!("{other} is not supported by this test"),
            None => Ok(variable.value.clone().unwrap_or_default()),
        }
    };
    let variables = container.env.iter().flatten();
    let environment: Vec<_> =
        variables.map(|variable| Ok((variable.name.clone(), value(variable)?))).collect::<anyhow::Result<_>>()?;
    let command = container.command.iter().flatten();
    let words: Vec<_> = command
        .map(|word| {
            environment.iter().fold(word.clone(), |word, (name, value)| word.replace(&format!("$({name})"), value))
        })
        .collect();
    let (program, arguments) = words.split_first().context("a command")?;
    let program = program.strip_prefix(IMAGE).with_context(|| format!("{program} is not in the image"))?;
    windows.start_in_image(node, program, arguments, &environment)
}

/// A control plane with the chart, whose pods run on `node-a`.
async fn cluster(network: &Network) -> anyhow::Result<(ControlPlane, DaemonSet)> {
    let plane = web::plane(network).await?;
    let client: Client = plane.client();
    install(&plane, network)?;
    let daemon_set = Api::<DaemonSet>::namespaced(client, NAMESPACE).get("localnet-windows").await?;
    let demo = plane.objects("demo");
    demo.ensure_namespace().await?;
    let spec = json!({
        "clusterIP": "172.30.0.41", "selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": "http"}],
    });
    demo.ensure_service("web", spec).await?;
    let ports = [Port { name: "http", protocol: "TCP", number: 8080 }];
    let ips = ["10.180.0.1".parse()?];
    let pod = NewPod { name: "web", node: "node-a", labels: &[("app", "web")], ips: &ips, ports: &ports, ready: true };
    demo.ensure_pod(pod).await?;
    Ok((plane, daemon_set))
}

/// With all values set, each program's `--help` contains the flags of its command line.
#[test]
fn the_programs_accept_their_command_lines() -> anyhow::Result<()> {
    if !is_possible() {
        return Ok(());
    }
    let golden = fs::read_to_string(repository().join("charts/localnet/tests/golden/everything.yaml"))?;
    let of_windows =
        |document: &Value| document["metadata"]["name"].as_str().is_some_and(|name| name.ends_with("-windows"));
    let documents: Vec<Value> = serde_saphyr::from_multiple(&golden)?;
    let daemon_set = documents.into_iter().find(of_windows).context("a DaemonSet for Windows")?;
    let daemon_set: DaemonSet = serde_json::from_value(daemon_set)?;
    let (network, windows) = (Network::build(Topology::default())?, Windows::new("15.5", "L2Bridge", &[])?);
    let containers = daemon_set.spec.template.spec.context("a pod")?.containers;
    ensure!(containers.len() == 2, "{containers:?}");
    for container in containers {
        let words = container.command.context("a command")?;
        let program = words[0].strip_prefix(IMAGE).context("a program of the image")?;
        let before = windows.output().len();
        let mut running = windows.start_in_image(network.node(), program, &["--help".to_owned()], &[])?;
        ensure!(windows.ended(&mut running)?.success(), "{}", windows.output());
        let help = windows.output().split_off(before);
        let known: Vec<_> = help.split([' ', ',', '[', '\r', '\n']).filter(|word| word.starts_with("--")).collect();
        for flag in &words[1..] {
            let flag = flag.split('=').next().unwrap_or_default();
            ensure!(known.contains(&flag), "{program} has no {flag}: {help}");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pod_of_the_chart_serves_a_cluster() -> anyhow::Result<()> {
    if !is_possible() {
        return Ok(());
    }
    let network = Network::build(Topology::default())?;
    let (plane, daemon_set) = cluster(&network).await?;
    let windows = Windows::new("15.5", "L2Bridge", &["10.180.0.1"])?;
    let spec = daemon_set.spec.template.spec.context("a pod")?;
    let account = spec.service_account_name.as_deref().context("an account")?;
    write_volumes(&plane, account, &windows.drive()).await?;
    let containers: anyhow::Result<Vec<_>> =
        spec.containers.iter().map(|container| start(&windows, network.node(), container)).collect();
    let _containers = containers?;
    windows.await_balancers(&[("172.30.0.41:80", &[POD])])?;
    for probe in spec.containers.iter().flat_map(|container| [&container.readiness_probe, &container.liveness_probe]) {
        let Some(get) = probe.as_ref().and_then(|probe| probe.http_get.as_ref()) else { continue };
        let (host, path) = (get.host.as_deref().unwrap_or("127.0.0.1"), get.path.as_deref().unwrap_or("/"));
        let at = format!("{host}:{}", serde_json::to_value(&get.port)?);
        await_condition("the probe", || page(network.node(), &at, path).starts_with("HTTP/1.1 200"))
            .with_context(|| format!("{at}{path}: {}", windows.output()))?;
    }
    // Containers start in no order, so the backend may have started before the brain.
    let is_early = |line: &str| line.contains("cannot get the state from the brain") && line.contains("refused");
    let output = windows.output();
    let warnings: Vec<_> = output.lines().filter(|line| line.contains(" WARN ") && !is_early(line)).collect();
    ensure!(warnings.is_empty(), "{warnings:#?}");
    Ok(())
}
