//! Follows the objects of one kind: list, changes, and the failures of both.

use std::{collections::BTreeMap, fmt::Debug, future::pending, pin::pin, sync::Arc, time::Duration};

use futures::{FutureExt as _, StreamExt as _};
use kube::Resource;
use localnet_core::{Code, Diagnostic, Subject};
use localnet_proto::ServiceKey;
use serde::de::DeserializeOwned;
use tokio::{
    sync::{Notify, mpsc},
    time::{self, Instant},
};
use tracing::{error, info, warn};

use super::{
    api_server::ApiServer,
    decode::{Item, Unreadable},
    steps::{Query, Selectors, Step, steps},
    trouble::{Trouble, resource, unreadable},
    watch_health::{TRANSIENT, WatchHealth},
};
use crate::batch::{Batch, Origin};
use localnet_cluster::objects::{Event, Kind, Object};

/// Maximum number of events in one batch, except for lists.
const BATCH: usize = 256;
/// How long to wait for the Node to exist, as in kube-proxy.
const NODE_TIMEOUT: Duration = Duration::from_secs(30);
/// When to retry a kind that the API server does not have.
const UNKNOWN_KIND_RETRY: Duration = Duration::from_secs(60);
/// Maximum number of undecodable objects to log one by one.
const MAX_NAMED: usize = 10;

/// What to do if the API server has no objects of a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Absent {
    /// Use the empty list.
    Empty,
    /// Wait for the only object, which has this name, but at most for [`NODE_TIMEOUT`].
    Awaited { name: String },
    /// Use the empty list, even if the API server does not have the kind or forbids listing it.
    Tolerated,
}

/// A kind to follow.
pub(super) struct Follow {
    pub(super) api: ApiServer,
    pub(super) kind: Kind,
    pub(super) absent: Absent,
    pub(super) selectors: Selectors,
    pub(super) events: mpsc::Sender<Batch>,
}

impl Follow {
    /// Follows the kind until the receiver of the events is dropped. Reduces objects as soon as they arrive, to save
    /// memory.
    pub(super) async fn run<K>(self, reduce: impl Fn(K) -> Object)
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let relist = Arc::new(Notify::new());
        let query = Query::new::<K>(self.api.client(), self.kind, self.selectors, Arc::clone(&relist));
        let mut collector = Collector::new(self.kind, self.absent, self.api.clone());
        let mut reached = self.api.reached();
        let mut health = WatchHealth::new(self.kind, self.api.clone());
        self.api.troubles().is_over(resource(self.kind));
        let mut pause = Instant::now();
        let mut steps = pin!(steps::<K>(query));
        loop {
            let next = async {
                time::sleep_until(pause).await;
                steps.next().await
            };
            let mut next = tokio::select! {
                next = next => next,
                () = until(health.due()) => {
                    health.recovered();
                    continue;
                }
                // Another watch has got an answer, so the API server is reachable again.
                Ok(()) = reached.changed(), if health.may_be_woken() => {
                    health.woken();
                    pause = Instant::now();
                    continue;
                }
                () = until(collector.awaited_until) => {
                    if self.events.send(vec![collector.stop_waiting()].into()).await.is_err() {
                        return;
                    }
                    continue;
                }
            };
            let mut batch = Vec::new();
            let failed = loop {
                match next {
                    Some(Ok(step)) => {
                        let failed = health.take(&step);
                        batch.extend(collector.take(step, &reduce));
                        if failed.is_some() || batch.len() >= BATCH {
                            break failed;
                        }
                    }
                    Some(Err(trouble)) => break Some(trouble),
                    None => return,
                }
                match steps.next().now_or_never() {
                    Some(ready) => next = ready,
                    None => break None,
                }
            };
            if let Some(trouble) = &failed {
                batch.extend(collector.tolerate(trouble, health.times(trouble)));
            }
            if !batch.is_empty() {
                let origin = Origin::ApiServer { relist: Arc::clone(&relist), unreadable: collector.unreadable() };
                let batch = Batch { origin, ..batch.into() };
                if self.events.send(batch).await.is_err() {
                    return;
                }
            }
            let Some(trouble) = failed else { continue };
            let wait = collector.fixed_delay(&trouble);
            let tolerable = collector.is_tolerable(&trouble);
            let backoff = health.failed(trouble, collector.synced, tolerable);
            pause = Instant::now() + wait.unwrap_or(backoff);
        }
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => time::sleep_until(deadline).await,
        None => pending().await,
    }
}

