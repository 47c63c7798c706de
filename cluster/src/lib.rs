//! Stores the Kubernetes objects that the brain has received, and marks the Services that must be localized again.
//!
//! [`Cluster::handle`] applies an event and marks only the Services that it affects. Once every kind has been listed completely,
//! [`Cluster::localize`] localizes the marked Services. The cluster stores no results: the brain's feed stores and compares them.
//!
//! ```text
//! objects ──► Cluster ──► localize ──► Localized
//! ```
//!
//! This crate is synchronous and pure. It returns diagnostics, which the brain logs.

mod claims;
mod lack;
pub mod localize;
pub mod objects;
mod sources;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::IpAddr,
    num::{NonZeroI64, NonZeroU64},
    sync::Arc,
    time::Duration,
};

use localnet_core::Diagnostic;
use localnet_proto::ServiceKey;

use claims::Claims;
pub use lack::Lack;
use localize::{ChangedObject, Here, Localized, NodeIps, ObjectChanges};
use objects::{Event, Kind, NodeObject, Object, Parsed, Publish, ServiceCidrObject, ServiceObject, SliceObject};
use sources::{About, Sources};

/// The default of [`Options::shrink_hold`].
pub const SHRINK_HOLD: Duration = Duration::from_secs(300);

/// The configuration of a brain for one node.
#[derive(Clone, Debug)]
pub struct Options {
    /// The name of the node in the cluster.
    pub node_name: String,
    /// Only Services whose label `service.kubernetes.io/service-proxy-name` has this value are served; if `None`, only
    /// Services without the label.
    pub service_proxy_name: Option<String>,
    /// A label selector: only the Services that match it are served, and another proxy serves the others. Only an API server
    /// evaluates it.
    pub canary: Option<String>,
    /// Whether `spec.externalIPs` of Services is used: the feature gate `AllowServiceExternalIPs`.
    pub external_ips: bool,
    /// How long to hold Services and endpoints that suddenly disappear from a list. If zero, they are removed
    /// immediately.
    pub shrink_hold: Duration,
    /// The names of the sources, in the order of their precedence. If there is only one source, it needs no name.
    pub sources: Vec<Arc<str>>,
    /// Whether [`Cluster::source`] may add sources.
    pub may_grow: bool,
    /// What readers of the draft `localnet.v1` may select; `None` if the brain does not serve the draft.
    pub publish: Option<Arc<Publish>>,
    /// Whether to compute what DNS needs, too: the view for DNS of the draft. It includes headless and ExternalName Services, and
    /// those of other proxies.
    pub dns: bool,
}

impl Options {
    /// The defaults for a node.
    pub fn of_node(node_name: impl Into<String>) -> Self {
        Self {
            node_name: node_name.into(),
            service_proxy_name: None,
            canary: None,
            external_ips: true,
            shrink_hold: SHRINK_HOLD,
            sources: Vec::new(),
            may_grow: false,
            publish: None,
            dns: false,
        }
    }
}

type ByName<T> = BTreeMap<Arc<str>, T>;

/// The Kubernetes objects that the brain has received.
#[derive(Debug)]
pub struct Cluster {
    options: Options,
    /// The operator's choice of the node's addresses.
    node_ips: NodeIps,
    /// The facts about the node that affect how Services are localized.
    here: Here,
    synced: BTreeSet<Kind>,
    sources: Sources,
    services: HashMap<ServiceKey, ServiceObject>,
    claims: Claims,
    /// The slices of each Service, sorted by name. A list takes much less memory than a map, because nearly all Services
    /// have only one slice.
    slices: HashMap<ServiceKey, Vec<SliceObject>>,
    /// The Service of each slice. A slice may move to another Service.
    owners: HashMap<ServiceKey, ServiceKey>,
    /// The most recent Node object.
    node: Option<NodeObject>,
    /// Whether the Node was deleted after it was received.
    node_gone: bool,
    service_cidrs: ByName<ServiceCidrObject>,
    dirty: HashSet<ServiceKey>,
    node_dirty: bool,
    /// How many Services and EndpointSlices have changed since the last call of [`Self::localize`].
    changes: ObjectChanges,
}

