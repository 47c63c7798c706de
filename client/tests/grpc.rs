//! The gRPC source against a small server written from the generated code: what a broken or strange peer does to it.
#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{path::Path, sync::Arc};

use localnet_client::{Looks, Report, Revision, RuleCount, Skipped, Source as _, SourceError, Warning, grpc::Brain};
use localnet_proto::{Address, Node, ServiceKey, Snapshot, Update, encode, wire};
use tokio::{net::UnixListener, sync::Mutex, task::JoinHandle};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status, transport::Server};
use wire::{
    backends_server::{Backends, BackendsServer},
    endpoints_server::{Endpoints, EndpointsServer},
};

type Items = Vec<Result<wire::NextItem, Status>>;

/// Answers every call with the same items, and remembers what it was asked.
#[derive(Clone, Default)]
struct Peer {
    items: Arc<Mutex<Items>>,
    asked: Arc<Mutex<Vec<wire::NextFilter>>>,
    reports: Arc<Mutex<Vec<wire::BackendReport>>>,
}

#[tonic::async_trait]
impl Endpoints for Peer {
    type NextStream = tokio_stream::Iter<std::vec::IntoIter<Result<wire::NextItem, Status>>>;

    async fn next(&self, request: Request<wire::NextFilter>) -> Result<Response<Self::NextStream>, Status> {
        self.asked.lock().await.push(request.into_inner());
        Ok(Response::new(tokio_stream::iter(self.items.lock().await.clone())))
    }

    type WatchStream = tokio_stream::Empty<Result<wire::OpItem, Status>>;

    async fn watch(&self, _: Request<tonic::Streaming<wire::WatchReq>>) -> Result<Response<Self::WatchStream>, Status> {
        Err(Status::unimplemented("KPNG's clients are not expected here"))
    }
}

#[tonic::async_trait]
impl Backends for Peer {
    async fn report(
        &self,
        request: Request<wire::BackendReport>,
    ) -> Result<Response<wire::BackendReportReply>, Status> {
        self.reports.lock().await.push(request.into_inner());
        Ok(Response::new(wire::BackendReportReply {}))
    }
}

fn serve(path: &Path, peer: &Peer) -> JoinHandle<()> {
    let listener = UnixListenerStream::new(UnixListener::bind(path).unwrap());
    let server = Server::builder()
        .add_service(EndpointsServer::new(peer.clone()))
        .add_service(BackendsServer::new(peer.clone()));
    tokio::spawn(async move { server.serve_with_incoming(listener).await.unwrap() })
}

fn full(rev: u64) -> Items {
    let revision = Revision { instance: 9, rev };
    vec![Ok(encode::next_item(revision, false)), Ok(encode::node_item(&Node::default()))]
}

#[tokio::test]
async fn answers_become_updates_and_broken_ones_never_happened() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("brain.sock");
    let brain = Brain::new(Address::Unix(path.clone()), None).unwrap();
    let absent = brain.next(Revision::default(), false).await.unwrap_err();
    assert!(matches!(&absent, SourceError::Unreachable(text) if text.contains("No such file")), "{absent}");

    let peer = Peer::default();
    serve(&path, &peer);
    let revision = Revision { instance: 9, rev: 4 };
    *peer.items.lock().await = full(4);
    let state = Snapshot { revision, ..Snapshot::default() };
    assert_eq!(brain.next(Revision { instance: 9, rev: 3 }, true).await, Ok(Update::Full(state)));
    assert_eq!(peer.asked.lock().await[0], wire::NextFilter { instance_id: 9, rev: 3, delta: true });

    peer.items.lock().await.push(Err(Status::aborted("brain is going down")));
    let broken = brain.next(revision, true).await;
    assert_eq!(broken, Err(SourceError::Broken("Aborted: brain is going down".to_owned())));

    *peer.items.lock().await = Vec::new();
    let empty = brain.next(revision, true).await;
    assert_eq!(empty, Err(SourceError::Invalid("answer: Next: the answer is empty".to_owned())));
}

#[tokio::test]
async fn a_pipe_is_dialled_on_windows_alone() {
    let error = Brain::new(Address::Pipe("localnet".to_owned()), None).map(drop).unwrap_err().to_string();
    assert_eq!(
        error,
        "npipe:////./pipe/localnet: only Windows has named pipes; use unix:///absolute/path or tcp://host:port"
    );
}

#[tokio::test]
async fn reports_arrive_family_by_family() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("brain.sock");
    let peer = Peer::default();
    serve(&path, &peer);
    let rules = vec![RuleCount { table: "nat", total: 70, last: 7 }];
    let outcome = |error: Option<&str>| localnet_client::Outcome {
        applied: 3,
        error: error.map(str::to_owned),
        failures: 2,
        partial_failures: 1,
        flows: Some(Looks { ended: 5, ..Looks::default() }),
        rules: rules.clone(),
        ..Default::default()
    };
    let families = localnet_proto::Family::BOTH.into_iter().zip([outcome(None), outcome(Some("no"))]).collect();
    let skipped = Skipped { service: ServiceKey::new("ns", "odd"), reason: "too odd".to_owned() };
    let skipped = vec![skipped; 300];
    let warnings = vec![Warning { reason: "TooOld", note: "take another one" }];
    let report = Report { backend: "nft", received: Revision { instance: 9, rev: 4 }, families, skipped, warnings };
    Brain::new(Address::Unix(path), None).unwrap().report(&report).await.unwrap();
    let family = |family: wire::IpFamily, error: &str| wire::FamilyReport {
        family: family.into(),
        applied_rev: 3,
        error: error.to_owned(),
        full: Some(wire::Attempts { counts: vec![0; 16], sum_micros: 0 }),
        partial: Some(wire::Attempts { counts: vec![0; 16], sum_micros: 0 }),
        failures: 2,
        partial_failures: 1,
        flows: Some(wire::FlowLooks { took: Some(wire::Attempts { counts: vec![0; 16], sum_micros: 0 }), ended: 5 }),
        rules: vec![wire::RuleCount { table: "nat".to_owned(), total: 70, last: 7 }],
    };
    let families = vec![family(wire::IpFamily::IPv4, ""), family(wire::IpFamily::IPv6, "no")];
    let service = wire::ServiceKey { namespace: "ns".to_owned(), name: "odd".to_owned() };
    let skipped = wire::SkippedService { service: Some(service), reason: "too odd".to_owned() };
    let expected = wire::BackendReport {
        backend: "nft".to_owned(),
        instance_id: 9,
        rev: 4,
        families,
        skipped: vec![skipped; 256],
        skipped_count: 300,
        warnings: vec![wire::BackendWarning { reason: "TooOld".to_owned(), note: "take another one".to_owned() }],
    };
    assert_eq!(*peer.reports.lock().await, [expected]);
}
