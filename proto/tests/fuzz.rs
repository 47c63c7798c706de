//! Any stream decodes to an update or an error.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use localnet_proto::{
    Change, Digest, Endpoint, EndpointPort, Node, Port, Revision, Scopes, Service, ServiceKey, Snapshot, Update,
    decode::Assembler,
    encode,
    v1::{
        self, raw,
        report::{BackendStatus, Digests, Known},
    },
    wire,
};
use prost::Message as _;

fn web() -> Service {
    let ports = vec![Port { name: "http".into(), port: 80, node_port: Some(30080), ..Port::default() }];
    let endpoint = |last: u8| Endpoint {
        address: [10, 1, 0, last].into(),
        ports: vec![EndpointPort { name: "http".into(), port: 8080 }],
        local: last == 1,
        hostname: None,
        scopes: Scopes { internal: true, external: true, short_circuit: false, established: true },
        weight: None,
    };
    let cluster_ips = vec![[10, 96, 0, 1].into(), [0xfd00, 0, 0, 0, 0, 0, 0, 1].into()];
    let service = Service::new(ServiceKey::new("default", "web"), cluster_ips);
    Service { ports, endpoints: vec![endpoint(1), endpoint(2)], client_ip_affinity: Some(10800.into()), ..service }
}

/// Items as the bytes of a stream: each after its length, in two bytes.
fn stream(items: &[impl prost::Message]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for item in items {
        let item = item.encode_to_vec();
        bytes.extend(u16::try_from(item.len()).unwrap().to_le_bytes());
        bytes.extend(item);
    }
    bytes
}

fn frames(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (length, rest) = bytes.split_first_chunk::<2>()?;
        let length = usize::from(u16::from_le_bytes(*length)).min(rest.len());
        let (piece, rest) = rest.split_at(length);
        bytes = rest;
        Some(piece)
    })
}

fn full() -> Vec<wire::NextItem> {
    let node = Node { name: "node-a".into(), addresses: vec![[192, 168, 0, 2].into()], ..Node::default() };
    let mut items = vec![encode::next_item(Revision { instance: 7, rev: 1 }, false), encode::node_item(&node)];
    items.extend(encode::service_items(&web()));
    items
}

fn delta() -> Vec<wire::NextItem> {
    let mut items = vec![encode::next_item(Revision { instance: 7, rev: 2 }, true)];
    items.extend(encode::service_items(&Service { endpoints: Vec::new(), ..web() }));
    items.push(encode::removed_item(&ServiceKey::new("default", "db")));
    items
}

fn assembled<'a>(items: impl Iterator<Item = &'a [u8]>) -> Result<Update, String> {
    let mut assembler = Assembler::default();
    for item in items {
        assembler.push_bytes(item.to_vec().into()).map_err(|error| error.to_string())?;
    }
    assembler.finish().map_err(|error| error.to_string())
}

/// Checks that a decoded update does not change when it is encoded and decoded again.
fn round_trips(update: &Update) {
    let services: Vec<&Service> = match update {
        Update::Full(snapshot) => snapshot.services.values().map(|service| &**service).collect(),
        Update::Delta { changes, .. } => changes
            .iter()
            .filter_map(|change| match change {
                Change::Service(service) => Some(&**service),
                Change::Node(_) | Change::Removed(_) => None,
            })
            .collect(),
    };
    for service in services {
        let first = encode::next_item(Revision { instance: 1, rev: 1 }, true);
        let items: Vec<Vec<u8>> =
            std::iter::once(first).chain(encode::service_items(service)).map(|item| item.encode_to_vec()).collect();
        let again = assembled(items.iter().map(Vec::as_slice)).unwrap();
        let Update::Delta { changes, .. } = again else { panic!("it was a delta") };
        assert_eq!(changes, [Change::Service(service.clone().into())]);
    }
}

#[test]
fn fuzz_an_answer() {
    localnet_fuzz::target("answer", &[&stream(&full()), &stream(&delta())], |bytes| match assembled(frames(bytes)) {
        Ok(update) => {
            round_trips(&update);
            format!("{update:?}")
        }
        Err(error) => error,
    });
}

/// Applies answers in sequence, as a backend does; each ends with OK or is cut.
#[test]
fn fuzz_a_conversation() {
    let one = |ends: u8, items: &[wire::NextItem]| {
        let items = stream(items);
        [&[ends][..], &u16::try_from(items.len()).unwrap().to_le_bytes(), &items].concat()
    };
    let seeds = [
        [one(0, &full()), one(0, &delta()), one(1, &full())].concat(),
        [one(1, &delta()), one(0, &full()), one(0, &[]), one(0, &delta())].concat(),
    ];
    localnet_fuzz::target("conversation", &[&seeds[0], &seeds[1]], |mut bytes| {
        let mut state = Snapshot::default();
        let mut text = String::new();
        while let Some((ends, rest)) = bytes.split_first() {
            let Some((length, rest)) = rest.split_first_chunk::<2>() else { break };
            let length = usize::from(u16::from_le_bytes(*length)).min(rest.len());
            let (answer, rest) = rest.split_at(length);
            bytes = rest;
            let before = state.clone();
            // An answer that is cut has no effect.
            match assembled(frames(answer)).ok().filter(|_| ends % 2 == 0) {
                None => assert_eq!(state, before),
                Some(update) => {
                    let (revision, again) = (update.revision(), update.clone());
                    let changes = state.apply(update);
                    assert_eq!(state.revision, revision);
                    for key in &changes.services {
                        assert_ne!(state.services.get(key), before.services.get(key), "{key}");
                    }
                    assert!(state.apply(again).is_empty(), "the same once more changes nothing");
                    text += &format!("{changes:?}");
                }
            }
        }
        text
    });
}

