//! The cluster of the benchmarks: Services with three endpoints each, in the forms that each step reads. `make instructions` counts what
//! the steps execute (`benches/instructions.rs`); it is a package of its own, so that CI compiles nothing else in release mode.

use std::net::Ipv4Addr;

use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use localnet_brain::feed::Feed;
use localnet_client::vips::{Config, Detector, NodePortAddresses};
use localnet_cluster::{
    Cluster, Options,
    objects::{Event, Kind, Object},
};
use localnet_proto::Snapshot;
use serde_json::json;

const ENDPOINTS: u32 = 3;

/// All Services, and all EndpointSlices.
pub fn objects(services: u32) -> (Vec<Object>, Vec<Object>) {
    let slices = (0..services).map(|number| Object::Slice(slice(number, 0).into())).collect();
    let services = (0..services).map(|number| Object::Service(service(number).into())).collect();
    (services, slices)
}

/// A cluster with these objects.
pub fn cluster(services: &[Object], slices: &[Object]) -> Cluster {
    let mut cluster = Cluster::new(Options::of_node("node-a"));
    for kind in Kind::ALL {
        let objects = match kind {
            Kind::Service => services.to_vec(),
            Kind::Slice => slices.to_vec(),
            Kind::Node | Kind::ServiceCidr => Vec::new(),
        };
        cluster.handle(Event::Replace { kind, objects });
    }
    cluster
}

/// A feed with the state of the cluster.
pub fn feed(services: u32) -> Feed {
    let (services, slices) = objects(services);
    let feed = Feed::new(1);
    feed.publish(cluster(&services, &slices).localize().unwrap_or_default());
    feed
}

/// The state of the cluster.
pub fn state(services: u32) -> Snapshot {
    feed(services).state().snapshot().expect("it was encoded here")
}

fn service(number: u32) -> Service {
    let address = Ipv4Addr::from(u32::from_be_bytes([172, 16, 1, 0]) + number);
    let object = json!({
        "metadata": { "name": format!("service-{number:05}"), "namespace": "bench" },
        "spec": {
            "type": "ClusterIP", "clusterIP": address, "clusterIPs": [address], "ipFamilies": ["IPv4"],
            "ports": [{ "name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP" }],
        },
    });
    serde_json::from_value(object).expect("is a Service")
}

/// Change 0 is the first state of a Service.
pub fn slice(number: u32, change: u32) -> EndpointSlice {
    let endpoint = |slot| {
        let usual = Ipv4Addr::from(u32::from_be_bytes([10, 64, 0, 0]) + number * ENDPOINTS + slot);
        let address = if slot == 0 && change > 0 { replacement(change) } else { usual };
        json!({ "addresses": [address], "nodeName": "node-b", "conditions": { "ready": true } })
    };
    let object = json!({
        "metadata": {
            "name": format!("service-{number:05}-1"), "namespace": "bench",
            "labels": { "kubernetes.io/service-name": format!("service-{number:05}") },
        },
        "addressType": "IPv4", "endpoints": (0..ENDPOINTS).map(endpoint).collect::<Vec<_>>(),
        "ports": [{ "name": "http", "protocol": "TCP", "port": 8080 }],
    });
    serde_json::from_value(object).expect("is an EndpointSlice")
}

/// The address that change number `change` gives an endpoint.
pub fn replacement(change: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from_be_bytes([10, 80, 0, 0]) + change % (1 << 20))
}

/// The configuration of the nft backend.
pub fn config() -> Config {
    Config {
        masquerade_all: false,
        masquerade_bit: 14,
        detector: Detector::ClusterCidr(vec!["10.180.0.0/16".parse().expect("is a CIDR")]),
        node_port_addresses: NodePortAddresses::PRIMARY,
    }
}
