//! The incremental model: one call for each change, then a commit.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    num::NonZeroU32,
    sync::Arc,
};

use localnet_core::{Diagnostic, Mode};
use localnet_proto::{Changes, Node, Protocol, Revision, Scopes, Service, ServiceKey, Snapshot};
use tokio::sync::watch;

use crate::{
    backend::{Backend, Synced},
    counts::Counts,
    vips::Effective,
};

/// Receives the changes one by one. The calls describe the desired state. The listener need not apply anything before
/// [`Listener::commit`].
///
/// The order within one commit: `set_node` comes first. For each changed Service, `set_service` precedes its
/// `set_endpoint` calls, and these precede its `delete_endpoint` calls. `delete_service` comes after all endpoints of the
/// Service are deleted.
pub trait Listener: Send {
    /// The backend's name in its reports to the brain.
    fn name(&self) -> &'static str;
    /// See [`Backend::mode`].
    fn mode(&self) -> Option<Mode> {
        None
    }
    /// Sets the node's facts. Called before all other calls, and whenever they change.
    fn set_node(&mut self, node: &Node);
    /// Adds a Service, or changes something other than its endpoints. The `endpoints` of `service` are empty here.
    fn set_service(&mut self, service: &Service);
    /// Deletes a Service.
    fn delete_service(&mut self, key: &ServiceKey);
    /// Adds an endpoint, or changes something other than its port name and address.
    fn set_endpoint(&mut self, service: &ServiceKey, endpoint: &PortEndpoint);
    /// Deletes an endpoint.
    fn delete_endpoint(&mut self, service: &ServiceKey, endpoint: &PortEndpoint);
    /// Discards everything that earlier calls have set. The adapter calls this function after [`Listener::disturbed`],
    /// and sets everything again before the next commit.
    fn reset(&mut self);
    /// Makes the subsystem hold the result of all calls so far, which is the complete state of this revision. After an
    /// error, or if a family failed, the adapter calls this function again. Before that, it may call other functions to
    /// set newer changes.
    ///
    /// # Errors
    /// Returns an error if the commit failed in both families.
    fn commit(&mut self, revision: Revision) -> impl Future<Output = anyhow::Result<Synced>> + Send;
    /// See [`Backend::retry_refused`]. The adapter does not repeat any earlier calls.
    fn retry_refused(&mut self) {}
    /// Removes everything that this backend ever wrote.
    ///
    /// # Errors
    /// Returns an error if something could not be removed.
    fn cleanup(&mut self) -> impl Future<Output = anyhow::Result<()>> + Send;
    /// See [`Backend::warnings`].
    fn warnings(&self) -> Vec<Diagnostic> {
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
    /// See [`Backend::disturbed`]. The adapter then calls [`Self::reset`] and sets everything again, so a listener needs
    /// no copy of the state.
    fn disturbed(&mut self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }
}

/// An endpoint of one port of a Service. The port's name and the address identify it within the Service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortEndpoint {
    /// The name of the Service's port.
    pub port_name: Arc<str>,
    /// The port's protocol.
    pub protocol: Protocol,
    /// The address and port that traffic is sent to.
    pub address: SocketAddr,
    /// Whether the endpoint is on this node.
    pub local: bool,
    /// The traffic that may use the endpoint.
    pub scopes: Scopes,
    /// The share of new connections relative to other endpoints: from 1 to [`Endpoint::MAX_WEIGHT`](localnet_proto::Endpoint::MAX_WEIGHT).
    pub weight: u32,
}

/// Turns a [`Listener`] into a [`Backend`].
#[derive(Debug)]
pub struct Adapter<L> {
    listener: L,
    /// The Services that were set on the listener, whether or not their commit succeeded.
    delivered: BTreeMap<ServiceKey, Arc<Service>>,
    delivered_node: Option<Node>,
    /// Whether everything has to be set again before the next commit.
    replay: bool,
}

impl<L: Listener> Adapter<L> {
    /// Wraps a listener on which nothing has been set yet.
    pub fn new(listener: L) -> Self {
        Self { listener, delivered: BTreeMap::new(), delivered_node: None, replay: false }
    }

    /// The wrapped listener.
    pub fn listener_mut(&mut self) -> &mut L {
        &mut self.listener
    }

    fn deliver(&mut self, state: &Snapshot, changes: &Changes) {
        let replay = std::mem::take(&mut self.replay);
        if replay {
            self.listener.reset();
            self.delivered.clear();
            self.delivered_node = None;
        }
        if self.delivered_node.as_ref() != Some(&state.node) {
            self.listener.set_node(&state.node);
            self.delivered_node = Some(state.node.clone());
        }
        if changes.everything || replay {
            let keys: BTreeSet<_> = self.delivered.keys().chain(state.services.keys()).cloned().collect();
            keys.iter().for_each(|key| self.deliver_service(key, state.services.get(key)));
        } else {
            changes.services.iter().for_each(|key| self.deliver_service(key, state.services.get(key)));
        }
    }

    fn deliver_service(&mut self, key: &ServiceKey, now: Option<&Arc<Service>>) {
        let before = match now {
            Some(service) => self.delivered.insert(key.clone(), Arc::clone(service)),
            None => self.delivered.remove(key),
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

    fn mode(&self) -> Option<Mode> {
        self.listener.mode()
    }

    fn warnings(&self) -> Vec<Diagnostic> {
        self.listener.warnings()
    }

    fn counts(&self) -> Option<watch::Receiver<Counts>> {
        self.listener.counts()
    }

    fn configuration(&self) -> Option<Effective> {
        self.listener.configuration()
    }

    async fn sync(&mut self, state: &Snapshot, changes: &Changes) -> anyhow::Result<Synced> {
        self.deliver(state, changes);
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
    // In reverse order: of several ports with the same name, the first one is inserted last, and therefore applies.
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
                weight: endpoint.weight.map_or(1, NonZeroU32::get),
            })
        })
    });
    each.map(|endpoint| ((Arc::clone(&endpoint.port_name), endpoint.address), endpoint)).collect()
}
