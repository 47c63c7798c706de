//! A client of KPNG's `Watch` in another language follows random changes, and ends with the state that `Next` returns.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use localnet_brain::{
    feed::Feed,
    pump,
    reports::Reports,
    serve::{self, Listener, Options, ServerState},
};
use localnet_client::{Revision, Source as _, grpc::Brain};
use localnet_cluster::localize::Localized;
use localnet_e2e::python;
use localnet_proto::{
    Address, Endpoint, EndpointPort, Node, Port, Protocol, Scopes, Service, ServiceKey, Snapshot, Update,
};
use proptest::{
    prelude::*,
    strategy::ValueTree as _,
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};
use serde_json::{Value, json};
use tokio::{sync::mpsc, time::timeout};

const CHANGES: usize = 1000;
const PATIENCE: Duration = Duration::from_secs(60);

fn scopes() -> impl Strategy<Value = Scopes> {
    any::<[bool; 4]>().prop_map(|[internal, external, short_circuit, established]| Scopes {
        internal,
        external,
        short_circuit,
        established,
    })
}

fn endpoints(port: &'static str) -> impl Strategy<Value = Vec<Endpoint>> {
    let address = (1..40_u8, any::<bool>()).prop_map(|(last, v4)| {
        if v4 { [10, 180, 0, last].into() } else { [0xfd00, 0, 0, 0, 0, 0, 0, u16::from(last)].into() }
    });
    let one = (any::<bool>(), prop::option::of("[a-c]"), scopes(), 8000..8003_u16);
    prop::collection::btree_map(address, one, 0..12).prop_map(move |all| {
        let endpoint =
            |(address, (local, hostname, scopes, number)): (std::net::IpAddr, (bool, Option<String>, Scopes, u16))| {
                let ports = vec![EndpointPort { name: port.into(), port: number }];
                Endpoint { address, ports, local, hostname: hostname.map(Into::into), scopes, weight: None }
            };
        all.into_iter().map(endpoint).collect()
    })
}

fn service() -> impl Strategy<Value = Service> {
    let name = (prop::sample::select(vec!["a", "a-b", "b"]), "[a-f](-1)?");
    let port = prop::sample::select(vec!["", "http"]);
    (name, port, any::<(bool, bool)>(), prop::option::of(1..100_u32), 1..60000_u16).prop_flat_map(
        |((namespace, name), port, (external_local, internal_local), affinity, number)| {
            endpoints(port).prop_map(move |endpoints| Service {
                ports: vec![Port {
                    name: port.into(),
                    protocol: Protocol::Udp,
                    port: number,
                    node_port: Some(30_000),
                    ..Port::default()
                }],
                external_ips: vec![[198, 51, 100, 1].into()],
                external_traffic_to_local: external_local,
                internal_traffic_to_local: internal_local,
                client_ip_affinity: affinity.map(Into::into),
                endpoints,
                ..Service::new(ServiceKey::new(namespace, name.as_str()), vec![[172, 30, 0, 1].into()])
            })
        },
    )
}

/// A Service that is set or deleted.
fn change() -> impl Strategy<Value = Localized> {
    (service(), prop::bool::weighted(0.7)).prop_map(|(service, set)| Localized {
        services: vec![(service.key.clone(), set.then(|| Arc::new(service)))],
        ..Localized::default()
    })
}

/// The snapshot in the format of the client.
fn as_json(snapshot: &Snapshot) -> Value {
    let service = |service: &Service| {
        let ports =
            service.ports.iter().map(|port| json!([port.name, 2, port.port, port.node_port.unwrap_or_default()]));
        let mut endpoints: Vec<Value> = service.endpoints.iter().map(endpoint).collect();
        endpoints.sort_by_key(ToString::to_string);
        json!({
            "type": service.kind,
            "cluster": service.cluster_ips,
            "external": service.external_ips,
            "balancers": service.load_balancer_ips,
            "ports": ports.collect::<Vec<_>>(),
            "external_local": u8::from(service.external_traffic_to_local),
            "internal_local": u8::from(service.internal_traffic_to_local),
            "affinity": service.client_ip_affinity.unwrap_or_default(),
            "endpoints": endpoints,
        })
    };
    snapshot.services.values().map(|of| (of.key.to_string(), service(of))).collect::<serde_json::Map<_, _>>().into()
}

