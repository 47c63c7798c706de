//! The pump: moves events from the sources to the feed. Its task owns the [`Cluster`].
//!
//! The pump processes all queued batches together. If the queue is empty, it publishes a change immediately. Under load
//! it joins changes, and delays a change for at most 10 ms.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};

use localnet_core::{Code, Diagnostic, Severity};
use localnet_proto::{Revision, ServiceKey};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::Instant,
};

use crate::{
    batch::{Batch, Origin, PROBLEMS, Published, Pushed},
    feed::{Feed, History},
    intake::Intake,
    settings::Settings,
};
use localnet_cluster::{
    Cluster,
    localize::{Localized, NodeIps, Reasons},
};

/// Maximum time for which a change waits to be joined with others. A change should be published within 20 ms; the other
/// 10 ms are for localizing.
const JOIN: Duration = Duration::from_millis(10);

/// Maximum number of queued questions. Answering a question takes as much work as localizing its Service again.
const QUESTIONS: usize = 16;

/// A question about a Service, and the sender of its answer.
#[derive(Debug)]
struct Question(ServiceKey, oneshot::Sender<Option<(Revision, Reasons)>>);

/// Asks a brain to explain its Services. Clones share the queue.
#[derive(Clone, Debug)]
pub struct Questions(mpsc::Sender<Question>);

/// The receiver of questions, which [`run`] answers.
#[derive(Debug)]
pub struct Queries(mpsc::Receiver<Question>);

/// Creates a queue of questions.
pub fn questions() -> (Questions, Queries) {
    let (sender, receiver) = mpsc::channel(QUESTIONS);
    (Questions(sender), Queries(receiver))
}

impl Questions {
    /// Explains how the Service is localized in the newest state, and returns the revision of that state. `None` if there is
    /// no complete state yet, or if the brain has stopped.
    pub async fn why(&self, service: ServiceKey) -> Option<(Revision, Reasons)> {
        let (sender, answer) = oneshot::channel();
        self.0.send(Question(service, sender)).await.ok()?;
        answer.await.ok().flatten()
    }
}

impl Question {
    /// Derives the answer from the cluster and sends it. The cluster matches the newest state of the feed, because only
    /// the pump changes either of them.
    fn answer(self, cluster: &Cluster, feed: &Feed) {
        let Self(service, waiting) = self;
        let revision = feed.state().revision();
        let answer = (revision.rev > 0).then(|| (revision, cluster.reasons(&service)));
        // This fails if the caller has stopped waiting.
        _ = waiting.send(answer);
    }
}

/// Applies batches to the cluster and publishes the resulting states until all senders are dropped. A batch takes effect
/// as a whole, and so does a change to the node's addresses. Also answers questions.
pub async fn run(
    mut cluster: Cluster,
    mut events: mpsc::Receiver<Batch>,
    (mut node_ips, mut settings): (watch::Receiver<NodeIps>, watch::Receiver<Option<Settings>>),
    mut queries: Queries,
    feed: Feed,
) {
    let mut report = Report::default();
    let mut intake = Intake::new(&cluster, feed.metrics().troubles());
    let mut waiting = Waiting::default();
    loop {
        let mut has_new_settings = false;
        let mut batch = tokio::select! {
            () = intake.due() => {
                intake.act(&mut cluster, Instant::now());
                Vec::new().into()
            }
            batch = events.recv() => match batch {
                Some(batch) => batch,
                None => return,
            },
            () = changed(&mut node_ips) => Vec::new().into(),
            () = changed(&mut settings) => {
                has_new_settings = true;
                Vec::new().into()
            }
            Some(question) = queries.0.recv() => {
                question.answer(&cluster, &feed);
                continue;
            }
        };
        let (start, since) = (Instant::now(), batch.since);
        cluster.set_node_ips(node_ips.borrow_and_update().clone());
        waiting.add(&mut batch);
        intake.take(&mut cluster, batch, Instant::now());
        while start.elapsed() < JOIN
            && let Ok(mut batch) = events.try_recv()
        {
            waiting.add(&mut batch);
            intake.take(&mut cluster, batch, Instant::now());
        }
        if has_new_settings {
            cluster.touch_node();
        }
        let Some(mut localized) = cluster.localize() else { continue };
        if let (Some(node), Some(settings)) = (&mut localized.node, &*settings.borrow()) {
            node.settings = Some(settings.conclude(node).into());
        }
        report.skipped(&localized, feed.history());
        let touched = localized.services.len();
        if let Some(revision) = feed.publish_since(localized, since.into_std()) {
            let took_ms = start.elapsed().as_secs_f64() * 1000.0;
            tracing::debug!(revision = revision.rev, services = feed.state().len(), touched, took_ms, "new state");
        }
        waiting.answer(feed.state().revision().rev, &mut cluster, &report);
        // Under load, the queue may never be empty. Give other tasks a turn.
        tokio::task::yield_now().await;
    }
}

