//! Tests of `StateService.NextState` of the draft `localnet.v1`: what it answers, and when.

use futures::FutureExt as _;
use localnet_cluster::{localize::Localized, objects::Publish};
use localnet_proto::{
    Change, Endpoint, EndpointPort, Facts, Origin, Revision, Scopes, Service, ServiceKey, Snapshot, SourceFilter,
    Update,
    v1::{
        Answer, ErrorInfo, Reader, dns,
        wire::{
            self, Capability, ErrorReason, MetadataSelector, NextStateRequest, NextStateResponse, View,
            state_service_client::StateServiceClient,
        },
    },
};
use tonic::{Code, Status, Streaming};
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};

use crate::server::{Server, applied, at, node, removed, service, soon};

/// A reader on its own connection.
struct Client(StateServiceClient<tonic::transport::Channel>, Reader);

impl Client {
    async fn of(server: &Server) -> Self {
        Self(StateServiceClient::new(server.channel().await), Reader::default())
    }

    /// A request with the token that the reader has.
    fn request(&self) -> NextStateRequest {
        let capabilities = vec![Capability::SourceFilters.into()];
        let reader = Some(wire::Reader { name: "test".to_owned(), capabilities, ..wire::Reader::default() });
        NextStateRequest { reader, token: self.1.token().to_owned(), ..NextStateRequest::default() }
    }

    async fn call(&mut self, request: NextStateRequest) -> Result<Streaming<NextStateResponse>, Status> {
        Ok(soon(self.0.next_state(request)).await?.into_inner())
    }

    async fn answered(&mut self, request: NextStateRequest) -> Result<Update, Status> {
        let stream = self.call(request).await?;
        let answer = collected(stream).await?;
        Ok(self.1.accept(answer).unwrap().unwrap())
    }

    async fn read(&mut self) -> Update {
        let request = self.request();
        self.answered(request).await.unwrap()
    }
}

async fn collected(mut stream: Streaming<NextStateResponse>) -> Result<Answer, Status> {
    let mut answer = Answer::default();
    while let Some(message) = soon(stream.message()).await? {
        answer.push(message);
    }
    Ok(answer)
}

fn full(server: &Server) -> Update {
    Update::Full(server.feed.state().snapshot().unwrap())
}

#[tokio::test]
async fn the_long_poll_waits_for_a_change_and_sends_it() {
    let server = Server::draft().await;
    let mut client = Client::of(&server).await;
    let mut waiting = client.call(client.request()).await.unwrap();
    assert!(waiting.message().now_or_never().is_none(), "there is no state");
    server.feed.publish(applied([service("a", 1, 0), service("b", 1, 0)]));
    let answer = collected(waiting).await.unwrap();
    assert_eq!(client.1.accept(answer).unwrap().unwrap(), full(&server));

    let mut waiting = client.call(client.request()).await.unwrap();
    assert!(waiting.message().now_or_never().is_none(), "nothing has changed");
    server.feed.publish(removed("a"));
    let answer = collected(waiting).await.unwrap();
    let gone = Change::Removed(ServiceKey::new("default", "a"));
    assert_eq!(client.1.accept(answer).unwrap().unwrap(), Update::Delta { revision: at(2), changes: vec![gone] });
    server.feed.publish(node("node-a"));
    let Update::Delta { changes, .. } = client.read().await else { panic!("the node alone") };
    assert_eq!(changes, [Change::Node(server.feed.state().node().clone())]);
    server.shutdown().await;
}

#[tokio::test]
async fn a_token_resumes_on_a_new_connection_unless_the_options_differ() {
    let server = Server::draft().await;
    server.feed.publish(applied([service("a", 1, 0)]));
    let mut client = Client::of(&server).await;
    client.read().await;
    server.feed.publish(applied([service("b", 1, 0)]));
    let mut resumed = Client(Client::of(&server).await.0, client.1.clone());
    assert!(matches!(resumed.read().await, Update::Delta { .. }));

    let request = resumed.request();
    let other = NextStateRequest { reader: None, ..request.clone() };
    let unknown = NextStateRequest { token: "7.2.1".to_owned(), ..request.clone() };
    for request in [other, unknown] {
        assert_eq!(resumed.answered(request.clone()).await.unwrap(), full(&server), "{request:?}");
    }
    // A reader that wants the full state still waits for a change.
    let whole = NextStateRequest { full: true, ..request };
    let mut waiting = resumed.call(whole.clone()).await.unwrap();
    assert!(waiting.message().now_or_never().is_none());
    server.feed.publish(removed("a"));
    let answer = collected(waiting).await.unwrap();
    assert_eq!(resumed.1.accept(answer).unwrap().unwrap(), full(&server));
    server.shutdown().await;
}

