//! Kinds that may be missing: the Node for a while, ServiceCIDRs altogether.

use std::time::Duration;

use futures::FutureExt as _;
use localnet_brain::cluster::Kind;
use tokio::time::Instant;

use crate::{
    fake::{Fake, brief, node, service_cidr},
    log::Log,
};

#[tokio::test(start_paused = true)]
async fn a_node_that_comes_late_is_waited_for() {
    let mut fake = Fake::start(None);
    fake.request(Kind::Node).await.list(&[], "1");
    let changes = fake.request(Kind::Node).await.stream();
    assert!(fake.events.recv().now_or_never().is_none());
    changes.send(&[("ADDED", node("2"))]);
    assert_eq!(brief(&fake.event().await), "=node-a");
    changes.send(&[("DELETED", node("3"))]);
    assert_eq!(brief(&fake.event().await), "-node-a");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_does_not_come_is_not_waited_for_for_ever() {
    let (log, _guard) = Log::begin();
    let mut fake = Fake::start(None);
    fake.request(Kind::Node).await.list(&[], "1");
    let changes = fake.request(Kind::Node).await.stream();
    let begun = Instant::now();
    assert_eq!(brief(&fake.event().await), "=");
    assert_eq!(begun.elapsed().as_secs(), Duration::from_secs(30).as_secs());
    assert_eq!(log.lines(&["ERROR", "node-a", "check --node-name"]).len(), 1, "{:#?}", log.lines(&[]));
    changes.send(&[("ADDED", node("2"))]);
    assert_eq!(brief(&fake.event().await), "+node-a");
}

#[tokio::test(start_paused = true)]
async fn an_api_server_without_service_cidrs_is_good_enough() {
    for (code, said, asked_again) in [(404, 1, 60..61), (403, 3, 0..2)] {
        let (log, _guard) = Log::begin();
        let mut fake = Fake::start(None);
        for _ in 0..said {
            assert!(fake.events.recv().now_or_never().is_none(), "{code} was believed too early");
            fake.request(Kind::ServiceCidr).await.error(code);
        }
        assert_eq!(brief(&fake.event().await), "=");
        assert_eq!(log.lines(&["WARN", "going on without servicecidrs"]).len(), 1, "{:#?}", log.lines(&[]));

        // It is asked again now and then: after an upgrade, or a change of its rules, it has them.
        let begun = Instant::now();
        fake.request(Kind::ServiceCidr).await.error(code);
        assert!(asked_again.contains(&begun.elapsed().as_secs()), "{code}: {:?}", begun.elapsed());
        assert!(!fake.troubles.all().contains_key("servicecidrs.networking.k8s.io"));
        fake.request(Kind::ServiceCidr).await.list(&[service_cidr("1")], "2");
        assert_eq!(brief(&fake.event().await), "=kubernetes");
        assert_eq!(log.lines(&["going on without"]).len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_fails_is_not_one_without_service_cidrs() {
    let mut fake = Fake::start(None);
    for code in [500, 503, 401, 429] {
        fake.request(Kind::ServiceCidr).await.error(code);
    }
    assert!(fake.events.recv().now_or_never().is_none());
    fake.request(Kind::ServiceCidr).await.list(&[service_cidr("1")], "2");
    assert_eq!(brief(&fake.event().await), "=kubernetes");
}

/// An API server that has just started forbids what it will allow.
#[tokio::test(start_paused = true)]
async fn an_api_server_that_forbids_service_cidrs_for_a_moment_has_them() {
    let (log, _guard) = Log::begin();
    let mut fake = Fake::start(None);
    for _ in 0..2 {
        fake.request(Kind::ServiceCidr).await.error(403);
    }
    fake.request(Kind::ServiceCidr).await.break_off();
    for _ in 0..2 {
        fake.request(Kind::ServiceCidr).await.error(403);
    }
    let changes = fake.open(Kind::ServiceCidr, &[service_cidr("1")], "2").await;
    assert!(log.lines(&["going on without"]).is_empty(), "{:#?}", log.lines(&[]));

    // What was listed stays, however often it is forbidden afterwards.
    changes.error(410);
    for _ in 0..5 {
        fake.request(Kind::ServiceCidr).await.error(403);
    }
    fake.request(Kind::ServiceCidr).await.list(&[service_cidr("3")], "4");
    assert_eq!(brief(&fake.event().await), "=kubernetes");
    assert!(log.lines(&["going on without"]).is_empty(), "{:#?}", log.lines(&[]));
}