fn endpoint(endpoint: &Endpoint) -> Value {
    let Scopes { internal, external, short_circuit, established } = endpoint.scopes;
    let scopes = [internal, external, short_circuit, established].map(u8::from);
    let ports: Vec<Value> = endpoint.ports.iter().map(|port| json!([port.name, port.port])).collect();
    let hostname = endpoint.hostname.as_deref().unwrap_or_default();
    json!([[endpoint.address], hostname, u8::from(endpoint.local), ports, scopes])
}

/// The same value in a canonical order.
fn sorted(mut json: Value) -> Value {
    for service in json.as_object_mut().unwrap().values_mut() {
        service["endpoints"].as_array_mut().unwrap().sort_by_key(ToString::to_string);
    }
    json
}

#[tokio::test]
async fn a_client_in_python_follows_a_thousand_changes_and_ends_equal() {
    let folder = tempfile::tempdir().unwrap();
    let address = Address::Unix(folder.path().join("brain.sock"));
    let feed = Feed::new(7);
    let listener = Listener::bind(&address, &Options::default()).await.unwrap();
    let server = ServerState {
        views: feed.clone().into(),
        reports: Reports::default(),
        questions: pump::questions().0,
        pushers: None,
    };
    tokio::spawn(serve::run(vec![listener], server, std::future::pending()));

    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kpng/watch.py");
    let calls = [("localnetv1.Endpoints", "node-a"), ("localv1.Sets", "")];
    let mut clients = calls.map(|(service, node)| Client::start(&script, &address, service, node));

    let seed = rand_seed();
    println!("seed {seed:?}");
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    feed.publish(Localized { node: Some(Node { name: "node-a".into(), ..Node::default() }), ..Localized::default() });
    for client in &mut clients {
        assert_eq!(client.next().await, json!({}), "an empty state is sent");
    }
    for _ in 0..CHANGES {
        feed.publish(change().new_tree(&mut runner).unwrap().current());
        // Yield to other tasks, so that there are many sets of changes.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let brain = Brain::new(address, None).unwrap();
    let Update::Full(state) = brain.next(Revision::default(), false).await.unwrap() else { panic!("the full state") };
    assert!(state.services.len() > 5, "{}", state.services.len());
    let expected = sorted(as_json(&state));
    for client in &mut clients {
        let mut sets = 2;
        while sorted(client.next().await) != expected {
            sets += 1;
        }
        println!("{sets} sets of changes");
        assert!(sets > 10, "{CHANGES} changes came in {sets} sets");
    }
    for mut client in clients {
        drop(client.child.stdin.take());
        assert!(client.child.wait().unwrap().success());
    }
}

/// The running client. Dropping it kills the client.
struct Client {
    child: Child,
    states: mpsc::UnboundedReceiver<Value>,
}

impl Client {
    fn start(script: &Path, address: &Address, service: &str, node: &str) -> Self {
        let mut command = Command::new(python().unwrap());
        command.arg(script).args([&address.to_string(), service, node]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (sender, states) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for line in lines {
                _ = sender.send(serde_json::from_str(&line.unwrap()).unwrap());
            }
        });
        Self { child, states }
    }

    async fn next(&mut self) -> Value {
        timeout(PATIENCE, self.states.recv()).await.expect("it comes to that state").expect("it goes on")
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // Both calls fail only if the client has exited.
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// A different seed for each run. A failure prints it.
fn rand_seed() -> [u8; 32] {
    let mut seed = [0; 32];
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos();
    seed[..16].copy_from_slice(&now.to_le_bytes());
    seed
}
