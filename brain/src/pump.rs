//! Moves events from a source to the feed: the one task that owns the [`Cluster`].
//!
//! What is queued is taken together: a change is published at once when nothing else happens, and joined with the others
//! under load, but never held back for longer than 10 ms.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};

use localnet_proto::{Revision, ServiceKey};
use tokio::{
    sync::{Notify, mpsc, oneshot, watch},
    time::Instant,
};

use crate::{
    cluster::{Cluster, Event},
    feed::Feed,
    intake::Intake,
    localize::{Localized, NodeIps, Reasons, Skipped},
};

/// No change is held back for longer than this to be joined with others; the rest of 20 ms is for computing them.
const JOIN: Duration = Duration::from_millis(10);

/// So many questions may wait: each costs as much as to localize its service once more.
const QUESTIONS: usize = 16;

/// What a source says at once, and since when: from there the time counts until the kernel has it.
#[derive(Debug)]
pub struct Batch {
    /// Takes effect as a whole.
    pub events: Vec<Event>,
    /// When the source had it, before it waited for the pump.
    pub since: Instant,
    /// How the source knows.
    pub origin: Origin,
}

/// How a source knows what it says.
#[derive(Clone, Debug)]
pub enum Origin {
    /// It was told of each change.
    Changes,
    /// It has read files again: what is deleted is what was not found any more.
    Reread,
    /// Lists and watches of an API server.
    ApiServer {
        /// Asks for another list of this kind.
        relist: Arc<Notify>,
        /// Objects that the list has, but that nobody can read: what is known of them stays.
        unreadable: Vec<ServiceKey>,
    },
}

impl From<Vec<Event>> for Batch {
    fn from(events: Vec<Event>) -> Self {
        Self { events, since: Instant::now(), origin: Origin::Changes }
    }
}

/// A question about a service, and who waits for the answer.
#[derive(Debug)]
struct Question(ServiceKey, oneshot::Sender<Option<(Revision, Reasons)>>);

/// Asks why services are as they are. Clones ask the same brain.
#[derive(Clone, Debug)]
pub struct Questions(mpsc::Sender<Question>);

/// Where the questions arrive; [`run`] answers them.
#[derive(Debug)]
pub struct Asked(mpsc::Receiver<Question>);

/// A way to ask whoever has the other end.
pub fn questions() -> (Questions, Asked) {
    let (sender, receiver) = mpsc::channel(QUESTIONS);
    (Questions(sender), Asked(receiver))
}

impl Questions {
    /// What was decided about a service, why, and in which state; `None` while there is no complete state, or no brain any more.
    pub async fn why(&self, service: ServiceKey) -> Option<(Revision, Reasons)> {
        let (sender, answer) = oneshot::channel();
        self.0.send(Question(service, sender)).await.ok()?;
        answer.await.ok().flatten()
    }
}

impl Question {
    /// The cluster is what the newest state was made of: only the pump changes either.
    fn answer(self, cluster: &Cluster, feed: &Feed) {
        let Self(service, waiting) = self;
        let revision = feed.state().revision();
        let answer = (revision.rev > 0).then(|| (revision, cluster.reasons(&service)));
        // Whoever asked may have gone.
        _ = waiting.send(answer);
    }
}

/// Publishes what the events make of the cluster, until all senders are gone. Each [`Batch`] takes effect at once, and so does
/// each other choice of the node's addresses. Answers what is asked meanwhile.
pub async fn run(
    mut cluster: Cluster,
    mut events: mpsc::Receiver<Batch>,
    mut node_ips: watch::Receiver<NodeIps>,
    mut asked: Asked,
    feed: Feed,
) {
    let mut report = Report::default();
    let mut intake = Intake::new(&cluster, feed.metrics().troubles());
    loop {
        let batch = tokio::select! {
            () = intake.due() => {
                let gone = intake.act(Instant::now());
                if gone.is_empty() {
                    continue;
                }
                gone.into()
            }
            batch = events.recv() => match batch {
                Some(batch) => batch,
                None => return,
            },
            () = changed(&mut node_ips) => Vec::new().into(),
            Some(question) = asked.0.recv() => {
                question.answer(&cluster, &feed);
                continue;
            }
        };
        let (begun, since) = (Instant::now(), batch.since);
        cluster.set_node_ips(node_ips.borrow_and_update().clone());
        intake.take(&mut cluster, batch, Instant::now());
        while begun.elapsed() < JOIN
            && let Ok(batch) = events.try_recv()
        {
            intake.take(&mut cluster, batch, Instant::now());
        }
        let Some(localized) = cluster.localize() else { continue };
        report.skipped(&localized);
        let touched = localized.services.len();
        if let Some(revision) = feed.publish_since(localized, since.into_std()) {
            let took_ms = begun.elapsed().as_secs_f64() * 1000.0;
            tracing::debug!(revision = revision.rev, services = feed.state().len(), touched, took_ms, "new state");
        }
        // Under load the queue is never empty; others have their turn between two states.
        tokio::task::yield_now().await;
    }
}

