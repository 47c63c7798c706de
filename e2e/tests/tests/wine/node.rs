//! A whole node on Windows: the brain and the backend, both as Windows programs.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
};

use k8s_openapi::api::core::v1::Event;
use kube::Api;
use localnet_controlplane::{NewPod, Port};
use localnet_e2e::{PATIENCE, Programs, await_condition, web};
use localnet_lab::{Namespace, Network, Topology};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::{
    follow::{API, POD, cluster, write},
    windows::{BRAIN, NODE, Windows, is_possible, windows_path},
};

const PIPE: &str = "npipe:////./pipe/localnet";

/// The answer to a request for a page, or an empty text if nothing answers.
pub(crate) fn page(node: &Namespace, at: &str, path: &str) -> String {
    let at: SocketAddr = at.parse().unwrap();
    let answer = node.run(|| {
        let mut stream = TcpStream::connect_timeout(&at, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    });
    answer.unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn brain_and_backend_serve_a_cluster_without_a_linux_machine() {
    if !is_possible() {
        return;
    }
    let network = Network::build(Topology::default()).unwrap();
    let (node, programs) = (network.node(), Programs::new().unwrap());
    let plane = web::plane(&network).await.unwrap();
    let windows = Windows::new("15.5", "L2Bridge", &["10.180.0.1"]).unwrap();
    // Both programs read kube-proxy's file.
    let config = programs.path().join("kube-proxy.conf");
    let kubeconfig = windows_path(plane.kube_proxy_kubeconfig());
    write(
        &config,
        &format!(
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nhostnameOverride: node-a\n\
             clientConnection: {{kubeconfig: '{kubeconfig}'}}\nwinkernel: {{networkName: pods}}\n"
        ),
    );
    let config = windows_path(&config);
    let mut brain = windows.start_brain(node, &["--config", &config, "--listen", PIPE, "--listen", API]).unwrap();
    // On a busy machine, Wine needs many seconds to load a program of this size.
    await_condition("the brain", || page(node, "127.0.0.1:10256", "/livez").starts_with("HTTP/1.1 200"))
        .unwrap_or_else(|error| panic!("{error}: {}", windows.output()));
    let mut backend = windows.start(node, &["--config", &config, "--api", PIPE]).unwrap();

    let demo = plane.objects("demo");
    demo.ensure_namespace().await.unwrap();
    let spec = json!({
        "type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 30_090, "clusterIP": "172.30.0.41",
        "selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": "http", "nodePort": 30_080}],
    });
    demo.ensure_service("web", spec).await.unwrap();
    let ports = [Port { name: "http", protocol: "TCP", number: 8080 }];
    let ips = ["10.180.0.1".parse().unwrap()];
    let pod = NewPod { name: "web", node: "node-a", labels: &[("app", "web")], ips: &ips, ports: &ports, ready: true };
    demo.ensure_pod(pod).await.unwrap();
    let balancers: [(&str, &[&str]); 2] = [("172.30.0.41:80", &[POD]), ("node:30080", &[POD])];
    windows.await_balancers(&balancers).unwrap();

    for (at, path, expected) in [
        ("127.0.0.1:10256", "/healthz", "HTTP/1.1 200 OK"),
        ("127.0.0.1:10256", "/livez", "HTTP/1.1 200 OK"),
        ("127.0.0.1:30090", "/", "\"localEndpoints\": 1"),
        ("127.0.0.1:10249", "/metrics", "localnet_backend_skipped{backend=\"win\"} 0"),
        ("127.0.0.1:10249", "/proxyMode", "kernelspace"),
    ] {
        await_condition("the page", || page(node, at, path).contains(expected)).unwrap_or_else(|error| {
            panic!("{error}: {at}{path}: {expected}: {}\n{}", page(node, at, path), windows.output())
        });
    }
    let events = Api::<Event>::default_namespaced(plane.client()).list(&Default::default()).await.unwrap();
    let started = |event: &&Event| event.reason.as_deref() == Some("Starting");
    assert_eq!(events.iter().filter(started).count(), 1, "{events:?}");
    // The brain is also there for the programs that need TCP.
    windows.run(node, &["--once", "--api", API, "--network-name", "pods"]).unwrap();

    for running in [&mut backend, &mut brain] {
        kill_process(Pid::from_child(running), Signal::INT).unwrap();
        assert!(windows.ended(running).unwrap().success(), "{}", windows.output());
    }
    windows.await_balancers(&balancers).unwrap();
    windows.leaks_nothing().unwrap();
}

