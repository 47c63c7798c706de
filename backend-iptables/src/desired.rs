//! What the kernel should hold, kept up to date as services change.
//!
//! ```text
//!  Listener's calls ──► client::vips (one owner for each VIP) ──► ports ──► plan::port ──► Ruleset ×2
//! ```
//!
//! No I/O. Costs what changed: only ports of which a VIP changed are planned again.

mod tables;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use localnet_client::{
    Skipped,
    incremental::PortEndpoint,
    vips::{Config, Effective, Notice, VipKey, Vips},
};
use localnet_linux::conntrack::{self, Endpoints, Frontend};
use localnet_proto::{Endpoint, EndpointPort, Family, Node, Protocol, Service, ServiceKey};

use tables::Tables;

use crate::{
    plan::{ChainId, port},
    ruleset::{Input, Ruleset, Subject},
    save::Found,
};

/// What the kernel should hold.
#[derive(Debug)]
pub struct Desired {
    vips: Vips,
    tables: Tables,
    /// Services that differ from those told to `vips`.
    staged: BTreeSet<ServiceKey>,
    /// After a reset: the services as they were.
    former: Option<BTreeMap<ServiceKey, Arc<Service>>>,
}

impl Desired {
    /// Nothing yet.
    pub fn new(config: Config) -> Self {
        Self { vips: Vips::new(config), tables: Tables::new(), staged: BTreeSet::new(), former: None }
    }

    /// The configuration that plans are made with; none before the first state.
    pub fn configuration(&self) -> Option<Effective> {
        self.vips.effective()
    }

    /// More VIPs of a family than these are reached by groups; to be told before anything else.
    pub fn set_many_vips(&mut self, vips: usize) {
        self.tables.many_vips = vips;
    }

    /// What connection tracking calls invalid is forwarded; to be told before anything else.
    pub fn forward_invalid(&mut self) {
        self.tables.drop_invalid = false;
    }

    /// NodePorts are answered on 127.0.0.1, too; to be told before anything else.
    pub fn answer_on_localhost(&mut self) {
        self.vips.answer_on_localhost();
    }

    /// See [`localnet_client::incremental::Listener`].
    pub fn set_node(&mut self, node: &Node) {
        self.vips.set_node(node);
    }

    /// See [`localnet_client::incremental::Listener`].
    pub fn set_service(&mut self, head: &Service) {
        let mut service = head.clone();
        if let Some(known) = self.tables.services.get(&head.key) {
            service.endpoints.clone_from(&known.endpoints);
        }
        self.tables.services.insert(head.key.clone(), Arc::new(service));
        self.staged.insert(head.key.clone());
    }

    /// See [`localnet_client::incremental::Listener`].
    pub fn delete_service(&mut self, key: &ServiceKey) {
        self.tables.services.remove(key);
        self.staged.insert(key.clone());
    }

    /// See [`localnet_client::incremental::Listener`].
    pub fn set_endpoint(&mut self, key: &ServiceKey, endpoint: &PortEndpoint) {
        self.change_endpoint(key, endpoint, true);
    }

    /// See [`localnet_client::incremental::Listener`].
    pub fn delete_endpoint(&mut self, key: &ServiceKey, endpoint: &PortEndpoint) {
        self.change_endpoint(key, endpoint, false);
    }

    fn change_endpoint(&mut self, key: &ServiceKey, endpoint: &PortEndpoint, present: bool) {
        let Some(service) = self.tables.services.get_mut(key) else { return };
        let endpoints = &mut Arc::make_mut(service).endpoints;
        let name = &*endpoint.port_name;
        let wanted = (endpoint.address.ip(), name, endpoint.address.port());
        let id = |one: &Endpoint| {
            let port = one.ports.first();
            let (of, number) = port.map_or(("", 0), |port| (&*port.name, port.port));
            (one.address, of, number).cmp(&wanted)
        };
        match (endpoints.binary_search_by(id), present) {
            (Ok(index), true) => endpoints[index] = single(endpoint),
            (Ok(index), false) => _ = endpoints.remove(index),
            (Err(index), true) => endpoints.insert(index, single(endpoint)),
            (Err(_), false) => {}
        }
        if !self.staged.contains(key) {
            self.staged.insert(key.clone());
        }
    }

    /// All is told anew.
    pub fn reset(&mut self) {
        let services = std::mem::take(&mut self.tables.services);
        self.former.get_or_insert(services);
    }

    /// Tells the addresses of the node's interfaces; says whether NodePorts move for it.
    pub fn set_local_addresses(&mut self, addresses: Vec<IpAddr>) -> bool {
        self.vips.set_local_addresses(addresses)
    }

