//! Tests of requests, lists and changes.

use futures::FutureExt as _;
use localnet_cluster::{
    Options,
    objects::{Event, Kind, Object},
};

use tokio::time::Instant;

use crate::{
    fake::{Fake, brief, node, service, soon},
    log::Log,
};

#[tokio::test(start_paused = true)]
async fn the_selectors_match_kube_proxy() {
    let rows = [
        (None, "!service.kubernetes.io/service-proxy-name"),
        (Some("mesh"), "service.kubernetes.io/service-proxy-name=mesh"),
    ];
    for (proxy, labels) in rows {
        let mut fake = Fake::start(proxy);
        let expected = [
            (Kind::Service, Some(labels), Some("spec.clusterIP!=None")),
            (Kind::Slice, Some("!service.kubernetes.io/headless"), None),
            (Kind::Node, None, Some("metadata.name=node-a")),
            (Kind::ServiceCidr, None, None),
        ];
        for (kind, labels, fields) in expected {
            let list = fake.request(kind).await;
            assert_eq!(
                (list.parameter("labelSelector"), list.parameter("fieldSelector")),
                (labels, fields),
                "{kind:?}"
            );
            list.list(&[], "1");
            if kind == Kind::Node {
                continue;
            }
            fake.event().await;
            let watch = fake.request(kind).await;
            assert_eq!(
                (watch.parameter("labelSelector"), watch.parameter("fieldSelector")),
                (labels, fields),
                "{kind:?}"
            );
            assert_eq!(watch.parameter("allowWatchBookmarks"), Some("true"));
            drop(watch.stream());
        }
    }
}

/// Proxies ignore what the brain then receives in addition.
#[tokio::test(start_paused = true)]
async fn dns_needs_all_services_and_slices() {
    let mut fake = Fake::start_with(Options { dns: true, ..Options::of_node("node-a") });
    for kind in [Kind::Service, Kind::Slice] {
        let list = fake.request(kind).await;
        assert_eq!((list.parameter("labelSelector"), list.parameter("fieldSelector")), (None, None), "{kind:?}");
    }
}

/// Regression: API servers of Kubernetes 1.29 do not know the field `spec.clusterIP`, so the brain served nothing.
#[tokio::test(start_paused = true)]
async fn a_field_selector_that_the_api_server_does_not_know_is_omitted() {
    let (log, _guard) = Log::begin();
    let mut fake = Fake::start(None);
    let start = Instant::now();
    let labels = Some("!service.kubernetes.io/service-proxy-name");
    fake.request(Kind::Service).await.unknown_field("spec.clusterIP");
    let list = fake.request(Kind::Service).await;
    assert_eq!((list.parameter("labelSelector"), list.parameter("fieldSelector")), (labels, None));
    list.list(&[service("a", "1")], "5");
    assert_eq!(brief(&fake.event().await), "=a");
    let watch = fake.request(Kind::Service).await;
    assert_eq!((watch.parameter("labelSelector"), watch.parameter("fieldSelector")), (labels, None));
    assert_eq!(start.elapsed().as_secs(), 0);
    watch.error(410);
    assert_eq!(fake.request(Kind::Service).await.parameter("fieldSelector"), None);
    assert_eq!(fake.trouble("services"), None);
    let lines = log.lines(&["does not know the field selector spec.clusterIP!=None for services"]);
    assert_eq!(lines.len(), 1, "{:#?}", log.lines(&[]));
}

/// Each other refusal is retried with the same selector.
#[tokio::test(start_paused = true)]
async fn a_list_that_is_refused_for_another_reason_keeps_its_field_selector() {
    let mut fake = Fake::start(None);
    for code in [400, 500] {
        fake.request(Kind::Service).await.error(code);
        assert_eq!(fake.request(Kind::Service).await.parameter("fieldSelector"), Some("spec.clusterIP!=None"));
    }
}

#[tokio::test(start_paused = true)]
async fn the_pages_of_a_list_become_one_event() {
    let mut fake = Fake::start(None);
    fake.request(Kind::Service).await.page(&[service("a", "1"), service("b", "2")], "5", "more");
    let second = fake.request(Kind::Service).await;
    assert_eq!(second.parameter("continue"), Some("more"));
    assert!(fake.events.recv().now_or_never().is_none(), "a part of a list was sent");
    second.list(&[service("c", "3")], "5");
    let Event::Replace { kind: Kind::Service, objects } = fake.event().await else { panic!("expected a list") };
    let names: Vec<_> = objects.iter().map(Object::name).collect();
    assert_eq!(names, ["a", "b", "c"]);
    let Object::Service(first) = &objects[0] else { panic!("{objects:?}") };
    assert_eq!(first.ports[0].port, 80);
}

#[tokio::test(start_paused = true)]
async fn changes_follow_the_list() {
    let mut fake = Fake::start(None);
    let changes = fake.open(Kind::Service, &[service("a", "1")], "5").await;
    changes.send(&[("ADDED", service("b", "6"))]);
    assert_eq!(brief(&fake.event().await), "+b");
    changes.send(&[("MODIFIED", service("a", "7"))]);
    assert_eq!(brief(&fake.event().await), "+a");
    changes.send(&[("DELETED", service("a", "8"))]);
    let Event::Delete { kind: Kind::Service, namespace, name } = fake.event().await else {
        panic!("expected a deletion")
    };
    assert_eq!((&*namespace, &*name), ("default", "a"));
}

#[tokio::test(start_paused = true)]
async fn changes_that_arrive_together_become_one_batch() {
    let mut fake = Fake::start(None);
    let changes = fake.open(Kind::Service, &[], "5").await;
    changes.send(&[("ADDED", service("a", "6")), ("ADDED", service("b", "7")), ("DELETED", service("a", "8"))]);
    let batch = soon(fake.events.recv()).await.unwrap();
    assert_eq!(batch.events.iter().map(brief).collect::<Vec<_>>(), ["+a", "+b", "-a"]);
}

#[tokio::test(start_paused = true)]
async fn the_node_is_reduced_and_followed() {
    let mut fake = Fake::start(None);
    let changes = fake.open(Kind::Node, &[node("1")], "5").await;
    changes.send(&[("MODIFIED", node("6"))]);
    let Event::Apply(Object::Node(object)) = fake.event().await else { panic!("expected a change") };
    assert_eq!(&*object.name, "node-a");
}