/// An answer of `localnet.v1` with the Service `web`: the full state, or the change of one endpoint.
fn records(full: bool) -> raw::NextStateResponse {
    let node = Node { name: "node-a".into(), addresses: vec![[192, 168, 0, 2].into()], ..Node::default() };
    let web = Service { ipvs_scheduler: Some("mh".into()), ..web() };
    let state = Snapshot { node, services: [(web.key.clone(), web.clone().into())].into(), ..Snapshot::default() };
    let endpoints = v1::encode::endpoints(&web).skip(usize::from(!full)).map(|tail| tail.record.bytes);
    let update = raw::ServiceUpdate {
        key: Some(v1::wire::ServiceKey { namespace: "default".into(), name: "web".into() }),
        service: full.then(|| v1::encode::head(&web).record.bytes),
        endpoints: endpoints.collect(),
        ..raw::ServiceUpdate::default()
    };
    let revision = v1::wire::Revision { instance: "7".into(), number: 1 };
    let base = if full { String::new() } else { "token".into() };
    raw::NextStateResponse {
        begin: Some(v1::wire::Begin { revision: Some(revision), base }),
        node: full.then(|| v1::encode::node(&state.node).bytes),
        services: vec![update],
        commit: Some(v1::wire::Commit { token: "token".into(), digest: v1::encode::digest(&state).0 }),
    }
}

/// Applies answers of `localnet.v1` in sequence, as a reader does. Each begins with the number of its messages.
#[test]
fn fuzz_a_reader_of_records() {
    let one = |message| [&[1][..], &stream(&[message])].concat();
    let seeds = [one(records(true)), [one(records(true)), one(records(false))].concat()];
    localnet_fuzz::target("records", &[&seeds[0], &seeds[1]], |mut bytes| {
        let (mut reader, mut state, mut text) = (v1::Reader::default(), Snapshot::default(), String::new());
        while let Some((count, rest)) = bytes.split_first() {
            let mut answer = v1::Answer::default();
            let messages: Vec<&[u8]> = frames(rest).take(usize::from(*count)).collect();
            bytes = &rest[messages.iter().map(|message| 2 + message.len()).sum::<usize>().min(rest.len())..];
            messages
                .into_iter()
                .filter_map(|message| prost::Message::decode(message).ok())
                .for_each(|message| answer.push(message));
            let before = reader.token().to_owned();
            match reader.accept(answer) {
                Ok(None) => assert_eq!(reader.token(), before, "an answer without its end has no effect"),
                Ok(Some(update)) => {
                    state.apply(update);
                    assert!(state.services.keys().eq(reader.services()), "the reader and its backend agree");
                    text += &format!("{state:?}");
                }
                Err(rejected) => {
                    assert_eq!((reader.token(), reader.digest().0), ("", 0));
                    text += &rejected.to_string();
                }
            }
        }
        text
    });
}

/// A report of `localnet.v1` is refused, or becomes one of `localnetv1` that can be converted back.
#[test]
fn fuzz_a_report() {
    let revision = Some(v1::wire::Revision { instance: "0000000000000007".into(), number: 9 });
    let diagnostic = v1::wire::Diagnostic { code: "a/b-c".into(), problem: "p".into(), ..Default::default() };
    let part = v1::wire::SkippedPart {
        service: Some(v1::wire::ServiceKey { namespace: "default".into(), name: "web".into() }),
        diagnostic: Some(diagnostic.clone()),
    };
    let report = v1::wire::ReportStatusRequest {
        reader_name: "nft".into(),
        received: revision.clone(),
        families: vec![v1::wire::FamilyStatus {
            family: 1,
            applied: revision,
            applied_digest: Some(5),
            error: "e".into(),
        }],
        skipped: Some(v1::wire::SkippedParts { parts: vec![part], count: 1 }),
        traffic: Some(v1::wire::TrafficSettings::default()),
        warnings: vec![diagnostic],
        repairs: 1,
        kube_proxy_mode: "ipvs".into(),
    };
    let (newest, node) = (Revision { instance: 7, rev: 9 }, Node::default());
    let digests = |rev| (rev == 9).then_some(Digests { items: Digest(3), records: Digest(5) });
    let known = Known { newest, node: &node, digests: &digests };
    localnet_fuzz::target("report", &[&report.encode_to_vec()], |bytes| {
        let Ok(request) = v1::wire::ReportStatusRequest::decode(bytes) else { return String::new() };
        match BackendStatus::checked(request, newest) {
            Ok(status) => {
                let older = status.to_older(&known);
                let again = BackendStatus::checked(BackendStatus::message_of(&older, &known), newest);
                assert_eq!(again.unwrap().name(), status.name());
                format!("{older:?}")
            }
            Err(refused) => refused.message().to_owned(),
        }
    });
}
