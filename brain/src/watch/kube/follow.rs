//! Follows the objects of one kind: list, changes, and everything that can go wrong with either.

use std::{fmt::Debug, future::pending, pin::pin, time::Duration};

use futures::{FutureExt as _, StreamExt as _};
use kube::{
    Api, Resource,
    runtime::watcher::{self, watcher},
};
use serde::de::DeserializeOwned;
use tokio::{
    sync::{mpsc, watch},
    time::{self, Instant},
};
use tracing::{debug, error, info, warn};

use super::{
    api_server::ApiServer,
    backoff::Backoff,
    trouble::{Trouble, resource},
};
use crate::{
    cluster::{Event, Kind, Object},
    pump::Batch,
};

/// Events that are handed on at once.
const BATCH: usize = 256;
/// How long the Node is waited for, as kube-proxy does.
const AWAIT: Duration = Duration::from_secs(30);
/// When to look again for a kind that the API server does not have.
const LOOK_AGAIN: Duration = Duration::from_secs(60);
/// An API server that has just started says no for a moment, until it knows its rules: so often it is not taken at its word.
const NOT_AT_ITS_WORD: u32 = 3;

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
    pub(super) config: watcher::Config,
    pub(super) events: mpsc::Sender<Batch>,
}

impl Follow {
    /// Follows until nobody takes the events. Objects are reduced the moment they arrive.
    pub(super) async fn run<K>(self, reduce: fn(K) -> Object)
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let (answered, mut answers) = watch::channel(());
        let api = Api::<K>::all(self.api.client(answered));
        let mut intake = Intake::new(self.kind, self.absent);
        let mut reached = self.api.reached();
        let mut standing = Standing::new(self.kind, self.api.clone());
        self.api.troubles().is_over(resource(self.kind));
        let mut pause = Instant::now();
        'list: loop {
            let mut changes = pin!(watcher(api.clone(), self.config.clone()));
            loop {
                let next = async {
                    time::sleep_until(pause).await;
                    changes.next().await
                };
                let mut next = tokio::select! {
                    next = next => next,
                    Ok(()) = answers.changed(), if standing.is_shaken() => {
                        standing.recovered();
                        continue;
                    }
                    // Another watch has an answer: no need to wait any longer.
                    Ok(()) = reached.changed(), if standing.is_cut_off() => {
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
                let mut failed = None;
                loop {
                    match next {
                        Some(Ok(event)) => batch.extend(intake.take(event, reduce)),
                        Some(Err(error)) => failed = Some(Trouble::of(&error)),
                        None => continue 'list,
                    }
                    if failed.is_some() || batch.len() >= BATCH {
                        break;
                    }
                    match changes.next().now_or_never() {
                        Some(ready) => next = ready,
                        None => break,
                    }
                }
                if let Some(trouble) = &failed {
                    batch.extend(intake.tolerate(trouble, standing.times(trouble)));
                }
                if !batch.is_empty() && self.events.send(batch.into()).await.is_err() {
                    return;
                }
                let Some(trouble) = failed else { continue };
                answers.mark_unchanged();
                let outdated = trouble == Trouble::Outdated;
                let wait = intake.look_again(&trouble);
                let tolerable = intake.is_tolerable(&trouble);
                let backoff = standing.shaken(trouble, intake.synced, tolerable);
                pause = Instant::now() + wait.unwrap_or(backoff);
                // kube's watcher would go on asking for changes since a state that is no longer known.
                if outdated {
                    continue 'list;
                }
            }
        }
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => time::sleep_until(deadline).await,
        None => pending().await,
    }
}

/// From what the watcher says to events: lists are complete, or not seen at all.
struct Intake {
    kind: Kind,
    absent: Absent,
    listed: Vec<Object>,
    /// A complete list was sent.
    synced: bool,
    awaited_until: Option<Instant>,
}

impl Intake {
    fn new(kind: Kind, absent: Absent) -> Self {
        Self { kind, absent, listed: Vec::new(), synced: false, awaited_until: None }
    }

