//! Tests of KPNG's `Watch`, in `localnetv1.Endpoints` and in `localv1.Sets`.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::{FutureExt as _, TryFutureExt as _};
use localnet_brain::{
    pump,
    reports::Reports,
    serve::{self, Listener, ServerState},
    start,
    views::{Started, Views},
};
use localnet_cluster::{
    Options,
    localize::{Localized, NodeIps},
};
use localnet_proto::{
    Address,
    localv1::sets_client::SetsClient,
    wire::{OpItem, WatchReq, endpoints_client::EndpointsClient, op_item::Op},
};
use tempfile::TempDir;
use tokio::{sync::mpsc, time};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Code, Status, Streaming,
    transport::{Channel, Endpoint},
};

use crate::server::{Server, applied, connect, node, removed, service, soon};

/// A KPNG client.
struct Client {
    requests: mpsc::Sender<WatchReq>,
    items: Streaming<OpItem>,
}

impl Client {
    async fn localnetv1(channel: Channel) -> Self {
        let (requests, stream) = mpsc::channel(8);
        let items = soon(EndpointsClient::new(channel).watch(ReceiverStream::new(stream))).await.unwrap();
        Self { requests, items: items.into_inner() }
    }

    async fn localv1(channel: Channel) -> Self {
        let (requests, stream) = mpsc::channel(8);
        let items = soon(SetsClient::new(channel).watch(ReceiverStream::new(stream))).await.unwrap();
        Self { requests, items: items.into_inner() }
    }

    async fn request(&self, node_name: &str) {
        self.requests.send(WatchReq { node_name: node_name.to_owned() }).await.unwrap();
    }

