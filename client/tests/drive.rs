//! The loop, against a source and a backend that fail on demand. Time is paused: nothing here waits for a clock.
#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{
    collections::{BTreeMap, VecDeque},
    net::IpAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use localnet_client::{Backend, Changes, Options, Report, Revision, Snapshot, Source, SourceError, run};
use localnet_proto::{Change, Service, ServiceKey, Update};
use tokio::{
    sync::{Notify, mpsc},
    time::Instant,
};

/// A source whose answers are scripted; when they end it waits forever.
#[derive(Default)]
struct Script {
    answers: VecDeque<Result<Update, SourceError>>,
    /// (have, fold) of each call, with its time.
    asked: Arc<Mutex<Vec<(Revision, bool)>>>,
    reports: Arc<Mutex<Vec<Report>>>,
    /// So many reports are not taken.
    deaf: usize,
}

impl Source for Script {
    async fn next(&mut self, have: Revision, fold: bool) -> Result<Update, SourceError> {
        self.asked.lock().unwrap().push((have, fold));
        match self.answers.pop_front() {
            Some(answer) => answer,
            None => std::future::pending().await,
        }
    }

    async fn report(&mut self, report: &Report) -> Result<(), SourceError> {
        if self.deaf > 0 {
            self.deaf -= 1;
            return Err(SourceError::Unreachable("not now".to_owned()));
        }
        self.reports.lock().unwrap().push(report.clone());
        Ok(())
    }

    fn describe(&self) -> String {
        "a script".to_owned()
    }
}

/// A backend that refuses the first syncs, and tells what it was called with.
struct Fake {
    refuse: usize,
    calls: mpsc::UnboundedSender<(Revision, Changes, Instant)>,
    disturbed: Arc<Notify>,
}

impl Backend for Fake {
    fn name(&self) -> &'static str {
        "fake"
    }

    async fn sync(&mut self, state: &Snapshot, changes: &Changes) -> anyhow::Result<()> {
        // A test that no longer listens does not make the sync fail.
        _ = self.calls.send((state.revision, changes.clone(), Instant::now()));
        if self.refuse > 0 {
            self.refuse -= 1;
            anyhow::bail!("no");
        }
        Ok(())
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
    Arc::new(Service {
        key: ServiceKey::new("default", name),
        kind: "ClusterIP".to_owned(),
        cluster_ips: vec![IpAddr::from([10, 0, 0, 1])],
        external_ips: Vec::new(),
        load_balancer_ips: Vec::new(),
        ports: Vec::new(),
        internal_traffic_to_local: false,
        external_traffic_to_local: false,
        client_ip_affinity: None,
        source_filters: Vec::new(),
        health_check_node_port: None,
        endpoints: Vec::new(),
    })
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
    (Fake { refuse, calls, disturbed: Arc::clone(&disturbed) }, called, disturbed)
}

fn script(answers: impl IntoIterator<Item = Result<Update, SourceError>>) -> Script {
    Script { answers: answers.into_iter().collect(), ..Script::default() }
}

#[tokio::test(start_paused = true)]
async fn each_state_is_synced_with_what_changed_and_reported() {
    let (backend, mut called, _) = fake(0);
    let source = script([Ok(full(1, &["a"])), Ok(delta(2, "b")), Ok(full(3, &["b"]))]);
    let (asked, reports) = (Arc::clone(&source.asked), Arc::clone(&source.reports));
    tokio::spawn(run(backend, source, Options::default(), std::future::pending()));
    let first = called.recv().await.unwrap();
    assert_eq!(first.0, revision(1));
    assert!(first.1.everything, "nothing is known of the kernel before the first sync");
    assert_eq!(called.recv().await.unwrap().1, named(&["b"]));
    assert_eq!(called.recv().await.unwrap().1, named(&["a"]), "a full state names only real differences");
    while reports.lock().unwrap().len() < 3 || asked.lock().unwrap().len() < 4 {
        tokio::task::yield_now().await;
    }
    let asked = asked.lock().unwrap().clone();
    assert_eq!(asked, [(Revision::default(), false), (revision(1), true), (revision(2), true), (revision(3), true)]);
    assert_eq!(reports.lock().unwrap().last().unwrap().families[0].1.applied, 3);
}

#[tokio::test(start_paused = true)]
async fn a_refused_state_is_tried_again_and_a_newer_one_wins() {
    let (backend, mut called, _) = fake(2);
    let source = script([Ok(full(1, &["a"])), Ok(delta(2, "b"))]);
    let reports = Arc::clone(&source.reports);
    tokio::spawn(run(backend, source, Options::default(), std::future::pending()));
    assert_eq!(called.recv().await.unwrap().0, revision(1));
    let (newer, changes, at) = called.recv().await.unwrap();
    assert_eq!(newer, revision(2), "the newest state wins over the retry");
    assert!(changes.everything, "what was refused is still due");
    let (again, changes, then) = called.recv().await.unwrap();
    assert_eq!(again, revision(2));
    assert!(changes.everything);
    assert!(then > at && then - at <= Duration::from_millis(200), "back-off of the second failure: {:?}", then - at);
    while reports.lock().unwrap().len() < 3 {
        tokio::task::yield_now().await;
    }
    let outcomes: Vec<_> = reports.lock().unwrap().iter().map(|r| (r.received.rev, r.families[0].1.clone())).collect();
    assert_eq!((outcomes[0].0, outcomes[0].1.applied, outcomes[0].1.error.as_deref()), (1, 0, Some("no")));
    assert_eq!((outcomes[2].0, outcomes[2].1.applied, outcomes[2].1.error.as_deref()), (2, 2, None));
}