#[tokio::test]
async fn a_service_is_withheld_from_a_reader_that_lacks_a_capability() {
    let server = Server::draft().await;
    let target = [192, 0, 2, 1].into();
    let mut filtered = Service::clone(&service("a", 1, 0));
    filtered.load_balancer_ips = vec![target];
    filtered.source_filters = vec![SourceFilter { targets: vec![target], source_ranges: Vec::new() }];
    server.feed.publish(applied([filtered.into(), service("b", 1, 0)]));
    let mut client = Client::of(&server).await;
    assert_eq!(client.read().await, full(&server));
    assert_eq!(client.1.withheld().count(), 0);

    let mut lacking = Client::of(&server).await;
    let Update::Full(state) = lacking.answered(NextStateRequest::default()).await.unwrap() else { panic!("no token") };
    assert_eq!(lacking.1.withheld().map(|key| &*key.name).collect::<Vec<_>>(), ["a"]);
    assert_eq!(state.services.len(), 2);
    assert_eq!(lacking.1.digest(), client.1.digest(), "one digest is right for all readers");
    server.shutdown().await;
}

/// The code and the reason with which a request is refused.
async fn refused(client: &mut Client, request: NextStateRequest) -> (Code, ErrorInfo) {
    let status = match client.call(request).await {
        Err(status) => status,
        Ok(stream) => collected(stream).await.unwrap_err(),
    };
    (status.code(), ErrorInfo::of(&status).unwrap_or_else(|| panic!("{status:?} has no reason")))
}

#[tokio::test]
async fn errors_have_reasons() {
    let server = Server::draft().await;
    server.feed.publish(node("node-a"));
    let mut client = Client::of(&server).await;
    let other = NextStateRequest { node_name: "node-b".to_owned(), ..NextStateRequest::default() };
    let expected = ErrorInfo::new(ErrorReason::NodeNotServed).with("requestedNode", "node-b").with("node", "node-a");
    assert_eq!(refused(&mut client, other).await, (Code::PermissionDenied, expected));
    let own = NextStateRequest { node_name: "node-a".to_owned(), ..client.request() };
    assert_eq!(client.answered(own).await.unwrap(), full(&server));

    let metadata = MetadataSelector { label_keys: vec!["app".to_owned()], ..MetadataSelector::default() };
    let labels = NextStateRequest { metadata: Some(metadata), ..NextStateRequest::default() };
    let expected = ErrorInfo::new(ErrorReason::NotPublished).with("field", "metadata.label_keys").with("key", "app");
    assert_eq!(refused(&mut client, labels).await, (Code::PermissionDenied, expected));

    let waiting = client.call(client.request()).await.unwrap();
    server.begin_shutdown();
    let status = collected(waiting).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(ErrorInfo::of(&status), Some(ErrorInfo::new(ErrorReason::ShuttingDown)));
    server.shutdown().await;
}

#[tokio::test]
async fn a_reader_gets_the_metadata_and_details_that_it_selects() {
    let server = Server::publishing(Publish { labels: vec!["app".to_owned()], annotations: Vec::new() }).await;
    let mut web = Service::clone(&service("a", 1, 0));
    let port = EndpointPort { name: "".into(), port: 8080 };
    let place = ([10, 1, 0, 1].into(), port.clone());
    web.endpoints = vec![Endpoint {
        address: place.0,
        ports: vec![port],
        local: false,
        hostname: None,
        scopes: Scopes { internal: true, ..Scopes::default() },
        weight: None,
    }];
    let origin = Origin { node: "node-b".into(), ..Origin::default() };
    let labels = [("app".into(), "web".into())].into();
    let facts = Facts { uid: "1".into(), labels, origins: [(place, origin)].into(), ..Facts::default() };
    web.facts = facts.known();
    server.feed.publish(applied([web.clone().into()]));
    let metadata = MetadataSelector { label_keys: vec!["app".to_owned()], ..MetadataSelector::default() };
    let mut client = Client::of(&server).await;
    let selected = NextStateRequest { metadata: Some(metadata), endpoint_details: true, ..client.request() };
    let Update::Full(state) = client.answered(selected).await.unwrap() else { panic!("no token") };
    assert_eq!(*state.services[&web.key], web);
    let mut client = Client::of(&server).await;
    let Update::Full(state) = client.read().await else { panic!("no token") };
    let facts = Facts { uid: "1".into(), ..Facts::default() }.known();
    assert_eq!(*state.services[&web.key], Service { facts, ..web });
    server.shutdown().await;
}

/// The Services in an answer of the view for DNS, `-` if they were removed.
async fn names(client: &mut Client, token: &str) -> Result<(String, Vec<String>), Status> {
    let request = NextStateRequest { token: token.to_owned(), view: View::Dns.into(), ..NextStateRequest::default() };
    let mut stream = client.call(request).await?;
    let (mut token, mut services) = (String::new(), Vec::new());
    while let Some(message) = soon(stream.message()).await? {
        token.extend(message.commit.map(|commit| commit.token));
        services.extend(message.services.into_iter().map(|update| {
            let name = update.key.unwrap_or_default().name;
            if update.removed { format!("-{name}") } else { format!("{name} {}", update.endpoints.len()) }
        }));
    }
    Ok((token, services))
}

