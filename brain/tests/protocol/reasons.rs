//! Tests of `Reasons`: explanations of Services, and the status of the brain.

use localnet_brain::pump;
use localnet_client::grpc::Brain;
use localnet_cluster::{
    Cluster, Options,
    localize::NodeIps,
    objects::{Event, Kind, NodeObject, Object, ServiceObject, SliceObject},
};
use localnet_proto::{
    reasons::Reasons,
    v1::{
        ErrorInfo,
        explain::wire::{ExplainServiceRequest, reasons_service_client::ReasonsServiceClient},
        wire as v1,
    },
    wire::{
        self, BackendReport, Nearness, Rule, ServiceKey, Standing, StatusRequest, backends_client::BackendsClient,
        reasons_client::ReasonsClient,
    },
};
use tokio::sync::{mpsc, watch};
use tonic::Code;

use crate::server::{INSTANCE, Server, at, soon};

const CLUSTER: &str = r#"{
    "service": {
        "metadata": {"namespace": "shop", "name": "web"},
        "spec": {"clusterIP": "10.96.0.1", "externalIPs": ["203.0.113.x"], "ports": [{"name": "http", "port": 80}]}
    },
    "slice": {
        "metadata": {"namespace": "shop", "name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080}],
        "endpoints": [
            {"addresses": ["10.1.0.1"], "conditions": {"ready": true}, "hints": {"forZones": [{"name": "b"}]}},
            {"addresses": ["10.1.0.2"], "conditions": {"ready": false}, "nodeName": "node-1"}
        ]
    },
    "node": {"metadata": {"name": "node-1", "labels": {"topology.kubernetes.io/zone": "a"}}}
}"#;

fn lists() -> Vec<Event> {
    use k8s_openapi::api::{core::v1, discovery::v1 as discovery};
    let objects: serde_json::Value = serde_json::from_str(CLUSTER).unwrap();
    let service: v1::Service = serde_json::from_value(objects["service"].clone()).unwrap();
    let slice: discovery::EndpointSlice = serde_json::from_value(objects["slice"].clone()).unwrap();
    let node: v1::Node = serde_json::from_value(objects["node"].clone()).unwrap();
    let of = |kind| match kind {
        Kind::Service => vec![Object::Service(ServiceObject::from(service.clone()))],
        Kind::Slice => vec![Object::Slice(SliceObject::from(slice.clone()))],
        Kind::Node => vec![Object::Node(NodeObject::from(node.clone()))],
        Kind::ServiceCidr => vec![],
    };
    Kind::ALL.map(|kind| Event::Replace { kind, objects: of(kind) }).into()
}

fn key(name: &str) -> ServiceKey {
    ServiceKey { namespace: "shop".to_owned(), name: name.to_owned() }
}

#[tokio::test]
async fn why_names_the_rule_that_excludes_an_endpoint() {
    let mut server = Server::draft().await;
    let mut client = ReasonsClient::new(server.channel().await);
    let mut draft = ReasonsServiceClient::new(server.channel().await);
    let (events, batches) = mpsc::channel(4);
    let (_ips, node_ips) = watch::channel(NodeIps::default());
    let questions = server.questions.take().unwrap();
    tokio::spawn(pump::run(
        Cluster::new(Options::of_node("node-1")),
        batches,
        (node_ips, watch::channel(None).1),
        questions,
        server.feed.clone(),
    ));

    let early = soon(client.why(key("web"))).await.unwrap_err();
    assert_eq!(early.code(), Code::Unavailable, "there is no state yet");
    assert_eq!(soon(client.status(StatusRequest {})).await.unwrap().into_inner().state.unwrap().rev, 0);
    let v1_key = |name: &str| v1::ServiceKey { namespace: "shop".to_owned(), name: name.to_owned() };
    let question = |service| ExplainServiceRequest { service };
    let early = soon(draft.explain_service(question(Some(v1_key("web"))))).await.unwrap_err();
    assert_eq!(early.code(), Code::Unavailable);

    let mut revisions = server.feed.subscribe();
    events.send(lists().into()).await.unwrap();
    soon(revisions.wait_for(|revision| revision.rev == 1)).await.unwrap();
    let why = soon(client.why(key("web"))).await.unwrap().into_inner();
    assert_eq!(why.standing(), Standing::Served);
    assert_eq!(why.state.unwrap(), wire::NextFilter { instance_id: INSTANCE, rev: 1, delta: false });
    assert_eq!((why.slices, why.endpoints, why.ineligible_count), (1, 2, 1));
    let ineligible = &why.ineligible[0];
    assert_eq!((ineligible.address.as_str(), ineligible.number, ineligible.local), ("10.1.0.2", 8080, true));
    assert_eq!((ineligible.rule(), ineligible.field.as_str()), (Rule::NotReady, "endpoints[1].conditions.ready"));
    assert!(ineligible.from.unwrap().internal);
    assert_eq!(why.findings[0].field, "spec.externalIPs[0]");
    assert!(why.findings[0].skipped);
    let topology = &why.topology[0];
    assert_eq!(
        (topology.nearness(), topology.not_same_zone.as_str()),
        (Nearness::Everywhere, "no endpoint is hinted for zone a")
    );

    // The package of localnet.v1 says the same.
    let explained = soon(draft.explain_service(question(Some(v1_key("web"))))).await.unwrap().into_inner();
    let web = localnet_proto::ServiceKey::new("shop", "web");
    assert_eq!(explained, Reasons::from(why).to_v1(&web, at(1)));
    for odd in [None, Some(v1_key(""))] {
        let status = soon(draft.explain_service(question(odd))).await.unwrap_err();
        let field = ErrorInfo::of(&status).unwrap().metadata.remove("field");
        assert_eq!((status.code(), field.as_deref()), (Code::InvalidArgument, Some("service")));
    }

    let absent = soon(client.why(key("nothing"))).await.unwrap().into_inner();
    assert_eq!((absent.standing(), absent.ineligible_count), (Standing::Absent, 0));
    for odd in [ServiceKey::default(), key("")] {
        assert_eq!(soon(client.why(odd)).await.unwrap_err().code(), Code::InvalidArgument);
    }
    server.shutdown().await;
}

#[tokio::test]
async fn status_contains_the_reports_of_the_backends() {
    let server = Server::unix().await;
    let report = BackendReport { backend: "nft".to_owned(), instance_id: INSTANCE, rev: 3, ..BackendReport::default() };
    soon(BackendsClient::new(server.channel().await).report(report.clone())).await.unwrap();
    let mut client = ReasonsClient::new(server.channel().await);
    let status = soon(client.status(StatusRequest {})).await.unwrap().into_inner();
    assert_eq!(status.backends.len(), 1);
    assert_eq!(status.backends[0].report, Some(report));
    assert!(status.backends[0].age_millis < 20_000);
    assert_eq!(status.version, env!("CARGO_PKG_VERSION"));
    server.shutdown().await;
}

#[tokio::test]
async fn the_largest_reports_fit_into_the_status() {
    let server = Server::unix().await;
    let skipped = wire::SkippedService { reason: "x".repeat(7000), ..wire::SkippedService::default() };
    for number in 0..64 {
        let backend = format!("nft-{number}");
        let report = BackendReport { backend, skipped: vec![skipped.clone(); 256], ..BackendReport::default() };
        server.reports.record(report).unwrap();
    }
    let brain = Brain::new(server.address.clone(), None).unwrap();
    assert_eq!(soon(brain.status()).await.unwrap().backends.len(), 64);
    server.shutdown().await;
}