#[test]
fn the_service_control_manager_starts_and_ends_the_brain() {
    if !is_possible() {
        return;
    }
    let network = Network::build(Topology::default()).unwrap();
    let (node, programs) = (network.node(), Programs::new().unwrap());
    let windows = Windows::new("15.5", "L2Bridge", &["10.180.0.1"]).unwrap();
    let folder = programs.path().join("objects");
    let (file, log) = (folder.join("cluster.yaml"), programs.path().join("brain.log"));
    fs::create_dir(&folder).unwrap();
    write(&file, &cluster(&[1]));
    let (source, history) = (format!("file:{}", windows_path(&folder)), programs.path().join("history"));
    let (log_file, history) = (windows_path(&log), windows_path(&history));
    let arguments = ["--windows-service", "--source", &source, "--node-name", "node-a", "--log-file", &log_file];
    windows.install(node, BRAIN, &[&arguments[..], &["--history-file", &history]].concat()).unwrap();
    // Wine shuts Windows down when the last program that is not a service exits.
    let _backend = windows.start(node, &["--network-name", "pods"]).unwrap();
    windows.tool(node, "sc", &["start", BRAIN]).unwrap();
    for pods in [&[1, 2][..], &[2]] {
        write(&file, &cluster(pods));
        let remote = pods.iter().map(|pod| format!("0ab4010{pod}"));
        let endpoints: Vec<String> = [POD.to_owned()].into_iter().chain(remote).collect();
        let endpoints: Vec<&str> = endpoints.iter().map(String::as_str).collect();
        windows.await_balancers(&[("172.30.0.41:80", &endpoints), ("node:30080", &endpoints)]).unwrap();
    }

    windows.stop(node, BRAIN).unwrap();
    let log = fs::read_to_string(log).unwrap();
    assert!(log.contains("watching files") && !log.contains("WARN"), "{log}");
}

#[test]
fn one_service_is_the_whole_node() {
    if !is_possible() {
        return;
    }
    let network = Network::build(Topology::default()).unwrap();
    let (node, programs) = (network.node(), Programs::new().unwrap());
    let windows = Windows::new("15.5", "L2Bridge", &["10.180.0.1"]).unwrap();
    let [file, log] = ["cluster.yaml", "node.log"].map(|name| programs.path().join(name));
    write(&file, &cluster(&[1]));
    let (source, log_file) = (format!("file:{}", windows_path(&file)), windows_path(&log));
    // Wine shuts Windows down when the last program that is not a service exits.
    let _session = windows.start_pipe(node, "session", 12_090).unwrap();
    let of_brain = ["--source", &source, "--node-name", "node-a", "--listen", API];
    let of_both = ["--windows-service", "--network-name", "pods", "--log-file", &log_file];
    windows.install(node, NODE, &[&of_brain[..], &of_both].concat()).unwrap();
    windows.tool(node, "sc", &["start", NODE]).unwrap();
    for pod in [1, 2] {
        write(&file, &cluster(&[pod]));
        let endpoints: &[&str] = &[POD, &format!("0ab4010{pod}")];
        windows.await_balancers(&[("172.30.0.41:80", endpoints), ("node:30080", endpoints)]).unwrap();
    }
    for (at, path, expected) in [
        ("127.0.0.1:10256", "/healthz", "HTTP/1.1 200 OK"),
        ("127.0.0.1:10249", "/metrics", "localnet_backend_skipped{backend=\"win\"} 0"),
    ] {
        await_condition("the page", || page(node, at, path).contains(expected))
            .unwrap_or_else(|error| panic!("{error}: {}", fs::read_to_string(&log).unwrap_or_default()));
    }
    // It also serves the state, to the command `localnet` for example.
    windows.run(node, &["--once", "--api", API, "--network-name", "pods"]).unwrap();
    windows.stop(node, NODE).unwrap();
    windows.leaks_nothing().unwrap();
    let log = fs::read_to_string(log).unwrap();
    assert!(log.contains("watching files") && log.contains("HNS found") && !log.contains("WARN"), "{log}");
}

