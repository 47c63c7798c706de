//! Tests of objects that cannot be decoded. Regression: one such object stopped all changes of its kind, as it does in kube-proxy,
//! because client-go rejects the whole list and ends the watch.

use std::time::Duration;

use localnet_cluster::objects::Kind;
use serde_json::{Value, json};
use tokio::time;

use crate::{
    fake::{Fake, brief, service, soon},
    log::Log,
};

const OF: &str = "unreadable services";

fn unreadable(name: &str, version: &str) -> Value {
    let mut service = service(name, version);
    service["spec"]["ports"][0]["port"] = json!("web");
    service
}

#[tokio::test(start_paused = true)]
async fn an_undecodable_object_of_a_list_is_named_and_the_others_are_applied() {
    let (log, _guard) = Log::begin();
    let mut fake = Fake::start(None);
    fake.request(Kind::Service).await.list(&[service("a", "1"), unreadable("b", "2"), service("c", "3")], "5");
    let batch = soon(fake.events.recv()).await.unwrap();
    assert_eq!(batch.events.iter().map(brief).collect::<Vec<_>>(), ["=a,c"]);
    let localnet_brain::batch::Origin::ApiServer { unreadable, .. } = batch.origin else { panic!("{batch:?}") };
    assert_eq!(unreadable, [localnet_proto::ServiceKey::new("default", "b")]);
    let words = ["Service default/b: spec.ports[0].port: ", "expected i32; skipped", "correct the field"];
    let problem = fake.trouble(OF).unwrap();
    assert!(words.iter().all(|word| problem.contains(word)), "{problem}");
    let logged: Vec<&str> = words.into_iter().chain(["WARN"]).collect();
    assert_eq!(log.lines(&logged).len(), 1, "{:#?}", log.lines(&[]));

    // The watch continues, and the source is healthy.
    let changes = fake.request(Kind::Service).await.stream();
    changes.send(&[("MODIFIED", service("b", "6"))]);
    assert_eq!(brief(&fake.event().await), "+b");
    assert_eq!((fake.trouble(OF), fake.trouble("services")), (None, None));
}

#[tokio::test(start_paused = true)]
async fn an_undecodable_change_leaves_the_object_unchanged_and_the_watch_continues() {
    let (log, _guard) = Log::begin();
    let mut fake = Fake::start(None);
    let changes = fake.open(Kind::Service, &[service("a", "1"), service("b", "2")], "5").await;
    changes.send(&[("MODIFIED", unreadable("a", "6")), ("MODIFIED", unreadable("a", "7"))]);
    changes.send(&[("ADDED", service("c", "8"))]);
    assert_eq!(brief(&fake.event().await), "+c");
    assert!(fake.trouble(OF).unwrap().starts_with("Service default/a: spec.ports[0].port: "));
    assert_eq!(log.lines(&["WARN", "Service default/a"]).len(), 1, "{:#?}", log.lines(&[]));
    // The watch stays open, and the trouble lasts.
    time::sleep(Duration::from_secs(100)).await;
    changes.send(&[("DELETED", unreadable("a", "9"))]);
    assert_eq!(brief(&fake.event().await), "-a");
    assert_eq!(fake.trouble(OF), None);
}
