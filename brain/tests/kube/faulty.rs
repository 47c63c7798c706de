//! Tests of an API server that answers but delivers no changes: the source backs off and reports the trouble.
//!
//! The comments about kube-proxy describe v1.36 with the same faults for 30 s.

use std::{sync::atomic::Ordering, time::Duration};

use localnet_cluster::objects::Kind;
use tokio::time::{self, Instant};

use crate::{
    fake::{Fake, Request, brief, service},
    log::Log,
};

const FAILING: &str = r#"localnet_source_failing{of="services"}"#;
const MINUTE: Duration = Duration::from_secs(60);

/// Plays a fault for a minute and then recovers. Checks that the source backs off, reports the trouble and withdraws it.
async fn check(fault: &str, words: &[&str], answer: fn(Request)) {
    let mut fake = Fake::start(None);
    let requests = fake.play(Kind::Service, MINUTE, answer).await;
    // At most 10 s apart after the first five.
    assert!((6..=40).contains(&requests), "{fault}: {requests} requests in a minute");
    let problem = fake.trouble("services").unwrap_or_else(|| panic!("{fault}: no trouble is reported"));
    assert!(words.iter().all(|word| problem.contains(word)), "{fault}: {problem}");
    assert_eq!(fake.metric(FAILING), Some(1.0), "{fault}");

    // Neither an answer nor a list nor the start of a watch is a recovery. A watch that stays open is.
    let (mut lists, mut open) = (0, None);
    while open.is_none() {
        let request = fake.request(Kind::Service).await;
        if request.is_watch() {
            open = Some((request.stream(), Instant::now()));
        } else {
            lists += 1;
            request.list(&[service("a", "1")], "5");
        }
        assert_eq!(fake.metric(FAILING), Some(1.0), "{fault}: too early");
    }
    let (_changes, opened) = open.unwrap();
    assert!(lists <= 1, "{fault}");
    fake.well("services").await;
    assert_eq!(fake.metric(FAILING), Some(0.0), "{fault}");
    assert!(opened.elapsed() >= Duration::from_secs(5), "{fault}: {:?}", opened.elapsed());
}

/// Regression: the brain sent about 50 requests a second (392 to 493 in 30 s for Services alone), and logged nothing. kube-proxy
/// sends 8 to 12 in 30 s.
#[tokio::test(start_paused = true)]
async fn lists_and_watches_that_fail_after_an_answer_are_retried_with_backoff() {
    check("a list that breaks off after a page", &["cannot be reached"], |request| {
        if request.parameter("continue").is_some() {
            request.break_off();
        } else {
            request.page(&[service("a", "1")], "5", "more");
        }
    })
    .await;
    check("a watch that is outdated after its start", &["has forgotten the services", "410"], |request| {
        if request.is_watch() {
            request.stream().error(410);
        } else {
            request.list(&[service("a", "1")], "5");
        }
    })
    .await;
    check("a watch that is outdated before its start", &["has forgotten the services", "410"], |request| {
        if request.is_watch() {
            request.error(410);
        } else {
            request.list(&[service("a", "1")], "5");
        }
    })
    .await;
}

/// Regression: the brain retried without a delay, and reported no trouble. kube-proxy backs off up to 30 s and logs each attempt;
/// its health answers are 200, too.
#[tokio::test(start_paused = true)]
async fn watches_that_deliver_nothing_are_a_trouble() {
    check("a watch that is closed at once", &["ends each watch of services at once"], |request| {
        if request.is_watch() {
            drop(request.stream());
        } else {
            request.list(&[service("a", "1")], "5");
        }
    })
    .await;
    check("a watch that breaks off at once", &["ends each watch of services at once", "connection reset"], |request| {
        if request.is_watch() {
            request.stream().break_off();
        } else {
            request.list(&[service("a", "1")], "5");
        }
    })
    .await;
    check("a page of HTML instead of a watch", &["ends each watch", "not a change"], |request| {
        if request.is_watch() {
            request.html();
        } else {
            request.list(&[service("a", "1")], "5");
        }
    })
    .await;
    check("a page of HTML instead of a list", &["fails to serve services", "not a list"], Request::html).await;
}

