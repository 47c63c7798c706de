//! Merges the objects of several sources.
//!
//! Sources are numbered in the order of their precedence. If several sources have an object of the same kind, namespace and
//! name, the object of the first of these sources is *effective*. The objects of the others are *shadowed*: the next of them
//! becomes effective when its predecessor is deleted.
//!
//! The cluster stores the effective objects. This module stores the shadowed objects, and which source has which objects. If
//! there is only one source, it stores nothing.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use localnet_core::{Code, Diagnostic};
use localnet_proto::ServiceKey;

use crate::{
    Options,
    objects::{Event, Kind, Object},
};

/// The identity of an object.
pub(super) type Id = (Kind, ServiceKey);

/// What a conflict between two sources concerns.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum About {
    /// The facts about the node.
    Node,
    /// A Service.
    Service(ServiceKey),
}

/// The objects of all sources.
#[derive(Debug, Default)]
pub(super) struct Sources {
    node_name: String,
    /// Empty if there is only one source, and none can be added.
    all: Vec<Source>,
    /// The shadowed objects, each with its source.
    shadowed: BTreeMap<About, BTreeSet<(Id, usize)>>,
}

#[derive(Debug)]
struct Source {
    name: Arc<str>,
    listed: BTreeSet<Kind>,
    objects: BTreeMap<Kind, HashMap<ServiceKey, Version>>,
}

/// An object of one source.
#[derive(Debug)]
enum Version {
    /// The cluster stores the object.
    Effective,
    /// An earlier source has the object, too. `None` if the object has no effect, as a slice without a Service.
    Shadowed(Option<Box<Object>>),
}

impl Version {
    /// What the conflict concerns. `None` if there is no conflict.
    fn about(&self) -> Option<About> {
        let Self::Shadowed(Some(object)) = self else { return None };
        match &**object {
            Object::Service(service) => Some(About::Service(service.key())),
            Object::Slice(slice) => slice.owner().filter(|_| !slice.headless).map(About::Service),
            Object::Node(_) | Object::ServiceCidr(_) => Some(About::Node),
        }
    }
}

/// The result of an event.
#[derive(Debug, Default)]
pub(super) struct Changed {
    /// The changes of the effective objects: only `Apply` and `Delete`.
    pub(super) events: Vec<Event>,
    /// What the conflicts concern that began, changed or ended.
    pub(super) conflicts: BTreeSet<About>,
}

impl Sources {
    pub(super) fn new(Options { sources, node_name, may_grow, .. }: &Options) -> Self {
        let several = sources.len() > 1 || *may_grow;
        let all = if several { sources.iter().cloned().map(Source::new).collect() } else { Vec::new() };
        Self { node_name: node_name.clone(), all, shadowed: BTreeMap::new() }
    }

    /// Adds a source after all others. Returns its number.
    pub(super) fn add(&mut self, name: Arc<str>) -> usize {
        self.all.push(Source::new(name));
        self.all.len() - 1
    }

    pub(super) fn is_single(&self) -> bool {
        self.all.is_empty()
    }

    /// Applies an event of a source. `stored` returns an object that the cluster stores.
    pub(super) fn take(&mut self, source: usize, event: Event, stored: &dyn Fn(&Id) -> Option<Object>) -> Changed {
        let mut changed = Changed::default();
        match event {
            Event::Apply(object) => self.apply(source, object, stored, &mut changed),
            Event::Delete { kind, namespace, name } => {
                self.delete(source, (kind, ServiceKey { namespace, name }), &mut changed);
            }
            Event::Replace { kind, objects } => {
                let objects: Vec<Object> = objects.into_iter().filter(|object| object.kind() == kind).collect();
                for key in self.missing(source, kind, &objects) {
                    self.delete(source, (kind, key), &mut changed);
                }
                for object in objects {
                    self.apply(source, object, stored, &mut changed);
                }
                self.all[source].listed.insert(kind);
            }
        }
        changed
    }

    fn apply(&mut self, source: usize, object: Object, stored: &dyn Fn(&Id) -> Option<Object>, changed: &mut Changed) {
        // The Nodes of other machines have no effect.
        if matches!(&object, Object::Node(node) if *node.name != *self.node_name) {
            return;
        }
        let id = (object.kind(), object.key());
        if self.first(&id).is_some_and(|first| first < source) {
            self.set(source, &id, Some(Version::Shadowed(Some(Box::new(object)))), changed);
            return;
        }
        self.set(source, &id, Some(Version::Effective), changed);
        for later in source + 1..self.all.len() {
            let object = match self.set(later, &id, None, changed) {
                None => continue,
                Some(Version::Effective) => stored(&id).map(Box::new),
                Some(Version::Shadowed(object)) => object,
            };
            self.set(later, &id, Some(Version::Shadowed(object)), changed);
        }
        changed.events.push(effective(source, object));
    }

    fn delete(&mut self, source: usize, id: Id, changed: &mut Changed) {
        let Some(Version::Effective) = self.set(source, &id, None, changed) else { return };
        let mut next = None;
        if let Some(first) = self.first(&id)
            && let Some(Version::Shadowed(object)) = self.set(first, &id, Some(Version::Effective), changed)
        {
            next = object.map(|object| effective(first, *object));
            // The remaining conflicts are now with another source.
            let others = self.all[first + 1..].iter().filter_map(|source| source.get(&id)?.about());
            changed.conflicts.extend(others);
        }
        let (kind, ServiceKey { namespace, name }) = id;
        changed.events.push(next.unwrap_or(Event::Delete { kind, namespace, name }));
    }