impl Cluster {
    /// An empty cluster, in which no kind has been listed.
    pub fn new(options: Options) -> Self {
        Self {
            here: Here::new(&options.node_name),
            node_ips: NodeIps::default(),
            sources: Sources::new(&options),
            options,
            synced: BTreeSet::new(),
            services: HashMap::new(),
            claims: Claims::default(),
            slices: HashMap::new(),
            owners: HashMap::new(),
            node: None,
            node_gone: false,
            service_cidrs: BTreeMap::new(),
            dirty: HashSet::new(),
            node_dirty: true,
            changes: ObjectChanges::default(),
        }
    }

    /// The configuration of the brain for its node.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Applies an event of the first source. An object that is equal to the stored one changes nothing.
    pub fn handle(&mut self, event: Event) {
        self.handle_from(0, event);
    }

    /// Applies an event of the source with this number. If a preceding source has the same object, the event changes only the
    /// diagnostics.
    pub fn handle_from(&mut self, source: usize, event: Event) {
        if self.sources.is_single() {
            return self.fold(event);
        }
        let mut sources = std::mem::take(&mut self.sources);
        let changed = sources.take(source, event, &|id| self.object(id));
        self.synced.extend(Kind::ALL.into_iter().filter(|kind| sources.have_listed(*kind)));
        self.sources = sources;
        changed.events.into_iter().for_each(|event| self.fold(event));
        for about in changed.conflicts {
            match about {
                About::Service(key) => _ = self.dirty.insert(key),
                About::Node => self.node_dirty = true,
            }
        }
    }

    /// The number of the source with this name. If there is none yet, adds it after all others. Sources can be added only with
    /// [`Options::may_grow`].
    pub fn source(&mut self, name: &Arc<str>) -> usize {
        let names = &mut self.options.sources;
        names.iter().position(|other| other == name).unwrap_or_else(|| {
            names.push(Arc::clone(name));
            self.sources.add(Arc::clone(name))
        })
    }

    /// Whether a source has the Service, and the Service is effective. `None` if the source does not have it.
    pub fn effective(&self, source: usize, key: &ServiceKey) -> Option<bool> {
        let has = self.sources.has(source, Kind::Service, key);
        has.then(|| self.sources.is_effective(source, Kind::Service, key))
    }

    fn fold(&mut self, event: Event) {
        match event {
            Event::Apply(object) => self.apply(object),
            Event::Delete { kind, namespace, name } => self.delete(kind, namespace, name),
            Event::Replace { kind, objects } => self.replace(kind, objects),
        }
    }

    /// Whether every kind has been listed completely, by all sources.
    pub fn is_synced(&self) -> bool {
        self.synced.len() == Kind::ALL.len()
    }

    /// The names of the sources whose lists the first state still waits for. Empty if there is only one source.
    pub fn awaited(&self) -> Vec<Arc<str>> {
        self.sources.awaited()
    }

    /// Whether the Node of this machine was received.
    pub fn has_node(&self) -> bool {
        self.node.is_some()
    }

    /// Lets the next [`localize`](Self::localize) return the facts about the node, even if they have not changed.
    pub fn touch_node(&mut self) {
        self.node_dirty = true;
    }

    /// Localizes the Services that were marked since the last call. Returns `None` until every kind has been listed
    /// completely, because an incomplete state is never served.
    pub fn localize(&mut self) -> Option<Localized> {
        if !self.is_synced() {
            return None;
        }
        let mut localized = Localized { changes: std::mem::take(&mut self.changes), ..Localized::default() };
        if std::mem::take(&mut self.node_dirty) {
            let (node, skipped) = localize::node(&self.here, self.node.as_ref(), self.service_cidrs.values());
            localized.node = Some(node);
            localized.primary = self.here.primary;
            localized.node_eligible = self.node.as_ref().map(localize::is_eligible);
            let gone = self.node_gone.then(|| localize::node_deleted(&self.options.node_name));
            let conflicts = self.sources.conflicts(None);
            localized.skipped.extend(skipped.into_iter().chain(gone).chain(conflicts).map(|found| (None, found)));
        }
        let mut dirty: Vec<ServiceKey> = self.dirty.drain().collect();
        dirty.sort_unstable();
        for key in dirty {
            let (service, skipped) = self.service(&key);
            let left_out = self.services.get(&key).map(|service| service.skipped.to_vec()).unwrap_or_default();
            let skipped = skipped.into_iter().chain(left_out).chain(self.sources.conflicts(Some(&key)));
            localized.skipped.extend(skipped.map(|found| (Some(key.clone()), found)));
            let health_check = service.as_ref().and_then(|service| self.health_check(&key, service));
            localized.health_checks.extend(health_check.map(|check| (key.clone(), check)));
            if self.options.dns {
                let (names, skipped) = self.names(&key);
                localized.skipped.extend(skipped.into_iter().map(|found| (Some(key.clone()), found)));
                localized.names.push((key.clone(), names.map(Arc::new)));
            }
            localized.services.push((key, service.map(Arc::new)));
        }
        Some(localized)
    }