/// Regression: after a restore of etcd, a watch resumes from a version in the future, and receives nothing until the server reaches
/// it. The brain kept 31 Services while the server had 9, as kube-proxy does.
#[tokio::test(start_paused = true)]
async fn an_api_server_with_an_older_state_is_listed_again() {
    let (log, _guard) = Log::begin();
    let mut fake = Fake::start(None);
    let changes = fake.open(Kind::Service, &[service("a", "7"), service("b", "260")], "270").await;
    time::sleep(MINUTE).await;
    fake.version.store(112, Ordering::Relaxed);
    drop(changes);
    let list = fake.request(Kind::Service).await;
    assert!(!list.is_watch(), "{}", list.query);
    list.list(&[service("a", "7")], "112");
    assert_eq!(brief(&fake.event().await), "=a");
    assert_eq!(fake.request(Kind::Service).await.parameter("resourceVersion"), Some("112"));
    assert_eq!(
        log.lines(&["WARN", "returned an older state than before", "was=270", "is=112"]).len(),
        1,
        "{:#?}",
        log.lines(&[])
    );
    assert_eq!(fake.metric(r#"localnet_source_restored_total{of="services"}"#), Some(1.0));
}

#[tokio::test(start_paused = true)]
async fn an_api_server_with_an_equal_state_is_not_listed_again() {
    let mut fake = Fake::start(None);
    // The last version is not a number, so it is not compared.
    for version in ["270", "270", "271", "x1"] {
        let mut fake = Fake::start(None);
        let changes = fake.open(Kind::Service, &[], "270").await;
        changes.send(&[("BOOKMARK", service("", version))]);
        fake.version.store(271, Ordering::Relaxed);
        drop(changes);
        assert_eq!(fake.request(Kind::Service).await.parameter("resourceVersion"), Some(version));
    }
    // A list that is older than the last known version counts as a restore, too.
    let changes = fake.open(Kind::Service, &[], "270").await;
    changes.error(410);
    fake.request(Kind::Service).await.list(&[], "112");
    fake.request(Kind::Service).await.break_off();
    assert_eq!(fake.metric(r#"localnet_source_restored_total{of="services"}"#), Some(1.0));
}

/// Regression: like kube-proxy, the brain accepted a silent watch as healthy for as long as it was open.
#[tokio::test(start_paused = true)]
async fn a_watch_that_does_not_deliver_changes_is_a_trouble() {
    let mut fake = Fake::start(None);
    let _first = fake.open(Kind::Service, &[service("a", "1")], "5").await;
    let start = Instant::now();
    let again = fake.request(Kind::Service).await;
    assert_eq!(again.parameter("resourceVersion"), Some("5"));
    assert_eq!(start.elapsed().as_secs(), 150);
    let _second = again.stream();
    // A list contains the change that the watches did not deliver.
    fake.request(Kind::Service).await.list(&[service("a", "8")], "9");
    assert_eq!(start.elapsed().as_secs(), 300);
    assert_eq!(brief(&fake.event().await), "=a");
    let third = fake.request(Kind::Service).await.stream();
    let problem = fake.trouble("services").unwrap();
    assert!(problem.contains("does not deliver changes of services (for instance of a)"), "{problem}");

    // The trouble ends when a watch delivers something.
    time::sleep(MINUTE).await;
    assert_eq!(fake.metric(FAILING), Some(1.0));
    third.send(&[("BOOKMARK", service("", "10"))]);
    fake.well("services").await;
    assert_eq!(fake.metric(FAILING), Some(0.0));
}

/// An API server that has just started sends no bookmarks of a kind until its first change.
#[tokio::test(start_paused = true)]
async fn a_silent_watch_without_changes_is_healthy() {
    let mut fake = Fake::start(None);
    let _first = fake.open(Kind::Service, &[service("a", "1")], "5").await;
    let _second = fake.request(Kind::Service).await.stream();
    fake.request(Kind::Service).await.list(&[service("a", "1")], "9");
    assert_eq!(brief(&fake.event().await), "=a");
    let third = fake.request(Kind::Service).await.stream();
    assert_eq!(fake.trouble("services"), None);
    let heard = r#"localnet_source_heard_timestamp_seconds{of="services"}"#;
    let listed = fake.metric(heard).unwrap();
    assert!(listed > 1.6e9, "{listed}");
    // A watch with bookmarks is not reopened.
    for minute in 0..20 {
        third.send(&[("BOOKMARK", service("", &format!("{}", 10 + minute)))]);
        time::sleep(MINUTE).await;
    }
    assert!(fake.metric(heard).unwrap() > listed);
    drop(third);
    assert_eq!(fake.request(Kind::Service).await.parameter("resourceVersion"), Some("29"));
}
