//! An API server that answers, and still does not tell what is new: it is asked ever less often, and somebody gets to know.
//!
//! What kube-proxy v1.36 does on the same server is from the same faults played to it for 30 s.

use std::{sync::atomic::Ordering, time::Duration};

use localnet_brain::cluster::Kind;
use tokio::time::{self, Instant};

use crate::{
    fake::{Fake, Request, brief, service},
    log::Log,
};

const FAILING: &str = r#"localnet_source_failing{of="services"}"#;
const MINUTE: Duration = Duration::from_secs(60);

/// Nothing but a fault for a minute, then all is well. Attempts become rare, and it is known that something is wrong.
async fn check(fault: &str, words: &[&str], answer: fn(Request)) {
    let mut fake = Fake::start(None);
    let requests = fake.play(Kind::Service, MINUTE, answer).await;
    // At most 10 s apart after the first five.
    assert!((6..=40).contains(&requests), "{fault}: {requests} requests in a minute");
    let problem = fake.trouble("services").unwrap_or_else(|| panic!("{fault}: nobody is told"));
    assert!(words.iter().all(|word| problem.contains(word)), "{fault}: {problem}");
    assert_eq!(fake.metric(FAILING), Some(1.0), "{fault}");

    // Neither an answer, nor a list, nor the begin of a watch is a recovery: a watch that lives is.
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
    while fake.metric(FAILING) != Some(0.0) {
        time::sleep(Duration::from_millis(100)).await;
    }
    assert!(opened.elapsed() >= Duration::from_secs(5), "{fault}: {:?}", opened.elapsed());
    assert_eq!(fake.trouble("services"), None, "{fault}");
}

/// The brain sent about 50 requests a second for as long as this went on, 392 to 493 in 30 s for Services alone, and said
/// nothing. kube-proxy sends 8 to 12.
#[tokio::test(start_paused = true)]
async fn lists_and_watches_that_fail_after_an_answer_are_asked_for_ever_less_often() {
    check("a list that is cut in its middle", &["cannot be reached"], |request| {
        if request.parameter("continue").is_some() {
            request.break_off();
        } else {
            request.page(&[service("a", "1")], "5", "more");
        }
    })
    .await;
    check("a watch that is outdated once it has begun", &["has forgotten the services", "410"], |request| {
        if request.is_watch() {
            request.stream().error(410);
        } else {
            request.list(&[service("a", "1")], "5");
        }
    })
    .await;
    check("a watch that is outdated before it begins", &["has forgotten the services", "410"], |request| {
        if request.is_watch() {
            request.error(410);
        } else {
            request.list(&[service("a", "1")], "5");
        }
    })
    .await;
}

/// The brain asked again and again, and counted itself as well. kube-proxy backs off up to 30 s, logs each attempt, and its
/// health answers are 200 as well.
#[tokio::test(start_paused = true)]
async fn watches_that_tell_nothing_are_a_trouble() {
    check("a watch that is closed at once", &["ends each watch of services at once"], |request| {
        if request.is_watch() {
            drop(request.stream());
        } else {
            request.list(&[service("a", "1")], "5");
        }
    })
    .await;
    check("a watch that is cut at once", &["ends each watch of services at once", "connection reset"], |request| {
        if request.is_watch() {
            request.stream().break_off();
        } else {
            request.list(&[service("a", "1")], "5");
        }
    })
    .await;
    check("a page of HTML instead of a watch", &["ends each watch", "no change of an object"], |request| {
        if request.is_watch() {
            request.html();
        } else {
            request.list(&[service("a", "1")], "5");
        }
    })
    .await;
    check("a page of HTML instead of a list", &["fails to serve services", "no list"], Request::html).await;
}

/// After a restore of etcd a watch goes on from a version that has not happened yet, and hears nothing until it has. The
/// brain kept 31 Services where the server had 9, for good. So does kube-proxy: 31.
#[tokio::test(start_paused = true)]
async fn an_api_server_that_has_gone_back_is_listed_anew() {
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
    assert_eq!(log.lines(&["WARN", "has gone back in time", "was=270", "is=112"]).len(), 1, "{:#?}", log.lines(&[]));
    assert_eq!(fake.metric(r#"localnet_source_restored_total{of="services"}"#), Some(1.0));
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_where_it_was_is_not_listed_anew() {
    let mut fake = Fake::start(None);
    // The last one is no number: it is not compared.
    for version in ["270", "270", "271", "x1"] {
        let mut fake = Fake::start(None);
        let changes = fake.open(Kind::Service, &[], "270").await;
        changes.send(&[("BOOKMARK", service("", version))]);
        fake.version.store(271, Ordering::Relaxed);
        drop(changes);
        assert_eq!(fake.request(Kind::Service).await.parameter("resourceVersion"), Some(version));
    }
    // A list that is older than what was known tells the same.
    let changes = fake.open(Kind::Service, &[], "270").await;
    changes.error(410);
    fake.request(Kind::Service).await.list(&[], "112");
    fake.request(Kind::Service).await.break_off();
    assert_eq!(fake.metric(r#"localnet_source_restored_total{of="services"}"#), Some(1.0));
}

/// The brain, as kube-proxy, believed that nothing happens for as long as the watch was open: 0 changes in 60 s, and well.
#[tokio::test(start_paused = true)]
async fn a_watch_that_keeps_changes_silent_is_a_trouble() {
    let mut fake = Fake::start(None);
    let _first = fake.open(Kind::Service, &[service("a", "1")], "5").await;
    let begun = Instant::now();
    let again = fake.request(Kind::Service).await;
    assert_eq!(again.parameter("resourceVersion"), Some("5"));
    assert_eq!(begun.elapsed().as_secs(), 150);
    let _second = again.stream();
    // What the watches do not tell, a list does.
    fake.request(Kind::Service).await.list(&[service("a", "8")], "9");
    assert_eq!(begun.elapsed().as_secs(), 300);
    assert_eq!(brief(&fake.event().await), "=a");
    let third = fake.request(Kind::Service).await.stream();
    let problem = fake.trouble("services").unwrap();
    assert!(problem.contains("does not tell of changes of services (of a,"), "{problem}");

    // It is over when a watch tells something.
    time::sleep(MINUTE).await;
    assert_eq!(fake.metric(FAILING), Some(1.0));
    third.send(&[("BOOKMARK", service("", "10"))]);
    while fake.metric(FAILING) != Some(0.0) {
        time::sleep(Duration::from_millis(100)).await;
    }
}

/// An API server that has just started sends no bookmarks of a kind until something happens.
#[tokio::test(start_paused = true)]
async fn a_watch_that_has_nothing_to_tell_is_well() {
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
    // Bookmarks are enough to be left alone.
    for minute in 0..20 {
        third.send(&[("BOOKMARK", service("", &format!("{}", 10 + minute)))]);
        time::sleep(MINUTE).await;
    }
    assert!(fake.metric(heard).unwrap() > listed);
    drop(third);
    assert_eq!(fake.request(Kind::Service).await.parameter("resourceVersion"), Some("29"));
}
