//! The objects that HNS lists: the network, its endpoints, and all load balancers.
//!
//! Listing the objects takes one call and returns only their identifiers. Then only documents with new identifiers are read, with
//! one call each, so the duration depends on the number of changes. If the inventory may be wrong, the caller discards it with
//! [`Inventory::forget`].

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    net::IpAddr,
};

use localnet_proto::Family;
use serde::de::DeserializeOwned;
use tracing::debug;

use crate::hcn::{
    Failure, Guid, Hcn, Kind, Reason,
    schema::{self, Endpoint, LoadBalancer, Network, NetworkType, Odd, Query, RemoteSubnet},
};

/// The objects that HNS holds.
#[derive(Clone, Debug, Default)]
pub struct Inventory {
    network: Option<(Guid, NetworkType, Vec<RemoteSubnet>)>,
    endpoints: BTreeMap<Guid, Option<Endpoint>>,
    /// The endpoints of each address.
    by_address: BTreeMap<IpAddr, BTreeSet<Guid>>,
    /// The load balancers. `None` stands for a document that cannot be parsed.
    balancers: BTreeMap<Guid, Option<LoadBalancer>>,
    gateway: Option<(Guid, Vec<Family>)>,
}

/// Why the objects of HNS cannot be listed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A call failed.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// An answer cannot be parsed.
    #[error(transparent)]
    Odd(#[from] Odd),
    /// HNS has no network with this name.
    #[error("HNS has no network {wanted:?}; it has {}: wait until the CNI plugin creates the network, or choose another one with --network-name", names(.there))]
    NoNetwork {
        /// The configured name.
        wanted: String,
        /// The names of the existing networks.
        there: Vec<String>,
    },
    /// No name is configured, and HNS has either several networks for pods or none.
    #[error("the network of the pods is unknown (HNS has {}): set it with --network-name, winkernel.networkName or KUBE_NETWORK", names(.there))]
    Which {
        /// The names of the existing networks.
        there: Vec<String>,
    },
}

fn names(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// The differences from the previous read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// Whether the network, its subnets or endpoints changed. Plans depend on them.
    pub surroundings: bool,
    /// Whether load balancers changed.
    pub balancers: bool,
}

impl Inventory {
    /// The identifier of the network.
    pub fn network(&self) -> Option<Guid> {
        self.network.as_ref().map(|(id, ..)| *id)
    }

    /// The type of the network.
    pub fn kind(&self) -> NetworkType {
        self.network.as_ref().map_or(NetworkType::Flat, |(_, kind, _)| *kind)
    }

    /// The subnets of other nodes.
    pub fn remote_subnets(&self) -> &[RemoteSubnet] {
        self.network.as_ref().map_or(&[], |(.., subnets)| subnets)
    }

    /// The endpoint that leads to the node, and its families.
    pub fn gateway(&self) -> Option<(Guid, &[Family])> {
        self.gateway.as_ref().map(|(id, families)| (*id, families.as_slice()))
    }

    /// The network's endpoints, except those whose documents could not be parsed.
    pub fn endpoints(&self) -> impl Iterator<Item = (Guid, &Endpoint)> {
        self.endpoints.iter().filter_map(|(id, endpoint)| Some((*id, endpoint.as_ref()?)))
    }

    /// An endpoint whose document could be parsed.
    pub fn endpoint(&self, id: Guid) -> Option<&Endpoint> {
        self.endpoints.get(&id)?.as_ref()
    }

    /// Whether the network has this endpoint.
    pub fn has_endpoint(&self, id: Guid) -> bool {
        self.endpoints.contains_key(&id)
    }

    /// The local endpoint with this address. If a remote endpoint has the same address, the remote endpoint is outdated.
    pub fn local(&self, address: IpAddr) -> Option<Guid> {
        self.of_address(address).find(|(_, endpoint)| !endpoint.is_remote()).map(|(id, _)| id)
    }

