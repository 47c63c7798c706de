//! Records of the draft `localnet.v1`.

use std::{net::IpAddr, sync::Arc};

use localnet_proto::{
    Change, Endpoint, EndpointPort, Facts, Origin, Revision, Service, ServiceKey, Snapshot, SourceFilter, TargetRef,
    Update,
    v1::{
        Answer, Reader, Rejected,
        encode::{self, Head, Tail},
        wire::{
            self, AddressKind, Begin, Capability, Commit, NextStateResponse, ServiceAddress, ServicePort, ServiceUpdate,
        },
    },
};
use proptest::{collection::vec, prelude::*};
use prost::Message as _;

use crate::snapshot;

/// The record of a Service with all labels and annotations.
fn service_record(Head { record, selectable, .. }: &Head) -> wire::Service {
    let selectable = selectable.iter().map(|of| &of.bytes);
    let parts: Vec<&[u8]> = std::iter::once(&record.bytes).chain(selectable).map(|bytes| &bytes[..]).collect();
    wire::Service::decode(&*parts.concat()).unwrap()
}

/// The record of an endpoint with its details.
fn endpoint_record(Tail { record, details, .. }: Tail) -> wire::Endpoint {
    wire::Endpoint::decode(&*[record.bytes, details].concat()).unwrap()
}

/// The state with facts about each Service.
fn with_facts(mut state: Snapshot) -> Snapshot {
    for service in state.services.values_mut().map(Arc::make_mut) {
        let origin = |address: IpAddr| {
            let target = TargetRef { kind: "Pod".into(), name: address.to_string().into(), ..TargetRef::default() };
            let zone = if address.is_ipv4() { "a".into() } else { "".into() };
            Origin { node: "node-b".into(), zone, target: address.is_ipv4().then(|| target.into()) }
        };
        let places = service
            .endpoints
            .iter()
            .flat_map(|endpoint| endpoint.ports.iter().map(move |port| (endpoint.address, port.clone())));
        let facts = Facts {
            uid: format!("uid of {}", service.key).into(),
            app_protocols: service.ports.iter().take(1).map(|port| (port.name.clone(), "h2c".into())).collect(),
            labels: [("app".into(), "".into()), ("tier".into(), service.key.name.clone())].into(),
            annotations: [("app".into(), "web".into())].into(),
            origins: places.map(|place| (place.clone(), origin(place.0))).collect(),
        };
        service.facts = facts.known();
    }
    state
}

fn update(service: &Service) -> ServiceUpdate {
    let endpoints = encode::endpoints(service).map(endpoint_record);
    ServiceUpdate {
        key: Some(key(&service.key)),
        service: Some(service_record(&encode::head(service))),
        endpoints: endpoints.collect(),
        ..ServiceUpdate::default()
    }
}

fn key(key: &ServiceKey) -> wire::ServiceKey {
    wire::ServiceKey { namespace: key.namespace.to_string(), name: key.name.to_string() }
}

fn begin(revision: Revision, base: &str) -> Option<Begin> {
    let revision = wire::Revision { instance: format!("{:016x}", revision.instance), number: revision.rev };
    Some(Begin { revision: Some(revision), base: base.to_owned() })
}

/// A full state, with a message for each Service.
fn full(state: &Snapshot) -> Vec<NextStateResponse> {
    let node = wire::NodeState::decode(encode::node(&state.node).bytes).unwrap();
    let first = NextStateResponse { begin: begin(state.revision, ""), node: Some(node), ..Default::default() };
    let services = state
        .services
        .values()
        .map(|service| NextStateResponse { services: vec![update(service)], ..NextStateResponse::default() });
    let mut messages: Vec<_> = std::iter::once(first).chain(services).collect();
    let commit = Commit { token: format!("token {}", state.revision), digest: encode::digest(state).0 };
    messages.last_mut().unwrap().commit = Some(commit);
    messages
}

fn accepted(
    reader: &mut Reader,
    messages: impl IntoIterator<Item = NextStateResponse>,
) -> Result<Option<Update>, Rejected> {
    let mut answer = Answer::default();
    messages.into_iter().for_each(|message| answer.push(message));
    reader.accept(answer)
}

proptest! {
    #[test]
    fn full_states_round_trip(snapshot in snapshot().prop_map(with_facts)) {
        let mut reader = Reader::default();
        let update = accepted(&mut reader, full(&snapshot));
        prop_assert_eq!(update, Ok(Some(Update::Full(snapshot.clone()))));
        prop_assert_eq!(reader.digest(), encode::digest(&snapshot));
        prop_assert_eq!(reader.token(), format!("token {}", snapshot.revision));
    }

    #[test]
    fn no_bytes_make_the_reader_panic(
        bytes in vec(vec(any::<u8>(), 0..64), 0..4), snapshot in snapshot(), cut in any::<prop::sample::Index>(),
    ) {
        let mut encoded: Vec<Vec<u8>> = full(&snapshot).iter().map(prost::Message::encode_to_vec).collect();
        let at = cut.index(encoded.len());
        encoded.splice(at..at, bytes);
        let mut reader = Reader::default();
        let messages = encoded.iter().filter_map(|bytes| NextStateResponse::decode(bytes.as_slice()).ok());
        if accepted(&mut reader, messages).is_err() {
            prop_assert_eq!((reader.token(), reader.digest().0), ("", 0));
        }
    }
}

