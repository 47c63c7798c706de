//! The control plane itself: Pods become endpoints, a restart of the API server loses nothing, a service proxy has exactly the
//! rights of a real one, and everything can run in a network namespace.

use std::io::{BufRead as _, BufReader, ErrorKind, Read as _};
use std::net::{IpAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{env, fs};

use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use localnet_controlplane::{ControlPlane, NewNode, NewPod, Objects, Options, Port, binary, ready_addresses};
use serde_json::json;

const POD_1: [IpAddr; 2] = [v4(10, 244, 1, 11), v6(0x11)];
const POD_2: [IpAddr; 2] = [v4(10, 244, 1, 12), v6(0x12)];

const fn v4(a: u8, b: u8, c: u8, d: u8) -> IpAddr {
    IpAddr::V4(std::net::Ipv4Addr::new(a, b, c, d))
}

const fn v6(last: u16) -> IpAddr {
    IpAddr::V6(std::net::Ipv6Addr::new(0xfd00, 0x10, 0x244, 1, 0, 0, 0, last))
}

/// Creates a Node, a dual-stack Service and two Pods, one of them ready. Their ports `http` have different numbers.
async fn populate(objects: &Objects) -> anyhow::Result<Service> {
    objects.ensure_namespace().await?;
    let zone = [("topology.kubernetes.io/zone", "a")];
    let pod_cidrs = ["10.244.1.0/24", "fd00:10:244:1::/64"];
    objects
        .ensure_node(NewNode { name: "n1", addresses: &[v4(192, 0, 2, 1)], labels: &zone, pod_cidrs: &pod_cidrs })
        .await?;
    let port = json!({ "name": "web", "port": 80, "targetPort": "http" });
    let spec = json!({ "selector": { "app": "web" }, "ipFamilyPolicy": "RequireDualStack", "ports": [port] });
    let service = objects.ensure_service("web", spec).await?;
    let pod = NewPod { node: "n1", labels: &[("app", "web")], ..NewPod::default() };
    let ports = |number| [Port { name: "http", protocol: "TCP", number }];
    objects.ensure_pod(NewPod { name: "web-1", ips: &POD_1, ports: &ports(8080), ready: true, ..pod }).await?;
    objects.ensure_pod(NewPod { name: "web-2", ips: &POD_2, ports: &ports(9090), ready: false, ..pod }).await?;
    Ok(service)
}

#[tokio::test]
async fn pods_become_endpoints_that_survive_a_restart() -> anyhow::Result<()> {
    let mut plane = ControlPlane::start(Options::default()).await?;
    let objects = plane.objects("shop");
    let service = populate(&objects).await?;
    let spec = service.spec.unwrap_or_default();
    assert_eq!(spec.cluster_ips.map(|ips| ips.len()), Some(2), "one address for each family");

    objects.await_ready_addresses("web", &POD_1).await?;
    objects.set_pod_ready("web-2", true).await?;
    assert_eq!(objects.await_ready_count("web", 4).await?, [POD_1, POD_2].concat().into_iter().collect());

    let another = plane.start_another_apiserver().await?;
    assert_ne!(another.address(), plane.apiserver_address());
    plane.stop_apiserver()?;
    let slices: Api<EndpointSlice> = Api::namespaced(plane.client(), "shop");
    slices.list(&ListParams::default()).await.expect_err("a stopped API server must not answer");
    // The controller creates no slices for a Service without a selector.
    another.objects("shop").ensure_service("meanwhile", json!({ "ports": [{ "port": 80 }] })).await?;
    another.stop()?;
    plane.start_apiserver().await?;
    Api::<Service>::namespaced(plane.client(), "shop").get("meanwhile").await?;
    objects.remove_service("meanwhile").await?;
    let kept = slices.list(&ListParams::default()).await?.items;
    assert_eq!(ready_addresses(&kept), [POD_1, POD_2].concat().into_iter().collect());
    let ports: Vec<Option<i32>> =
        kept.iter().flat_map(|slice| slice.ports.iter().flatten().map(|port| port.port)).collect();
    assert_eq!(ports.len(), 4, "a slice for each family and each number of the named port: {ports:?}");

    // The controller survived the restart, too.
    objects.remove_pod("web-1").await?;
    objects.await_ready_addresses("web", &POD_2).await?;
    objects.terminate_pod("web-2").await?;
    let terminating = |slices: &[EndpointSlice]| {
        let endpoints = slices.iter().flat_map(|slice| slice.endpoints.iter().flatten());
        endpoints.filter_map(|endpoint| endpoint.conditions.as_ref()?.terminating).filter(|is| *is).count() == 2
    };
    objects.await_slices("web", "two terminating endpoints", terminating).await?;
    Ok(())
}

#[tokio::test]
async fn another_control_plane_starts_with_saved_data() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let saved = folder.path().join("saved");
    let options = || Options { controllers: false, ..Options::default() };
    let plane = ControlPlane::start(options()).await?;
    assert_eq!(plane.processes().count(), 2, "etcd and kube-apiserver");
    let service = populate(&plane.objects("shop")).await?;
    plane.save(&saved)?;
    // Twice, because the data is copied.
    for _ in 0..2 {
        let plane = ControlPlane::start(Options { data: Some(saved.clone()), ..options() }).await?;
        let services: Api<Service> = Api::namespaced(plane.client(), "shop");
        assert_eq!(services.get("web").await?.spec, service.spec);
        services.delete("web", &kube::api::DeleteParams::default()).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_service_proxy_may_read_services_and_nothing_else() -> anyhow::Result<()> {
    let plane = ControlPlane::start(Options::default()).await?;
    populate(&plane.objects("shop")).await?;
    let kubeconfig = Kubeconfig::read_from(plane.kube_proxy_kubeconfig())?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    let proxy = Client::try_from(config)?;
    let seen = Api::<Service>::all(proxy.clone()).list(&ListParams::default()).await?;
    let names: Vec<_> = seen.iter().filter_map(|service| service.metadata.name.as_deref()).collect();
    assert_eq!(names, ["kubernetes", "web"]);
    assert_eq!(Api::<Node>::all(proxy.clone()).list(&ListParams::default()).await?.items.len(), 1);
    Api::<EndpointSlice>::all(proxy.clone()).list(&ListParams::default()).await?;
    let cidrs = Api::<ServiceCIDR>::all(proxy.clone()).list(&ListParams::default()).await?;
    let cidrs: Vec<_> = cidrs.into_iter().filter_map(|cidr| cidr.spec?.cidrs).flatten().collect();
    assert_eq!(cidrs, Options::default().service_cidrs);
    let denied = Api::<Service>::namespaced(proxy, "shop").delete("web", &kube::api::DeleteParams::default()).await;
    let error = denied.map(drop).expect_err("a service proxy must not delete Services");
    assert!(matches!(&error, kube::Error::Api(status) if status.code == 403), "{error}");
    Ok(())
}

/// A network namespace with its loopback up, removed when dropped.
struct Netns(String);

impl Netns {
    fn new(name: &str) -> Netns {
        let netns = Netns(format!("{name}-{}", std::process::id()));
        ip(&["netns", "add", &netns.0]);
        ip(&["-n", &netns.0, "link", "set", "lo", "up"]);
        netns
    }

    fn path(&self) -> PathBuf {
        PathBuf::from("/run/netns").join(&self.0)
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        ip(&["netns", "delete", &self.0]);
    }
}

#[track_caller]
fn ip(arguments: &[&str]) {
    let status = Command::new("ip").args(arguments).status().expect("ip of iproute2 is installed");
    assert!(status.success(), "ip {arguments:?}: {status}");
}

#[tokio::test]
async fn a_control_plane_runs_in_a_network_namespace() -> anyhow::Result<()> {
    let netns = Netns::new("localnet-ctl");
    let plane = ControlPlane::start(Options { netns: Some(netns.path()), ..Options::default() }).await?;
    let objects = plane.objects("shop");
    populate(&objects).await?;
    objects.await_ready_addresses("web", &POD_1).await?;

    // The API server listens in the namespace only.
    let address = plane.apiserver_address().to_string();
    let inside = Command::new("ip").args(["netns", "exec", &netns.0, "ss", "-Hltn"]).output()?;
    let listening = String::from_utf8(inside.stdout)?;
    assert!(listening.contains(&address), "{address} is missing in:\n{listening}");
    TcpStream::connect(plane.apiserver_address()).expect_err("it must not listen outside");

    // No process of the control plane is left in the namespace.
    let running = || -> anyhow::Result<String> {
        Ok(String::from_utf8(Command::new("ip").args(["netns", "pids", &netns.0]).output()?.stdout)?)
    };
    assert_eq!(running()?.lines().count(), 3, "etcd, kube-apiserver, kube-controller-manager");
    drop(plane);
    assert_eq!(running()?, "");
    Ok(())
}

#[tokio::test]
async fn a_namespace_without_loopback_is_a_clear_error() {
    let netns = Netns::new("localnet-ctl-down");
    ip(&["-n", &netns.0, "link", "set", "lo", "down"]);
    let started = ControlPlane::start(Options { netns: Some(netns.path()), ..Options::default() }).await;
    let error = format!("{:#}", started.map(drop).expect_err("nothing can be reached there"));
    assert!(error.contains("is the interface up?"), "{error}");
}

#[tokio::test]
async fn the_error_for_an_api_server_that_ends_contains_its_log() {
    let options = Options { apiserver_arguments: vec!["--no-such-flag".to_owned()], ..Options::default() };
    let error = ControlPlane::start(options).await.map(drop).expect_err("the flag does not exist");
    let error = format!("{error:#}");
    assert!(error.contains("kube-apiserver ended") && error.contains("unknown flag: --no-such-flag"), "{error}");
}

/// Set in the environment of the copy of this test that is killed.
const HOLD: &str = "LOCALNET_E2E_HOLD_CONTROL_PLANE";

#[tokio::test]
async fn a_killed_test_leaves_no_process() -> anyhow::Result<()> {
    if env::var_os(HOLD).is_some() {
        let plane = ControlPlane::start(Options::default()).await?;
        let folder = plane.kubeconfig().parent().unwrap_or(Path::new("/"));
        println!("\nheld {} {}", plane.apiserver_address(), folder.display());
        std::io::stdin().read_to_end(&mut Vec::new())?;
        return Ok(());
    }
    let mut copy = Command::new(env::current_exe()?);
    copy.args(["--exact", "a_killed_test_leaves_no_process", "--nocapture"]).env(HOLD, "1");
    let mut copy = copy.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let lines = BufReader::new(copy.stdout.take().expect("its output is a pipe")).lines().map_while(Result::ok);
    let held = lines.filter_map(|line| line.strip_prefix("held ").map(str::to_owned)).next();
    let held = held.expect("the copy prints where its control plane is");
    let (address, folder) = held.split_once(' ').expect("an address and a folder");
    let connection = TcpStream::connect(address)?;

    copy.kill()?;
    copy.wait()?;
    // A connection ends with its process, but the listener may end a moment later and accept one more.
    let mut next = Some(connection);
    let mut ended = 0;
    while let Some(mut connection) = next {
        connection.set_read_timeout(Some(Duration::from_secs(20)))?;
        let end = connection.read(&mut [0]).map_err(|error| error.kind());
        assert_ne!(end, Err(ErrorKind::WouldBlock), "kube-apiserver has outlived its test");
        ended += 1;
        assert!(ended < 1000, "kube-apiserver goes on to accept connections");
        next = TcpStream::connect(address).ok();
    }
    fs::remove_dir_all(folder)?;
    Ok(())
}

#[test]
fn every_tool_is_built_and_runs() -> anyhow::Result<()> {
    for (name, version) in [
        ("etcd", "etcd Version: 3.7."),
        ("kube-apiserver", "Kubernetes v1.37.2"),
        ("kube-controller-manager", "Kubernetes v1.37.2"),
        ("kube-proxy", "Kubernetes v1.37.2"),
        ("grpcurl", "grpcurl v1.9.1"),
    ] {
        let flag = if name == "grpcurl" { "-version" } else { "--version" };
        let output = Command::new(binary(name)?).arg(flag).output()?;
        let output = [output.stdout, output.stderr].concat();
        let output = String::from_utf8_lossy(&output);
        assert!(output.contains(version), "{name}: {output}");
    }
    Ok(())
}

#[test]
fn a_missing_tool_names_the_remedy() {
    let error = binary("kube-scheduler").expect_err("kube-scheduler is not built").to_string();
    assert!(
        error.starts_with("kube-scheduler is not built (") && error.ends_with("run `make controlplane`"),
        "{error}"
    );
}

#[test]
fn processes_survive_the_threads_of_their_runtime() -> anyhow::Result<()> {
    // The threads of a runtime end with it; the processes must keep running.
    let start = || tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let first = start()?;
    let plane = first.block_on(async { tokio::spawn(ControlPlane::start(Options::default())).await })??;
    drop(first);
    let kubeconfig = Kubeconfig::read_from(plane.kubeconfig())?;
    let version = start()?.block_on(async {
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        anyhow::Ok(Client::try_from(config)?.apiserver_version().await?)
    })?;
    assert_eq!(version.git_version, "v1.37.2");
    let folder = plane.kubeconfig().parent().map(PathBuf::from).unwrap_or_default();
    assert!(folder.is_dir());
    drop(plane);
    assert!(fs::metadata(&folder).is_err(), "{} is left behind", folder.display());
    Ok(())
}
