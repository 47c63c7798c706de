//! `localnet record` and `localnet replay` with a running brain: a replay reaches the digest of each revision that the brain published.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::Arc,
    thread,
    time::Duration,
};

use localnet_brain::{
    feed::Feed,
    pump::{self, Queries},
    reports::Reports,
    serve::{self, Listener, Options, ServerState},
};
use localnet_cluster::localize::Localized;
use localnet_lab::{Network, Topology};
use localnet_proto::{
    Endpoint, EndpointPort, Node, Port, Scopes, Service, ServiceKey,
    history::{Change, Entry, Replay, entry::Event},
    trace,
};
use prost::Message as _;
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// A brain at a socket.
struct Brain {
    feed: Feed,
    folder: TempDir,
    _runtime: Runtime,
    _questions: Queries,
}

impl Brain {
    fn start() -> Self {
        let (runtime, folder, feed) = (Runtime::new().unwrap(), TempDir::new().unwrap(), Feed::new(7));
        let address = format!("unix://{}", folder.path().join("brain.sock").display()).parse().unwrap();
        let listener = runtime.block_on(Listener::bind(&address, &Options::default())).unwrap();
        let (questions, queries) = pump::questions();
        let state = ServerState { views: feed.clone().into(), reports: Reports::default(), questions, pushers: None };
        runtime.spawn(serve::run(vec![listener], state, std::future::pending()));
        Self { feed, folder, _runtime: runtime, _questions: queries }
    }

    /// Records a number of changes that happen meanwhile. Returns the trace.
    fn record(&self, flags: &[&str]) -> PathBuf {
        let path = self.folder.path().join("trace");
        let mut command = localnet(&["record", "--count", "90", "--output", path.to_str().unwrap()]);
        command.arg(format!("--api=unix://{}", self.folder.path().join("brain.sock").display())).args(flags);
        let mut recording = command.spawn().unwrap();
        for number in 0.. {
            self.publish(number);
            if let Some(status) = recording.try_wait().unwrap() {
                assert!(status.success());
                break;
            }
            // More changes than this would only be recorded by a faster program.
            thread::sleep(Duration::from_millis(1));
        }
        path
    }

    /// Publishes a further state. A few of the changes concern the node, and a few are too large to be recorded as a change.
    fn publish(&self, number: u32) {
        let name = format!("secret-{}", number % 7);
        let key = ServiceKey::new("secret-shop", name.as_str());
        let endpoints = if number % 40 == 39 { 2500 } else { number % 5 };
        let service = (!number.is_multiple_of(11)).then(|| Arc::new(service(&key, number % 7, endpoints)));
        let node = Node {
            name: "secret-node".to_owned(),
            addresses: vec![[192, 168, 0, 2].into()],
            zone: format!("secret-zone-{}", number / 13),
            ..Node::default()
        };
        let services = [(key, service)].into_iter().collect();
        self.feed.publish(Localized { node: Some(node), services, ..Localized::default() });
    }

    /// The digest of each revision in the brain's history.
    fn digests(&self) -> BTreeMap<u64, u64> {
        let changes = self.feed.history().entries().filter_map(|entry| change(&Entry::decode(entry).unwrap()).cloned());
        changes.map(|change| (change.rev, change.digest)).collect()
    }
}

fn service(key: &ServiceKey, number: u32, endpoints: u32) -> Service {
    let scopes = Scopes { internal: true, external: true, ..Scopes::default() };
    let endpoint = |host: u32| Endpoint {
        address: std::net::Ipv4Addr::from_bits(0x0af4_0000 + host).into(),
        ports: vec![EndpointPort { name: "secret-port".into(), port: 8080 }],
        local: false,
        hostname: Some(format!("secret-{host:0>100}").into()),
        scopes,
        weight: None,
    };
    let [.., last] = number.to_be_bytes();
    let mut service = Service::new(key.clone(), vec![[10, 96, 0, last].into()]);
    service.ports.push(Port { name: "secret-port".into(), port: 80, ..Port::default() });
    service.endpoints = (1..=endpoints).map(endpoint).collect();
    service
}