    fn proxied(&self, key: &ServiceKey) -> Option<&ServiceObject> {
        let proxy_name = self.options.service_proxy_name.as_deref();
        self.services.get(key).filter(|object| localize::is_proxied(object, proxy_name))
    }

    fn service(&self, key: &ServiceKey) -> (Option<localnet_proto::Service>, Vec<Diagnostic>) {
        let Some(object) = self.proxied(key) else { return (None, Vec::new()) };
        localize::service(object, self.slices_of(key, object.pushed), &self.here, &self.claims.lost(object))
    }

    /// What DNS must know about the Service, whichever proxy serves it.
    fn names(&self, key: &ServiceKey) -> (Option<localnet_proto::v1::dns::Service>, Vec<Diagnostic>) {
        let Some(object) = self.services.get(key) else { return (None, Vec::new()) };
        localize::names(object, self.all_slices_of(key, object.pushed))
    }

    /// How topology hints narrow the endpoints of a Service, or why they are ignored, for each port and family. `None` if the
    /// Service is not served on this node.
    pub fn topology(&self, key: &ServiceKey) -> Option<Vec<localize::Topology>> {
        let object = self.proxied(key)?;
        Some(localize::topology(object, self.slices_of(key, object.pushed), &self.here, &self.claims.lost(object)))
    }

    /// Explains how the Service is localized: whether this node serves it, and which rules exclude which endpoints. This is
    /// computed on request, for diagnosis only.
    pub fn reasons(&self, key: &ServiceKey) -> localize::Reasons {
        let proxy_name = self.options.service_proxy_name.as_deref();
        let mut reasons = match self.services.get(key) {
            Some(object) => {
                let lost = self.claims.lost(object);
                localize::reasons::reasons(object, self.slices_of(key, object.pushed), &self.here, &lost, proxy_name)
            }
            None => localize::Reasons { standing: localize::Standing::Absent, ..Default::default() },
        };
        let left_out = self.services.get(key).map(|service| service.skipped.to_vec()).unwrap_or_default();
        reasons.findings.extend(left_out.into_iter().chain(self.sources.conflicts(Some(key))));
        reasons
    }

    fn health_check(&self, key: &ServiceKey, service: &localnet_proto::Service) -> Option<localize::HealthCheck> {
        let object = self.services.get(key)?;
        localize::health_check(object, service, self.slices_of(key, object.pushed), &self.here)
    }

    /// The slices from which a Service is served.
    fn slices_of(&self, key: &ServiceKey, pushed: bool) -> impl Iterator<Item = &SliceObject> {
        self.all_slices_of(key, pushed).filter(|slice| !slice.headless)
    }

    /// The slices of a Service that was pushed or not. A pushed Service has only pushed slices, and another Service has none of
    /// them: a pusher must not add endpoints to a Service that it does not own.
    fn all_slices_of(&self, key: &ServiceKey, pushed: bool) -> impl Iterator<Item = &SliceObject> {
        self.slices.get(key).into_iter().flatten().filter(move |slice| slice.pushed == pushed)
    }