    async fn item(&mut self) -> Result<String, Status> {
        Ok(match soon(self.items.message()).await?.expect("the stream continues").op.unwrap() {
            Op::Set(value) => format!("+{}", named(&value.r#ref.unwrap().path)),
            Op::Delete(of) => format!("-{}", named(&of.path)),
            Op::Sync(_) => "sync".to_owned(),
            Op::Reset(_) => "reset".to_owned(),
        })
    }

    /// Reads all items up to and including the next Sync.
    async fn set(&mut self) -> Vec<String> {
        let mut items = Vec::new();
        while items.last().is_none_or(|last| last != "sync") {
            items.push(self.item().await.unwrap());
        }
        items
    }

    async fn failure(&mut self) -> Status {
        loop {
            if let Err(status) = self.item().await {
                return status;
            }
        }
    }

    fn is_waiting(&mut self) -> bool {
        self.items.message().now_or_never().is_none()
    }
}

/// The path of an item, without the hash of an endpoint.
fn named(path: &str) -> String {
    path.split('/').take(2).collect::<Vec<_>>().join("/")
}

async fn pull(server: Server, mut client: Client) {
    assert!(client.is_waiting(), "the client has sent no request");
    client.request("").await;
    assert_eq!(client.item().await.unwrap(), "reset", "sent before there is a state");
    assert!(client.is_waiting());
    server.feed.publish(Localized::default());
    assert_eq!(client.set().await, ["+node", "sync"], "an empty state is a state");

    client.request("").await;
    server.feed.publish(applied([service("a", 1, 0)]));
    assert_eq!(client.set().await, ["+default/a", "sync"]);

    // Changes are sent only on request, as one set, without the Service that was added and removed in between.
    server.feed.publish(applied([service("b", 1, 0)]));
    server.feed.publish(applied([service("c", 1, 0)]));
    server.feed.publish(removed("c"));
    server.feed.publish(removed("a"));
    assert!(client.is_waiting());
    client.request("").await;
    assert_eq!(client.set().await, ["+default/b", "-default/a", "sync"]);

    client.request("").await;
    assert!(client.is_waiting(), "nothing has changed");
    drop(client.requests);
    server.feed.publish(applied([service("b", 2, 0)]));
    let mut rest = Vec::new();
    while let Some(item) = soon(client.items.message()).await.unwrap() {
        rest.push(item);
    }
    assert_eq!(rest.len(), 2, "the requested changes, after which the stream ends with OK");
    server.shutdown().await;
}

#[tokio::test]
async fn changes_are_sent_on_request_in_localnetv1() {
    let server = Server::unix().await;
    let client = Client::localnetv1(server.channel().await).await;
    pull(server, client).await;
}

#[tokio::test]
async fn changes_are_sent_on_request_in_localv1() {
    let server = Server::tcp(&Default::default()).await;
    let client = Client::localv1(server.channel().await).await;
    pull(server, client).await;
}

#[tokio::test]
async fn a_new_stream_starts_with_the_full_state() {
    let server = Server::unix().await;
    server.feed.publish(applied([service("a", 1, 0)]));
    for _ in 0..2 {
        let mut client = Client::localnetv1(server.channel().await).await;
        client.request("").await;
        assert_eq!(client.set().await, ["reset", "+node", "+default/a", "sync"]);
    }
}

#[tokio::test]
async fn the_view_of_another_node_is_refused() {
    let server = Server::unix().await;
    server.feed.publish(node("node-a"));
    for own in ["", "node-a", "Node-A"] {
        let mut client = Client::localnetv1(server.channel().await).await;
        client.request(own).await;
        assert_eq!(client.set().await, ["reset", "+node", "sync"], "{own:?}");
    }
    for other in ["node-b", "no/node", "*"] {
        let mut client = Client::localnetv1(server.channel().await).await;
        client.request(other).await;
        let refused = client.failure().await;
        assert_eq!(refused.code(), Code::PermissionDenied, "{other:?}");
        assert!(refused.message().contains("--serve-node"), "{refused:?}");
    }
    // The same holds for a later request of a stream.
    let mut client = Client::localnetv1(server.channel().await).await;
    client.request("").await;
    client.set().await;
    client.request("node-b").await;
    assert_eq!(client.failure().await.code(), Code::PermissionDenied);
}

#[tokio::test]
async fn a_shutdown_ends_streams_with_unavailable() {
    let server = Server::unix().await;
    server.feed.publish(applied([service("a", 1, 0)]));
    let (mut waiting, mut idle) =
        (Client::localnetv1(server.channel().await).await, Client::localnetv1(server.channel().await).await);
    for client in [&mut waiting, &mut idle] {
        client.request("").await;
        client.set().await;
    }
    waiting.request("").await;
    server.begin_shutdown();
    for client in [&mut waiting, &mut idle] {
        assert_eq!(client.failure().await.code(), Code::Unavailable);
    }
    server.shutdown().await;
}

/// The server would otherwise keep the old state of a silent client in memory.
#[tokio::test(start_paused = true)]
async fn a_client_that_sends_no_request_loses_its_state() {
    let server = Server::unix().await;
    server.feed.publish(applied([service("watched", 1, 0)]));
    let mut items = server.feed.state().answer(Default::default(), false).items;
    let state = items.find(|item| item.windows(7).any(|part| part == b"watched")).unwrap();
    drop(items);
    let mut client = Client::localnetv1(server.channel().await).await;
    client.request("").await;
    client.set().await;
    server.feed.publish(removed("watched"));
    time::sleep(Duration::from_secs(300)).await;
    assert!(!state.is_unique(), "the client still has time");
    while !state.is_unique() {
        time::advance(Duration::from_secs(5)).await;
        tokio::task::yield_now().await;
    }
    client.request("").await;
    assert_eq!(client.failure().await.code(), Code::Aborted);
}

const CLUSTER: &str = "
apiVersion: v1
kind: Service
metadata: { name: web, namespace: default }
spec: { clusterIP: 10.96.0.10, internalTrafficPolicy: Local, ports: [{ name: http, port: 80 }] }
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: { name: web-1, namespace: default, labels: { kubernetes.io/service-name: web } }
addressType: IPv4
ports: [{ name: http, port: 8080, protocol: TCP }]
endpoints:
- { addresses: [10.1.0.1], nodeName: node-a, conditions: { ready: true } }
- { addresses: [10.1.1.1], nodeName: node-b, conditions: { ready: true } }
- { addresses: [10.1.1.2], nodeName: node-b, conditions: { ready: true } }
---
apiVersion: v1
kind: Node
metadata: { name: node-a }
---
apiVersion: v1
kind: Node
metadata: { name: node-b }
";

/// A server for node-a, and for the other nodes that `allowed` names.
async fn of_two_nodes(allowed: &[&str]) -> (Channel, Arc<TempDir>) {
    let folder = Arc::new(TempDir::new().unwrap());
    std::fs::write(folder.path().join("cluster.yaml"), CLUSTER).unwrap();
    let source: localnet_brain::source::Source =
        format!("file:{}", folder.path().join("cluster.yaml").display()).parse().unwrap();
    let open = move |name: String| {
        let source = source.clone();
        async move { start(&[source], Options::of_node(name), tokio::sync::watch::channel(NodeIps::default()).1).await }
    };
    let own = open("node-a".to_owned()).await.unwrap();
    let allowed: Vec<String> = allowed.iter().map(ToString::to_string).collect();
    let views =
        Views::with_others(own.feed().clone(), allowed.to_vec(), move |name| open(name).map_ok(Started::from).boxed());
    let address = Address::Unix(folder.path().join("brain.sock"));
    let listener = Listener::bind(&address, &Default::default()).await.unwrap();
    tokio::spawn(async move {
        let _own = own;
        let state = ServerState { views, reports: Reports::default(), questions: pump::questions().0, pushers: None };
        serve::run(vec![listener], state, std::future::pending()).await
    });
    let channel = soon(connect(address, Endpoint::from_static("http://brain"))).await.unwrap();
    (channel, folder)
}

/// The number of occurrences of each item.
fn counted(items: &[String]) -> BTreeMap<&str, usize> {
    let mut counted = BTreeMap::new();
    for item in items {
        *counted.entry(item.as_str()).or_default() += 1;
    }
    counted
}

#[tokio::test]
async fn the_view_of_an_allowed_node_is_served() {
    for allowed in [&["node-b"][..], &["*"], &["x", "node-b"]] {
        let (channel, _folder) = of_two_nodes(allowed).await;
        let mut client = Client::localnetv1(channel.clone()).await;
        client.request("node-a").await;
        let own = client.set().await;
        assert_eq!(counted(&own)["+default/web"], 1 + 3, "{own:?}");
        // The two views differ only in the endpoints, because each is local to one of the nodes.
        client.request("node-b").await;
        let other = client.set().await;
        assert_eq!((counted(&other).get("+default/web"), counted(&other).get("-default/web")), (Some(&3), Some(&3)));
        client.request("").await;
        assert_eq!(client.set().await.len(), other.len());

        let mut other = Client::localv1(channel).await;
        other.request("node-b").await;
        assert_eq!(counted(&other.set().await)["+default/web"], 1 + 3);
        if allowed[0] != "*" {
            other.request("node-c").await;
            assert_eq!(other.failure().await.code(), Code::PermissionDenied);
        }
    }
}
