//! Tests of an API server that disconnects, forgets its history or refuses requests. The source sends only complete lists and
//! real changes.

use std::{collections::BTreeMap, time::Duration};

use futures::FutureExt as _;
use localnet_cluster::objects::Kind;
use tokio::time::{self, Instant};

use crate::{
    fake::{Fake, brief, node, service, soon},
    log::Log,
};

#[tokio::test(start_paused = true)]
async fn an_outdated_watch_is_followed_by_a_complete_list() {
    let mut fake = Fake::start(None);
    let changes = fake.open(Kind::Service, &[service("a", "1"), service("b", "2")], "5").await;
    changes.error(410);
    let list = fake.request(Kind::Service).await;
    assert!(!list.is_watch());
    list.page(&[service("b", "2")], "9", "more");
    let second = fake.request(Kind::Service).await;
    assert!(fake.events.recv().now_or_never().is_none(), "a part of a list was sent");
    second.list(&[service("c", "8")], "9");
    assert_eq!(brief(&fake.event().await), "=b,c");
    assert_eq!(fake.request(Kind::Service).await.parameter("resourceVersion"), Some("9"));
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_cannot_resume_is_followed_by_a_list() {
    let mut fake = Fake::start(None);
    let changes = fake.open(Kind::Service, &[service("a", "1")], "5").await;
    drop(changes);
    let resumed = fake.request(Kind::Service).await;
    assert_eq!(resumed.parameter("resourceVersion"), Some("5"));
    resumed.error(410);
    fake.request(Kind::Service).await.list(&[service("b", "7")], "8");
    assert_eq!(brief(&fake.event().await), "=b");
}

#[tokio::test(start_paused = true)]
async fn an_incomplete_list_is_discarded_and_restarted() {
    let mut fake = Fake::start(None);
    fake.request(Kind::Service).await.page(&[service("a", "1")], "5", "more");
    fake.request(Kind::Service).await.break_off();
    let again = fake.request(Kind::Service).await;
    assert_eq!((again.is_watch(), again.parameter("continue")), (false, None));
    assert!(fake.events.recv().now_or_never().is_none(), "a part of a list was sent");
    again.list(&[service("b", "1")], "6");
    assert_eq!(brief(&fake.event().await), "=b");
}

#[tokio::test(start_paused = true)]
async fn a_watch_resumes_after_a_lost_connection() {
    let mut fake = Fake::start(None);
    let changes = fake.open(Kind::Service, &[service("a", "1")], "5").await;
    changes.send(&[("ADDED", service("b", "6"))]);
    assert_eq!(brief(&fake.event().await), "+b");
    changes.break_off();
    for _ in 0..20 {
        let request = fake.request(Kind::Service).await;
        assert_eq!(request.parameter("resourceVersion"), Some("6"), "{}", request.query);
        request.break_off();
    }
    assert!(fake.events.recv().now_or_never().is_none());
    let changes = fake.request(Kind::Service).await.stream();
    changes.send(&[("DELETED", service("a", "7"))]);
    assert_eq!(brief(&fake.event().await), "-a");
}

#[tokio::test(start_paused = true)]
async fn retries_back_off_to_at_most_10_s() {
    let mut fake = Fake::start(None);
    let start = Instant::now();
    for _ in 0..12 {
        fake.request(Kind::Service).await.break_off();
    }
    let waited = start.elapsed();
    assert!(waited > Duration::from_secs(30), "the retries are too frequent: {waited:?}");
    let last = Instant::now();
    fake.request(Kind::Service).await.break_off();
    assert!(last.elapsed() <= Duration::from_secs(10), "{:?}", last.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_request_without_an_answer_is_repeated_after_30_s() {
    let mut fake = Fake::start(None);
    let _hanging = fake.request(Kind::Service).await;
    let start = Instant::now();
    fake.request(Kind::Service).await.list(&[], "1");
    assert!(start.elapsed() <= Duration::from_secs(31), "{:?}", start.elapsed());
    assert_eq!(brief(&fake.event().await), "=");
}

#[tokio::test(start_paused = true)]
async fn a_silent_watch_is_reopened() {
    let mut fake = Fake::start(None);
    let _silent = fake.open(Kind::Service, &[service("a", "1")], "5").await;
    let again = fake.request(Kind::Service).await;
    assert_eq!(again.parameter("resourceVersion"), Some("5"));
    assert!(fake.events.recv().now_or_never().is_none());
}

#[tokio::test(start_paused = true)]
async fn each_trouble_and_its_end_are_logged_once() {
    let (log, _guard) = Log::begin();
    let mut fake = Fake::start(None);
    // The other kinds are healthy.
    let _slices = fake.open(Kind::Slice, &[], "1").await;
    let _node = fake.open(Kind::Node, &[node("1")], "1").await;
    let _cidrs = fake.open(Kind::ServiceCidr, &[], "1").await;
    for _ in 0..5 {
        fake.request(Kind::Service).await.error(403);
    }
    let forbidden =
        ["WARN", "does not allow this account to list services", "grant the verbs list and watch", "https://api.test"];
    assert_eq!(log.lines(&forbidden).len(), 1, "{:#?}", log.lines(&[]));
    assert_eq!(log.lines(&["nothing is served until a retry succeeds"]).len(), 1);
    let all = fake.troubles.all().into_iter().map(|(of, trouble)| format!("{of}: {}", trouble.diagnostic));
    let all: Vec<String> = all.collect();
    assert_eq!(all.len(), 1);
    assert!(
        all[0].starts_with("services: the API server at https://api.test does not allow this account to list services"),
        "{all:?}"
    );

    for _ in 0..5 {
        fake.request(Kind::Service).await.error(401);
    }
    fake.request(Kind::Service).await.list(&[], "1");
    fake.event().await;
    assert_eq!(log.lines(&forbidden).len(), 1);
    assert_eq!(log.lines(&["does not accept the credentials; renew"]).len(), 1);

    let changes = fake.request(Kind::Service).await.stream();
    // The watch recovers without any change.
    while log.lines(&["the API server answers again", "Service"]).is_empty() {
        time::advance(Duration::from_millis(10)).await;
    }
    assert_eq!(fake.trouble("services"), None);
    changes.break_off();
    for _ in 0..5 {
        fake.request(Kind::Service).await.break_off();
    }
    let unreachable = ["cannot be reached: connection reset", "keeping the last objects"];
    assert_eq!(log.lines(&unreachable).len(), 1, "{:#?}", log.lines(&[]));
}

#[tokio::test(start_paused = true)]
async fn an_unavailable_api_server_is_logged_once_for_all_kinds() {
    let (log, _guard) = Log::begin();
    let mut fake = Fake::start(None);
    for _ in 0..8 {
        for kind in Kind::ALL {
            fake.request(kind).await.break_off();
        }
    }
    assert_eq!(fake.troubles.all().len(), Kind::ALL.len());
    fake.request(Kind::Slice).await.list(&[], "1");
    // An answer to one watch ends the backoff of the others.
    let back = Instant::now();
    for kind in [Kind::Service, Kind::Node, Kind::ServiceCidr] {
        fake.request(kind).await.list(&[], "1");
    }
    assert!(back.elapsed() < Duration::from_millis(100), "{:?}", back.elapsed());
    let mut watches = Vec::new();
    for kind in Kind::ALL {
        watches.push(fake.request(kind).await.stream());
    }
    soon(fake.troubles.subscribe().wait_for(BTreeMap::is_empty)).await.unwrap();
    assert_eq!(log.lines(&["cannot be reached"]).len(), 1, "{:#?}", log.lines(&[]));
    assert_eq!(log.lines(&["answers again"]).len(), 1, "{:#?}", log.lines(&[]));
}

#[tokio::test(start_paused = true)]
async fn refusals_of_a_starting_api_server_are_not_logged() {
    let (log, _guard) = Log::begin();
    let mut fake = Fake::start(None);
    let changes = fake.open(Kind::Service, &[service("a", "1")], "5").await;
    changes.break_off();
    for _ in 0..6 {
        fake.request(Kind::Service).await.break_off();
    }
    let up = Instant::now();
    for _ in 0..2 {
        fake.request(Kind::Service).await.error(403);
    }
    let resumed = fake.request(Kind::Service).await;
    assert_eq!(resumed.parameter("resourceVersion"), Some("5"));
    // The backoff restarts, after at most one long delay that was in progress.
    assert!(up.elapsed() <= Duration::from_secs(10 + 1), "{:?}", up.elapsed());
    let _changes = resumed.stream();
    assert!(log.lines(&["does not allow"]).is_empty(), "{:#?}", log.lines(&[]));
}