#[tokio::test(start_paused = true)]
async fn a_lost_stream_changes_nothing_and_is_resumed() {
    let (backend, mut called, _) = fake(0);
    let lost = || Err(SourceError::Unreachable("gone".to_owned()));
    let source = script([lost(), Ok(full(1, &["a"])), lost(), lost(), Ok(delta(2, "b"))]);
    let asked = Arc::clone(&source.asked);
    tokio::spawn(run(backend, source, Options::default(), std::future::pending()));
    assert_eq!(called.recv().await.unwrap().0, revision(1));
    let (second, changes, _) = called.recv().await.unwrap();
    assert_eq!((second, changes), (revision(2), named(&["b"])));
    assert_eq!(asked.lock().unwrap()[2..5], [(revision(1), true); 3], "it asks again for what follows what it holds");
}

#[tokio::test(start_paused = true)]
async fn a_disturbed_kernel_is_repaired_even_without_a_brain() {
    let (backend, mut called, disturbed) = fake(0);
    let lost = std::iter::repeat_with(|| Err(SourceError::Unreachable("gone".to_owned()))).take(1000);
    let source = script([Ok(full(1, &["a"]))].into_iter().chain(lost));
    tokio::spawn(run(backend, source, Options::default(), std::future::pending()));
    called.recv().await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let at = Instant::now();
    disturbed.notify_one();
    let (same, changes, then) = called.recv().await.unwrap();
    assert_eq!((same, changes.is_empty(), then), (revision(1), true, at), "at once, with the present state");
}

#[tokio::test(start_paused = true)]
async fn once_ends_with_the_first_success_or_failure() {
    let options = || Options { once: true, ..Options::default() };
    let (backend, mut called, _) = fake(0);
    run(backend, script([Ok(full(1, &[]))]), options(), std::future::pending()).await.unwrap();
    assert_eq!(called.recv().await.unwrap().0, revision(1));

    let (backend, ..) = fake(1);
    let refused = run(backend, script([Ok(full(1, &[]))]), options(), std::future::pending()).await;
    assert_eq!(format!("{:#}", refused.unwrap_err()), "no");

    let (backend, ..) = fake(0);
    let lost = script([Err(SourceError::Unreachable("gone".to_owned()))]);
    let lost = run(backend, lost, options(), std::future::pending()).await;
    let expected =
        "getting the state from a script: cannot be reached, is localnet-brain running and serving there? gone";
    assert_eq!(format!("{:#}", lost.unwrap_err()), expected);
}

#[tokio::test(start_paused = true)]
async fn resuming_waits_for_another_state_but_asks_for_all_of_it() {
    let (backend, ..) = fake(0);
    let source = script([Ok(full(8, &["a"]))]);
    let asked = Arc::clone(&source.asked);
    let options = Options { once: true, resume: revision(7), ..Options::default() };
    run(backend, source, options, std::future::pending()).await.unwrap();
    assert_eq!(*asked.lock().unwrap(), [(revision(7), false)]);
}

#[tokio::test(start_paused = true)]
async fn shutdown_ends_the_wait() {
    let (backend, ..) = fake(0);
    let shutdown = tokio::time::sleep(Duration::from_secs(3));
    run(backend, script([]), Options::default(), shutdown).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_report_that_is_lost_is_offered_again() {
    let (backend, mut called, _) = fake(0);
    let source = Script { deaf: 3, ..script([Ok(full(1, &["a"]))]) };
    let reports = Arc::clone(&source.reports);
    tokio::spawn(run(backend, source, Options::default(), std::future::pending()));
    called.recv().await.unwrap();
    tokio::time::sleep(Duration::from_secs(30)).await;
    let reports = reports.lock().unwrap();
    assert_eq!((reports.len(), reports[0].families[0].1.applied), (1, 1));
    assert!(called.try_recv().is_err(), "nothing is synced again for it");
}

#[tokio::test(start_paused = true)]
async fn readers_that_do_not_stay_or_program_nothing_do_not_report() {
    for options in [Options { once: true, ..Options::default() }, Options { report: false, ..Options::default() }] {
        let (backend, ..) = fake(0);
        let source = script([Ok(full(1, &["a"]))]);
        let reports = Arc::clone(&source.reports);
        run(backend, source, options, tokio::time::sleep(Duration::from_secs(3))).await.unwrap();
        assert!(reports.lock().unwrap().is_empty());
    }
}
