//! A brain with several sources: what it serves, and what it waits for.

use std::{collections::BTreeMap, fs, time::Duration};

use localnet_client::{Source as _, grpc::Brain};
use localnet_proto::{Revision, ServiceKey, Update};

use tokio::time::timeout;

use super::{start_with, write};

/// Limit for every wait, so that a failing test does not hang.
const TIMEOUT: Duration = Duration::from_secs(60);

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

/// A reader of the states.
struct Reader {
    brain: Brain,
    have: Revision,
    services: BTreeMap<String, String>,
}

impl Reader {
    fn new(listen: &str) -> Self {
        let brain = Brain::new(listen.parse().unwrap(), None).unwrap();
        Self { brain, have: Revision::default(), services: BTreeMap::new() }
    }

    /// Waits for a state with exactly these Services, each with its ClusterIP and endpoints.
    async fn await_services(&mut self, expected: &[(&str, &str)]) {
        let expected = expected.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        let read = async {
            while self.services != expected {
                let Update::Full(state) = self.brain.next(self.have, false).await.unwrap() else { panic!("no delta") };
                self.have = state.revision;
                let services = state.services.values().map(|service| {
                    let endpoints = service.endpoints.iter().map(|endpoint| format!(" {}", endpoint.address));
                    let addresses = std::iter::once(service.cluster_ips[0].to_string()).chain(endpoints);
                    (service.key.name.to_string(), addresses.collect())
                });
                self.services = services.collect();
            }
        };
        let done = timeout(TIMEOUT, read).await;
        assert!(done.is_ok(), "the brain serves {:?} instead of {expected:?}", self.services);
    }

    /// Waits until these sources fail.
    async fn await_failing(&self, expected: &[&str]) {
        let read = async {
            loop {
                let problems = self.brain.status().await.unwrap().source_problems;
                let failing: Vec<&str> = problems.iter().map(|problem| &*problem.of).collect();
                if failing == expected {
                    return;
                }
            }
        };
        timeout(TIMEOUT, read).await.unwrap_or_else(|_| panic!("the sources {expected:?} do not fail"));
    }
}

#[tokio::test]
async fn a_lost_folder_keeps_its_objects_and_delays_no_other_source() {
    let (folder, extra) = (tempfile::TempDir::new().unwrap(), tempfile::TempDir::new().unwrap());
    write(folder.path(), &["10.0.0.1"]);
    let write_extra = |text: &str| {
        fs::create_dir_all(extra.path().join("now")).unwrap();
        fs::write(extra.path().join("now/new"), text).unwrap();
        fs::rename(extra.path().join("now/new"), extra.path().join("now/a.yaml")).unwrap();
    };
    write_extra(&services(&[("cache", "10.96.0.3"), ("db", "10.96.0.2")]));
    let listen = format!("unix://{}", folder.path().join("brain.sock").display());
    let second = format!("--source=file:{}", extra.path().join("now").display());
    let (_program, mut lines) = start_with(folder.path(), &listen, &[&second]);
    lines.find(|line| line["fields"]["message"] == "serving").unwrap();
    let (cache, db) = (("cache", "10.96.0.3"), ("db", "10.96.0.2"));
    let mut reader = Reader::new(&listen);
    reader.await_services(&[cache, db, ("web", "10.96.0.1 10.0.0.1")]).await;

    // A file of the second source becomes invalid, and then its folder disappears.
    write_extra("kind: [");
    reader.await_failing(&["files-2"]).await;
    write(folder.path(), &["10.0.0.2"]);
    reader.await_services(&[cache, db, ("web", "10.96.0.1 10.0.0.2")]).await;
    // Renaming is atomic. If the files were deleted one by one, this would delete their objects.
    fs::rename(extra.path().join("now"), extra.path().join("gone")).unwrap();
    lines.find(|line| line["fields"]["message"].as_str().is_some_and(|text| text.contains("No such file"))).unwrap();
    write(folder.path(), &["10.0.0.3"]);
    reader.await_services(&[cache, db, ("web", "10.96.0.1 10.0.0.3")]).await;
    reader.await_failing(&["files-2"]).await;

    // The folder returns with fewer objects.
    write_extra(&services(&[("cache", "10.96.0.3")]));
    reader.await_services(&[cache, ("web", "10.96.0.1 10.0.0.3")]).await;
    reader.await_failing(&[]).await;
}
