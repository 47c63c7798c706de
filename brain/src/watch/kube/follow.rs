//! Follows the objects of one kind: list, changes, and everything that can go wrong with either.

use std::{collections::BTreeMap, fmt::Debug, future::pending, pin::pin, sync::Arc, time::Duration};

use futures::{FutureExt as _, StreamExt as _};
use kube::Resource;
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
    standing::{NOT_AT_ITS_WORD, Standing},
    steps::{Place, Selectors, Step, steps},
    trouble::{Trouble, resource, unreadable},
};
use crate::{
    cluster::{Event, Kind, Object},
    pump::{Batch, Origin},
};

/// Events that are handed on at once.
const BATCH: usize = 256;
/// How long the Node is waited for, as kube-proxy does.
const AWAIT: Duration = Duration::from_secs(30);
/// When to look again for a kind that the API server does not have.
const LOOK_AGAIN: Duration = Duration::from_secs(60);
/// So many objects that cannot be read are named one by one.
const NAMED: usize = 10;

/// What it means that there are no objects of a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Absent {
    /// There are none.
    Empty,
    /// The one object of that name may not be there yet: it is waited for, but not for ever.
    Awaited { name: String },
    /// There are none; nor are there if the API server does not have the kind, or does not show it.
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
    /// Follows until nobody takes the events. Objects are reduced the moment they arrive.
    pub(super) async fn run<K>(self, reduce: fn(K) -> Object)
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let relist = Arc::new(Notify::new());
        let place = Place::new::<K>(self.api.client(), self.selectors, Arc::clone(&relist));
        let mut intake = Intake::new(self.kind, self.absent, self.api.clone());
        let mut reached = self.api.reached();
        let mut standing = Standing::new(self.kind, self.api.clone());
        self.api.troubles().is_over(resource(self.kind));
        let mut pause = Instant::now();
        let mut steps = pin!(steps::<K>(place));
        loop {
            let next = async {
                time::sleep_until(pause).await;
                steps.next().await
            };
            let mut next = tokio::select! {
                next = next => next,
                () = until(standing.due()) => {
                    standing.recovered();
                    continue;
                }
                // Another watch has an answer: no need to wait any longer.
                Ok(()) = reached.changed(), if standing.may_be_woken() => {
                    standing.woken();
                    pause = Instant::now();
                    continue;
                }
                () = until(intake.awaited_until) => {
                    if self.events.send(vec![intake.wait_no_longer()].into()).await.is_err() {
                        return;
                    }
                    continue;
                }
            };
            let mut batch = Vec::new();
            let failed = loop {
                match next {
                    Some(Ok(step)) => {
                        let failed = standing.take(&step);
                        batch.extend(intake.take(step, reduce));
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
                batch.extend(intake.tolerate(trouble, standing.times(trouble)));
            }
            if !batch.is_empty() {
                let origin = Origin::ApiServer { relist: Arc::clone(&relist), unreadable: intake.unreadable() };
                let batch = Batch { events: batch, since: Instant::now(), origin };
                if self.events.send(batch).await.is_err() {
                    return;
                }
            }
            let Some(trouble) = failed else { continue };
            let wait = intake.look_again(&trouble);
            let tolerable = intake.is_tolerable(&trouble);
            let backoff = standing.shaken(trouble, intake.synced, tolerable);
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

/// From steps to events: lists are complete, or not seen at all.
struct Intake {
    kind: Kind,
    absent: Absent,
    api: ApiServer,
    listed: Vec<Object>,
    /// Those that cannot be read, of what was taken over.
    unreadable: BTreeMap<ServiceKey, Unreadable>,
    /// Those of the list that is not complete yet.
    unreadable_listed: Vec<Unreadable>,
    /// A complete list was sent.
    synced: bool,
    awaited_until: Option<Instant>,
}

impl Intake {
    fn new(kind: Kind, absent: Absent, api: ApiServer) -> Self {
        let (listed, unreadable, unreadable_listed) = Default::default();
        Self { kind, absent, api, listed, unreadable, unreadable_listed, synced: false, awaited_until: None }
    }

    fn take<K>(&mut self, step: Step<K>, reduce: fn(K) -> Object) -> Option<Event> {
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
                let found = std::mem::take(&mut self.unreadable_listed);
                self.set_unreadable(found.into_iter().map(|unreadable| (key(&unreadable), unreadable)).collect());
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
                    "the API server at {url} has gone back in time, as after a restore of etcd; what it has now was listed anew"
                );
                None
            }
            Step::Opened | Step::Bookmark | Step::Closed | Step::Silent | Step::Missed(_) => None,
        }
    }

    /// The names of what cannot be read: what is known of those stays.
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

    /// Says what cannot be read, and is new.
    fn set_unreadable(&mut self, all: BTreeMap<ServiceKey, Unreadable>) {
        let troubles = self.api.troubles();
        let news: Vec<_> = all.values().filter(|one| self.unreadable.get(&key(one)) != Some(one)).collect();
        for one in news.iter().take(NAMED) {
            warn!("{}", self.describe(one));
        }
        if news.len() > NAMED {
            warn!("{} more objects of kind {} cannot be read", news.len() - NAMED, self.kind.as_str());
        }
        match all.values().next() {
            Some(first) => {
                let more = if all.len() > 1 { format!(" (and {} more)", all.len() - 1) } else { String::new() };
                troubles.is(unreadable(self.kind), format!("{}{more}", self.describe(first)));
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
            "{kind} {object}{field}: {problem}; skipped, and what was known of it stays; correct the field, or find out which webhook or proxy changes it"
        )
    }

    fn complete(&mut self) -> Option<Event> {
        let objects = std::mem::take(&mut self.listed);
        if let Absent::Awaited { name } = &self.absent
            && objects.is_empty()
            && !self.synced
        {
            info!(node = %name, "the Node does not exist yet; waiting {} s for it", AWAIT.as_secs());
            self.awaited_until.get_or_insert_with(|| Instant::now() + AWAIT);
            return None;
        }
        info!(kind = self.kind.as_str(), objects = objects.len(), "listed");
        Some(self.replace(objects))
    }

    fn replace(&mut self, objects: Vec<Object>) -> Event {
        self.synced = true;
        self.awaited_until = None;
        Event::Replace { kind: self.kind, objects }
    }

    /// Goes on without the object that was waited for.
    fn wait_no_longer(&mut self) -> Event {
        if let Absent::Awaited { name } = &self.absent {
            error!(node = %name, "the Node still does not exist; going on without its addresses and its zone; check --node-name, and that the kubelet has registered");
        }
        self.replace(Vec::new())
    }

    /// Whether `trouble` means that there are no objects of the kind.
    fn is_tolerable(&self, trouble: &Trouble) -> bool {
        self.absent == Absent::Tolerated && matches!(trouble, Trouble::Unknown | Trouble::Forbidden { .. })
    }

    /// `times`: how often the trouble was met without a break. A list that is known already stays.
    fn tolerate(&mut self, trouble: &Trouble, times: u32) -> Option<Event> {
        let premature = matches!(trouble, Trouble::Forbidden { .. }) && times < NOT_AT_ITS_WORD;
        if self.synced || premature || !self.is_tolerable(trouble) {
            return None;
        }
        warn!("going on without {}: backends then cannot reject traffic to unallocated addresses", resource(self.kind));
        Some(self.replace(Vec::new()))
    }

    /// A kind that the API server does not have comes with an upgrade, not within seconds.
    fn look_again(&self, trouble: &Trouble) -> Option<Duration> {
        (self.absent == Absent::Tolerated && *trouble == Trouble::Unknown).then_some(LOOK_AGAIN)
    }
}

fn key(unreadable: &Unreadable) -> ServiceKey {
    ServiceKey::new(&*unreadable.namespace, &*unreadable.name)
}
