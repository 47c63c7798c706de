//! Measures how long `localnet replay --dry-run --speed max` takes for a trace of 1,000,000 changes, each of which replaces one endpoint.
//! Fails if the replay needs more than 60 s of CPU time.
//!
//! ```text
//! cargo bench -p localnet-proto --bench replay      # QUICK=1: 10,000 changes
//! ```

use std::{
    fs,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use localnet_proto::{
    Digest, Endpoint, EndpointPort, Node, Port, Revision, Scopes, Service, ServiceKey, Snapshot, encode,
    history::{Change, ChangedObject, Entry, FullState, Patch, Replay, entry::Event, hunks, records},
    trace,
};

const SERVICES: u32 = 1000;

fn endpoint(number: u32) -> Endpoint {
    let scopes = Scopes { internal: true, external: true, short_circuit: false, established: true };
    let ports = vec![EndpointPort { name: "http".into(), port: 8080 }];
    Endpoint {
        address: std::net::Ipv4Addr::from_bits(number).into(),
        ports,
        local: false,
        hostname: None,
        scopes,
        weight: None,
    }
}

fn service(number: u32, endpoints: u32) -> Service {
    let key = ServiceKey::new("shop", format!("service-{number}"));
    let mut service = Service::new(key, vec![std::net::Ipv4Addr::from_bits(0x0a60_0000 + number).into()]);
    service.ports.push(Port { name: "http".into(), port: 80, ..Port::default() });
    service.endpoints = (0..endpoints).map(|index| endpoint(0x0af4_0000 + number * endpoints + index)).collect();
    service
}

/// A trace with this number of changes in a cluster of 1,000 Services.
fn recorded(changes: u32, endpoints: u32) -> Vec<u8> {
    let services = (0..SERVICES).map(|number| service(number, endpoints)).map(|of| (of.key.clone(), Arc::new(of)));
    let revision = Revision { instance: 7, rev: 1 };
    let mut state = Snapshot { revision, node: Node::default(), services: services.collect() };
    let mut digest = Digest::of(&state);
    let mut out = Vec::new();
    let mut add = |rev: u64, event| {
        let entry = Entry { time_millis: 1_795_662_000_000 + rev, event: Some(event) };
        trace::append(&mut out, &entry).expect("memory");
    };
    add(1, Event::State(FullState { items: encode::state_items(&state), continues: false, digest: digest.0 }));
    let content = |service: &Service| -> Vec<Bytes> { records(&encode::service_bytes(service)) };
    for change in 0..changes {
        let key = ServiceKey::new("shop", format!("service-{}", change % SERVICES));
        let before = &state.services[&key];
        let mut after = Service::clone(before);
        after.endpoints.remove((change / SERVICES % endpoints) as usize);
        // The new address is the highest one, so that the endpoints stay sorted.
        after.endpoints.push(endpoint(0x0b00_0000 + change));
        digest = digest.without(Digest::of_service(before)).and(Digest::of_service(&after));
        let object = ChangedObject {
            kind: "EndpointSlice".to_owned(),
            namespace: "shop".to_owned(),
            name: format!("{}-x7k2p", key.name),
            resource_version: u64::from(change),
            deleted: false,
        };
        let hunks = hunks(&content(before), &content(&after));
        let rev = u64::from(change) + 2;
        let patch = Patch { namespace: key.namespace.to_string(), name: key.name.to_string(), hunks };
        let change = Change { rev, digest: digest.0, objects: vec![object], patches: vec![patch], ..Change::default() };
        add(rev, Event::Change(change));
        state.services.insert(key, Arc::new(after));
    }
    out
}

/// How long this thread has run on a CPU. On a busy machine, other programs do not affect this time.
fn on_cpu() -> Duration {
    let stat = fs::read_to_string("/proc/thread-self/schedstat").expect("a kernel with schedstat");
    let nanos = stat.split_whitespace().next().and_then(|nanos| nanos.parse().ok());
    Duration::from_nanos(nanos.expect("a number"))
}

fn main() {
    let changes = if std::env::var("QUICK").is_ok_and(|quick| !quick.is_empty()) { 10_000 } else { 1_000_000 };
    for endpoints in [3, 10] {
        let recorded = recorded(changes, endpoints);
        let (began, idle, mut reader, mut replay, mut states) =
            (Instant::now(), on_cpu(), &*recorded, Replay::default(), 0);
        while let Some(entry) = trace::next(&mut reader).expect("the trace is complete") {
            states += u32::from(replay.take(&entry).expect("each digest is the recorded one").is_some());
        }
        let (took, cpu) = (began.elapsed(), on_cpu() - idle);
        let megabytes = recorded.len() / 1_000_000;
        println!(
            "{endpoints} endpoints for each Service: {states} states, {megabytes} MB, {cpu:.1?} of CPU time in {took:.1?}"
        );
        assert!(states == changes + 1 && cpu.as_secs() < 60, "{states} states in {cpu:?}");
    }
}