    fn take<K>(&mut self, event: watcher::Event<K>, reduce: fn(K) -> Object) -> Option<Event> {
        match event {
            watcher::Event::Init => {
                self.listed.clear();
                None
            }
            watcher::Event::InitApply(object) => {
                self.listed.push(reduce(object));
                None
            }
            watcher::Event::InitDone => self.complete(),
            watcher::Event::Apply(object) if self.synced => Some(Event::Apply(reduce(object))),
            watcher::Event::Apply(object) => {
                self.listed = vec![reduce(object)];
                self.complete()
            }
            watcher::Event::Delete(object) if self.synced => {
                let object = reduce(object);
                Some(Event::Delete {
                    kind: self.kind,
                    namespace: object.namespace().into(),
                    name: object.name().into(),
                })
            }
            watcher::Event::Delete(_) => None,
        }
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

/// How the watch stands with the API server. Says it in the log once, when it changes.
struct Standing {
    kind: Kind,
    api: ApiServer,
    trouble: Option<Trouble>,
    /// How often the trouble was met without a break.
    met: u32,
    backoff: Backoff,
}

impl Standing {
    fn new(kind: Kind, api: ApiServer) -> Self {
        Self { kind, api, trouble: None, met: 0, backoff: Backoff::default() }
    }

    /// The next answer that is no error is worth knowing of.
    fn is_shaken(&self) -> bool {
        self.trouble.is_some() || self.backoff.is_running()
    }

    /// The API server was last seen to be away.
    fn is_cut_off(&self) -> bool {
        self.trouble.as_ref().is_some_and(Trouble::is_of_all_kinds)
    }

    /// How often `trouble` has been met without a break, this time included.
    fn times(&self, trouble: &Trouble) -> u32 {
        if self.trouble.as_ref().is_some_and(|known| known.is_like(trouble)) { self.met + 1 } else { 1 }
    }

    /// Takes note of `trouble`, and says how long to wait.
    fn shaken(&mut self, trouble: Trouble, synced: bool, tolerable: bool) -> Duration {
        if trouble.is_ordinary() {
            debug!(kind = self.kind.as_str(), "{}", trouble.describe(self.kind, &self.api.url()));
            return self.backoff.next();
        }
        if self.trouble.as_ref().is_some_and(|known| !known.is_like(&trouble)) {
            // A server that says something else is another situation: it may be well soon.
            self.recovered();
        }
        self.met += 1;
        if self.is_news(&trouble) {
            let meanwhile = if synced { "what was last seen stays in use" } else { "nothing is served until then" };
            let text = trouble.describe(self.kind, &self.api.url());
            warn!("{text}; {meanwhile}, and it is tried again");
        }
        // A stumble that passes at once is no trouble.
        if !tolerable && (trouble.is_of_all_kinds() || self.met >= NOT_AT_ITS_WORD) {
            self.api.troubles().is(resource(self.kind), trouble.describe(self.kind, &self.api.url()));
        }
        self.trouble = Some(trouble);
        self.backoff.next()
    }

    /// Whether the operator has not been told. All kinds lose the API server together: one of them says so.
    fn is_news(&self, trouble: &Trouble) -> bool {
        match trouble {
            Trouble::Unreachable(_) | Trouble::NoCredentials(_) => self.met == 1 && self.api.lost(),
            Trouble::Unknown => self.met == 1,
            _ => self.met == NOT_AT_ITS_WORD,
        }
    }

    fn recovered(&mut self) {
        self.backoff.reset();
        let told = match self.trouble.take() {
            None => false,
            Some(Trouble::Unreachable(_) | Trouble::NoCredentials(_)) => self.api.found(),
            Some(_) => self.met >= NOT_AT_ITS_WORD,
        };
        self.met = 0;
        self.api.troubles().is_over(resource(self.kind));
        if told {
            info!(kind = self.kind.as_str(), "the API server answers again");
        }
    }
}
