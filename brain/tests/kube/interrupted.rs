//! What happens when the API server goes away, forgets, or says no: nothing is sent but complete lists and true changes.

use std::time::Duration;

use futures::FutureExt as _;
use localnet_brain::cluster::Kind;
use tokio::time::{self, Instant};

use crate::{
    fake::{Fake, brief, node, service},
    log::Log,
};

#[tokio::test(start_paused = true)]
async fn an_outdated_watch_is_replaced_by_a_whole_list() {
    let mut fake = Fake::start(None);
    let changes = fake.open(Kind::Service, &[service("a", "1"), service("b", "2")], "5").await;
    changes.error(410);
    let list = fake.request(Kind::Service).await;
    assert!(!list.is_watch());
    list.page(&[service("b", "2")], "9", "more");
    let second = fake.request(Kind::Service).await;
    assert!(fake.events.recv().now_or_never().is_none(), "half a list was sent");
    second.list(&[service("c", "8")], "9");
    assert_eq!(brief(&fake.event().await), "=b,c");
    assert_eq!(fake.request(Kind::Service).await.parameter("resourceVersion"), Some("9"));
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_cannot_begin_where_it_ended_lists_again() {
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
async fn a_list_that_breaks_off_is_begun_anew_and_nothing_of_it_is_seen() {
    let mut fake = Fake::start(None);
    fake.request(Kind::Service).await.page(&[service("a", "1")], "5", "more");
    fake.request(Kind::Service).await.break_off();
    let again = fake.request(Kind::Service).await;
    assert_eq!((again.is_watch(), again.parameter("continue")), (false, None));
    assert!(fake.events.recv().now_or_never().is_none(), "half a list was sent");
    again.list(&[service("b", "1")], "6");
    assert_eq!(brief(&fake.event().await), "=b");
}

#[tokio::test(start_paused = true)]
async fn a_lost_connection_changes_nothing_and_is_resumed() {
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
async fn attempts_become_rare_but_never_stop() {
    let mut fake = Fake::start(None);
    let begun = Instant::now();
    for _ in 0..12 {
        fake.request(Kind::Service).await.break_off();
    }
    let waited = begun.elapsed();
    assert!(waited > Duration::from_secs(30), "too often: {waited:?}");
    let last = Instant::now();
    fake.request(Kind::Service).await.break_off();
    assert!(last.elapsed() <= Duration::from_secs(10), "{:?}", last.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_does_not_come_is_not_waited_for() {
    let mut fake = Fake::start(None);
    let _hanging = fake.request(Kind::Service).await;
    let begun = Instant::now();
    fake.request(Kind::Service).await.list(&[], "1");
    assert!(begun.elapsed() <= Duration::from_secs(31), "{:?}", begun.elapsed());
    assert_eq!(brief(&fake.event().await), "=");
}

#[tokio::test(start_paused = true)]
async fn a_silent_watch_is_begun_anew() {
    let mut fake = Fake::start(None);
    let _silent = fake.open(Kind::Service, &[service("a", "1")], "5").await;
    let again = fake.request(Kind::Service).await;
    assert_eq!(again.parameter("resourceVersion"), Some("5"));
    assert!(fake.events.recv().now_or_never().is_none());
}

#[tokio::test(start_paused = true)]
async fn trouble_is_said_once_with_its_remedy_and_so_is_its_end() {
    let (log, _guard) = Log::begin();
    let mut fake = Fake::start(None);
    // All else is well.
    let _slices = fake.open(Kind::Slice, &[], "1").await;
    let _node = fake.open(Kind::Node, &[node("1")], "1").await;
    let _cidrs = fake.open(Kind::ServiceCidr, &[], "1").await;
    for _ in 0..5 {
        fake.request(Kind::Service).await.error(403);
    }
    let forbidden = ["WARN", "does not allow to list services", "grant the verbs list and watch", "https://api.test"];
    assert_eq!(log.lines(&forbidden).len(), 1, "{:#?}", log.lines(&[]));
    assert_eq!(log.lines(&["nothing is served until then"]).len(), 1);
    let all = fake.troubles.all().into_iter().map(|(of, trouble)| format!("{of}: {}", trouble.problem));
    let all: Vec<String> = all.collect();
    assert_eq!(all.len(), 1);
    assert!(
        all[0].starts_with("services: the API server at https://api.test does not allow to list services"),
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
    // Nothing changes meanwhile, and still it is known that all is well again.
    while log.lines(&["the API server answers again", "Service"]).is_empty() {
        time::advance(Duration::from_millis(10)).await;
    }
    assert_eq!(fake.trouble("services"), None);
    changes.break_off();
    for _ in 0..5 {
        fake.request(Kind::Service).await.break_off();
    }
    let unreachable = ["cannot be reached: connection reset", "what was last seen stays in use"];
    assert_eq!(log.lines(&unreachable).len(), 1, "{:#?}", log.lines(&[]));
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_away_is_said_once_for_all_kinds() {
    let (log, _guard) = Log::begin();
    let mut fake = Fake::start(None);
    for _ in 0..8 {
        for kind in Kind::ALL {
            fake.request(kind).await.break_off();
        }
    }
    assert_eq!(fake.troubles.all().len(), Kind::ALL.len());
    fake.request(Kind::Slice).await.list(&[], "1");
    // What one of them finds out, the others need not wait for.
    let back = Instant::now();
    for kind in [Kind::Service, Kind::Node, Kind::ServiceCidr] {
        fake.request(kind).await.list(&[], "1");
    }
    assert!(back.elapsed() < Duration::from_millis(100), "{:?}", back.elapsed());
    let mut watches = Vec::new();
    for kind in Kind::ALL {
        watches.push(fake.request(kind).await.stream());
    }
    while !fake.troubles.all().is_empty() {
        time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(log.lines(&["cannot be reached"]).len(), 1, "{:#?}", log.lines(&[]));
    assert_eq!(log.lines(&["answers again"]).len(), 1, "{:#?}", log.lines(&[]));
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_not_quite_up_yet_alarms_nobody() {
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
    // It is asked as soon as one that was never away, give or take the one wait that was under way.
    assert!(up.elapsed() <= Duration::from_secs(10 + 1), "{:?}", up.elapsed());
    let _changes = resumed.stream();
    assert!(log.lines(&["does not allow"]).is_empty(), "{:#?}", log.lines(&[]));
}