fn localnet(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_localnet"));
    command.args(arguments);
    command
}

fn replay(path: &Path) -> (Option<i32>, String) {
    let flags = ["replay", path.to_str().unwrap(), "--dry-run", "--speed", "max"];
    let Output { status, stdout, stderr } = localnet(&flags).output().unwrap();
    (status.code(), String::from_utf8([stdout, stderr].concat()).unwrap())
}

fn read(path: &Path) -> Vec<Entry> {
    let bytes = fs::read(path).unwrap();
    let mut rest = &*bytes;
    trace::open(&mut rest).unwrap();
    std::iter::from_fn(|| trace::next(&mut rest).unwrap()).collect()
}

fn change(entry: &Entry) -> Option<&Change> {
    match &entry.event {
        Some(Event::Change(change)) => Some(change),
        _ => None,
    }
}

#[test]
fn a_replay_reaches_the_digest_of_each_revision() {
    let brain = Brain::start();
    let path = brain.record(&[]);
    let (entries, digests) = (read(&path), brain.digests());
    let (mut replayed, mut reached) = (Replay::default(), BTreeMap::new());
    for entry in &entries {
        if replayed.take(entry).unwrap().is_some() {
            let past = replayed.past().unwrap();
            reached.insert(past.state.revision.rev, past.digest.0);
        }
    }
    assert!(reached.len() > 80, "{reached:?}");
    assert!(reached.iter().all(|(rev, digest)| digests[rev] == *digest), "{reached:?} {digests:?}");
    let whole = entries.iter().filter_map(change).filter(|change| change.whole).count();
    assert!(whole > 0 && replayed.past().is_some(), "{whole} changes are too large");
    let (code, text) = replay(&path);
    let last = replayed.past().unwrap().digest;
    assert!(code == Some(0) && text.ends_with(&format!("last digest: {last}\n")), "{code:?} {text}");

    // Another digest, and an entry that is cut off.
    let mut damaged = Vec::new();
    trace::begin(&mut damaged).unwrap();
    let wrong = entries.iter().filter_map(change).filter(|change| !change.whole).nth(20).unwrap().rev;
    for mut entry in entries.clone() {
        match &mut entry.event {
            Some(Event::Change(change)) if change.rev == wrong => change.digest ^= 1,
            _ => {}
        }
        trace::append(&mut damaged, &entry).unwrap();
    }
    fs::write(&path, &damaged).unwrap();
    let (code, text) = replay(&path);
    assert!(code == Some(1) && text.contains(&format!("\nrevision {wrong}: the digest differs")), "{code:?} {text}");
    fs::write(&path, &damaged[..1000]).unwrap();
    let (code, text) = replay(&path);
    assert!(code == Some(1) && text.contains("the trace ends in the middle of an entry"), "{code:?} {text}");
    fs::write(&path, "precious").unwrap();
    assert_eq!(replay(&path).0, Some(3));
}

#[test]
fn an_anonymised_trace_contains_no_names() {
    let brain = Brain::start();
    let path = brain.record(&["--anonymise"]);
    let bytes = fs::read(&path).unwrap();
    assert!(!bytes.windows(6).any(|part| part == b"secret"), "a name remains");
    let (code, text) = replay(&path);
    assert_eq!(code, Some(0), "{text}");
}

#[test]
fn a_trace_is_replayed_into_the_kernel() {
    let brain = Brain::start();
    let path = brain.record(&[]);
    let network = Network::build(Topology::default()).unwrap();
    let run = || {
        let mut command = localnet(&["replay", path.to_str().unwrap(), "--backend", "nft", "--speed", "max"]);
        network.node().run(|| Ok(command.output()?)).unwrap()
    };
    let first = run();
    assert!(first.status.success(), "{first:?}");
    let second = run();
    assert_eq!(second.status.code(), Some(2), "the network namespace is in use: {second:?}");
}
