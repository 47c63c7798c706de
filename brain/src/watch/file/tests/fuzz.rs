//! Fuzzes the reader of files: whatever a file contains, the reader returns objects or problems.

use std::{path::Path, sync::Arc};

use localnet_core::yaml;

use super::{super::reading, WEB};
use localnet_cluster::objects::{Event, Kind};
use localnet_cluster::{Cluster, Options};

const MORE: &str = "
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: { name: web-1, namespace: default, labels: { kubernetes.io/service-name: web } }
addressType: IPv4
ports: [{ name: http, port: 8080, protocol: TCP }]
endpoints:
- { addresses: [10.1.0.1], nodeName: node-a, conditions: { ready: true, terminating: false }, hints: { forZones: [{ name: z }] } }
---
{\"apiVersion\": \"v1\", \"kind\": \"Node\", \"metadata\": {\"name\": \"node-a\"}, \"spec\": {\"podCIDRs\": [\"10.1.0.0/24\"]}}
---
apiVersion: v1
kind: List
items:
- { apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: { name: c }, spec: { cidrs: [10.96.0.0/16, fd00::/112] } }
- { apiVersion: v1, kind: Service, metadata: { name: db }, spec: { clusterIPs: [10.96.0.2], type: LoadBalancer, ports: [{ port: 1 }] } }
";

/// The objects are localized, too, because invalid parts of objects are found there.
#[test]
fn fuzz_yaml() {
    let file = Arc::<Path>::from(Path::new("cluster.yaml"));
    let cases: Vec<_> = localnet_lab::cases().iter().map(|case| std::fs::read(case.cluster()).unwrap()).collect();
    let mut seeds = vec![WEB.as_bytes(), MORE.as_bytes()];
    seeds.extend(cases.iter().map(Vec::as_slice));
    localnet_fuzz::target("yaml", &seeds, |bytes| {
        let Ok(text) = std::str::from_utf8(bytes) else { return "not a text".to_owned() };
        let mut message = String::new();
        let mut cluster = Cluster::new(Options::of_node("node-a"));
        for kind in Kind::ALL {
            cluster.handle(Event::Replace { kind, objects: Vec::new() });
        }
        for document in yaml::documents(text) {
            let reading = reading::read(document, &file, None);
            message += &format!("{} {:?}", reading.found.len(), reading.problems);
            for found in reading.found {
                cluster.handle(Event::Apply(found.object));
            }
        }
        let localized = cluster.localize().expect("all kinds are listed");
        let skipped = localized.skipped.iter().map(|(_, skipped)| format!("{}: {}", skipped.field, skipped.problem));
        message + &skipped.collect::<Vec<_>>().join("; ")
    });
}
