//! The state of all pushers: which Services they have, and which events follow from their commits, from the time and from new
//! grants. Pure: the caller provides the time, sends the events and reports the problems.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use localnet_cluster::objects::{Event, Kind, Object};
use localnet_core::{Code, Diagnostic, Subject};
use localnet_proto::{ServiceKey, source::PushedService};
use tokio::{sync::oneshot, time::Instant};

use super::{
    bounds,
    changes::{Changes, PROBLEMS, beyond},
    grants::{Grant, Grants, Keep},
};
use crate::peer::Peer;

/// How long the first state waits for the list of a pusher. The programs that are sources of the command line are awaited without
/// a limit.
const FIRST_LIST: Duration = Duration::from_secs(30);

/// Events of one source that take effect together.
#[derive(Debug, PartialEq)]
pub(super) struct Pushes {
    pub(super) source: Arc<str>,
    pub(super) events: Vec<Event>,
    /// Whether the events are the differences from a new list, whose removals the shrink guard judges.
    pub(super) is_list: bool,
    /// New problems of Services that cannot be used at all. No object contains them.
    pub(super) refused: Vec<Diagnostic>,
}

/// Why a stream ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Another stream of the same grant began.
    Replaced,
    /// The grant has changed.
    Changed,
    /// The grant no longer exists.
    Revoked,
}

/// A stream of a pusher.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(super) grant: Arc<Grant>,
    id: u64,
    has_listed: bool,
    /// Resolves when the stream has to end.
    pub(super) end: oneshot::Receiver<End>,
}

impl Stream {
    /// The start of the next list or change.
    pub(crate) fn changes(&self) -> Changes {
        if self.has_listed { Changes::change(&self.grant) } else { Changes::list(&self.grant) }
    }
}

/// All pushers.
#[derive(Debug)]
pub(super) struct State {
    /// In the order of the grants.
    all: Vec<Pusher>,
    /// The name of this proxy, if it has one.
    proxy_name: Option<Arc<str>>,
    streams: u64,
}

#[derive(Debug)]
struct Pusher {
    grant: Arc<Grant>,
    services: BTreeMap<ServiceKey, Pushed>,
    /// Previous numbers of slices of Services that a list has removed or that have fewer since: the shrink guard may hold the slices.
    held: BTreeMap<ServiceKey, usize>,
    /// The Services that cannot be used at all.
    refused: BTreeMap<ServiceKey, Diagnostic>,
    stream: Option<(u64, oneshot::Sender<End>)>,
    /// Since when the services may be outdated: since the start or the end of its wait, or since the last stream that has sent its list ended. `None` while
    /// such a stream exists.
    outdated: Option<Instant>,
    /// When the first state no longer waits for the list. `None` if it does not wait.
    awaited_until: Option<Instant>,
    /// Whether the first state did not wait for the list.
    is_late: bool,
}

/// A Service of a pusher.
#[derive(Debug)]
struct Pushed {
    service: Arc<PushedService>,
    /// The number of its endpoints, as the grant counts them.
    endpoints: usize,
    /// The number of its slices.
    slices: usize,
}

impl State {
    pub(super) fn new(grants: &Grants, proxy_name: Option<Arc<str>>, now: Instant) -> Self {
        let all = grants.grants.iter().map(|grant| Pusher::new(Arc::clone(grant), now)).collect();
        Self { all, proxy_name, streams: 0 }
    }

    /// Begins a stream. The previous stream of the same grant ends. Returns `None` if the peer has no grant.
    pub(super) fn connect(&mut self, peer: &Peer, now: Instant) -> Option<Stream> {
        let pusher = self.all.iter_mut().find(|pusher| pusher.grant.is_of(peer))?;
        self.streams += 1;
        let (sender, end) = oneshot::channel();
        if pusher.stream.is_some() {
            pusher.end(End::Replaced);
            pusher.outdated.get_or_insert(now);
        }
        pusher.stream = Some((self.streams, sender));
        Some(Stream { grant: Arc::clone(&pusher.grant), id: self.streams, has_listed: false, end })
    }

    /// Ends a stream.
    pub(super) fn disconnect(&mut self, stream: &Stream, now: Instant) {
        if let Some(pusher) = self.of(stream) {
            pusher.stream = None;
            pusher.outdated.get_or_insert(now);
        }
    }

    fn of(&mut self, stream: &Stream) -> Option<&mut Pusher> {
        let is_of = |pusher: &&mut Pusher| pusher.stream.as_ref().is_some_and(|(id, _)| *id == stream.id);
        self.all.iter_mut().find(is_of)
    }

    /// Applies the steps of a commit. Returns the events, and the problems of all Services that cannot be used at all. Returns `None`
    /// if the stream has to end.
    pub(super) fn commit(&mut self, stream: &mut Stream, changes: Changes) -> Option<(Pushes, Vec<Diagnostic>)> {
        let proxy_name = self.proxy_name.clone();
        let pusher = self.of(stream)?;
        let pushes = pusher.commit(changes, proxy_name.as_ref());
        stream.has_listed = true;
        pusher.outdated = None;
        pusher.is_late = false;
        Some((pushes, pusher.refused.values().cloned().collect()))
    }

