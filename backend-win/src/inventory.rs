//! What HNS holds, as far as it was listed: the network, its endpoints, and all load balancers.
//!
//! Lists are of identifiers, and cost one call; only what is new in them is then asked for, one by one. So a look costs what changed. What
//! was read is thrown away and read again when there is a doubt: [`Inventory::forget`].

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

/// What HNS holds.
#[derive(Clone, Debug, Default)]
pub struct Inventory {
    network: Option<(Guid, NetworkType, Vec<RemoteSubnet>)>,
    endpoints: BTreeMap<Guid, Option<Endpoint>>,
    /// Which endpoints have an address.
    by_address: BTreeMap<IpAddr, BTreeSet<Guid>>,
    /// `None`: a document that is not understood.
    balancers: BTreeMap<Guid, Option<LoadBalancer>>,
    gateway: Option<(Guid, Vec<Family>)>,
}

/// Why HNS cannot be listed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A call failed.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// An answer is not understood.
    #[error(transparent)]
    Odd(#[from] Odd),
    /// There is no such network.
    #[error("HNS has no network {wanted:?}, but {}; it is made by the CNI plugin: wait for that, or name another one (--network-name)", names(.there))]
    NoNetwork {
        /// The name.
        wanted: String,
        /// The names of those that there are.
        there: Vec<String>,
    },
    /// No name was given, and there is not just one network for pods.
    #[error("the network of the pods is to be named (--network-name, winkernel.networkName, or KUBE_NETWORK): HNS has {}", names(.there))]
    Which {
        /// The names of those that there are.
        there: Vec<String>,
    },
}

fn names(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// What differs from the look before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// The network, its subnets, or endpoints: plans depend on them.
    pub surroundings: bool,
    /// Load balancers.
    pub balancers: bool,
}

impl Inventory {
    /// The network.
    pub fn network(&self) -> Option<Guid> {
        self.network.as_ref().map(|(id, ..)| *id)
    }

    /// How it carries packets to other nodes.
    pub fn kind(&self) -> NetworkType {
        self.network.as_ref().map_or(NetworkType::Flat, |(_, kind, _)| *kind)
    }

    /// Subnets of other nodes.
    pub fn remote_subnets(&self) -> &[RemoteSubnet] {
        self.network.as_ref().map_or(&[], |(.., subnets)| subnets)
    }

    /// The endpoint through which the node is reached, and its families.
    pub fn gateway(&self) -> Option<(Guid, &[Family])> {
        self.gateway.as_ref().map(|(id, families)| (*id, families.as_slice()))
    }

    /// All endpoints of the network that are understood.
    pub fn endpoints(&self) -> impl Iterator<Item = (Guid, &Endpoint)> {
        self.endpoints.iter().filter_map(|(id, endpoint)| Some((*id, endpoint.as_ref()?)))
    }

    /// That endpoint, if it is understood.
    pub fn endpoint(&self, id: Guid) -> Option<&Endpoint> {
        self.endpoints.get(&id)?.as_ref()
    }

    /// Whether the network has that endpoint.
    pub fn has_endpoint(&self, id: Guid) -> bool {
        self.endpoints.contains_key(&id)
    }

    /// The endpoint on this node that has an address. A remote one may have it, too, which then is wrong.
    pub fn local(&self, address: IpAddr) -> Option<Guid> {
        self.of_address(address).find(|(_, endpoint)| !endpoint.is_remote()).map(|(id, _)| id)
    }

    /// The remote endpoints that have an address.
    pub fn remotes(&self, address: IpAddr) -> impl Iterator<Item = (Guid, &Endpoint)> {
        self.of_address(address).filter(|(_, endpoint)| endpoint.is_remote())
    }

    fn of_address(&self, address: IpAddr) -> impl Iterator<Item = (Guid, &Endpoint)> {
        let ids = self.by_address.get(&address).into_iter().flatten();
        ids.filter_map(|id| Some((*id, self.endpoints.get(id)?.as_ref()?)))
    }