    /// Replaces the version of an object in a source. Returns the previous version.
    fn set(&mut self, source: usize, id: &Id, version: Option<Version>, changed: &mut Changed) -> Option<Version> {
        let objects = self.all[source].objects.entry(id.0).or_default();
        let after = version.as_ref().and_then(Version::about);
        let before = match version {
            Some(version) => objects.insert(id.1.clone(), version),
            None => objects.remove(&id.1),
        };
        if let Some(about) = before.as_ref().and_then(Version::about) {
            if let Some(conflicts) = self.shadowed.get_mut(&about) {
                conflicts.remove(&(id.clone(), source));
                if conflicts.is_empty() {
                    self.shadowed.remove(&about);
                }
            }
            changed.conflicts.insert(about);
        }
        if let Some(about) = after {
            self.shadowed.entry(about.clone()).or_default().insert((id.clone(), source));
            changed.conflicts.insert(about);
        }
        before
    }

    /// The first source that has the object.
    fn first(&self, id: &Id) -> Option<usize> {
        self.all.iter().position(|source| source.get(id).is_some())
    }

    /// The objects of a source that are not in `objects`.
    pub(super) fn missing(&self, source: usize, kind: Kind, objects: &[Object]) -> Vec<ServiceKey> {
        let gone = not_in(objects);
        let known = self.all[source].objects.get(&kind).into_iter().flat_map(HashMap::keys);
        known.filter(|key| gone(key)).cloned().collect()
    }

    /// The number of objects of a source. `None` if there is only one source.
    pub(super) fn count(&self, source: usize, kind: Kind) -> Option<usize> {
        let source = self.all.get(source)?;
        Some(source.objects.get(&kind).map_or(0, HashMap::len))
    }

    /// Whether a source has the object.
    pub(super) fn has(&self, source: usize, kind: Kind, key: &ServiceKey) -> bool {
        self.all[source].objects.get(&kind).is_some_and(|objects| objects.contains_key(key))
    }

    /// Whether a source has the object, and the object is effective.
    pub(super) fn is_effective(&self, source: usize, kind: Kind, key: &ServiceKey) -> bool {
        let objects = self.all[source].objects.get(&kind);
        matches!(objects.and_then(|objects| objects.get(key)), Some(Version::Effective))
    }

    /// Whether a source has listed a kind completely.
    pub(super) fn has_listed(&self, source: usize, kind: Kind) -> bool {
        self.all[source].listed.contains(&kind)
    }

    /// Whether all sources have listed a kind completely.
    pub(super) fn have_listed(&self, kind: Kind) -> bool {
        self.all.iter().all(|source| source.listed.contains(&kind))
    }

    /// The names of the sources that have not listed every kind.
    pub(super) fn awaited(&self) -> Vec<Arc<str>> {
        let awaited = self.all.iter().filter(|source| source.listed.len() < Kind::ALL.len());
        awaited.map(|source| Arc::clone(&source.name)).collect()
    }

    /// The diagnostics of a Service, or of the node if `None`: one for each shadowed object.
    pub(super) fn conflicts(&self, service: Option<&ServiceKey>) -> Vec<Diagnostic> {
        if self.shadowed.is_empty() {
            return Vec::new();
        }
        let about = service.map_or(About::Node, |key| About::Service(key.clone()));
        self.shadowed.get(&about).into_iter().flatten().filter_map(|(id, source)| self.conflict(id, *source)).collect()
    }

    fn conflict(&self, id: &Id, source: usize) -> Option<Diagnostic> {
        let (kind, key) = id;
        let [first, unused] = [self.first(id)?, source].map(|source| &self.all[source].name);
        let subject = localnet_core::Object::new(kind.as_str(), Arc::clone(&key.namespace), Arc::clone(&key.name));
        let problem = format!("is in two sources; the brain uses the object in {first}, not the one in {unused}");
        let remedy = "delete or rename one of the objects, or change the order of --source";
        Some(Diagnostic::new(Code::ObjectShadowed, subject, problem).remedy(remedy))
    }
}

impl Source {
    fn new(name: Arc<str>) -> Self {
        Self { name, listed: BTreeSet::new(), objects: BTreeMap::new() }
    }

    fn get(&self, (kind, key): &Id) -> Option<&Version> {
        self.objects.get(kind)?.get(key)
    }
}

/// The event with which the object of a source becomes effective.
fn effective(source: usize, mut object: Object) -> Event {
    if let Object::Service(service) = &mut object {
        // All pushed Services follow those of the command line. Pushed sources come and go, so their order has no effect.
        let last = if service.pushed { usize::MAX } else { source };
        service.source = u16::try_from(last).unwrap_or(u16::MAX);
    }
    Event::Apply(object)
}

/// Returns whether `objects` lacks the object with a key.
pub(super) fn not_in(objects: &[Object]) -> impl Fn(&ServiceKey) -> bool {
    let kept: HashSet<(&str, &str)> = objects.iter().map(|object| (object.namespace(), object.name())).collect();
    move |key| !kept.contains(&(&*key.namespace, &*key.name))
}