/// A state with one Service with two endpoints.
fn state() -> Snapshot {
    let endpoint = |last: u8| localnet_proto::Endpoint {
        address: [10, 1, 0, last].into(),
        ports: Vec::new(),
        local: false,
        hostname: None,
        scopes: localnet_proto::Scopes::default(),
        weight: None,
    };
    let service = Service::new(ServiceKey::new("shop", "web"), vec![[10, 96, 0, 1].into()]);
    let service = Service { endpoints: vec![endpoint(1), endpoint(2)], ..service };
    let services = [(service.key.clone(), Arc::new(service))].into();
    Snapshot { revision: Revision { instance: 7, rev: 1 }, services, ..Snapshot::default() }
}

/// The answer that continues `state`, without endpoint 1.
fn next(state: &Snapshot) -> (NextStateResponse, Arc<Service>) {
    let mut after = state.clone();
    let service = after.services.values_mut().next().map(Arc::make_mut).unwrap();
    service.endpoints.remove(0);
    let service = Arc::new(service.clone());
    let gone = wire::EndpointKey { address: "10.1.0.1".to_owned(), ordinal: 0 };
    let update =
        ServiceUpdate { key: Some(key(&service.key)), removed_endpoints: vec![gone], ..ServiceUpdate::default() };
    let message = NextStateResponse {
        begin: begin(Revision { instance: 7, rev: 2 }, "token 7:1"),
        services: vec![update],
        commit: Some(Commit { token: "second".to_owned(), digest: encode::digest(&after).0 }),
        ..NextStateResponse::default()
    };
    (message, service)
}

#[test]
fn a_reader_notices_what_it_has_lost() {
    let state = state();
    let (good, service) = next(&state);
    let read = |change: &dyn Fn(&mut NextStateResponse)| {
        let (mut reader, mut message) = (Reader::default(), good.clone());
        accepted(&mut reader, full(&state)).unwrap();
        change(&mut message);
        let update = accepted(&mut reader, [message]);
        (update.map_err(|rejected| rejected.to_string()), reader.token().to_owned())
    };
    let lost = |what: &str| (Err(format!("the state is incomplete: {what}; reading it again")), String::new());
    let delta = Update::Delta { revision: Revision { instance: 7, rev: 2 }, changes: vec![Change::Service(service)] };
    assert_eq!(read(&|_| {}), (Ok(Some(delta)), "second".to_owned()));
    assert_eq!(read(&|message| message.commit = None), (Ok(None), "token 7:1".to_owned()), "nothing has happened");
    let base = |message: &mut NextStateResponse| message.begin.as_mut().unwrap().base = "other".to_owned();
    assert_eq!(read(&base), lost("the answer continues another state"));
    let removal = |message: &mut NextStateResponse| message.services[0].removed_endpoints.clear();
    assert_eq!(read(&removal), lost("the sum of the digests differs"));
    let other = |message: &mut NextStateResponse| message.services[0].key.as_mut().unwrap().name = "db".to_owned();
    assert_eq!(read(&other), lost("the answer changes a Service that the reader does not have"));
}

/// The answer says that its parts are the whole Service, so what the reader had of it is gone.
#[test]
fn replace_discards_the_endpoints_of_a_service() {
    let state = state();
    let (mut message, service) = next(&state);
    message.services = vec![ServiceUpdate { replace: true, ..update(&service) }];
    let mut reader = Reader::default();
    accepted(&mut reader, full(&state)).unwrap();
    let revision = Revision { instance: 7, rev: 2 };
    let expected = Update::Delta { revision, changes: vec![Change::Service(service)] };
    assert_eq!(accepted(&mut reader, [message]), Ok(Some(expected)));
}

/// Two Pods that use the host's network may serve different ports of one address.
#[test]
fn an_endpoint_has_the_details_on_which_its_ports_agree() {
    let port = |number: u16| EndpointPort { name: number.to_string().into(), port: number };
    let address: IpAddr = [10, 1, 0, 1].into();
    let origin = |pod: &str| {
        let target = TargetRef { name: pod.into(), ..TargetRef::default() };
        Origin { node: "a".into(), zone: Arc::default(), target: Some(target.into()) }
    };
    let details = |origins: &[(u16, Origin)]| {
        let origins = origins.iter().map(|(number, origin)| ((address, port(*number)), origin.clone())).collect();
        let endpoint = Endpoint {
            ports: vec![port(1), port(2)],
            ..state().services.into_values().next().unwrap().endpoints[0].clone()
        };
        let facts = Facts { origins, ..Facts::default() }.known();
        let service = Service { endpoints: vec![endpoint], facts, ..Service::default() };
        let tail = encode::endpoints(&service).next().unwrap();
        endpoint_record(tail).details.map(|details| (details.node_name, details.target_ref.map(|target| target.name)))
    };
    assert_eq!(details(&[]), None);
    assert_eq!(details(&[(1, origin("x")), (2, origin("x"))]), Some(("a".into(), Some("x".into()))));
    assert_eq!(details(&[(1, origin("x")), (2, origin("y"))]), Some(("a".into(), None)));
    assert_eq!(details(&[(2, origin("y"))]), None, "port 1 has no origin");
}

