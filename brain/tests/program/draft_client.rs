//! The Rust library reads the draft of `localnet.v1`.

use std::{path::Path, time::Duration};

use localnet_client::{Source as _, SourceError, grpc::Brain};
use localnet_proto::{Change, Revision, Update};
use tokio::time::timeout;

use super::{start_with, write_cluster};

/// Limit for each answer, so that a failing test does not hang.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Writes a `cluster.yaml` with a Service whose external IP has source ranges, and with this many endpoints.
fn write(folder: &Path, endpoints: u8) {
    let endpoints: String = (1..=endpoints).map(|pod| format!("- {{addresses: [10.1.0.{pod}]}}\n")).collect();
    let service = "\
        metadata: {name: web, namespace: shop, annotations: {localnet.dev/ipvs-scheduler: mh}}\n\
        spec: {type: LoadBalancer, clusterIP: 10.96.0.1, loadBalancerSourceRanges: [192.0.2.0/24], ports: [{port: 80}]}\n\
        status: {loadBalancer: {ingress: [{ip: 203.0.113.1}]}}\n";
    write_cluster(folder, service, &endpoints);
}

async fn next(brain: &Brain, have: Revision, fold: bool) -> Result<Update, SourceError> {
    timeout(TIMEOUT, brain.next(have, fold)).await.expect("the brain answers")
}

#[tokio::test]
async fn the_library_gets_what_readers_of_localnetv1_get_and_resumes() {
    let folder = tempfile::TempDir::new().unwrap();
    write(folder.path(), 2);
    let listen = format!("unix://{}", folder.path().join("brain.sock").display());
    let (_program, mut lines) = start_with(folder.path(), &listen, &["--draft-v1"]);
    lines.find(|line| line["fields"]["message"] == "first complete state").unwrap();
    let older = Brain::new(listen.parse().unwrap(), None).unwrap();
    let reader = || older.clone().reading_draft_v1("test");
    let draft = reader();

    let (Ok(Update::Full(expected)), Ok(Update::Full(mut read))) =
        (next(&older, Revision::default(), false).await, next(&draft, Revision::default(), false).await)
    else {
        panic!("full states")
    };
    let first = read.revision;
    read.node.settings = None;
    read.services.values_mut().for_each(|service| std::sync::Arc::make_mut(service).facts = None);
    assert_eq!(read, expected);
    assert_eq!(read.services.values().next().unwrap().source_filters.len(), 1, "nothing is withheld");

    // One program continues, and another one that has the same state waits for the next one.
    let resumed = reader();
    let mut waiting = std::pin::pin!(next(&resumed, first, false));
    assert!(timeout(Duration::from_millis(300), &mut waiting).await.is_err(), "the state is the same");
    write(folder.path(), 3);
    let Ok(Update::Delta { revision, changes }) = next(&draft, first, true).await else { panic!("changes") };
    assert!(matches!(&changes[..], [Change::Service(service)] if service.endpoints.len() == 3), "{changes:?}");
    let Ok(Update::Full(later)) = waiting.await else { panic!("a full state") };
    assert_eq!((later.revision, later.services.values().next().unwrap().endpoints.len()), (revision, 3));
}

#[tokio::test]
async fn a_brain_that_does_not_serve_the_draft_is_named_with_a_remedy() {
    let folder = tempfile::TempDir::new().unwrap();
    write(folder.path(), 1);
    let listen = format!("unix://{}", folder.path().join("brain.sock").display());
    let (_program, mut lines) = start_with(folder.path(), &listen, &[]);
    lines.find(|line| line["fields"]["message"] == "first complete state").unwrap();
    let brain = Brain::new(listen.parse().unwrap(), None).unwrap().reading_draft_v1("test");
    let error = next(&brain, Revision::default(), false).await.unwrap_err().to_string();
    assert_eq!(
        error,
        "the brain refused the request: it does not serve localnet.v1: start it with --draft-v1, or remove --draft-v1 from this program"
    );
}
