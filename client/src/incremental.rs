//! The incremental model: one call for each thing that changed, then a commit.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::Arc,
};

use localnet_proto::{Changes, Node, Protocol, Revision, Scopes, Service, ServiceKey, Snapshot};
use tokio::sync::watch;

use crate::{
    backend::{Backend, Counts, Synced, Warning},
    vips::Effective,
};

/// Hears what changed, thing by thing. Calls only say what is to hold; nothing is due before [`Listener::commit`].
///
/// Order within one commit: the node; then for each changed service `set_service` before its endpoints are set, endpoints
/// deleted after those that are set, and `delete_service` after all its endpoints are deleted.
pub trait Listener: Send {
    /// The name it reports to the brain.
    fn name(&self) -> &'static str;
    /// The node's facts are now these. Called before anything else, and when they change.
    fn set_node(&mut self, node: &Node);
    /// A service is new, or differs in something other than its endpoints. Its `endpoints` are empty here.
    fn set_service(&mut self, service: &Service);
    /// A service is gone.
    fn delete_service(&mut self, key: &ServiceKey);
    /// An endpoint is new, or differs in something other than its port name and address.
    fn set_endpoint(&mut self, service: &ServiceKey, endpoint: &PortEndpoint);
    /// An endpoint is gone.
    fn delete_endpoint(&mut self, service: &ServiceKey, endpoint: &PortEndpoint);
    /// Forget all that was said: everything is said anew before the next commit. Comes after [`Listener::disturbed`].
    fn reset(&mut self);
    /// Makes the subsystem hold what the calls so far say, which is the whole of this revision. On error, or when a family failed,
    /// it is called again, after further calls or none.
    fn commit(&mut self, revision: Revision) -> impl Future<Output = anyhow::Result<Synced>> + Send;
    /// See [`Backend::retry_refused`]. Nothing is said anew for it.
    fn retry_refused(&mut self) {}
    /// Removes everything that this backend ever wrote.
    fn cleanup(&mut self) -> impl Future<Output = anyhow::Result<()>> + Send;
    /// See [`Backend::warnings`].
    fn warnings(&self) -> Vec<Warning> {
        Vec::new()
    }
    /// See [`Backend::counts`].
    fn counts(&self) -> Option<watch::Receiver<Counts>> {
        None
    }
    /// See [`Backend::configuration`].
    fn configuration(&self) -> Option<Effective> {
        None
    }
    /// See [`Backend::disturbed`]. All is then said anew, so a listener needs no copy of the state of its own.
    fn disturbed(&mut self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }
}

/// What serves one port of a service at one address. The port's name and the address identify it within the service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortEndpoint {
    /// Name of the service's port.
    pub port_name: Arc<str>,
    /// Its protocol.
    pub protocol: Protocol,
    /// Address and port that traffic is sent to.
    pub address: SocketAddr,
    /// It is on this node.
    pub local: bool,
    /// Which traffic it serves.
    pub scopes: Scopes,
}

/// Turns a [`Listener`] into a [`Backend`].
#[derive(Debug)]
pub struct Adapter<L> {
    listener: L,
    /// What the listener has been told, whether or not it could commit it.
    told: BTreeMap<ServiceKey, Arc<Service>>,
    told_node: Option<Node>,
    /// All is to be said anew.
    replay: bool,
}

impl<L: Listener> Adapter<L> {
    /// A listener that has been told nothing yet.
    pub fn new(listener: L) -> Self {
        Self { listener, told: BTreeMap::new(), told_node: None, replay: false }
    }

    /// The listener.
    pub fn listener_mut(&mut self) -> &mut L {
        &mut self.listener
    }

    fn tell(&mut self, state: &Snapshot, changes: &Changes) {
        let replay = std::mem::take(&mut self.replay);
        if replay {
            self.listener.reset();
            self.told.clear();
            self.told_node = None;
        }
        if self.told_node.as_ref() != Some(&state.node) {
            self.listener.set_node(&state.node);
            self.told_node = Some(state.node.clone());
        }
        if changes.everything || replay {
            let keys: BTreeSet<_> = self.told.keys().chain(state.services.keys()).cloned().collect();
            keys.iter().for_each(|key| self.tell_service(key, state.services.get(key)));
        } else {
            changes.services.iter().for_each(|key| self.tell_service(key, state.services.get(key)));
        }
    }

    fn tell_service(&mut self, key: &ServiceKey, now: Option<&Arc<Service>>) {
        let before = match now {
            Some(service) => self.told.insert(key.clone(), Arc::clone(service)),
            None => self.told.remove(key),
        };
        if before.as_ref() == now {
            return;
        }
        if let Some(service) = now {
            let head = service.without_endpoints();
            if before.as_deref().map(Service::without_endpoints).as_ref() != Some(&head) {
                self.listener.set_service(&head);
            }
        }
        let old = before.as_deref().map(port_endpoints).unwrap_or_default();
        let new = now.map(|service| port_endpoints(service)).unwrap_or_default();
        for (id, endpoint) in &new {
            if old.get(id) != Some(endpoint) {
                self.listener.set_endpoint(key, endpoint);
            }
        }
        for (_, endpoint) in old.iter().filter(|(id, _)| !new.contains_key(*id)) {
            self.listener.delete_endpoint(key, endpoint);
        }
        if now.is_none() {
            self.listener.delete_service(key);
        }
    }
}

impl<L: Listener> Backend for Adapter<L> {
    fn name(&self) -> &'static str {
        self.listener.name()
    }

    fn warnings(&self) -> Vec<Warning> {
        self.listener.warnings()
    }

    fn counts(&self) -> Option<watch::Receiver<Counts>> {
        self.listener.counts()
    }

    fn configuration(&self) -> Option<Effective> {
        self.listener.configuration()
    }

    async fn sync(&mut self, state: &Snapshot, changes: &Changes) -> anyhow::Result<Synced> {
        self.tell(state, changes);
        self.listener.commit(state.revision).await
    }

    fn retry_refused(&mut self) {
        self.listener.retry_refused();
    }

    async fn cleanup(&mut self) -> anyhow::Result<()> {
        self.listener.cleanup().await
    }

    async fn disturbed(&mut self) {
        self.listener.disturbed().await;
        self.replay = true;
    }
}

fn port_endpoints(service: &Service) -> BTreeMap<(Arc<str>, SocketAddr), PortEndpoint> {
    // Backwards: of ports of the same name the first counts.
    let protocols: BTreeMap<_, _> = service.ports.iter().rev().map(|port| (&*port.name, port.protocol)).collect();
    let protocols = &protocols;
    let each = service.endpoints.iter().flat_map(|endpoint| {
        endpoint.ports.iter().filter_map(move |port| {
            let protocol = *protocols.get(&*port.name)?;
            Some(PortEndpoint {
                port_name: Arc::clone(&port.name),
                protocol,
                address: SocketAddr::new(endpoint.address, port.port),
                local: endpoint.local,
                scopes: endpoint.scopes,
            })
        })
    });
    each.map(|endpoint| ((Arc::clone(&endpoint.port_name), endpoint.address), endpoint)).collect()
}
