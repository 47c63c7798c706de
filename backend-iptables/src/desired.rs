//! What the kernel should hold, kept up to date as services change.
//!
//! ```text
//!  Listener's calls ──► client::vips (one owner for each VIP) ──► ports ──► plan::port ──► Ruleset ×2
//! ```
//!
//! No I/O. Costs what changed: only ports of which a VIP changed are planned again.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
};

use localnet_client::{
    Skipped,
    incremental::PortEndpoint,
    vips::{Config, Facts, Hairpin, Notice, Program, Vip, VipKey, Vips},
};
use localnet_linux::conntrack::{self, Endpoints, Frontend};
use localnet_proto::{Endpoint, EndpointPort, Family, Node, Protocol, Service, ServiceKey};

use crate::{
    plan::{
        ChainId, Dispatch, Line, fixed, names,
        port::{self, Head, Port, PortKey},
        rule::{Rule, comment_text},
    },
    ruleset::{Ruleset, Subject},
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

#[derive(Debug)]
struct Tables {
    services: BTreeMap<ServiceKey, Arc<Service>>,
    ports: [BTreeMap<PortKey, Port>; 2],
    /// Ports of which something changed, as they were planned last.
    before: [BTreeMap<PortKey, Port>; 2],
    cluster_ips: BTreeSet<IpAddr>,
    /// ClusterIPs outside of the service CIDRs.
    outside: [BTreeSet<IpAddr>; 2],
    /// ClusterIPs that came or went.
    moved_cluster_ips: BTreeSet<IpAddr>,
    /// Lines for ports of health checks.
    health_checks: BTreeMap<ServiceKey, Vec<(Family, Line)>>,
    /// VIPs whose programming differs from what was told last, and who may answer now.
    moved: HashMap<VipKey, Option<Endpoints>>,
    facts: Option<Facts>,
    rulesets: [Ruleset; 2],
}

impl Desired {
    /// Nothing yet.
    pub fn new(config: Config) -> Self {
        let tables = Tables {
            services: BTreeMap::new(),
            ports: Default::default(),
            before: Default::default(),
            cluster_ips: BTreeSet::new(),
            outside: Default::default(),
            moved_cluster_ips: BTreeSet::new(),
            health_checks: BTreeMap::new(),
            moved: HashMap::new(),
            facts: None,
            rulesets: Family::BOTH.map(Ruleset::new),
        };
        Self { vips: Vips::new(config), tables, staged: BTreeSet::new(), former: None }
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

    /// Takes a service out that the kernel refuses; the others are programmed without it until it changes.
    pub fn refuse(&mut self, key: &ServiceKey, why: String) {
        self.vips.refuse(key, why, &mut self.tables);
        if let Some(facts) = self.vips.facts() {
            self.tables.update(facts);
        }
    }

    /// What of the services is not programmed, and why.
    pub fn skipped(&self) -> Vec<Skipped> {
        self.vips.skipped()
    }

    /// The tables of a family.
    pub fn ruleset(&mut self, family: Family) -> &mut Ruleset {
        &mut self.tables.rulesets[index(family)]
    }

    /// The tables of both families, as they should be.
    pub fn rulesets(&self) -> &[Ruleset; 2] {
        &self.tables.rulesets
    }

    /// This was found in the kernel.
    pub fn adopt(&mut self, family: Family, found: Found) {
        self.ruleset(family).adopt(found);
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
            let rules = port::plan(key, port, facts, family);
            let chains = rules.chains.into_iter().map(|(id, _)| Subject::Chain(id));
            let all = chains.chain(rules.lines.into_iter().map(Subject::Line));
            owners.extend(all.map(|subject| (subject, key.service.clone())));
        }
        owners
    }
}

impl Tables {
    /// Plans what changed; all, if the facts did.
    fn update(&mut self, facts: &Facts) {
        for family in Family::BOTH {
            let of = index(family);
            let inside = |address: &IpAddr| facts.service_cidrs.iter().any(|cidr| cidr.contains(address));
            let changed = self.facts.as_ref() != Some(facts);
            let moved = if changed { &self.cluster_ips } else { &self.moved_cluster_ips };
            if changed {
                self.outside[of].clear();
            }
            for address in moved.iter().filter(|address| Family::of(**address) == family) {
                match self.cluster_ips.contains(address) && !inside(address) {
                    true => self.outside[of].insert(*address),
                    false => self.outside[of].remove(address),
                };
            }
            let ruleset = &mut self.rulesets[of];
            for chain in Dispatch::ALL {
                ruleset.set_tail(chain, fixed::tail(chain, facts, family, !self.outside[of].is_empty()));
            }
            let before = std::mem::take(&mut self.before[of]);
            if changed {
                self.plan_all(facts, family);
                continue;
            }
            for (key, port) in &before {
                let rules = port::plan(key, port, facts, family);
                rules.chains.iter().for_each(|(id, _)| ruleset.remove_chain(id));
                rules.lines.iter().for_each(|line| ruleset.remove_line(line));
            }
            for key in before.keys() {
                let Some(port) = self.ports[of].get(key) else { continue };
                let rules = port::plan(key, port, facts, family);
                rules.chains.into_iter().for_each(|(id, rules)| ruleset.set_chain(id, &rules));
                rules.lines.into_iter().for_each(|line| ruleset.set_line(line));
            }
        }
        self.moved_cluster_ips.clear();
        if self.facts.as_ref() != Some(facts) {
            self.facts = Some(facts.clone());
        }
    }

    fn plan_all(&mut self, facts: &Facts, family: Family) {
        let of = index(family);
        let mut chains: Vec<(ChainId, Vec<String>)> = fixed::chains(facts).into();
        let mut lines: Vec<Line> = self
            .cluster_ips
            .iter()
            .filter(|address| Family::of(**address) == family)
            .map(|ip| cluster_ip(*ip))
            .collect();
        let health_checks = self.health_checks.values().flatten();
        lines.extend(health_checks.filter(|(of, _)| *of == family).map(|(_, line)| line.clone()));
        for (key, port) in &self.ports[of] {
            let rules = port::plan(key, port, facts, family);
            chains.extend(rules.chains);
            lines.extend(rules.lines);
        }
        self.rulesets[of].replace(chains, lines);
    }

    fn update_health_check(&mut self, key: &ServiceKey, service: Option<&Service>) {
        for (family, line) in self.health_checks.remove(key).unwrap_or_default() {
            self.rulesets[index(family)].remove_line(&line);
        }
        let Some((service, port)) = service.and_then(|service| Some((service, service.health_check_node_port?))) else {
            return;
        };
        let families = Family::BOTH.into_iter().filter(|family| service.has_family(*family));
        let comment = format!("{} health check node port", comment_text(&key.to_string()));
        let rule = Rule::new().protocol(Protocol::Tcp).comment(&comment).port(Protocol::Tcp, port).jump("ACCEPT");
        let lines: Vec<_> =
            families.map(|family| (family, Line::new(Dispatch::HEALTH_CHECKS, rule.as_str()))).collect();
        for (family, line) in &lines {
            self.rulesets[index(*family)].set_line(line.clone());
        }
        self.health_checks.insert(key.clone(), lines);
    }

    /// The port of a VIP, which is about to change.
    fn changing(&mut self, key: &VipKey, vip: &Vip) -> &mut Port {
        let of = index(key.family());
        let id = PortKey::of(key, vip);
        let port = self.ports[of].entry(id.clone()).or_default();
        self.before[of].entry(id).or_insert_with(|| port.clone());
        port
    }
}

impl Program for Tables {
    fn program(&mut self, key: &VipKey, vip: &Vip) {
        self.moved.insert(*key, Some(vip.serving.clone().into()));
        let head = self.services.get(&vip.service).map(|service| Head {
            internal_local: service.internal_traffic_to_local,
            load_balancer_ips: service.load_balancer_ips.clone(),
        });
        let port = self.changing(key, vip);
        port.head = head.unwrap_or_default();
        port.vips.insert(*key, vip.clone());
    }

    fn unprogram(&mut self, key: &VipKey, vip: &Vip) {
        self.moved.insert(*key, None);
        let port = self.changing(key, vip);
        port.vips.remove(key);
        if port.vips.is_empty() {
            self.ports[index(key.family())].remove(&PortKey::of(key, vip));
        }
    }

    fn cluster_ip(&mut self, address: IpAddr, present: bool) {
        self.moved_cluster_ips.insert(address);
        let ruleset = &mut self.rulesets[index(Family::of(address))];
        if present {
            self.cluster_ips.insert(address);
            ruleset.set_line(cluster_ip(address));
        } else {
            self.cluster_ips.remove(&address);
            ruleset.remove_line(&cluster_ip(address));
        }
    }

    /// The chain of an endpoint masquerades what comes from it.
    fn hairpin(&mut self, _hairpin: &Hairpin, _present: bool) {}
}

fn cluster_ip(address: IpAddr) -> Line {
    let rule = Rule::new().to_address(address).comment("unused ports of cluster IPs").reject(Family::of(address));
    debug_assert_eq!(Dispatch::CLUSTER_IPS.name, names::CLUSTER_IPS);
    Line::new(Dispatch::CLUSTER_IPS, rule)
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
