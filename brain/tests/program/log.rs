//! The program's log: what runs, what changed, and which clients are refused.

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

use super::{start, write};

#[tokio::test]
async fn the_log_names_the_program_and_changed_services_without_lines_of_libraries() {
    let folder = tempfile::TempDir::new().unwrap();
    write(folder.path(), &["10.0.0.1"]);
    let listen = format!("unix://{}", folder.path().join("brain.sock").display());
    let (_program, mut lines) = start(folder.path(), &listen);
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
    let (_program, mut lines) = start(folder.path(), &format!("unix://{}", socket.display()));
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
        lines.find(|line| line["fields"]["message"].as_str().unwrap().starts_with("a KPNG client was refused"))
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