/// Turns steps into events, and collects the pages of a list until it is complete: a list becomes one event.
struct Collector {
    kind: Kind,
    absent: Absent,
    api: ApiServer,
    listed: Vec<Object>,
    /// The undecodable objects.
    unreadable: BTreeMap<ServiceKey, Unreadable>,
    /// The undecodable objects of the incomplete list.
    unreadable_listed: Vec<Unreadable>,
    /// Whether a complete list has been sent.
    synced: bool,
    /// When the wait for the Node ends.
    awaited_until: Option<Instant>,
}

impl Collector {
    fn new(kind: Kind, absent: Absent, api: ApiServer) -> Self {
        let (listed, unreadable, unreadable_listed) = Default::default();
        Self { kind, absent, api, listed, unreadable, unreadable_listed, synced: false, awaited_until: None }
    }

    fn take<K>(&mut self, step: Step<K>, reduce: impl Fn(K) -> Object) -> Option<Event> {
        match step {
            Step::Page { items, first, last } => {
                if first {
                    self.listed.clear();
                    self.unreadable_listed.clear();
                }
                for item in items {
                    match item {
                        Item::Read(object) => self.listed.push(reduce(object)),
                        Item::Unreadable(unreadable) => self.unreadable_listed.push(unreadable),
                    }
                }
                if !last {
                    return None;
                }
                let listed = std::mem::take(&mut self.unreadable_listed);
                self.set_unreadable(listed.into_iter().map(|unreadable| (key(&unreadable), unreadable)).collect());
                self.complete()
            }
            Step::Applied(object) => {
                let object = reduce(object);
                self.is_readable(object.namespace(), object.name());
                if self.synced {
                    return Some(Event::Apply(object));
                }
                self.listed = vec![object];
                self.complete()
            }
            Step::Deleted { namespace, name } => {
                self.is_readable(&namespace, &name);
                self.synced.then(|| Event::Delete { kind: self.kind, namespace: namespace.into(), name: name.into() })
            }
            Step::Unreadable(unreadable) => {
                let mut all = self.unreadable.clone();
                all.insert(key(&unreadable), unreadable);
                self.set_unreadable(all);
                None
            }
            Step::Restored { was, is } => {
                self.api.troubles().restored(resource(self.kind));
                let url = self.api.url();
                warn!(
                    of = resource(self.kind),
                    was,
                    is,
                    "the API server at {url} returned an older state than before, as after a restore of etcd; the brain has listed all objects again"
                );
                None
            }
            Step::Opened | Step::Bookmark | Step::Closed | Step::Silent | Step::Missed(_) => None,
        }
    }

    /// The keys of the undecodable objects, whose previous versions are kept.
    fn unreadable(&self) -> Vec<ServiceKey> {
        self.unreadable.keys().cloned().collect()
    }

    fn is_readable(&mut self, namespace: &str, name: &str) {
        let key = ServiceKey::new(namespace, name);
        if self.unreadable.contains_key(&key) {
            let mut all = self.unreadable.clone();
            all.remove(&key);
            self.set_unreadable(all);
        }
    }

