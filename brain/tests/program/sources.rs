//! A brain with several sources: what it serves, and what it waits for.

use std::fs;

use localnet_client::{Source as _, grpc::Brain};
use localnet_proto::{Revision, ServiceKey, Update};

use super::{start_with, write};

fn services(addresses: &[(&str, &str)]) -> String {
    let service = |(name, ip): &(&str, &str)| {
        format!(
            "{{apiVersion: v1, kind: Service, metadata: {{name: {name}, namespace: shop}}, \
             spec: {{clusterIP: {ip}, ports: [{{port: 80}}]}}}}\n---\n"
        )
    };
    addresses.iter().map(service).collect()
}

#[tokio::test]
async fn two_folders_are_merged_and_the_first_one_wins() {
    let (folder, extra) = (tempfile::TempDir::new().unwrap(), tempfile::TempDir::new().unwrap());
    write(folder.path(), &["10.0.0.1"]);
    fs::write(extra.path().join("a.yaml"), services(&[("web", "10.96.0.9"), ("db", "10.96.0.2")])).unwrap();
    let listen = format!("unix://{}", folder.path().join("brain.sock").display());
    let second = format!("file:{}", extra.path().display());
    let (_program, mut lines) = start_with(folder.path(), &listen, &["--source", &second]);
    let conflict = lines.find(|line| line["fields"]["code"] == "object-shadowed").unwrap();
    assert_eq!((&conflict["level"], &conflict["fields"]["object"]), (&"WARN".into(), &"Service shop/web".into()));
    let problem = conflict["fields"]["problem"].as_str().unwrap();
    assert!(problem.contains("cluster.yaml, not the one in") && problem.ends_with(&second), "{problem}");
    let first = lines.find(|line| line["fields"]["message"] == "first complete state").unwrap();
    assert_eq!((&first["fields"]["services"], &first["fields"]["endpoints"]), (&2.into(), &1.into()));

    let brain = Brain::new(listen.parse().unwrap(), None).unwrap();
    let web = ServiceKey::new("shop", "web");
    assert_eq!(brain.why(&web).await.unwrap().findings[0].code.as_str(), "object-shadowed");
    fs::write(folder.path().join("cluster.yaml"), "{apiVersion: v1, kind: Node, metadata: {name: here}}").unwrap();
    let changed = lines.find(|line| line["fields"]["message"] == "Service changed").unwrap();
    assert_eq!(changed["fields"]["service"], "shop/web");
    let Update::Full(state) = brain.next(Revision::default(), false).await.unwrap() else { panic!("the full state") };
    assert_eq!(state.services[&web].cluster_ips[0].to_string(), "10.96.0.9");
    assert_eq!(brain.why(&web).await.unwrap().findings, []);
}

#[tokio::test]
async fn the_first_state_waits_for_an_unavailable_api_server() {
    let folder = tempfile::TempDir::new().unwrap();
    write(folder.path(), &["10.0.0.1"]);
    let listen = format!("unix://{}", folder.path().join("brain.sock").display());
    let more = ["--source=kube", "--master=http://127.0.0.1:1"];
    let (_program, mut lines) = start_with(folder.path(), &listen, &more);
    let awaited = "the first state waits for the first lists of kube:http://127.0.0.1:1/";
    lines.find(|line| line["fields"]["message"] == awaited).unwrap();
    let status = Brain::new(listen.parse().unwrap(), None).unwrap().status().await.unwrap();
    assert_eq!(status.state.unwrap().rev, 0);
    let problem = status.source_problems.iter().find(|problem| problem.code == "source-awaited").unwrap();
    assert_eq!((&*problem.of, &*problem.problem), ("sources", awaited));
}
