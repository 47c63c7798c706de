//! Tests of the program's log: what runs, what changed, and which clients are refused.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, ChildStderr, Command, Stdio},
    sync::atomic::{AtomicU8, Ordering},
};

use hyper_util::rt::TokioIo;
use localnet_client::Source as _;
use localnet_proto::{
    Revision,
    wire::{WatchReq, endpoints_client::EndpointsClient},
};
use serde_json::Value;
use tokio::net::UnixStream;
use tonic::{
    Code,
    transport::{Endpoint, Uri},
};

/// The program. Dropping it kills it.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn write(folder: &Path, endpoints: &[&str]) {
    let endpoints: String = endpoints.iter().map(|address| format!("- {{addresses: [{address}]}}\n")).collect();
    let text = format!(
        "{{apiVersion: v1, kind: Node, metadata: {{name: here}}}}\n\
         ---\n\
         {{apiVersion: v1, kind: Service, metadata: {{name: web, namespace: shop}}, \
         spec: {{clusterIP: 10.96.0.1, ports: [{{port: 80}}]}}}}\n\
         ---\n\
         apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata: {{name: web-1, namespace: shop, labels: {{kubernetes.io/service-name: web}}}}\n\
         addressType: IPv4\nports: [{{name: '', port: 8080}}]\nendpoints:\n{endpoints}"
    );
    fs::write(folder.join("new"), text).unwrap();
    fs::rename(folder.join("new"), folder.join("cluster.yaml")).unwrap();
}

/// Starts the brain with the `cluster.yaml` of a folder, and with a log in JSON.
fn start(folder: &Path, listen: &str) -> (Program, BufReader<ChildStderr>) {
    // Ports are free on an address of 127.0.0.0/8 that only this process uses.
    static NEXT: AtomicU8 = AtomicU8::new(0);
    let [a, b, ..] = std::process::id().to_le_bytes();
    let host = format!("127.{}.{a}.{b}", 78 + NEXT.fetch_add(1, Ordering::Relaxed));
    let mut child = Command::new(env!("CARGO_BIN_EXE_localnet-brain"))
        .arg(format!("--source=file:{}", folder.join("cluster.yaml").display()))
        .args(["--node-name=here", &format!("--healthz-bind-address={host}:10256")])
        .arg(format!("--metrics-bind-address={host}:10249"))
        .args(["--log-format=json", "--log-level=debug", "--listen", listen])
        .env_remove("RUST_LOG")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let log = BufReader::new(child.stderr.take().unwrap());
    (Program(child), log)
}

#[tokio::test]
async fn the_log_names_the_program_and_changed_services_without_lines_of_libraries() {
    let folder = tempfile::TempDir::new().unwrap();
    write(folder.path(), &["10.0.0.1"]);
    let listen = format!("unix://{}", folder.path().join("brain.sock").display());
    let (_program, log) = start(folder.path(), &listen);
    let mut lines = log.lines().map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    let mut targets = Vec::new();
    let mut find = |message: &str| loop {
        let mut line: Value = lines.next().unwrap_or_else(|| panic!("the log ends before {message:?}"));
        targets.push(line["target"].as_str().unwrap().to_owned());
        let fields = line["fields"].take();
        if fields["message"] == message {
            return fields;
        }
    };
    let start = find("localnet-brain starts");
    assert_eq!(
        (&start["node"], &start["mode"], &start["configuration"]),
        (&"here".into(), &"nftables".into(), &"flags".into())
    );
    assert_eq!(start["version"], env!("CARGO_PKG_VERSION"));
    assert!(start["source"].as_str().unwrap().starts_with("file:/"), "{start}");
    let first = find("first complete state");
    assert_eq!((&first["services"], &first["endpoints"]), (&1.into(), &1.into()));
    // The connection of a reader is not logged.
    let brain = localnet_client::grpc::Brain::new(listen.parse().unwrap(), None).unwrap();
    brain.next(Revision::default(), false).await.unwrap();
    write(folder.path(), &["10.0.0.2", "10.0.0.3"]);
    let changed = find("Service changed");
    assert_eq!(changed["service"], "shop/web");
    assert_eq!(changed["change"], "endpoints added: 10.0.0.2, 10.0.0.3; endpoints removed: 10.0.0.1");
    let foreign: Vec<_> = targets.iter().filter(|target| !target.starts_with("localnet")).collect();
    assert!(foreign.is_empty(), "{foreign:?}");
}

/// A KPNG client requests the node of its own hostname. If the brain refuses it, it reconnects endlessly and does not show the
/// error to its operator.
#[tokio::test]
async fn one_warning_with_a_remedy_names_a_refused_kpng_client() {
    let folder = tempfile::TempDir::new().unwrap();
    write(folder.path(), &["10.0.0.1"]);
    let socket = folder.path().join("brain.sock");
    let (_program, log) = start(folder.path(), &format!("unix://{}", socket.display()));
    let mut lines = log.lines().map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    lines.find(|line| line["fields"]["message"] == "first complete state").unwrap();
    let connect = tower::service_fn(move |_: Uri| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    let channel = Endpoint::from_static("http://localhost").connect_with_connector(connect).await.unwrap();
    for _ in 0..3 {
        let request = WatchReq { node_name: "there".to_owned() };
        let items = EndpointsClient::new(channel.clone()).watch(futures::stream::iter([request])).await.unwrap();
        let mut items = items.into_inner();
        let error = loop {
            match items.message().await {
                Ok(item) => assert!(item.is_some(), "the stream ends with an error"),
                Err(error) => break error,
            }
        };
        assert_eq!(error.code(), Code::PermissionDenied);
    }
    let mut refused = std::iter::from_fn(|| {
        lines.find(|line| line["fields"]["message"].as_str().unwrap().starts_with("refused a KPNG client"))
    });
    let first = refused.next().unwrap();
    assert_eq!((&first["level"], &first["fields"]["node"]), (&"WARN".into(), &"there".into()));
    assert_eq!(first["fields"]["own"], "here");
    let message = first["fields"]["message"].as_str().unwrap();
    assert!(message.contains("--node-name") && message.contains("--serve-node"), "{message}");
    // Further refusals are logged at level debug.
    assert_eq!(
        [refused.next().unwrap(), refused.next().unwrap()].map(|line| line["level"].clone()),
        ["DEBUG", "DEBUG"]
    );
}
