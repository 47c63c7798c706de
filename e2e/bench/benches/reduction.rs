//! Counts how much of a busy cluster's activity reaches a reader of one node's state.
//!
//! ```text
//! cargo bench -p localnet-bench --bench reduction            # FIGURES=file: also writes the counts there
//! ```
//!
//! The activity is a model of ten minutes in a cluster of 1,000 nodes in three zones, with 10,000 Services of three endpoints; every third
//! Service prefers endpoints of the client's zone. The rates are defaults of Kubernetes, or typical of a busy cluster:
//!
//! | activity | writes to the API server |
//! |---|---|
//! | every node renews its Lease each 10 s; ten leaders renew theirs each 2 s | 63,000 |
//! | every kubelet reports its Node's status each 5 minutes | 2,000 |
//! | 100 Deployments of three pods are updated, with eight writes for each replaced pod | 2,400 of pods, 1,200 of slices |
//! | 20 pods fail their readiness probe and recover, each 30 s | 800 of pods, 800 of slices |
//! | controllers write status and annotations of Services, and annotations of slices | 500 and 500 |
//!
//! The brain watches neither Leases nor pods, and no Node but its own.

use std::{env, fs};

use anyhow::Context as _;
use k8s_openapi::api::{
    core::v1::{Node, Service},
    discovery::v1::EndpointSlice,
};
use localnet_brain::feed::Feed;
use localnet_cluster::{
    Cluster, Options,
    objects::{Event, Kind, Object},
};
use serde_json::{Value, json};

const SERVICES: usize = 10_000;
const ENDPOINTS: usize = 3;
const NODES: usize = 1_000;
const ZONES: usize = 3;

const LEASES: usize = NODES * 60 + 10 * 300;
const STATUSES: usize = NODES * 2;
const UPDATED: usize = 100;
const FLAPPING: usize = 20;
const FLAPS: usize = 20;
const CONTROLLERS: usize = 500;

fn main() -> anyhow::Result<()> {
    let mut reader = Reader::new()?;
    let pods = UPDATED * ENDPOINTS * 8 + FLAPPING * FLAPS * 2;
    for _ in 0..STATUSES / NODES {
        reader.handle(Object::Node(typed::<Node>(node())?.into()), &node());
    }
    for number in 0..UPDATED {
        for slot in 0..ENDPOINTS {
            let mut endpoints: Vec<Value> = (0..ENDPOINTS).map(|slot| endpoint(number, slot, 0)).collect();
            // The new pod appears, gets ready, the old one ends, and is gone.
            endpoints.push(conditions(endpoint(number, slot, 1), false, false));
            reader.slice(number, &endpoints)?;
            endpoints[ENDPOINTS] = endpoint(number, slot, 1);
            reader.slice(number, &endpoints)?;
            endpoints[slot] = conditions(endpoint(number, slot, 0), true, true);
            reader.slice(number, &endpoints)?;
            endpoints.swap_remove(slot);
            reader.slice(number, &endpoints)?;
        }
    }
    for flap in 0..FLAPS * 2 {
        for number in UPDATED..UPDATED + FLAPPING {
            let mut endpoints: Vec<Value> = (0..ENDPOINTS).map(|slot| endpoint(number, slot, 0)).collect();
            if flap % 2 == 0 {
                endpoints[0] = conditions(endpoints[0].clone(), false, false);
            }
            reader.slice(number, &endpoints)?;
        }
    }
    for number in 1_000..1_000 + CONTROLLERS {
        let mut service = service(number);
        service["metadata"]["annotations"] = json!({ "example.com/checked": "true" });
        reader.handle(Object::Service(typed::<Service>(service.clone())?.into()), &service);
        let mut slice = slice(number, &(0..ENDPOINTS).map(|slot| endpoint(number, slot, 0)).collect::<Vec<_>>());
        slice["metadata"]["annotations"] =
            json!({ "endpoints.kubernetes.io/last-change-trigger-time": "2026-01-01T00:00:00Z" });
        reader.handle(Object::Slice(typed::<EndpointSlice>(slice.clone())?.into()), &slice);
    }
    let slices = UPDATED * ENDPOINTS * 4 + FLAPPING * FLAPS * 2 + CONTROLLERS;
    let writes = LEASES + STATUSES + pods + slices + CONTROLLERS;
    let counts = json!({
        "writes": writes, "events": reader.events, "event_bytes": reader.event_bytes, "revisions": reader.revisions,
        "reader_bytes": reader.bytes,
    });
    println!("{counts}");
    if let Some(file) = env::var_os("FIGURES") {
        fs::write(&file, counts.to_string()).with_context(|| format!("writing {}", file.display()))?;
    }
    Ok(())
}