#[test]
fn a_file_is_read_after_its_writer_has_closed_it() {
    if !is_possible() {
        return;
    }
    let network = Network::build(Topology::default()).unwrap();
    let (node, programs) = (network.node(), Programs::new().unwrap());
    let windows = Windows::new("15.5", "L2Bridge", &["10.180.0.1"]).unwrap();
    let path = |name: &str| programs.path().join(name);
    let [file, half, rest, batch] = ["cluster.yaml", "half", "rest", "write.bat"].map(path);
    write(&file, &cluster(&[1]));
    let source = format!("file:{}", windows_path(&file));
    let _brain = windows.start_brain(node, &["--source", &source, "--node-name", "node-a"]).unwrap();
    let _backend = windows.start(node, &["--network-name", "pods"]).unwrap();
    let both = |endpoints: &[&str]| {
        windows.await_balancers(&[("172.30.0.41:80", endpoints), ("node:30080", endpoints)]).unwrap();
    };
    both(&[POD, "0ab40101"]);
    // Without the rest, the Service would have no endpoint.
    let new = cluster(&[2]);
    let (first, last) = new.rsplit_once("---").unwrap();
    write(&half, first);
    write(&rest, &format!("---{last}"));
    let [half, rest, file, writer] = [half, rest, file, batch.clone()].map(|path| windows_path(&path));
    // `ping` takes three seconds.
    write(&batch, &format!("@type {half}\r\n@ping -n 4 127.0.0.1 >nul\r\n@type {rest}\r\n"));
    let mut writer = windows.start_tool(node, "cmd", &["/c", &format!("{writer} >{file}")]).unwrap();
    await_condition("the brain refuses to read", || windows.output().contains("os error 32"))
        .unwrap_or_else(|error| panic!("{error}: {}", windows.output()));
    both(&[POD, "0ab40101"]);
    both(&[POD, "0ab40102"]);
    assert!(windows.ended(&mut writer).unwrap().success(), "{}", windows.output());
}

#[test]
fn what_windows_lacks_is_refused_with_a_remedy() {
    if !is_possible() {
        return;
    }
    let network = Network::build(Topology::default()).unwrap();
    let windows = Windows::new("15.5", "L2Bridge", &[]).unwrap();
    for (flags, remedy) in [
        (&["--listen", "unix:///brain.sock"][..], "use tcp://host:port or npipe:////./pipe/name"),
        (&["--allow-uid", "5"], "no --listen is unix:///PATH; remove --allow-uid"),
        (&["--socket-group", "localnet"], "localnet-brain serves no unix sockets on Windows; remove the flag"),
        (&["--proxy-mode", "nftables"], "must be kernelspace"),
    ] {
        let before = windows.output().len();
        let mut brain = windows
            .start_brain(network.node(), &[&["--source", "file:nowhere", "--node-name", "node-a"], flags].concat())
            .unwrap();
        assert!(!windows.ended(&mut brain).unwrap().success());
        let output = windows.output().split_off(before);
        assert!(output.contains(remedy), "{flags:?}: {output}");
    }
}
