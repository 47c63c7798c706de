//! The DNS server of `examples/dns` follows a brain that reads a cluster from a file.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{fmt::Write as _, fs, path::Path};

use hickory_server::proto::{op::ResponseCode, rr::RecordType};
use localnet_e2e::{
    await_condition,
    dns::{Client, Example, ask_udp},
};
use tempfile::TempDir;

const SERVICES: &str = "
apiVersion: v1
kind: Node
metadata: {name: node-a}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: mesh, namespace: shop, labels: {service.kubernetes.io/service-proxy-name: mesh}}
spec: {clusterIP: 10.96.0.11, clusterIPs: [10.96.0.11], ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: out, namespace: shop}
spec: {type: ExternalName, externalName: www.example.com}
---
apiVersion: v1
kind: Service
metadata: {name: db, namespace: shop}
spec: {clusterIP: None, clusterIPs: [None], ports: [{name: sql, port: 5432}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: db-1, namespace: shop, labels: {kubernetes.io/service-name: db, service.kubernetes.io/headless: ''}}
addressType: IPv4
ports: [{name: sql, port: 5432}]
endpoints:
";

/// Writes a `cluster.yaml` whose headless Service has this many endpoints, and one that is not ready.
fn write(folder: &Path, endpoints: u8) {
    let mut text = SERVICES.to_owned();
    for last in 1..=endpoints {
        writeln!(text, "- {{addresses: [10.1.0.{last}], hostname: db-{last}}}").unwrap();
    }
    text.push_str("- {addresses: [10.1.0.250], hostname: db-250, conditions: {ready: false}}\n");
    fs::write(folder.join("new"), text).unwrap();
    fs::rename(folder.join("new"), folder.join("cluster.yaml")).unwrap();
}

#[test]
fn the_example_follows_a_brain() {
    let folder = TempDir::new().unwrap();
    write(folder.path(), 1);
    let source = format!("file:{}", folder.path().join("cluster.yaml").display());
    let example = Example::start(folder.path(), &["--source", &source]).unwrap();
    let mut client = Client::connect(example.address).unwrap();
    let mut ask = |kind, name: &str| {
        let reply = client.ask(name, kind).unwrap();
        (reply.code, reply.answers.into_iter().collect::<Vec<_>>())
    };
    await_condition("the first state", || ask(RecordType::SOA, "cluster.local.").0 == ResponseCode::NoError).unwrap();
    let mut check = |kind, name: &str, expected: &[&str]| {
        let found = ask(kind, &format!("{name}shop.svc.cluster.local."));
        let expected: Vec<_> = expected.iter().map(|of| of.replace('*', "shop.svc.cluster.local.")).collect();
        let code = if expected.is_empty() { ResponseCode::NXDomain } else { ResponseCode::NoError };
        assert_eq!(found, (code, expected), "{kind} {name}");
    };
    check(RecordType::A, "web.", &["web.* 5 a 10.96.0.10"]);
    check(RecordType::A, "mesh.", &["mesh.* 5 a 10.96.0.11"]);
    check(RecordType::A, "out.", &["out.* 5 cname www.example.com."]);
    check(RecordType::A, "db.", &["db.* 5 a 10.1.0.1"]);
    check(RecordType::SRV, "_sql._tcp.db.", &["_sql._tcp.db.* 5 srv 0 100 5432 db-1.db.*"]);
    check(RecordType::A, "db-250.db.", &[]);
    check(RecordType::A, "db-60.db.", &[]);
    assert_eq!(
        ask(RecordType::PTR, "1.0.1.10.in-addr.arpa.").1,
        ["1.0.1.10.in-addr.arpa. 5 ptr db-1.db.shop.svc.cluster.local."]
    );
    assert_eq!(ask(RecordType::A, "www.example.com.").0, ResponseCode::Refused);

    write(folder.path(), 60);
    let name = "db-60.db.shop.svc.cluster.local.";
    await_condition("a new endpoint", || ask(RecordType::A, name).0 == ResponseCode::NoError).unwrap();
    assert_eq!(ask(RecordType::A, "db.shop.svc.cluster.local.").1.len(), 60);
    let (reply, truncated) = ask_udp(example.address, "db.shop.svc.cluster.local.", RecordType::A).unwrap();
    assert!(truncated && (1..60).contains(&reply.answers.len()), "{truncated} {reply:?}");
    write(folder.path(), 0);
    await_condition("no endpoint", || ask(RecordType::A, name).0 == ResponseCode::NXDomain).unwrap();
}