/// Resolves after a change. Never resolves if the sender is dropped.
async fn changed<T>(value: &mut watch::Receiver<T>) {
    if value.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// The pushed batches whose senders wait for the result, each with its source.
#[derive(Default)]
struct Waiting(Vec<(Arc<str>, oneshot::Sender<Published>)>);

impl Waiting {
    fn add(&mut self, batch: &mut Batch) {
        if let Origin::Pushed(Pushed { source, published, .. }) = &mut batch.origin {
            self.0.extend(published.take().map(|published| (Arc::clone(source), published)));
        }
    }

    /// Sends the result to each waiting sender, after the state with this revision was published.
    fn answer(&mut self, rev: u64, cluster: &mut Cluster, report: &Report) {
        for (source, published) in self.0.drain(..) {
            let source = cluster.source(&source);
            let all = report.skipped.iter().filter_map(|(key, found)| Some((key.as_ref()?, found)));
            let problems = all.flat_map(|(key, found)| {
                let effective = cluster.effective(source, key);
                // If the Service is shadowed, the other problems are those of the Service that shadows it.
                let is_own = move |of: &&Diagnostic| {
                    effective.is_some_and(|effective| effective || of.code == Code::ObjectShadowed)
                };
                found.iter().filter(is_own)
            });
            let problems = problems.take(PROBLEMS).cloned().collect();
            // This fails if the program has disconnected.
            _ = published.send(Published { rev, problems });
        }
    }
}

/// The diagnostics that have been logged.
#[derive(Default)]
struct Report {
    skipped: BTreeMap<Option<ServiceKey>, HashSet<Diagnostic>>,
}

impl Report {
    /// Logs and records new diagnostics. A diagnostic is not logged again when its Service is localized again.
    fn skipped(&mut self, localized: &Localized, history: &History) {
        let mut of: BTreeMap<Option<&ServiceKey>, Vec<&Diagnostic>> = BTreeMap::new();
        for (service, skipped) in &localized.skipped {
            of.entry(service.as_ref()).or_default().push(skipped);
        }
        let node = localized.node.iter().map(|_| None);
        for about in node.chain(localized.services.iter().map(|(key, _)| Some(key))) {
            self.of(about, of.remove(&about).unwrap_or_default(), history);
        }
    }

    fn of(&mut self, service: Option<&ServiceKey>, skipped: Vec<&Diagnostic>, history: &History) {
        if skipped.is_empty() && self.skipped.is_empty() {
            return;
        }
        let now: HashSet<Diagnostic> = skipped.into_iter().cloned().collect();
        let logged = self.skipped.remove(&service.cloned()).unwrap_or_default();
        for diagnostic in now.difference(&logged) {
            history.problem(diagnostic);
            let Diagnostic { subject, field, code, severity, problem, remedy } = diagnostic;
            let what = if *severity == Severity::Error { "skipped" } else { "suspicious" };
            tracing::warn!(object = %subject, %field, %problem, %remedy, %code, "{what}");
        }
        if !now.is_empty() {
            self.skipped.insert(service.cloned(), now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings;
    use localnet_cluster::{
        Options,
        objects::{Event, Kind, Object},
        testing::service,
    };
    use localnet_proto::model::ClusterIpMasquerade;

    fn lists(ip: &str) -> Vec<Event> {
        let services = vec![Object::Service(service(ip, &[(80, "TCP")]))];
        Kind::ALL
            .map(|kind| Event::Replace { kind, objects: if kind == Kind::Service { services.clone() } else { vec![] } })
            .into()
    }

    fn unset() -> watch::Receiver<Option<Settings>> {
        watch::channel(None).1
    }

    #[tokio::test]
    async fn a_batch_makes_one_state_and_an_equal_batch_none() {
        let feed = Feed::new(7);
        let cluster = Cluster::new(Options::of_node("node-1"));
        let (sender, receiver) = mpsc::channel(64);
        let (_, node_ips) = watch::channel(NodeIps::default());
        let pump = tokio::spawn(run(cluster, receiver, (node_ips, unset()), questions().1, feed.clone()));
        let mut revisions = feed.subscribe();
        sender.send(lists("10.96.0.1")[..2].to_vec().into()).await.unwrap();
        sender.send(lists("10.96.0.1").into()).await.unwrap();
        let at = |rev| Revision { instance: 7, rev };
        assert_eq!(*revisions.wait_for(|revision| revision.rev > 0).await.unwrap(), at(1));
        assert_eq!(feed.state().len(), 1);
        sender.send(lists("10.96.0.1").into()).await.unwrap();
        sender.send(lists("10.96.0.2").into()).await.unwrap();
        assert_eq!(*revisions.wait_for(|revision| revision.rev > 1).await.unwrap(), at(2));
        drop(sender);
        pump.await.unwrap();
        assert_eq!(feed.state().revision(), at(2));
    }

    #[tokio::test]
    async fn a_change_of_the_nodes_addresses_makes_a_new_state() {
        let feed = Feed::new(7);
        let cluster = Cluster::new(Options::of_node("node-1"));
        let (sender, receiver) = mpsc::channel(64);
        let (choice, node_ips) = watch::channel(NodeIps::default());
        let pump = tokio::spawn(run(cluster, receiver, (node_ips, unset()), questions().1, feed.clone()));
        let mut revisions = feed.subscribe();
        sender.send(lists("10.96.0.1").into()).await.unwrap();
        revisions.wait_for(|revision| revision.rev == 1).await.unwrap();
        let first: Vec<std::net::IpAddr> = vec!["10.0.0.9".parse().unwrap()];
        choice.send(NodeIps { first: first.clone(), single_stack: false }).unwrap();
        revisions.wait_for(|revision| revision.rev == 2).await.unwrap();
        assert_eq!(feed.state().node().addresses, first);
        // The pump continues after the sender was dropped.
        drop(choice);
        sender.send(lists("10.96.0.2").into()).await.unwrap();
        revisions.wait_for(|revision| revision.rev == 3).await.unwrap();
        drop(sender);
        pump.await.unwrap();
    }

    #[tokio::test]
    async fn each_state_has_the_settings_and_a_change_makes_a_new_state() {
        let settings = |masquerade_all| {
            let config = settings::config(&format!("linux: {{masqueradeAll: {masquerade_all}}}"));
            Some(Settings::now(Arc::new(config)))
        };
        let feed = Feed::with_records(7, Arc::default());
        let (sender, receiver) = mpsc::channel(64);
        let (change, settings_now) = watch::channel(settings(false));
        let first = vec!["10.0.0.9".parse().unwrap()];
        let (_, node_ips) = watch::channel(NodeIps { first, single_stack: false });
        let cluster = Cluster::new(Options::of_node("node-1"));
        tokio::spawn(run(cluster, receiver, (node_ips, settings_now), questions().1, feed.clone()));
        let mut revisions = feed.subscribe();
        sender.send(lists("10.96.0.1").into()).await.unwrap();
        revisions.wait_for(|revision| revision.rev == 1).await.unwrap();
        let masquerade = || feed.state().node().settings.as_ref().map(|settings| settings.cluster_ip_masquerade);
        assert_eq!(masquerade(), Some(ClusterIpMasquerade::None));
        let records = feed.state().records_digest();
        change.send(settings(true)).unwrap();
        revisions.wait_for(|revision| revision.rev == 2).await.unwrap();
        assert_eq!(masquerade(), Some(ClusterIpMasquerade::All));
        assert_ne!(feed.state().records_digest(), records);
        let primary = feed.health_facts().borrow().node.as_ref().and_then(|node| node.primary);
        assert!(primary.is_some(), "the facts about the node are complete");
        // An equal conclusion makes no state.
        change.send(settings(true)).unwrap();
        sender.send(lists("10.96.0.2").into()).await.unwrap();
        revisions.wait_for(|revision| revision.rev >= 3).await.unwrap();
        assert_eq!((feed.state().revision().rev, masquerade()), (3, Some(ClusterIpMasquerade::All)));
    }

    #[tokio::test]
    async fn questions_are_answered_from_the_newest_state() {
        let feed = Feed::new(7);
        let (sender, receiver) = mpsc::channel(64);
        let (ask, queries) = questions();
        let (_, node_ips) = watch::channel(NodeIps::default());
        let pump = tokio::spawn(run(
            Cluster::new(Options::of_node("node-1")),
            receiver,
            (node_ips, unset()),
            queries,
            feed.clone(),
        ));
        let web = || ServiceKey::new("default", "web");
        assert_eq!(ask.why(web()).await, None);
        let mut revisions = feed.subscribe();
        sender.send(lists("10.96.0.1").into()).await.unwrap();
        revisions.wait_for(|revision| revision.rev > 0).await.unwrap();
        let (revision, reasons) = ask.why(web()).await.unwrap();
        assert_eq!(
            (revision, reasons.standing),
            (Revision { instance: 7, rev: 1 }, localnet_cluster::localize::Standing::Served)
        );
        let (_, unknown) = ask.why(ServiceKey::new("default", "unknown")).await.unwrap();
        assert_eq!(unknown.standing, localnet_cluster::localize::Standing::Absent);
        drop(sender);
        pump.await.unwrap();
        assert_eq!(ask.why(web()).await, None, "the pump has ended");
    }

    #[tokio::test]
    async fn queued_batches_are_joined() {
        let feed = Feed::new(7);
        let cluster = Cluster::new(Options::of_node("node-1"));
        let (sender, receiver) = mpsc::channel(64);
        for last in 1..=20 {
            sender.send(lists(&format!("10.96.0.{last}")).into()).await.unwrap();
        }
        drop(sender);
        run(cluster, receiver, (watch::channel(NodeIps::default()).1, unset()), questions().1, feed.clone()).await;
        assert!(feed.state().revision().rev < 20, "{}", feed.state().revision());
        let state = feed.state().snapshot().unwrap();
        let service = state.services.values().next().unwrap();
        assert_eq!(service.cluster_ips, ["10.96.0.20".parse::<std::net::IpAddr>().unwrap()]);
    }
}
