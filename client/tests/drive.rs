//! Tests the loop with a source and a backend that fail on demand. Time is paused, so no test waits for the clock.
#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{
        Arc, Mutex as StdMutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use localnet_client::{
    Attempts, Backend, Changes, Code, Counts, Options, Report, Revision, Snapshot, Source, SourceError, Synced, run,
};
use localnet_proto::{ByFamily, Change, Digest, Family, Node, Service, ServiceKey, Update, traffic::TrafficReport};
use tokio::{
    sync::{Mutex, Notify, mpsc, watch},
    time::{Instant, timeout},
};

/// A source that delivers the updates that the test sends.
struct Script {
    answers: Mutex<mpsc::UnboundedReceiver<Result<Update, SourceError>>>,
    requested: Arc<StdMutex<Vec<(Revision, bool)>>>,
    reports: mpsc::UnboundedSender<Report>,
    /// When the delivered traffic was counted.
    traffic: Arc<StdMutex<Vec<u64>>>,
    /// How many of the next reports fail.
    deaf: AtomicUsize,
    /// The error of these reports.
    why: SourceError,
}

impl Source for Script {
    async fn next(&self, have: Revision, fold: bool) -> Result<Update, SourceError> {
        self.requested.lock().unwrap().push((have, fold));
        match self.answers.lock().await.recv().await {
            Some(answer) => answer,
            None => std::future::pending().await,
        }
    }

    async fn report(&self, report: &Report) -> Result<(), SourceError> {
        if self.deaf.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
            return Err(self.why.clone());
        }
        _ = self.reports.send(report.clone());
        Ok(())
    }

    async fn report_traffic(&self, traffic: &TrafficReport) -> Result<(), SourceError> {
        self.traffic.lock().unwrap().push(traffic.time_millis);
        Ok(())
    }

    fn describe(&self) -> String {
        "a script".to_owned()
    }
}

/// The test's end of a [`Script`].
struct Hand {
    answers: mpsc::UnboundedSender<Result<Update, SourceError>>,
    requested: Arc<StdMutex<Vec<(Revision, bool)>>>,
    reports: mpsc::UnboundedReceiver<Report>,
    traffic: Arc<StdMutex<Vec<u64>>>,
}

impl Hand {
    fn give(&self, answer: Result<Update, SourceError>) {
        self.answers.send(answer).unwrap();
    }

    fn lose(&self) {
        self.give(Err(SourceError::Unreachable("gone".to_owned())));
    }
}

fn script(deaf: usize) -> (Script, Hand) {
    let (give, answers) = mpsc::unbounded_channel();
    let (sender, reports) = mpsc::unbounded_channel();
    let requested = Arc::new(StdMutex::new(Vec::new()));
    let (deaf, why) = (AtomicUsize::new(deaf), SourceError::Unreachable("not now".to_owned()));
    let traffic = Arc::new(StdMutex::default());
    let (answers, requested_too, traffic_too) = (Mutex::new(answers), Arc::clone(&requested), Arc::clone(&traffic));
    let script = Script { answers, requested: requested_too, reports: sender, traffic: traffic_too, deaf, why };
    (script, Hand { answers: give, requested, reports, traffic })
}

/// A backend that fails its first syncs, and records the arguments of each call.
struct Fake {
    refuse: usize,
    /// How many further syncs fail in IPv6 only.
    refuse_v6: usize,
    /// How many further syncs skip a Service because the kernel refuses it. Refused Services are retried only on
    /// request.
    refuse_service: usize,
    retried: bool,
    /// The families that each sync reports as full.
    full: Vec<Family>,
    calls: mpsc::UnboundedSender<(Revision, Changes, Instant)>,
    disturbed: Arc<Notify>,
    counts: watch::Sender<Counts>,
}

impl Backend for Fake {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn counts(&self) -> Option<watch::Receiver<Counts>> {
        Some(self.counts.subscribe())
    }

    async fn sync(&mut self, state: &Snapshot, changes: &Changes) -> anyhow::Result<Synced> {
        // A test that has stopped listening does not make the sync fail.
        _ = self.calls.send((state.revision, changes.clone(), Instant::now()));
        if self.refuse > 0 {
            self.refuse -= 1;
            anyhow::bail!("no");
        }
        let skipped = vec![localnet_client::vips::refused(&ServiceKey::new("default", "odd"), "too odd".to_owned())];
        if self.refuse_v6 > 0 {
            self.refuse_v6 -= 1;
            let failed = vec![(Family::V6, anyhow::anyhow!("no NAT"))];
            return Ok(Synced { failed, skipped, ..Synced::default() });
        }
        let retried = std::mem::take(&mut self.retried);
        self.refuse_service = self.refuse_service.saturating_sub(usize::from(retried));
        let refused = (self.refuse_service > 0).then(|| ServiceKey::new("default", "odd")).into_iter().collect();
        Ok(Synced { skipped, refused, full: self.full.clone(), ..Synced::default() })
    }