    /// Replaces the set of undecodable objects, and logs those that are new.
    fn set_unreadable(&mut self, all: BTreeMap<ServiceKey, Unreadable>) {
        let troubles = self.api.troubles();
        let news: Vec<_> = all.values().filter(|one| self.unreadable.get(&key(one)) != Some(one)).collect();
        for one in news.iter().take(MAX_NAMED) {
            warn!("{}", self.describe(one));
        }
        if news.len() > MAX_NAMED {
            warn!("{} more objects of kind {} cannot be read", news.len() - MAX_NAMED, self.kind.as_str());
        }
        match all.values().next() {
            Some(first) => {
                let more = if all.len() > 1 { format!(" (and {} more)", all.len() - 1) } else { String::new() };
                let problem = format!("{}{more}", self.describe(first));
                let diagnostic = Diagnostic::new(Code::ObjectUnreadable, Subject::Program, problem);
                troubles.is(unreadable(self.kind), diagnostic);
            }
            None if !self.unreadable.is_empty() => troubles.is_over(unreadable(self.kind)),
            None => {}
        }
        self.unreadable = all;
    }

    fn describe(&self, Unreadable { namespace, name, field, problem }: &Unreadable) -> String {
        let kind = self.kind.as_str();
        let object = if namespace.is_empty() { name.clone() } else { format!("{namespace}/{name}") };
        let field = if field.is_empty() { String::new() } else { format!(": {field}") };
        format!(
            "{kind} {object}{field}: {problem}; skipped, keeping the object's previous version; correct the field, or find the webhook or proxy that changes it"
        )
    }

    fn complete(&mut self) -> Option<Event> {
        let objects = std::mem::take(&mut self.listed);
        if let Absent::Awaited { name } = &self.absent
            && objects.is_empty()
            && !self.synced
        {
            info!(node = %name, "the Node does not exist yet; waiting {} s for it", NODE_TIMEOUT.as_secs());
            self.awaited_until.get_or_insert_with(|| Instant::now() + NODE_TIMEOUT);
            return None;
        }
        info!(kind = self.kind.as_str(), objects = objects.len(), "objects were listed");
        Some(self.replace(objects))
    }

    fn replace(&mut self, objects: Vec<Object>) -> Event {
        self.synced = true;
        self.awaited_until = None;
        Event::Replace { kind: self.kind, objects }
    }

    /// Ends the wait for the Node, and continues without it.
    fn stop_waiting(&mut self) -> Event {
        if let Absent::Awaited { name } = &self.absent {
            error!(node = %name, "the Node still does not exist; continuing without its addresses and its zone; check --node-name, and that the kubelet has registered the Node");
        }
        self.replace(Vec::new())
    }

    /// Whether `trouble` means that the kind has no objects.
    fn is_tolerable(&self, trouble: &Trouble) -> bool {
        self.absent == Absent::Tolerated && matches!(trouble, Trouble::Unknown | Trouble::Forbidden { .. })
    }

    /// Returns an empty list if `trouble` means that the kind has no objects. `times` is the number of consecutive
    /// occurrences of the trouble. Returns `None` if a list was already sent, because the objects of that list remain.
    fn tolerate(&mut self, trouble: &Trouble, times: u32) -> Option<Event> {
        let premature = matches!(trouble, Trouble::Forbidden { .. }) && times < TRANSIENT;
        if self.synced || premature || !self.is_tolerable(trouble) {
            return None;
        }
        warn!(
            "continuing without {}: backends then cannot reject traffic to unallocated addresses",
            resource(self.kind)
        );
        Some(self.replace(Vec::new()))
    }

    /// A constant delay before the next attempt, which replaces the backoff. `None` if the backoff applies. The delay is
    /// constant if the API server does not have the kind, because only an upgrade can add the kind.
    fn fixed_delay(&self, trouble: &Trouble) -> Option<Duration> {
        (self.absent == Absent::Tolerated && *trouble == Trouble::Unknown).then_some(UNKNOWN_KIND_RETRY)
    }
}

fn key(unreadable: &Unreadable) -> ServiceKey {
    ServiceKey::new(&*unreadable.namespace, &*unreadable.name)
}