    /// The remote endpoints with this address.
    pub fn remotes(&self, address: IpAddr) -> impl Iterator<Item = (Guid, &Endpoint)> {
        self.of_address(address).filter(|(_, endpoint)| endpoint.is_remote())
    }

    fn of_address(&self, address: IpAddr) -> impl Iterator<Item = (Guid, &Endpoint)> {
        let ids = self.by_address.get(&address).into_iter().flatten();
        ids.filter_map(|id| Some((*id, self.endpoints.get(id)?.as_ref()?)))
    }

    /// All load balancers. `None` stands for a document that cannot be parsed.
    pub fn balancers(&self) -> &BTreeMap<Guid, Option<LoadBalancer>> {
        &self.balancers
    }

    /// Discards the inventory, so that the next read fetches every document.
    pub fn forget(&mut self) {
        *self = Self::default();
    }

    /// Reads the changes in HNS. `root` is the name of the endpoint that leads to the node, if the plan needs this endpoint.
    ///
    /// # Errors
    /// Returns an error if HNS does not answer or does not have the network. The inventory then contains what was read so far.
    pub fn refresh(&mut self, hcn: &mut impl Hcn, network: Option<&str>, root: Option<&str>) -> Result<Changed, Error> {
        let found = find(hcn, network)?;
        let new = found.id.map(|id| (id, found.kind(), found.remote_subnets()));
        let mut changed = Changed { surroundings: new != self.network, balancers: false };
        if new.as_ref().map(|(id, ..)| *id) != self.network() {
            // The endpoints of the previous network do not belong to this one.
            self.endpoints.clear();
            self.by_address.clear();
        }
        self.network = new;
        let Some(id) = self.network() else { return Ok(changed) };

        let ids = list(hcn, Kind::Endpoint, &Query::of_network(id))?;
        let endpoints = update(hcn, Kind::Endpoint, "endpoint", &mut self.endpoints, ids);
        if *endpoints.as_ref().unwrap_or(&true) {
            changed.surroundings = true;
            self.index();
        }
        endpoints?;

        let gateway = match root {
            Some(name) => gateway(hcn, name)?,
            None => None,
        };
        changed.surroundings |= gateway != self.gateway;
        self.gateway = gateway;

        let ids = list(hcn, Kind::LoadBalancer, &Query::all())?;
        changed.balancers = update(hcn, Kind::LoadBalancer, "load balancer", &mut self.balancers, ids)?;
        Ok(changed)
    }

    fn index(&mut self) {
        self.by_address.clear();
        for (id, endpoint) in self.endpoints.iter().filter_map(|(id, endpoint)| Some((id, endpoint.as_ref()?))) {
            for address in endpoint.addresses() {
                self.by_address.entry(address).or_default().insert(*id);
            }
        }
    }

    /// Records a new endpoint.
    pub fn made_endpoint(&mut self, id: Guid, endpoint: Endpoint) {
        for address in endpoint.addresses() {
            self.by_address.entry(address).or_default().insert(id);
        }
        self.endpoints.insert(id, Some(endpoint));
    }

    /// Records the deletion of an endpoint.
    pub fn deleted_endpoint(&mut self, id: Guid) {
        let Some(Some(endpoint)) = self.endpoints.remove(&id) else { return };
        for address in endpoint.addresses() {
            if let Entry::Occupied(mut ids) = self.by_address.entry(address) {
                ids.get_mut().remove(&id);
                if ids.get().is_empty() {
                    ids.remove();
                }
            }
        }
    }

    /// Records a new or changed load balancer.
    pub fn made_balancer(&mut self, id: Guid, balancer: LoadBalancer) {
        self.balancers.insert(id, Some(balancer));
    }

    /// Records the deletion of a load balancer.
    pub fn deleted_balancer(&mut self, id: Guid) {
        self.balancers.remove(&id);
    }
}

/// Returns the identifiers of the objects that match a query.
///
/// # Errors
/// Returns an error if HNS does not answer or the answer is not a list.
pub fn list(hcn: &mut impl Hcn, kind: Kind, query: &Query) -> Result<Vec<Guid>, Error> {
    Ok(schema::read_ids(&hcn.enumerate(kind, &schema::write(query))?)?)
}