#[test]
fn the_error_for_an_invalid_record_names_the_field() {
    let service = |change: &dyn Fn(&mut wire::Service)| {
        let mut messages = full(&state());
        change(messages[1].services[0].service.as_mut().unwrap());
        accepted(&mut Reader::default(), messages).unwrap_err().to_string()
    };
    let port = |port: ServicePort| service(&|service| service.ports = vec![port.clone()]);
    let web = "the answer is invalid: service shop/web: ";
    assert_eq!(
        service(&|service| service.addresses.clear()),
        format!("{web}addresses: must contain at least one ClusterIP")
    );
    let bad = ServiceAddress { address: "10.0.0".to_owned(), kind: AddressKind::ClusterIp.into() };
    assert_eq!(
        service(&|service| service.addresses.push(bad.clone())),
        format!("{web}addresses: \"10.0.0\": invalid IP address syntax")
    );
    assert_eq!(port(ServicePort { number: 80, ..Default::default() }), format!("{web}ports: a port has no protocol"));
    let number = ServicePort { number: 70_000, protocol: 1, ..Default::default() };
    assert_eq!(port(number), format!("{web}ports: 70000 is not a port (1-65535)"));
    let filter = |addresses: &[&str]| wire::SourceFilter {
        addresses: addresses.iter().map(|address| (*address).to_owned()).collect(),
        source_ranges: Vec::new(),
    };
    let filters = [(&["192.0.2.1", "fd00::1"][..], "a filter mixes IPv4 and IPv6"), (&[], "a filter has no addresses")];
    for (addresses, problem) in filters {
        let error = service(&|service| service.source_filters = vec![filter(addresses)]);
        assert_eq!(error, format!("{web}source_filters: {problem}"));
    }
    let mut messages = full(&state());
    messages[1].services[0].endpoints[0].address = "web".to_owned();
    let error = accepted(&mut Reader::default(), messages).unwrap_err().to_string();
    assert_eq!(error, format!("{web}endpoints.address: \"web\": invalid IP address syntax"));
}

#[test]
fn unknown_values_of_a_newer_brain_are_left_out() {
    let mut messages = full(&state());
    let record = messages[1].services[0].service.as_mut().unwrap();
    let known = ServicePort { name: "a".into(), protocol: 1, number: 80, ..Default::default() };
    record.ports = vec![known, ServicePort { name: "b".into(), protocol: 77, number: 81, ..Default::default() }];
    record.addresses.push(ServiceAddress { address: "192.0.2.1".into(), kind: 77 });
    messages[1].services[0].endpoints[0].scopes = vec![1, 77];
    let Ok(Some(Update::Full(read))) = accepted(&mut Reader::default(), messages) else { panic!("a full state") };
    let web = &read.services[&ServiceKey::new("shop", "web")];
    assert_eq!((web.ports.len(), &*web.ports[0].name), (1, "a"));
    assert!(web.external_ips.is_empty() && web.load_balancer_ips.is_empty());
    assert!(web.endpoints[0].scopes.internal && !web.endpoints[0].scopes.external);
}

#[test]
fn a_withheld_service_has_the_digests_that_it_replaces() {
    let mut service = Service::clone(&state().services[&ServiceKey::new("shop", "web")]);
    let target = [192, 0, 2, 1].into();
    service.ports = vec![localnet_proto::Port { port: 80, node_port: Some(30080), ..Default::default() }];
    service.load_balancer_ips = vec![target];
    service.source_filters = vec![SourceFilter { targets: vec![target], source_ranges: Vec::new() }];
    let state = Snapshot { services: [(service.key.clone(), Arc::new(service.clone()))].into(), ..state() };
    let head = encode::head(&service);
    assert_eq!(head.requires, [Capability::SourceFilters]);
    let sum = encode::endpoints(&service).fold(head.record.digest, |sum, endpoint| sum.and(endpoint.record.digest));
    let withheld = wire::Service::decode(encode::withheld(&head.record, sum)).unwrap();

    let mut messages = full(&state);
    messages[1].services[0].service = Some(withheld);
    messages[1].services[0].endpoints.clear();
    let mut reader = Reader::default();
    let Ok(Some(Update::Full(read))) = accepted(&mut reader, messages) else { panic!("a full state") };
    assert_eq!(reader.withheld().collect::<Vec<_>>(), [&service.key]);
    let drop =
        localnet_proto::WhenEmpty { internal: localnet_proto::Verdict::Drop, external: localnet_proto::Verdict::Drop };
    let expected = Service { source_filters: Vec::new(), endpoints: Vec::new(), ..service };
    let ports = expected.ports.iter().cloned();
    let ports = ports.map(|port| localnet_proto::Port { when_empty_v4: drop, when_empty_v6: drop, ..port });
    let expected = Service { ports: ports.collect(), ..expected };
    assert_eq!(*read.services[&expected.key], expected);
}