    /// Replaces the grants. The streams of grants that have changed end.
    pub(super) fn load(&mut self, grants: &Grants, now: Instant) -> Vec<Pushes> {
        let mut before = std::mem::take(&mut self.all);
        let mut pushes = Vec::new();
        for grant in &grants.grants {
            let Some(position) = before.iter().position(|pusher| pusher.grant.name == grant.name) else {
                self.all.push(Pusher::new(Arc::clone(grant), now));
                continue;
            };
            let mut pusher = before.swap_remove(position);
            if pusher.grant != *grant {
                pusher.grant = Arc::clone(grant);
                pusher.end(End::Changed);
                pusher.outdated.get_or_insert(now);
                if pusher.awaited_until.is_none() {
                    pushes.push(pusher.restrict(self.proxy_name.as_ref()));
                }
            }
            self.all.push(pusher);
        }
        // The removals come first: a namespace may have moved to another grant.
        let revoked = before.into_iter().map(|mut pusher| {
            pusher.end(End::Revoked);
            pusher.remove_all()
        });
        revoked.chain(pushes).collect()
    }

    /// When to call [`Self::act`].
    pub(super) fn due(&self) -> Option<Instant> {
        self.all.iter().flat_map(|pusher| [pusher.awaited_until, pusher.expires()]).flatten().min()
    }

    /// Stops waiting for lists, and removes Services, whose time is over.
    pub(super) fn act(&mut self, now: Instant) -> Vec<Pushes> {
        let mut pushes = Vec::new();
        for pusher in &mut self.all {
            if pusher.awaited_until.is_some_and(|until| until <= now) {
                pusher.is_late = true;
                // A short `keep` would otherwise end the trouble before it is reported.
                pusher.outdated = Some(now);
                pushes.push(pusher.remove_all());
            }
            if pusher.expires().is_some_and(|at| at <= now) {
                pusher.is_late = false;
                if !pusher.services.is_empty() {
                    pushes.push(pusher.remove_all());
                }
            }
        }
        pushes
    }

    /// The pushers that are not connected, if there are any.
    pub(super) fn trouble(&self) -> Option<Diagnostic> {
        let problems: Vec<String> = self.all.iter().filter_map(Pusher::trouble).collect();
        let trouble = || Diagnostic::new(Code::PushDisconnected, Subject::Program, problems.join("; "));
        (!problems.is_empty()).then(|| trouble().remedy(Code::PushDisconnected.remedy()))
    }
}

impl Pusher {
    fn new(grant: Arc<Grant>, now: Instant) -> Self {
        Self {
            grant,
            services: BTreeMap::new(),
            held: BTreeMap::new(),
            refused: BTreeMap::new(),
            stream: None,
            outdated: Some(now),
            awaited_until: Some(now + FIRST_LIST),
            is_late: false,
        }
    }

    fn end(&mut self, why: End) {
        if let Some((_, end)) = self.stream.take() {
            // This fails if the stream has ended.
            _ = end.send(why);
        }
    }

    fn commit(&mut self, changes: Changes, proxy_name: Option<&Arc<str>>) -> Pushes {
        let is_first = self.awaited_until.take().is_some();
        let Changes { is_complete, is_cleared, mut steps, refused, .. } = changes;
        let is_list = is_complete && !is_first && !is_cleared;
        let refused_before = std::mem::take(&mut self.refused);
        if is_complete {
            for key in self.services.keys() {
                steps.entry(key.clone()).or_insert(None);
            }
        } else {
            self.refused = refused_before.iter().filter(|(key, _)| !steps.contains_key(*key)).map(cloned).collect();
        }
        self.refused.extend(refused);
        // The Services that may have changed, each with its previous number of slices.
        let mut touched = BTreeMap::new();
        for (key, step) in steps {
            let before = self.services.remove(&key);
            touched.insert(key.clone(), before.map_or(0, |pushed| pushed.slices));
            if let Some(service) = step {
                let endpoints = bounds::count_endpoints(&service);
                self.services.insert(key, Pushed { service, endpoints, slices: 0 });
            }
        }
        for (key, before) in self.trim() {
            touched.entry(key).or_insert(before);
        }
        let mut events = Vec::new();
        let mut held = std::mem::take(&mut self.held);
        // If a list lacks further slices, the brain no longer holds earlier ones.
        let mut release = is_first || is_cleared;
        for (key, own) in touched {
            let before = own.max(held.remove(&key).unwrap_or(0));
            let objects = self.objects(&key, proxy_name);
            let slices = objects.as_ref().map_or(0, |objects| objects.slices.len());
            if is_list && slices < before {
                release |= slices < own;
                self.held.insert(key.clone(), before);
            }
            match objects {
                Some(objects) => {
                    let deleted = slices..before;
                    events.extend(objects.all().map(Event::Apply));
                    events.extend(deleted.map(|number| delete(Kind::Slice, bounds::slice_name(&key, number))));
                }
                None => {
                    let slices = (0..before).map(|number| delete(Kind::Slice, bounds::slice_name(&key, number)));
                    events.extend(slices.chain([delete(Kind::Service, key.clone())]));
                }
            }
        }
        if !release {
            self.held.extend(held);
        }
        if is_first || is_cleared {
            events = lists(events);
        }
        self.pushes(events, is_list, &refused_before)
    }