    /// Makes all that was told desired. Says what is not programmed, once.
    pub fn settle(&mut self) -> Vec<Notice> {
        let former = self.former.take().unwrap_or_default();
        self.staged.extend(former.keys().filter(|key| !self.tables.services.contains_key(*key)).cloned());
        for key in std::mem::take(&mut self.staged) {
            if let Some(told) = self.tables.services.get_mut(&key).and_then(Arc::get_mut) {
                told.endpoints.shrink_to_fit();
            }
            let service = self.tables.services.get(&key).cloned();
            let known = former.get(&key);
            if let Some(known) = known.filter(|known| Some(*known) == service.as_ref()) {
                // Told anew, and the same: one copy is enough.
                self.tables.services.insert(key, known.clone());
                continue;
            }
            self.tables.update_health_check(&key, service.as_deref());
            self.vips.stage(key, service);
        }
        let settled = self.vips.settle(&mut self.tables);
        if let Some(facts) = self.vips.facts() {
            self.tables.update(facts);
        }
        settled.notices
    }

    /// Takes a service out that the kernel refuses; the others are programmed without it until it changes or is tried again.
    /// Says whether that is news.
    pub fn refuse(&mut self, key: &ServiceKey, why: String) -> bool {
        let is_news = self.vips.refuse(key, why, &mut self.tables);
        if let Some(facts) = self.vips.facts() {
            self.tables.update(facts);
        }
        is_news
    }

    /// The services that the kernel refuses.
    pub fn refused(&self) -> BTreeSet<ServiceKey> {
        self.vips.refused()
    }

    /// They are tried again when this settles next, though they have not changed.
    pub fn retry_refused(&mut self) {
        self.vips.retry_refused();
    }

    /// What of the services is not programmed, and why.
    pub fn skipped(&self) -> Vec<Skipped> {
        self.vips.skipped()
    }

    /// The tables of a family.
    pub fn ruleset(&self, family: Family) -> &Ruleset {
        &self.tables.rulesets[index(family)]
    }

    /// What makes the tables of a family hold what they should; only what `wanted` allows of what depends on services.
    pub fn input<'a>(&'a self, family: Family, wanted: Option<&'a dyn Fn(&Subject) -> bool>) -> Input<'a> {
        let chains = move |chain: &mut dyn FnMut(&ChainId, &[String])| self.tables.chains(family, false, chain);
        Input { ruleset: self.ruleset(family), chains: Box::new(chains), wanted }
    }

    /// All that is desired of a family, as `iptables-restore` reads it.
    pub fn listing(&self, family: Family) -> String {
        self.ruleset(family).listing(&|chain| self.tables.chains(family, true, chain))
    }

    /// This was found in the kernel.
    pub fn adopt(&mut self, family: Family, found: Found) {
        self.tables.rulesets[index(family)].adopt(found);
    }

    /// It is no longer known what the kernel holds.
    pub fn forget(&mut self, family: Family) {
        self.tables.forget(family);
    }

    /// All that differed is in force.
    pub fn commit(&mut self, family: Family) {
        self.tables.commit(family);
    }

    /// Somebody refers to a chain that is to go: it stays, empty.
    pub fn keep(&mut self, family: Family, chain: ChainId) {
        self.tables.rulesets[index(family)].keep(chain);
    }

    /// Whose endpoints may differ since this was called last, and who they are now; none if it is no VIP any more.
    pub fn take_moved(&mut self) -> Vec<(Frontend, Option<Endpoints>)> {
        std::mem::take(&mut self.tables.moved).into_iter().map(|(vip, now)| (frontend(&vip), now)).collect()
    }

    /// Whose chains and lines are whose. For the rare: it plans all services of the family again.
    pub fn owners(&self, family: Family) -> BTreeMap<Subject, ServiceKey> {
        let Some(facts) = &self.tables.facts else { return BTreeMap::new() };
        let mut owners = BTreeMap::new();
        for (key, port) in &self.tables.ports[index(family)] {
            let rules = port::plan(key, port, facts, family, self.tables.shapes[index(family)].comments);
            let chains = rules.chains.into_iter().map(|(id, _)| Subject::Chain(id));
            let all = chains.chain(rules.lines.into_iter().map(Subject::Line));
            owners.extend(all.map(|subject| (subject, key.service.clone())));
        }
        owners
    }
}

fn single(endpoint: &PortEndpoint) -> Endpoint {
    let port = EndpointPort { name: endpoint.port_name.clone(), port: endpoint.address.port() };
    Endpoint {
        address: endpoint.address.ip(),
        ports: vec![port],
        local: endpoint.local,
        hostname: None,
        scopes: endpoint.scopes,
    }
}

/// Of a family, in pairs.
pub(crate) fn index(family: Family) -> usize {
    match family {
        Family::V4 => 0,
        Family::V6 => 1,
    }
}

/// What flows to a VIP are known by.
pub(crate) fn frontend(vip: &VipKey) -> Frontend {
    let protocol = match vip.protocol {
        Protocol::Tcp => conntrack::Protocol::Tcp,
        Protocol::Udp => conntrack::Protocol::Udp,
        Protocol::Sctp => conntrack::Protocol::Sctp,
    };
    Frontend::new(protocol, vip.socket())
}