    /// All load balancers; `None` for what is not understood.
    pub fn balancers(&self) -> &BTreeMap<Guid, Option<LoadBalancer>> {
        &self.balancers
    }

    /// What was read is in doubt: the next look reads all of it.
    pub fn forget(&mut self) {
        *self = Self::default();
    }

    /// Looks at HNS. `root`: the endpoint through which the node is reached, if that matters.
    ///
    /// # Errors
    /// HNS does not answer, or has no such network. What is known then is what was read so far.
    pub fn look(&mut self, hcn: &mut impl Hcn, network: Option<&str>, root: Option<&str>) -> Result<Changed, Error> {
        let found = find(hcn, network)?;
        let new = found.id.map(|id| (id, found.kind(), found.remote_subnets()));
        let mut changed = Changed { surroundings: new != self.network, balancers: false };
        if new.as_ref().map(|(id, ..)| *id) != self.network() {
            // Endpoints of another network are others, whatever their identifiers.
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

    /// An endpoint was made.
    pub fn made_endpoint(&mut self, id: Guid, endpoint: Endpoint) {
        for address in endpoint.addresses() {
            self.by_address.entry(address).or_default().insert(id);
        }
        self.endpoints.insert(id, Some(endpoint));
    }

    /// An endpoint was deleted.
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

    /// A load balancer was made or changed.
    pub fn made_balancer(&mut self, id: Guid, balancer: LoadBalancer) {
        self.balancers.insert(id, Some(balancer));
    }

    /// A load balancer was deleted.
    pub fn deleted_balancer(&mut self, id: Guid) {
        self.balancers.remove(&id);
    }
}

/// The identifiers of all objects that a query asks for.
///
/// # Errors
/// HNS does not answer, or not with a list.
pub fn list(hcn: &mut impl Hcn, kind: Kind, query: &Query) -> Result<Vec<Guid>, Error> {
    Ok(schema::read_ids(&hcn.enumerate(kind, &schema::write(query))?)?)
}

/// The properties of an object; `None` if it is gone meanwhile.
fn properties(hcn: &mut impl Hcn, kind: Kind, id: Guid) -> Result<Option<String>, Failure> {
    match hcn.properties(kind, id) {
        Ok(properties) => Ok(Some(properties)),
        Err(failure) if failure.reason() == Reason::NotFound => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// Makes `known` what the list says; says whether that is something else than before.
fn update<T: DeserializeOwned>(
    hcn: &mut impl Hcn,
    kind: Kind,
    what: &'static str,
    known: &mut BTreeMap<Guid, Option<T>>,
    listed: Vec<Guid>,
) -> Result<bool, Error> {
    let listed: BTreeSet<Guid> = listed.into_iter().collect();
    let before = known.len();
    known.retain(|id, _| listed.contains(id));
    let mut changed = known.len() != before;
    for id in listed {
        if known.contains_key(&id) {
            continue;
        }
        let Some(properties) = properties(hcn, kind, id)? else { continue };
        let document = schema::read(what, &properties).inspect_err(|odd| debug!(%id, %odd, "left alone")).ok();
        known.insert(id, document);
        changed = true;
    }
    Ok(changed)
}

/// The network of that name, or the only one that is for pods.
fn find(hcn: &mut impl Hcn, name: Option<&str>) -> Result<Network, Error> {
    let query = name.map_or_else(Query::all, Query::named);
    let found = networks(hcn, &query)?;
    // An HNS that ignores the filter would list others.
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
    let mut networks = Vec::new();
    for id in list(hcn, Kind::Network, query)? {
        let Some(properties) = properties(hcn, Kind::Network, id)? else { continue };
        match schema::read::<Network>("network", &properties) {
            Ok(network) => networks.push(Network { id: Some(id), ..network }),
            Err(odd) => debug!(%id, %odd, "left alone"),
        }
    }
    Ok(networks)
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