    /// The stored object. Its `version` is unknown.
    fn object(&self, (kind, key): &sources::Id) -> Option<Object> {
        Some(match kind {
            Kind::Service => Object::Service(self.services.get(key)?.clone()),
            Kind::Slice => {
                let mut slices = self.slices.get(self.owners.get(key)?)?.iter();
                Object::Slice(slices.find(|slice| slice.name == key.name)?.clone())
            }
            Kind::Node => Object::Node(self.node.clone()?),
            Kind::ServiceCidr => Object::ServiceCidr(self.service_cidrs.get(&key.name)?.clone()),
        })
    }

    fn apply(&mut self, object: Object) {
        match object {
            Object::Service(service) => self.apply_service(service),
            Object::Slice(slice) => self.apply_slice(slice),
            Object::Node(node) if *node.name == *self.options.node_name => self.set_node(node),
            Object::Node(_) => {}
            Object::ServiceCidr(cidr) => {
                if self.service_cidrs.get(&cidr.name) != Some(&cidr) {
                    self.touched(Kind::ServiceCidr, &unnamespaced(&cidr.name), None);
                    self.service_cidrs.insert(Arc::clone(&cidr.name), cidr);
                    self.node_dirty = true;
                }
            }
        }
    }

    fn apply_service(&mut self, mut service: ServiceObject) {
        let version = service.version.take();
        if !self.options.external_ips {
            service.external_ips = Default::default();
        }
        // Of a pushed Service, only the endpoints have facts.
        if self.options.publish.is_some() {
            service.facts.get_or_insert_default();
        }
        let key = service.key();
        if self.services.get(&key) == Some(&service) {
            return;
        }
        self.changes.services += 1;
        self.touched(Kind::Service, &key, version);
        let before = self.services.get(&key).map(|before| self.claimed(before)).unwrap_or_default();
        let after = self.claimed(&service);
        self.services.insert(key.clone(), service);
        self.dirty.extend(self.claims.change(&key, before, after));
        self.dirty.insert(key);
    }

    fn claimed(&self, service: &ServiceObject) -> claims::Claimed {
        let proxied = localize::is_proxied(service, self.options.service_proxy_name.as_deref());
        if proxied { claims::Claimed::by(service) } else { claims::Claimed::default() }
    }

    fn apply_slice(&mut self, mut slice: SliceObject) {
        let (triggered, version) = (slice.triggered.take(), slice.version.take());
        let name = name_of(&slice);
        // Only DNS needs the slices of headless Services, of which there can be many.
        let owner = slice.owner().filter(|_| !slice.headless || self.options.dns);
        if self.owners.get(&name) != owner.as_ref() {
            self.delete_slice(&name);
        }
        let Some(owner) = owner else { return };
        let slices = self.slices.entry(owner.clone()).or_default();
        match slices.binary_search_by(|other| other.name.cmp(&slice.name)) {
            Ok(at) if slices[at] == slice => return,
            Ok(at) => slices[at] = slice,
            Err(at) => {
                slices.reserve_exact(1);
                slices.insert(at, slice);
            }
        }
        self.touched(Kind::Slice, &name, version);
        self.owners.insert(name, owner.clone());
        self.dirty.insert(owner);
        self.changes.slices += 1;
        self.changes.triggered.extend(triggered.map(NonZeroI64::get));
    }

    fn delete(&mut self, kind: Kind, namespace: Arc<str>, name: Arc<str>) {
        let key = ServiceKey { namespace, name };
        match kind {
            Kind::Service => self.delete_service(key),
            Kind::Slice => self.delete_slice(&key),
            Kind::Node => self.lose_node(&key.name),
            Kind::ServiceCidr if self.service_cidrs.remove(&key.name).is_some() => {
                self.deleted(kind, &key);
                self.node_dirty = true;
            }
            Kind::ServiceCidr => {}
        }
    }

    fn delete_service(&mut self, key: ServiceKey) {
        let Some(service) = self.services.remove(&key) else { return };
        self.changes.services += 1;
        self.deleted(Kind::Service, &key);
        let before = self.claimed(&service);
        self.dirty.extend(self.claims.change(&key, before, claims::Claimed::default()));
        self.dirty.insert(key);
    }

