//! Tests of kinds that may be missing: the Node for some time, ServiceCIDRs permanently.

use std::time::Duration;

use futures::FutureExt as _;
use localnet_cluster::objects::Kind;
use tokio::time::Instant;

use crate::{
    fake::{Fake, brief, node, service_cidr},
    log::Log,
};

#[tokio::test(start_paused = true)]
async fn the_source_waits_for_the_node() {
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
async fn after_30_s_the_source_continues_without_the_node() {
    let (log, _guard) = Log::begin();
    let mut fake = Fake::start(None);
    fake.request(Kind::Node).await.list(&[], "1");
    let changes = fake.request(Kind::Node).await.stream();
    let start = Instant::now();
    assert_eq!(brief(&fake.event().await), "=");
    assert_eq!(start.elapsed().as_secs(), Duration::from_secs(30).as_secs());
    assert_eq!(log.lines(&["ERROR", "node-a", "check --node-name"]).len(), 1, "{:#?}", log.lines(&[]));
    changes.send(&[("ADDED", node("2"))]);
    assert_eq!(brief(&fake.event().await), "+node-a");
}

#[tokio::test(start_paused = true)]
async fn an_api_server_without_service_cidrs_is_sufficient() {
    for (code, attempts, retried_after) in [(404, 1, 60..61), (403, 3, 0..2)] {
        let (log, _guard) = Log::begin();
        let mut fake = Fake::start(None);
        for _ in 0..attempts {
            assert!(fake.events.recv().now_or_never().is_none(), "{code} was accepted too early");
            fake.request(Kind::ServiceCidr).await.error(code);
        }
        assert_eq!(brief(&fake.event().await), "=");
        assert_eq!(log.lines(&["WARN", "continuing without servicecidrs"]).len(), 1, "{:#?}", log.lines(&[]));

        // The source retries, because an upgrade or a change of RBAC rules may make the kind available.
        let start = Instant::now();
        fake.request(Kind::ServiceCidr).await.error(code);
        assert!(retried_after.contains(&start.elapsed().as_secs()), "{code}: {:?}", start.elapsed());
        assert!(!fake.troubles.all().contains_key("servicecidrs.networking.k8s.io"));
        fake.request(Kind::ServiceCidr).await.list(&[service_cidr("1")], "2");
        assert_eq!(brief(&fake.event().await), "=kubernetes");
        assert_eq!(log.lines(&["continuing without"]).len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_failing_api_server_does_not_count_as_one_without_service_cidrs() {
    let mut fake = Fake::start(None);
    for code in [500, 503, 401, 429] {
        fake.request(Kind::ServiceCidr).await.error(code);
    }
    assert!(fake.events.recv().now_or_never().is_none());
    fake.request(Kind::ServiceCidr).await.list(&[service_cidr("1")], "2");
    assert_eq!(brief(&fake.event().await), "=kubernetes");
}

/// An API server that has just started forbids requests until it has loaded its RBAC rules.
#[tokio::test(start_paused = true)]
async fn service_cidrs_that_are_forbidden_for_a_moment_are_listed() {
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
    assert!(log.lines(&["continuing without"]).is_empty(), "{:#?}", log.lines(&[]));

    // The listed objects stay, however often the API server forbids the request afterwards.
    changes.error(410);
    for _ in 0..5 {
        fake.request(Kind::ServiceCidr).await.error(403);
    }
    fake.request(Kind::ServiceCidr).await.list(&[service_cidr("3")], "4");
    assert_eq!(brief(&fake.event().await), "=kubernetes");
    assert!(log.lines(&["continuing without"]).is_empty(), "{:#?}", log.lines(&[]));
}