#[tokio::test]
async fn the_view_for_dns_has_its_own_states() {
    let server = Server::dns().await;
    let named = |name: &str, last: Option<u8>| {
        let endpoint = |last| dns::Endpoint {
            address: [10, 1, 0, last].into(),
            hostname: None,
            ports: [].into(),
            origin: Origin::default(),
        };
        let service = dns::Service {
            key: ServiceKey::new("default", name),
            kind: "ClusterIP".to_owned(),
            cluster_ips: Vec::new(),
            external_name: None,
            ports: Vec::new(),
            endpoints: last.map(endpoint).into_iter().collect(),
        };
        Localized { names: vec![(service.key.clone(), Some(service.into()))], ..Localized::default() }
    };
    let first = applied([service("a", 1, 0)]);
    server.feed.publish(Localized { names: named("b", Some(1)).names, ..first });
    let mut client = Client::of(&server).await;
    let (token, services) = names(&mut client, "").await.unwrap();
    assert_eq!(services, ["b 1"]);
    assert_eq!(client.read().await, full(&server));
    assert_eq!(client.1.withheld().count() + server.feed.state().len(), 1, "proxies see one Service");

    let mut waiting = client.call(client.request()).await.unwrap();
    server.feed.publish(named("b", Some(2)));
    assert_eq!(names(&mut client, &token).await.unwrap().1, ["b 1"], "another endpoint");
    assert!(waiting.message().now_or_never().is_none(), "nothing has changed for proxies");
    assert_eq!(server.feed.state().revision(), at(1));
    let key = ServiceKey::new("default", "b");
    server.feed.publish(Localized { names: vec![(key, None)], ..Localized::default() });
    assert_eq!(names(&mut client, &token).await.unwrap().1, ["-b"]);
    let of_other = client.1.token().to_owned();
    let (_, services) = names(&mut client, &of_other).await.unwrap();
    assert_eq!(services, [""; 0], "a token of the other view yields the full state");
    server.shutdown().await;
}

#[tokio::test]
async fn a_view_that_is_not_served_is_refused() {
    for (server, view, reason) in [
        (Server::draft().await, View::Dns.into(), ErrorReason::NotPublished),
        (Server::dns().await, 99, ErrorReason::InvalidRequest),
    ] {
        server.feed.publish(node("node-a"));
        let mut client = Client::of(&server).await;
        let request = NextStateRequest { view, ..client.request() };
        let (code, info) = refused(&mut client, request).await;
        assert_eq!((code, info.reason), (ErrorInfo::code(reason), reason));
        server.shutdown().await;
    }
}

#[tokio::test]
async fn large_states_are_sent_in_messages_of_limited_size() {
    let server = Server::draft().await;
    server.feed.publish(applied((0..2000).map(|number| service(&format!("s{number}"), 1, 0))));
    let mut client = Client::of(&server).await;
    let mut stream = client.call(client.request()).await.unwrap();
    let (mut answer, mut messages) = (Answer::default(), 0);
    while let Some(message) = soon(stream.message()).await.unwrap() {
        let size = prost::Message::encoded_len(&message);
        assert!(size < 80 << 10, "{size} bytes");
        messages += 1;
        answer.push(message);
    }
    assert!((2..2000).contains(&messages), "{messages} messages");
    let mut state = Snapshot::default();
    state.apply(client.1.accept(answer).unwrap().unwrap());
    assert_eq!(state, server.feed.state().snapshot().unwrap());
    server.shutdown().await;
}

#[tokio::test]
async fn without_the_flag_the_draft_is_not_served() {
    for draft in [false, true] {
        let server = if draft { Server::draft().await } else { Server::unix().await };
        server.feed.publish(applied([service("a", 1, 0)]));
        let mut client = Client::of(&server).await;
        let answered = match client.call(client.request()).await {
            Ok(stream) => collected(stream).await.map(drop),
            Err(status) => Err(status),
        };
        assert_eq!(answered.map_err(|status| status.code()), if draft { Ok(()) } else { Err(Code::Unimplemented) });
        let request = HealthCheckRequest { service: "localnet.v1.StateService".to_owned() };
        let health = soon(HealthClient::new(server.channel().await).check(request)).await;
        let health = health.map(|health| health.into_inner().status()).map_err(|status| status.code());
        assert_eq!(health, if draft { Ok(ServingStatus::Serving) } else { Err(Code::NotFound) });
        let described = crate::introspection::services(&server).await;
        let reasons = "localnet.reasons.v1alpha1.ReasonsService";
        for name in ["localnet.v1.StateService", "localnet.v1.BackendService", reasons] {
            assert_eq!(described.iter().any(|described| described == name), draft, "{described:?}");
        }
        assert_eq!(server.feed.state().revision(), Revision { instance: 7, rev: 1 });
        server.shutdown().await;
    }
}