/// Resolves after a change; never when there will be none.
async fn changed(node_ips: &mut watch::Receiver<NodeIps>) {
    if node_ips.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// What has been said in the log.
#[derive(Default)]
struct Report {
    skipped: BTreeMap<Option<ServiceKey>, HashSet<Skipped>>,
}

impl Report {
    /// Says what is skipped when it is first seen, not each time that its service is computed again.
    fn skipped(&mut self, localized: &Localized) {
        let mut of: BTreeMap<Option<&ServiceKey>, Vec<&Skipped>> = BTreeMap::new();
        for skipped in &localized.skipped {
            of.entry(skipped.service.as_ref()).or_default().push(skipped);
        }
        let node = localized.node.iter().map(|_| None);
        for about in node.chain(localized.services.iter().map(|(key, _)| Some(key))) {
            self.of(about, of.remove(&about).unwrap_or_default());
        }
    }

    fn of(&mut self, service: Option<&ServiceKey>, skipped: Vec<&Skipped>) {
        if skipped.is_empty() && self.skipped.is_empty() {
            return;
        }
        let now: HashSet<Skipped> = skipped.into_iter().cloned().collect();
        let known = self.skipped.remove(&service.cloned()).unwrap_or_default();
        for Skipped { left_out, object, field, problem, remedy, .. } in now.difference(&known) {
            let what = if *left_out { "skipped" } else { "odd" };
            tracing::warn!(%object, %field, %problem, %remedy, "{what}");
        }
        if !now.is_empty() {
            self.skipped.insert(service.cloned(), now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cluster::{Kind, Object, Options},
        localize::fixtures::service,
    };

    fn lists(ip: &str) -> Vec<Event> {
        let services = vec![Object::Service(service(ip, &[(80, "TCP")]))];
        Kind::ALL
            .map(|kind| Event::Replace { kind, objects: if kind == Kind::Service { services.clone() } else { vec![] } })
            .into()
    }

    #[tokio::test]
    async fn a_batch_is_one_state_and_equal_batches_are_none() {
        let feed = Feed::new(7);
        let cluster = Cluster::new(Options::of_node("node-1"));
        let (sender, receiver) = mpsc::channel(64);
        let (_, node_ips) = watch::channel(NodeIps::default());
        let pump = tokio::spawn(run(cluster, receiver, node_ips, questions().1, feed.clone()));
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
    async fn another_choice_of_addresses_is_another_state() {
        let feed = Feed::new(7);
        let cluster = Cluster::new(Options::of_node("node-1"));
        let (sender, receiver) = mpsc::channel(64);
        let (choice, node_ips) = watch::channel(NodeIps::default());
        let pump = tokio::spawn(run(cluster, receiver, node_ips, questions().1, feed.clone()));
        let mut revisions = feed.subscribe();
        sender.send(lists("10.96.0.1").into()).await.unwrap();
        revisions.wait_for(|revision| revision.rev == 1).await.unwrap();
        let first: Vec<std::net::IpAddr> = vec!["10.0.0.9".parse().unwrap()];
        choice.send(NodeIps { first: first.clone(), single_stack: false }).unwrap();
        revisions.wait_for(|revision| revision.rev == 2).await.unwrap();
        assert_eq!(feed.state().node().addresses, first);
        // Nobody chooses any more: that ends nothing.
        drop(choice);
        sender.send(lists("10.96.0.2").into()).await.unwrap();
        revisions.wait_for(|revision| revision.rev == 3).await.unwrap();
        drop(sender);
        pump.await.unwrap();
    }

    #[tokio::test]
    async fn questions_are_answered_of_the_newest_state_and_not_before_there_is_one() {
        let feed = Feed::new(7);
        let (sender, receiver) = mpsc::channel(64);
        let (ask, asked) = questions();
        let (_, node_ips) = watch::channel(NodeIps::default());
        let pump = tokio::spawn(run(Cluster::new(Options::of_node("node-1")), receiver, node_ips, asked, feed.clone()));
        let web = || ServiceKey::new("default", "web");
        assert_eq!(ask.why(web()).await, None);
        let mut revisions = feed.subscribe();
        sender.send(lists("10.96.0.1").into()).await.unwrap();
        revisions.wait_for(|revision| revision.rev > 0).await.unwrap();
        let (revision, reasons) = ask.why(web()).await.unwrap();
        assert_eq!((revision, reasons.standing), (Revision { instance: 7, rev: 1 }, crate::localize::Standing::Served));
        let (_, unknown) = ask.why(ServiceKey::new("default", "unknown")).await.unwrap();
        assert_eq!(unknown, Reasons::default());
        drop(sender);
        pump.await.unwrap();
        assert_eq!(ask.why(web()).await, None, "nobody is there any more");
    }

    #[tokio::test]
    async fn what_is_queued_is_joined() {
        let feed = Feed::new(7);
        let cluster = Cluster::new(Options::of_node("node-1"));
        let (sender, receiver) = mpsc::channel(64);
        for last in 1..=20 {
            sender.send(lists(&format!("10.96.0.{last}")).into()).await.unwrap();
        }
        drop(sender);
        run(cluster, receiver, watch::channel(NodeIps::default()).1, questions().1, feed.clone()).await;
        assert!(feed.state().revision().rev < 20, "{}", feed.state().revision());
        let state = feed.state().snapshot().unwrap();
        let service = state.services.values().next().unwrap();
        assert_eq!(service.cluster_ips, ["10.96.0.20".parse::<std::net::IpAddr>().unwrap()]);
    }
}