    /// The objects of a Service. If the Service cannot be used, removes it.
    fn objects(&mut self, key: &ServiceKey, proxy_name: Option<&Arc<str>>) -> Option<bounds::Objects> {
        let pushed = self.services.get_mut(key)?;
        match bounds::objects(&self.grant, &pushed.service, proxy_name) {
            Ok(objects) => {
                pushed.slices = objects.slices.len();
                Some(objects)
            }
            Err(problem) => {
                self.services.remove(key);
                self.refused.insert(key.clone(), problem);
                None
            }
        }
    }

    /// Removes the Services beyond the limits of the grant. Returns them, each with the number of its slices.
    fn trim(&mut self) -> Vec<(ServiceKey, usize)> {
        let mut removed = Vec::new();
        let mut endpoints: usize = self.services.values().map(|pushed| pushed.endpoints).sum();
        while let Some(problem) = beyond(&self.grant, self.services.len(), endpoints)
            && let Some((key, pushed)) = self.services.pop_last()
        {
            endpoints -= pushed.endpoints;
            self.refused.insert(key.clone(), problem(&key));
            removed.push((key, pushed.slices));
        }
        removed
    }

    /// The events, with the problems that were not known before.
    fn pushes(&mut self, events: Vec<Event>, is_list: bool, before: &BTreeMap<ServiceKey, Diagnostic>) -> Pushes {
        while self.refused.len() > PROBLEMS {
            self.refused.pop_last();
        }
        let new = self.refused.iter().filter(|(key, problem)| before.get(*key) != Some(*problem));
        let refused = new.map(|(_, problem)| problem.clone()).collect();
        Pushes { source: self.grant.source(), events, is_list, refused }
    }

    /// Removes what a new grant does not contain, at once.
    fn restrict(&mut self, proxy_name: Option<&Arc<str>>) -> Pushes {
        let before = self.refused.clone();
        self.held.clear();
        self.trim();
        let keys: Vec<ServiceKey> = self.services.keys().cloned().collect();
        let objects = keys.iter().filter_map(|key| self.objects(key, proxy_name)).flat_map(bounds::Objects::all);
        let events = lists(objects.map(Event::Apply).collect());
        self.pushes(events, false, &before)
    }

    /// Removes all Services, at once. The first state no longer waits for the list.
    fn remove_all(&mut self) -> Pushes {
        self.awaited_until = None;
        self.services.clear();
        self.held.clear();
        self.refused.clear();
        Pushes { source: self.grant.source(), events: lists(Vec::new()), is_list: false, refused: Vec::new() }
    }

    /// When the Services are removed, unless the pusher sends its list again.
    fn expires(&self) -> Option<Instant> {
        match self.grant.keep {
            Keep::For(time) if !self.services.is_empty() || self.is_late => Some(self.outdated? + time),
            Keep::For(_) | Keep::Forever => None,
        }
    }

    fn trouble(&self) -> Option<String> {
        self.outdated?;
        let name = self.grant.source();
        match (self.services.len(), self.grant.keep) {
            (0, _) => self
                .is_late
                .then(|| format!("{name} has not sent its list since the brain started, so its Services are missing")),
            (services, Keep::For(time)) => Some(format!(
                "{name} is not connected, or has not sent its list again; its {services} Services stay for {} s (keep) after the end of the last stream",
                time.as_secs()
            )),
            // Nothing happens to the Services.
            (_, Keep::Forever) => None,
        }
    }
}

fn cloned<K: Clone, V: Clone>((key, value): (&K, &V)) -> (K, V) {
    (key.clone(), value.clone())
}

fn delete(kind: Kind, ServiceKey { namespace, name }: ServiceKey) -> Event {
    Event::Delete { kind, namespace, name }
}

/// Complete lists of the objects in these events.
fn lists(events: Vec<Event>) -> Vec<Event> {
    let mut of: BTreeMap<Kind, Vec<Object>> = Kind::ALL.into_iter().map(|kind| (kind, Vec::new())).collect();
    for event in events {
        if let Event::Apply(object) = event {
            of.entry(object.kind()).or_default().push(object);
        }
    }
    of.into_iter().map(|(kind, objects)| Event::Replace { kind, objects }).collect()
}

#[cfg(test)]
mod tests;
