//! Tests of reflection, `grpc.health.v1`, unknown methods and reports.

use futures::FutureExt as _;
use localnet_cluster::localize::Localized;
use localnet_proto::{
    traffic::{BackendTraffic, NodeTraffic, TrafficReport, TrafficRequest, traffic_client::TrafficClient},
    wire::{BackendReport, FamilyReport, IpFamily, backends_client::BackendsClient},
};
use prost::Message as _;
use tonic::{Code, transport::Channel};
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};
use tonic_reflection::pb::{v1, v1alpha};

use crate::server::{Server, soon};

const SERVICES: [&str; 9] = [
    "grpc.health.v1.Health",
    "grpc.reflection",
    "historyv1alpha1.History",
    "localnet.source.v1alpha1.SourceService",
    "localnetv1.Backends",
    "localnetv1.Endpoints",
    "localnetv1.Reasons",
    "localv1.Sets",
    "trafficv1alpha1.Traffic",
];

macro_rules! reflection {
    ($version:ident, $channel:expr) => {{
        use $version::{
            ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
            server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
        };
        let message = |request| ServerReflectionRequest { host: String::new(), message_request: Some(request) };
        let requests = [
            message(MessageRequest::ListServices(String::new())),
            message(MessageRequest::FileContainingSymbol("localnetv1.Endpoints".to_owned())),
        ];
        let mut client = ServerReflectionClient::new($channel);
        let mut answers =
            soon(client.server_reflection_info(futures::stream::iter(requests))).await.unwrap().into_inner();
        let MessageResponse::ListServicesResponse(list) =
            soon(answers.message()).await.unwrap().unwrap().message_response.unwrap()
        else {
            panic!("expected a list of services")
        };
        let MessageResponse::FileDescriptorResponse(file) =
            soon(answers.message()).await.unwrap().unwrap().message_response.unwrap()
        else {
            panic!("expected a file descriptor")
        };
        (list.service.into_iter().map(|service| service.name).collect::<Vec<_>>(), file.file_descriptor_proto)
    }};
}

fn check_reflection((mut services, files): (Vec<String>, Vec<Vec<u8>>)) {
    services.sort_unstable();
    assert_eq!(services.len(), SERVICES.len(), "{services:?}");
    for (service, expected) in services.iter().zip(SERVICES) {
        assert!(service.starts_with(expected), "{services:?}");
    }
    let file = prost_types::FileDescriptorProto::decode(&*files[0]).unwrap();
    assert_eq!(file.name(), "localnetv1.proto");
    let comments = file.source_code_info.unwrap().location;
    assert!(comments.iter().any(|location| location.leading_comments().contains("Next waits until the state differs")));
}

/// The names of the services that reflection lists.
pub(crate) async fn services(server: &Server) -> Vec<String> {
    reflection!(v1, server.channel().await).0
}

#[tokio::test]
async fn reflection_describes_all_services_with_their_comments() {
    let server = Server::unix().await;
    check_reflection(reflection!(v1, server.channel().await));
    check_reflection(reflection!(v1alpha, server.channel().await));
    server.shutdown().await;
}

async fn health(channel: Channel, service: &str) -> ServingStatus {
    let request = HealthCheckRequest { service: service.to_owned() };
    soon(HealthClient::new(channel).check(request)).await.unwrap().into_inner().status()
}

#[tokio::test]
async fn health_is_serving_from_the_first_state_until_the_shutdown() {
    let server = Server::unix().await;
    for service in ["", "localnetv1.Endpoints"] {
        assert_eq!(health(server.channel().await, service).await, ServingStatus::NotServing, "{service:?}");
    }
    let request = HealthCheckRequest { service: "localnetv1.Endpoints".to_owned() };
    let mut watch = soon(HealthClient::new(server.channel().await).watch(request)).await.unwrap().into_inner();
    assert_eq!(soon(watch.message()).await.unwrap().unwrap().status(), ServingStatus::NotServing);
    assert!(watch.message().now_or_never().is_none());

    server.feed.publish(Localized::default());
    assert_eq!(soon(watch.message()).await.unwrap().unwrap().status(), ServingStatus::Serving);
    for service in ["", "localnetv1.Endpoints"] {
        assert_eq!(health(server.channel().await, service).await, ServingStatus::Serving, "{service:?}");
    }
    server.begin_shutdown();
    assert_eq!(soon(watch.message()).await.unwrap().unwrap().status(), ServingStatus::NotServing);
    server.shutdown().await;
}

#[tokio::test]
async fn the_latest_report_of_a_backend_is_kept() {
    let server = Server::unix().await;
    let mut client = BackendsClient::new(server.channel().await);
    let family = |applied_rev, error: &str| FamilyReport {
        family: IpFamily::IPv4.into(),
        applied_rev,
        error: error.to_owned(),
        ..FamilyReport::default()
    };
    let report = |rev, family| BackendReport {
        backend: "nft".to_owned(),
        instance_id: 7,
        rev,
        families: vec![family],
        ..BackendReport::default()
    };
    soon(client.report(report(1, family(1, "")))).await.unwrap();
    let last = report(2, family(1, "no such device"));
    soon(client.report(last.clone())).await.unwrap();
    assert_eq!(server.reports.last("nft").unwrap().report, last);
    let error = soon(client.report(BackendReport::default())).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    assert_eq!(server.reports.all().len(), 1);
}

#[tokio::test]
async fn counted_traffic_of_a_backend_is_returned() {
    let server = Server::unix().await;
    let mut client = TrafficClient::new(server.channel().await);
    let report = |time_millis| TrafficReport { backend: "nft".to_owned(), time_millis, ..TrafficReport::default() };
    server.reports.record(BackendReport { backend: "nft".to_owned(), ..BackendReport::default() }).unwrap();
    assert_eq!(soon(client.read(TrafficRequest {})).await.unwrap().into_inner(), NodeTraffic::default());
    for time_millis in [1, 2] {
        soon(client.report(report(time_millis))).await.unwrap();
    }
    let backends = vec![BackendTraffic { last: Some(report(2)), previous: Some(report(1)) }];
    assert_eq!(soon(client.read(TrafficRequest {})).await.unwrap().into_inner(), NodeTraffic { backends });
}

#[tokio::test]
async fn unknown_methods_are_unimplemented() {
    let server = Server::unix().await;
    for path in ["/localnetv1.Endpoints/Other", "/localv1.Sets/Next", "/localnetv1.Sets/Watch", "/nothing"] {
        let mut client = tonic::client::Grpc::new(server.channel().await);
        client.ready().await.unwrap();
        let codec = tonic_prost::ProstCodec::<BackendReport, BackendReport>::default();
        let request = tonic::Request::new(BackendReport::default());
        let error = soon(client.unary(request, path.parse().unwrap(), codec)).await.unwrap_err();
        assert_eq!(error.code(), Code::Unimplemented, "{path}");
    }
}