    fn delete_slice(&mut self, name: &ServiceKey) {
        let Some(owner) = self.owners.remove(name) else { return };
        self.changes.slices += 1;
        self.deleted(Kind::Slice, name);
        if let Some(slices) = self.slices.get_mut(&owner) {
            slices.retain(|slice| slice.name != name.name);
            if slices.is_empty() {
                self.slices.remove(&owner);
            }
        }
        self.dirty.insert(owner);
    }

    /// Records that the Node was deleted. The machine may still run, so the last facts about it remain in use, as in
    /// kube-proxy.
    fn lose_node(&mut self, name: &str) {
        let ours = self.node.as_ref().is_some_and(|node| *node.name == *name);
        if ours && !std::mem::replace(&mut self.node_gone, true) {
            self.deleted(Kind::Node, &unnamespaced(&Arc::from(name)));
            self.node_dirty = true;
        }
    }

    /// Records an object that has changed.
    fn touched(&mut self, kind: Kind, ServiceKey { namespace, name }: &ServiceKey, version: Option<NonZeroU64>) {
        let (namespace, name) = (Arc::clone(namespace), Arc::clone(name));
        self.changes.add(ChangedObject { kind, namespace, name, version, deleted: false });
    }

    /// Records an object that was deleted.
    fn deleted(&mut self, kind: Kind, ServiceKey { namespace, name }: &ServiceKey) {
        let (namespace, name) = (Arc::clone(namespace), Arc::clone(name));
        self.changes.add(ChangedObject { kind, namespace, name, version: None, deleted: true });
    }

    fn set_node(&mut self, mut node: NodeObject) {
        let version = node.version.take();
        let back = std::mem::take(&mut self.node_gone);
        self.node_dirty |= back;
        if self.node.as_ref() == Some(&node) {
            return;
        }
        self.touched(Kind::Node, &unnamespaced(&node.name), version);
        self.node = Some(node);
        self.node_dirty = true;
        self.look_around();
    }

    /// Sets the operator's choice of the node's addresses.
    pub fn set_node_ips(&mut self, chosen: NodeIps) {
        if self.node_ips != chosen {
            self.node_ips = chosen;
            self.node_dirty = true;
            self.look_around();
        }
    }

    /// Marks the Services that are affected by a change to the facts about the node.
    fn look_around(&mut self) {
        let here = Here::of(&self.options.node_name, self.node.as_ref(), &self.node_ips);
        if here.zone != self.here.zone {
            let hinted = |slice: &SliceObject| slice.endpoints.iter().any(|endpoint| !endpoint.zone_hints.is_empty());
            let owners = self.slices.iter().filter(|(_, slices)| slices.iter().any(hinted)).map(|(owner, _)| owner);
            self.dirty.extend(owners.cloned());
        }
        if here.addresses != self.here.addresses {
            let moved = |address: &IpAddr| here.addresses.contains(address) != self.here.addresses.contains(address);
            let concerned = |service: &ServiceObject| {
                let mut named = service.external_ips.iter().chain(&service.load_balancer_ips);
                !service.source_ranges.is_empty() || named.any(|ip| matches!(ip, Parsed::Good(ip) if moved(ip)))
            };
            let concerned = self.services.iter().filter(|(_, service)| concerned(service));
            self.dirty.extend(concerned.map(|(key, _)| key.clone()));
        }
        self.here = here;
    }

    /// Whether a source has listed a kind completely.
    pub fn has_listed(&self, source: usize, kind: Kind) -> bool {
        if self.sources.is_single() { self.synced.contains(&kind) } else { self.sources.has_listed(source, kind) }
    }

    fn replace(&mut self, kind: Kind, objects: Vec<Object>) {
        self.synced.insert(kind);
        let objects: Vec<Object> = objects.into_iter().filter(|object| object.kind() == kind).collect();
        for key in self.missing(0, kind, &objects) {
            self.delete(kind, key.namespace, key.name);
        }
        for object in objects {
            self.apply(object);
        }
    }
}

fn name_of(slice: &SliceObject) -> ServiceKey {
    ServiceKey { namespace: Arc::clone(&slice.namespace), name: Arc::clone(&slice.name) }
}

fn unnamespaced(name: &Arc<str>) -> ServiceKey {
    ServiceKey { namespace: Arc::default(), name: Arc::clone(name) }
}