    fn retry_refused(&mut self) {
        self.retried = true;
    }

    async fn cleanup(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    async fn disturbed(&mut self) {
        self.disturbed.notified().await;
    }
}

fn revision(rev: u64) -> Revision {
    Revision { instance: 1, rev }
}

fn service(name: &str) -> Arc<Service> {
    Arc::new(Service::new(ServiceKey::new("default", name), vec![IpAddr::from([10, 0, 0, 1])]))
}

fn full(rev: u64, names: &[&str]) -> Update {
    let services = names.iter().map(|name| service(name)).map(|service| (service.key.clone(), service));
    let services: BTreeMap<_, _> = services.collect();
    Update::Full(Snapshot { revision: revision(rev), services, ..Snapshot::default() })
}

fn delta(rev: u64, name: &str) -> Update {
    Update::Delta { revision: revision(rev), changes: vec![Change::Service(service(name))] }
}

fn named(names: &[&str]) -> Changes {
    let services = names.iter().map(|name| ServiceKey::new("default", *name)).collect();
    Changes { services, ..Changes::default() }
}

fn fake(refuse: usize) -> (Fake, mpsc::UnboundedReceiver<(Revision, Changes, Instant)>, Arc<Notify>) {
    let (calls, called) = mpsc::unbounded_channel();
    let disturbed = Arc::new(Notify::new());
    let counts = watch::Sender::default();
    let (refuse_service, retried, full) = (0, false, Vec::new());
    (
        Fake { refuse, refuse_v6: 0, refuse_service, retried, full, calls, disturbed: Arc::clone(&disturbed), counts },
        called,
        disturbed,
    )
}

#[tokio::test(start_paused = true)]
async fn each_state_is_synced_with_its_changes_and_reported() {
    let (backend, mut called, _) = fake(0);
    let (source, mut hand) = script(0);
    tokio::spawn(run(backend, source, Options::default(), std::future::pending()));
    hand.give(Ok(full(1, &["a"])));
    let first = called.recv().await.unwrap();
    assert_eq!(first.0, revision(1));
    assert!(first.1.everything, "the kernel is unknown before the first sync");
    assert_eq!(hand.reports.recv().await.unwrap().families[0].1.applied, 1);
    hand.give(Ok(delta(2, "b")));
    assert_eq!(called.recv().await.unwrap().1, named(&["b"]));
    let digest = |update| {
        let mut state = Snapshot::default();
        state.apply(update);
        Some(Digest::of(&state))
    };
    let report = hand.reports.recv().await.unwrap();
    assert_eq!(report.families[1].1.digest, digest(full(2, &["a", "b"])), "the digest follows the delta");
    hand.give(Ok(full(3, &["b"])));
    assert_eq!(called.recv().await.unwrap().1, named(&["a"]), "a full state names only real differences");
    let report = hand.reports.recv().await.unwrap();
    assert_eq!((report.families[0].1.applied, report.families[0].1.digest), (3, digest(full(3, &["b"]))));
    tokio::time::sleep(Duration::from_secs(1)).await;
    let requested = hand.requested.lock().unwrap().clone();
    assert_eq!(
        requested,
        [(Revision::default(), false), (revision(1), true), (revision(2), true), (revision(3), true)]
    );
}

/// The source merges the changes of the interval into one state.
#[tokio::test(start_paused = true)]
async fn the_next_state_is_requested_after_the_interval() {
    for (min_interval, expected) in
        [(1_000, 1_000), (0, 5)].map(|(a, b)| (Duration::from_millis(a), Duration::from_millis(b)))
    {
        let (backend, mut called, _) = fake(0);
        let (source, hand) = script(0);
        hand.give(Ok(full(1, &["a"])));
        let options = Options { min_interval, ..Options::default() };
        tokio::spawn(run(backend, source, options, std::future::pending()));
        let (_, _, began) = called.recv().await.unwrap();
        hand.give(Ok(delta(2, "b")));
        tokio::time::sleep(expected - Duration::from_millis(1)).await;
        assert_eq!(hand.requested.lock().unwrap().clone(), [(Revision::default(), false)], "{min_interval:?}");
        let (newest, changes, at) = called.recv().await.unwrap();
        assert_eq!((newest, changes, at - began), (revision(2), named(&["b"]), expected));
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_state_is_retried_and_a_newer_one_wins() {
    let (backend, mut called, _) = fake(2);
    let (source, mut hand) = script(0);
    tokio::spawn(run(backend, source, Options::default(), std::future::pending()));
    hand.give(Ok(full(1, &["a"])));
    assert_eq!(called.recv().await.unwrap().0, revision(1));
    let refused = hand.reports.recv().await.unwrap();
    let outcome = &refused.families[0].1;
    assert_eq!((refused.received.rev, outcome.applied, outcome.error.as_deref()), (1, 0, Some("no")));
    hand.give(Ok(delta(2, "b")));
    let (newer, changes, at) = called.recv().await.unwrap();
    assert_eq!(newer, revision(2), "the newest state wins over the retry");
    assert!(changes.everything, "the refused changes are still due");
    let (again, changes, then) = called.recv().await.unwrap();
    assert_eq!(again, revision(2));
    assert!(changes.everything);
    assert!(then > at && then - at <= Duration::from_millis(200), "back-off of the second failure: {:?}", then - at);
    loop {
        let report = hand.reports.recv().await.unwrap();
        if report.families[0].1.error.is_none() {
            assert_eq!((report.received.rev, report.families[0].1.applied), (2, 2));
            break;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_family_does_not_delay_the_other_and_is_retried() {
    let (mut backend, mut called, _) = fake(0);
    backend.refuse_v6 = 1;
    let (source, mut hand) = script(0);
    tokio::spawn(run(backend, source, Options::default(), std::future::pending()));
    hand.give(Ok(full(1, &["a"])));
    called.recv().await.unwrap();
    let report = hand.reports.recv().await.unwrap();
    let outcomes: Vec<_> = report.families.iter().map(|(_, one)| (one.applied, one.error.as_deref())).collect();
    assert_eq!(outcomes, [(1, None), (0, Some("no NAT"))]);
    assert_eq!(report.skipped[0].problem, "too odd");
    assert!(called.recv().await.unwrap().1.everything, "the changes of the failed family are still due");
    let report = hand.reports.recv().await.unwrap();
    assert!(report.families.iter().all(|(_, one)| one.applied == 1 && one.error.is_none()));
}

/// A kernel may later accept a Service that it refuses now. Refused Services are retried without a change, with growing delays.
#[tokio::test(start_paused = true)]
async fn a_service_that_the_kernel_refuses_is_retried_without_a_change() {
    let (mut backend, mut called, _) = fake(0);
    backend.refuse_service = 3;
    let (source, hand) = script(0);
    tokio::spawn(run(backend, source, Options::default(), std::future::pending()));
    hand.give(Ok(full(1, &["odd"])));
    let (.., mut before) = called.recv().await.unwrap();
    for pause in [10, 20, 40] {
        let (same, changes, at) = called.recv().await.unwrap();
        assert_eq!((same, changes, at - before), (revision(1), Changes::default(), Duration::from_secs(pause)));
        before = at;
    }
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert!(called.try_recv().is_err(), "no retry after a success");
}

/// Another program removed a chain while memory was short. The backend blamed the Service whose rule needed the chain.
#[tokio::test(start_paused = true)]
async fn what_the_kernel_refuses_in_a_sync_that_fails_is_retried_with_the_next_one() {
    let (mut backend, mut called, _) = fake(1);
    backend.refuse_service = 1;
    let (source, hand) = script(0);
    tokio::spawn(run(backend, source, Options::default(), std::future::pending()));
    hand.give(Ok(full(1, &["odd"])));
    called.recv().await.unwrap();
    called.recv().await.unwrap();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert!(called.try_recv().is_err(), "the second sync refuses nothing");
}

/// The backend decides for each family which attempts were full.
#[tokio::test(start_paused = true)]
async fn the_first_sync_is_full_and_later_ones_if_the_backend_reports_so() {
    let (mut backend, mut called, disturbed) = fake(0);
    backend.full = vec![Family::V4];
    let (source, mut hand) = script(0);
    tokio::spawn(run(backend, source, Options::default(), std::future::pending()));
    hand.give(Ok(full(1, &["a"])));
    called.recv().await.unwrap();
    disturbed.notify_one();
    called.recv().await.unwrap();
    let counts = async |hand: &mut Hand| {
        let families = hand.reports.recv().await.unwrap().families;
        let sum = |attempts: &Attempts| localnet_proto::wire::Attempts::from(attempts).counts.iter().sum::<u64>();
        families.iter().map(|(_, one)| (sum(&one.full), sum(&one.partial))).collect::<Vec<_>>()
    };
    let mut newest = counts(&mut hand).await;
    while newest.iter().any(|(full, partial)| full + partial < 2) {
        newest = counts(&mut hand).await;
    }
    assert_eq!(newest, [(2, 0), (1, 1)]);
}

#[tokio::test(start_paused = true)]
async fn counters_are_reported_at_most_once_a_second() {
    let (backend, mut called, _) = fake(0);
    let counts = backend.counts.clone();
    let (source, mut hand) = script(0);
    tokio::spawn(run(backend, source, Options::default(), std::future::pending()));
    let count =
        || counts.send_modify(|counts| counts.flows_checked(ByFamily::new(Some((Duration::from_millis(3), 2)), None)));
    // Before the first sync no report exists that could contain the counters.
    count();
    hand.give(Ok(full(1, &["a"])));
    called.recv().await.unwrap();
    let ended = |report: &Report| report.counts.as_ref().unwrap().flow_checks[Family::V4].ended;
    assert_eq!(ended(&hand.reports.recv().await.unwrap()), 2);
    let began = Instant::now();
    (0..10).for_each(|_| count());
    let report = hand.reports.recv().await.unwrap();
    assert_eq!((ended(&report), report.received, report.families[0].1.applied), (22, revision(1), 1));
    assert_eq!(began.elapsed(), Duration::from_secs(1));
    assert!(called.try_recv().is_err(), "no sync is needed");
    // A sync reports the counters of that moment.
    count();
    hand.give(Ok(delta(2, "b")));
    called.recv().await.unwrap();
    assert_eq!(ended(&hand.reports.recv().await.unwrap()), 24);
}

#[tokio::test(start_paused = true)]
async fn counted_traffic_is_delivered_once() {
    let (backend, mut called, _) = fake(0);
    let counts = backend.counts.clone();
    let (source, mut hand) = script(0);
    tokio::spawn(run(backend, source, Options::default(), std::future::pending()));
    let traffic = |time_millis| Some(Arc::new(TrafficReport { time_millis, ..TrafficReport::default() }));
    hand.give(Ok(full(1, &["a"])));
    for time_millis in [1, 2] {
        hand.reports.recv().await.unwrap();
        counts.send_modify(|counts| counts.traffic = traffic(time_millis));
    }
    hand.reports.recv().await.unwrap();
    // The report of a sync contains the same traffic as before.
    hand.give(Ok(delta(2, "b")));
    assert_eq!(called.recv().await.unwrap().0, revision(1));
    hand.reports.recv().await.unwrap();
    counts.send_modify(|counts| counts.repairs += 1);
    hand.reports.recv().await.unwrap();
    assert_eq!(*hand.traffic.lock().unwrap(), [1, 2]);
}

#[tokio::test(start_paused = true)]
async fn a_lost_stream_is_resumed_and_changes_nothing() {
    let (backend, mut called, _) = fake(0);
    let (source, hand) = script(0);
    tokio::spawn(run(backend, source, Options::default(), std::future::pending()));
    hand.lose();
    hand.give(Ok(full(1, &["a"])));
    assert_eq!(called.recv().await.unwrap().0, revision(1));
    hand.lose();
    hand.lose();
    hand.give(Ok(delta(2, "b")));
    let (second, changes, _) = called.recv().await.unwrap();
    assert_eq!((second, changes), (revision(2), named(&["b"])));
    assert_eq!(
        hand.requested.lock().unwrap()[2..5],
        [(revision(1), true); 3],
        "it requests the changes since its revision"
    );
}

#[tokio::test(start_paused = true)]
async fn a_disturbed_kernel_is_repaired_even_without_a_brain() {
    let (backend, mut called, disturbed) = fake(0);
    let (source, hand) = script(0);
    tokio::spawn(run(backend, source, Options::default(), std::future::pending()));
    hand.give(Ok(full(1, &["a"])));
    called.recv().await.unwrap();
    (0..100).for_each(|_| hand.lose());
    tokio::time::sleep(Duration::from_secs(60)).await;
    let at = Instant::now();
    disturbed.notify_one();
    let (same, changes, then) = called.recv().await.unwrap();
    assert_eq!((same, changes.is_empty(), then), (revision(1), true, at), "at once, with the current state");
}

/// If states change without a pause, a new one is always waiting when a sync ends.
#[tokio::test(start_paused = true)]
async fn new_states_do_not_delay_a_repair() {
    let (mut backend, mut called, disturbed) = fake(0);
    backend.refuse_service = 1;
    let (source, hand) = script(0);
    let options = Options { min_interval: Duration::from_secs(5), ..Options::default() };
    tokio::spawn(run(backend, source, options, std::future::pending()));
    hand.give(Ok(full(1, &["a"])));
    assert_eq!(called.recv().await.unwrap().0, revision(1));
    hand.give(Ok(delta(2, "b")));
    disturbed.notify_one();
    assert_eq!(called.recv().await.unwrap().0, revision(1), "the repair does not wait for the state");
    assert!(timeout(Duration::ZERO, disturbed.notified()).await.is_err(), "the notification was consumed");
    assert_eq!(called.recv().await.unwrap().0, revision(2));
    // The retry of the refused Service becomes due while new states keep arriving.
    for rev in 3..9 {
        hand.give(Ok(delta(rev, "b")));
        assert_eq!(called.recv().await.unwrap().0, revision(rev));
    }
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert!(called.try_recv().is_err(), "no retry in between");
}

#[tokio::test(start_paused = true)]
async fn a_partly_received_state_survives_a_repair() {
    let (backend, mut called, disturbed) = fake(0);
    let (source, hand) = script(0);
    tokio::spawn(run(backend, source, Options::default(), std::future::pending()));
    hand.give(Ok(full(1, &["a"])));
    called.recv().await.unwrap();
    disturbed.notify_one();
    called.recv().await.unwrap();
    hand.give(Ok(delta(2, "b")));
    called.recv().await.unwrap();
    assert_eq!(
        hand.requested.lock().unwrap()[..2],
        [(Revision::default(), false), (revision(1), true)],
        "each state is requested once"
    );
}

#[tokio::test(start_paused = true)]
async fn once_ends_with_the_first_success_or_failure() {
    let options = || Options { once: true, ..Options::default() };
    let (backend, mut called, _) = fake(0);
    let (source, hand) = script(0);
    hand.give(Ok(full(1, &[])));
    run(backend, source, options(), std::future::pending()).await.unwrap();
    assert_eq!(called.recv().await.unwrap().0, revision(1));

    let (backend, ..) = fake(1);
    let (source, hand) = script(0);
    hand.give(Ok(full(1, &[])));
    let refused = run(backend, source, options(), std::future::pending()).await;
    assert_eq!(format!("{:#}", refused.unwrap_err()), "no");

    let (backend, ..) = fake(0);
    let (source, hand) = script(0);
    hand.lose();
    let lost = run(backend, source, options(), std::future::pending()).await;
    let expected = "failed to get the state from a script: the brain is unavailable: gone; check that localnet-brain runs and serves this address";
    assert_eq!(format!("{:#}", lost.unwrap_err()), expected);
}

#[tokio::test(start_paused = true)]
async fn resuming_waits_for_another_revision_and_requests_the_full_state() {
    let (backend, ..) = fake(0);
    let (source, hand) = script(0);
    hand.give(Ok(full(8, &["a"])));
    let options = Options { once: true, resume: revision(7), ..Options::default() };
    run(backend, source, options, std::future::pending()).await.unwrap();
    assert_eq!(hand.requested.lock().unwrap()[0], (revision(7), false));
}

#[tokio::test(start_paused = true)]
async fn shutdown_ends_the_wait() {
    let (backend, ..) = fake(0);
    let (source, _hand) = script(0);
    run(backend, source, Options::default(), tokio::time::sleep(Duration::from_secs(3))).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lost_report_is_sent_again() {
    let (backend, mut called, _) = fake(0);
    let (source, mut hand) = script(3);
    tokio::spawn(run(backend, source, Options::default(), std::future::pending()));
    hand.give(Ok(full(1, &["a"])));
    called.recv().await.unwrap();
    assert_eq!(hand.reports.recv().await.unwrap().families[0].1.applied, 1);
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(hand.reports.try_recv().is_err(), "and not again after the brain accepted it");
    assert!(called.try_recv().is_err(), "a lost report causes no sync");
}

/// The captured log.
#[derive(Clone, Default)]
struct Lines(Arc<StdMutex<Vec<u8>>>);

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_report_is_logged_once_and_an_unavailable_brain_is_not() {
    let refused = "the brain refuses this backend's reports";
    for (why, expected) in [
        (SourceError::Refused("InvalidArgument: no name".to_owned()), 1),
        (SourceError::Unreachable("not now".to_owned()), 0),
    ] {
        let lines = Lines::default();
        let writer = lines.clone();
        let log = tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(false).finish();
        let _log = tracing::subscriber::set_default(log);
        let (backend, ..) = fake(0);
        let (mut source, mut hand) = script(5);
        source.why = why;
        hand.give(Ok(full(1, &["a"])));
        // In this task, because its log is captured.
        let taken = async {
            hand.reports.recv().await.unwrap();
            tokio::time::sleep(Duration::from_secs(1)).await;
        };
        run(backend, source, Options::default(), taken).await.unwrap();
        let lines = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        assert_eq!(lines.matches(refused).count(), expected, "{lines}");
        assert_eq!(lines.matches("the brain accepts reports again").count(), expected, "{lines}");
    }
}

#[tokio::test(start_paused = true)]
async fn readers_with_once_or_without_a_kernel_do_not_report() {
    for options in [Options { once: true, ..Options::default() }, Options { report: false, ..Options::default() }] {
        let (backend, ..) = fake(0);
        let (source, mut hand) = script(0);
        hand.give(Ok(full(1, &["a"])));
        run(backend, source, options, tokio::time::sleep(Duration::from_secs(3))).await.unwrap();
        assert!(hand.reports.try_recv().is_err());
    }
}

/// Captures the log lines while the guard lives.
fn logged() -> (Lines, tracing::subscriber::DefaultGuard) {
    let lines = Lines::default();
    let writer = lines.clone();
    let log = tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(false).finish();
    (lines, tracing::subscriber::set_default(log))
}

/// Without `spec.podCIDRs`, mode NodeCIDR recognizes no pod, and nothing is masqueraded. kube-proxy waits five minutes
/// for them and then exits. localnet warns in the log and in its reports until they exist.
#[tokio::test(start_paused = true)]
async fn a_missing_pod_cidr_is_a_warning_only_if_it_is_needed() {
    for (needs_pod_cidrs, expected) in [(true, 1), (false, 0)] {
        let (lines, _log) = logged();
        let (backend, ..) = fake(0);
        let (source, mut hand) = script(0);
        let node = |pod_cidrs: &[&str]| Node {
            name: "node-a".to_owned(),
            pod_cidrs: pod_cidrs.iter().map(|cidr| cidr.parse().unwrap()).collect(),
            ..Node::default()
        };
        let node_is = |rev, cidrs: &[&str]| {
            Update::Full(Snapshot { revision: revision(rev), node: node(cidrs), ..Snapshot::default() })
        };
        let script = async {
            let mut warnings = Vec::new();
            for (rev, cidrs) in [(1, &[][..]), (2, &[]), (3, &["10.180.0.0/24"])] {
                hand.give(Ok(node_is(rev, cidrs)));
                let report = hand.reports.recv().await.unwrap();
                warnings.push(report.warnings);
            }
            assert_eq!([0, 1, 2].map(|report| warnings[report].len()), [expected, expected, 0]);
            for warning in warnings.iter().flatten() {
                assert_eq!(warning.code, Code::PodCidrsMissing);
                for word in ["node-a", "spec.podCIDRs", "--allocate-node-cidrs", "detectLocal.clusterCIDRs"] {
                    assert!(warning.to_string().contains(word), "{word} is missing in {warning}");
                }
            }
        };
        run(backend, source, Options { needs_pod_cidrs, ..Options::default() }, script).await.unwrap();
        let lines = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        assert_eq!(lines.matches("has no spec.podCIDRs").count(), expected, "{lines}");
        assert_eq!(lines.matches("has spec.podCIDRs now").count(), expected, "{lines}");
    }
}

/// `--dry-run` changes nothing, so nothing was applied.
#[tokio::test(start_paused = true)]
async fn a_dry_run_logs_nothing_as_applied() {
    let (lines, _log) = logged();
    let (backend, ..) = fake(0);
    let (source, hand) = script(0);
    hand.give(Ok(full(1, &["a"])));
    let options = Options { once: true, dry_run: true, ..Options::default() };
    run(backend, source, options, std::future::pending()).await.unwrap();
    let lines = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    assert!(lines.contains("nothing was changed") && !lines.contains("applied"), "{lines}");
}