/// A brain without I/O, and a reader that accepts deltas.
struct Reader {
    cluster: Cluster,
    feed: Feed,
    /// The events that the brain's watches delivered, and their bytes as JSON.
    events: usize,
    event_bytes: usize,
    /// The revisions after the first state, and the bytes that the reader got for them.
    revisions: usize,
    bytes: usize,
}

impl Reader {
    fn new() -> anyhow::Result<Self> {
        let mut cluster = Cluster::new(Options::of_node("node-0"));
        for kind in Kind::ALL {
            let objects: anyhow::Result<Vec<Object>> = match kind {
                Kind::Service => {
                    (0..SERVICES).map(|number| Ok(Object::Service(typed::<Service>(service(number))?.into()))).collect()
                }
                Kind::Slice => {
                    let endpoints = |number| (0..ENDPOINTS).map(|slot| endpoint(number, slot, 0)).collect::<Vec<_>>();
                    let slice = |number| slice(number, &endpoints(number));
                    (0..SERVICES)
                        .map(|number| Ok(Object::Slice(typed::<EndpointSlice>(slice(number))?.into())))
                        .collect()
                }
                Kind::Node => Ok(vec![Object::Node(typed::<Node>(node())?.into())]),
                Kind::ServiceCidr => Ok(Vec::new()),
            };
            cluster.handle(Event::Replace { kind, objects: objects? });
        }
        let feed = Feed::new(1);
        feed.publish(cluster.localize().context("every kind is listed")?);
        Ok(Self { cluster, feed, events: 0, event_bytes: 0, revisions: 0, bytes: 0 })
    }

    fn slice(&mut self, number: usize, endpoints: &[Value]) -> anyhow::Result<()> {
        let slice = slice(number, endpoints);
        self.handle(Object::Slice(typed::<EndpointSlice>(slice.clone())?.into()), &slice);
        Ok(())
    }

    fn handle(&mut self, object: Object, body: &Value) {
        self.events += 1;
        self.event_bytes += body.to_string().len();
        self.cluster.handle(Event::Apply(object));
        let Some(localized) = self.cluster.localize() else { return };
        let before = self.feed.state().revision();
        self.feed.publish(localized);
        let state = self.feed.state();
        if state.revision() != before {
            self.revisions += 1;
            self.bytes += state.answer(before, true).items.map(|item| item.len()).sum::<usize>();
        }
    }
}

fn typed<T: serde::de::DeserializeOwned>(object: Value) -> anyhow::Result<T> {
    Ok(serde_json::from_value(object)?)
}

fn node() -> Value {
    json!({ "metadata": { "name": "node-0", "labels": { "topology.kubernetes.io/zone": "zone-0" } } })
}

fn service(number: usize) -> Value {
    let address = format!("172.{}.{}.{}", 16 + (number >> 16), (number >> 8) & 255, number & 255);
    let distribution = number.is_multiple_of(ZONES).then_some("PreferSameZone");
    json!({
        "metadata": { "name": format!("service-{number:05}"), "namespace": "bench" },
        "spec": {
            "type": "ClusterIP", "clusterIP": address, "clusterIPs": [address], "ipFamilies": ["IPv4"],
            "trafficDistribution": distribution,
            "ports": [{ "name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP" }],
        },
    })
}

fn slice(number: usize, endpoints: &[Value]) -> Value {
    json!({
        "metadata": {
            "name": format!("service-{number:05}-1"), "namespace": "bench",
            "labels": { "kubernetes.io/service-name": format!("service-{number:05}") },
        },
        "addressType": "IPv4", "endpoints": endpoints,
        "ports": [{ "name": "http", "protocol": "TCP", "port": 8080 }],
    })
}

/// A ready pod. The endpoints of a Service are in different zones.
fn endpoint(number: usize, slot: usize, generation: usize) -> Value {
    let address = number * ENDPOINTS + slot;
    let zone = format!("zone-{}", slot % ZONES);
    let hints = number.is_multiple_of(ZONES).then(|| json!({ "forZones": [{ "name": zone }] }));
    json!({
        "addresses": [format!("10.{}.{}.{}", 64 + generation * 16 + (address >> 16), (address >> 8) & 255, address & 255)],
        "nodeName": format!("node-{}", address % NODES), "zone": zone, "hints": hints,
        "conditions": { "ready": true, "serving": true, "terminating": false },
    })
}

fn conditions(mut endpoint: Value, serving: bool, terminating: bool) -> Value {
    endpoint["conditions"] = json!({ "ready": false, "serving": serving, "terminating": terminating });
    endpoint
}