/// Returns the properties of an object; `None` if it was deleted in the meantime.
///
/// # Errors
/// Returns an error if HNS does not answer.
pub fn properties(hcn: &mut impl Hcn, kind: Kind, id: Guid) -> Result<Option<String>, Failure> {
    match hcn.properties(kind, id) {
        Ok(properties) => Ok(Some(properties)),
        Err(failure) if failure.reason() == Reason::NotFound => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// Removes from `cached` the objects that are not in `listed`, and reads the listed objects that `cached` lacks. Returns whether
/// `cached` changed.
fn update<T: DeserializeOwned>(
    hcn: &mut impl Hcn,
    kind: Kind,
    what: &'static str,
    cached: &mut BTreeMap<Guid, Option<T>>,
    listed: Vec<Guid>,
) -> Result<bool, Error> {
    let listed: BTreeSet<Guid> = listed.into_iter().collect();
    let before = cached.len();
    cached.retain(|id, _| listed.contains(id));
    let mut changed = cached.len() != before;
    for id in listed {
        if cached.contains_key(&id) {
            continue;
        }
        let Some(properties) = properties(hcn, kind, id)? else { continue };
        let document = schema::read(what, &properties)
            .inspect_err(|odd| debug!(%id, %odd, "ignoring an object that cannot be parsed"))
            .ok();
        cached.insert(id, document);
        changed = true;
    }
    Ok(changed)
}

/// Finds the network with this name. Without a name, finds the only network for pods.
fn find(hcn: &mut impl Hcn, name: Option<&str>) -> Result<Network, Error> {
    let query = name.map_or_else(Query::all, Query::named);
    let found = networks(hcn, &query)?;
    // An HNS that ignores the filter also lists other networks.
    let right = |network: &&Network| name.map_or(network.is_for_pods(), |name| network.name == name);
    let mut candidates = found.iter().filter(right);
    if let (Some(one), None) = (candidates.next(), candidates.next()) {
        return Ok(one.clone());
    }
    let there = networks(hcn, &Query::all())?.into_iter().map(|network| network.name).collect();
    Err(match name {
        Some(name) => Error::NoNetwork { wanted: name.to_owned(), there },
        None => Error::Which { there },
    })
}

fn networks(hcn: &mut impl Hcn, query: &Query) -> Result<Vec<Network>, Error> {
    let networks: BTreeMap<Guid, Network> = documents(hcn, Kind::Network, "network", query)?;
    Ok(networks.into_iter().map(|(id, network)| Network { id: Some(id), ..network }).collect())
}

/// Returns the objects that match a query, by identifier. It omits objects whose documents cannot be parsed.
///
/// # Errors
/// Returns an error if HNS does not answer or the answer is not a list.
pub fn documents<T: DeserializeOwned>(
    hcn: &mut impl Hcn,
    kind: Kind,
    what: &'static str,
    query: &Query,
) -> Result<BTreeMap<Guid, T>, Error> {
    let mut documents = BTreeMap::new();
    for id in list(hcn, kind, query)? {
        let Some(properties) = properties(hcn, kind, id)? else { continue };
        match schema::read(what, &properties) {
            Ok(document) => _ = documents.insert(id, document),
            Err(odd) => debug!(%id, %odd, "ignoring an object that cannot be parsed"),
        }
    }
    Ok(documents)
}

fn gateway(hcn: &mut impl Hcn, name: &str) -> Result<Option<(Guid, Vec<Family>)>, Error> {
    for id in list(hcn, Kind::Endpoint, &Query::named(name))? {
        let Some(properties) = properties(hcn, Kind::Endpoint, id)? else { continue };
        if let Ok(endpoint) = schema::read::<Endpoint>("endpoint", &properties)
            && endpoint.name == name
        {
            let families: BTreeSet<Family> = endpoint.addresses().map(Family::of).collect();
            return Ok(Some((id, families.into_iter().collect())));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests;
