//! Determines from the plan which chains, rules and elements of the nft backend a packet meets. Pure.
//!
//! ```text
//!  packet, oracle's outcome ──► steps (chain, rule or element of the plan) ──► kernel: does it hold them?
//! ```
//!
//! The steps come from the functions that the backend itself plans with, so the path cannot differ from the programmed rules.

use std::{net::IpAddr, sync::Arc};

use localnet_client::{
    route::{Origin, Outcome, Packet, Target},
    vips::{Exposure, Facts, Hairpin, Vip, VipKey, hashing, service},
};
use localnet_linux::nft::{Chain, Element, ElementData, Statement, Verdict, element_line};
use localnet_nft::plan::{
    ChainNames, chains, elements, names,
    sets::{Pool, SetId, Sets as _},
    stable_slots::Slots,
};
use localnet_proto::{Family, HashBy, Service, Snapshot};

/// The maximum number of a VIP's endpoints that are searched for in the kernel.
const MOST_ENDPOINTS: usize = 256;

/// A chain, rule or element that the packet meets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The name of the chain, set or map.
    pub place: String,
    /// The object that the kernel should hold there.
    pub thing: Thing,
    /// The object as nft prints it.
    pub text: String,
}

/// An object that the kernel should hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Thing {
    /// A rule of a chain, by its index.
    Rule(Arc<Chain>, usize),
    /// A whole chain.
    Chain(Arc<Chain>),
    /// An element of a set or map.
    Element(SetId, Element),
}

/// Plans a Service on this node, and returns the plan of the VIP `key`.
pub fn vip(service: &Service, facts: &Facts, key: &VipKey) -> Option<Vip> {
    service::plan(service, facts).vips.into_iter().find(|(vip, _)| vip == key).map(|(_, vip)| vip)
}

/// Whether any Service of a family has session affinity. If so, the tables have more chains.
pub fn has_affinity(state: &Snapshot, facts: &Facts, family: localnet_proto::Family) -> bool {
    let with_affinity = state.services.values().filter(|service| service.client_ip_affinity.is_some());
    let mut vips = with_affinity.flat_map(|service| service::plan(service, facts).vips);
    vips.any(|(key, vip)| key.family() == family && !(vip.endpoints.is_empty() && vip.local_endpoints.is_empty()))
}

/// A packet's path through the rules.
#[derive(Debug)]
pub struct Path<'a> {
    facts: &'a Facts,
    family: Family,
    /// The chains that exist in every plan.
    chains: Vec<Arc<Chain>>,
    names: ChainNames,
    steps: Vec<Step>,
}

impl<'a> Path<'a> {
    /// Creates the path for packets of a family. `affinity` is the result of [`has_affinity`], `counts` is whether the rules count
    /// refused packets.
    pub fn new(facts: &'a Facts, family: localnet_proto::Family, affinity: bool, counts: bool) -> Self {
        let chains = chains::fixed(facts, family, affinity, counts).into_iter().map(Arc::new).collect();
        let names = if counts { ChainNames::counting() } else { ChainNames::default() };
        Self { facts, family, chains, names, steps: Vec::new() }
    }

    /// The chains that exist in every plan.
    pub fn chains(&self) -> &[Arc<Chain>] {
        &self.chains
    }

    /// Returns the steps of a packet to a VIP. `at_node` is true if the destination is an address of the node.
    pub fn to_vip(
        mut self,
        packet: &Packet,
        target: &Target<'_>,
        vip: &Vip,
        outcome: &Outcome,
        at_node: bool,
    ) -> Vec<Step> {
        let key = VipKey { address: packet.destination, protocol: packet.protocol, port: packet.port };
        let held = self.elements(&key, vip);
        if vip.sources.is_some() {
            self.entry("firewall", packet);
            self.rule(names::FIREWALL, |_| true);
            self.held(&held, SetId::Firewalled);
            let mut ranges = of_set(&held, SetId::AllowedSources);
            if let Some(allows) = ranges.find(|element| range_has(element, &key, packet.source)) {
                self.element(SetId::AllowedSources, allows.clone());
            }
            if !passes(vip, packet.source) {
                self.refused(names::DROP_SOURCE);
            }
        }
        let is_served = !vip.endpoints.is_empty() || !vip.local_endpoints.is_empty();
        if is_served && !matches!(outcome, Outcome::Drop if vip.sources.is_some() && !passes(vip, packet.source)) {
            self.entry("nat", packet);
            self.translation(packet, target, vip, outcome, &held);
        }
        match outcome {
            Outcome::Endpoints { masquerade, hairpin, .. } => {
                if *masquerade {
                    self.rule("nat-postrouting", |_| true);
                    self.rule(names::MASQUERADING, |statement| matches!(statement, Statement::MarkHas(..)));
                } else if let Some(endpoint) = hairpin.first() {
                    self.rule("nat-postrouting", |_| true);
                    self.lookup(names::MASQUERADING, SetId::Hairpin);
                    let hairpin = Hairpin { endpoint: *endpoint, protocol: packet.protocol };
                    self.element(SetId::Hairpin, elements::of_hairpin(&hairpin));
                }
            }
            Outcome::Reject | Outcome::Drop if vip.sources.is_none() || passes(vip, packet.source) => {
                self.unserved(packet, at_node, "unserved");
                self.rule(names::UNSERVED, |statement| matches!(statement, Statement::VerdictMap(..)));
                self.held(&held, SetId::NoEndpoints);
                let end = of_set(&held, SetId::NoEndpoints).find_map(|element| match &element.data {
                    ElementData::Verdict(Verdict::Goto(chain)) => Some(chain),
                    _ => None,
                });
                end.into_iter().for_each(|chain| self.refused(chain));
            }
            Outcome::Reject | Outcome::Drop | Outcome::NotOurs => {}
        }
        self.steps
    }

    /// Returns the steps of a packet whose destination is no VIP.
    pub fn to_none(mut self, packet: &Packet, outcome: &Outcome, at_node: bool) -> Vec<Step> {
        match outcome {
            Outcome::Reject => {
                self.unserved(packet, at_node, names::UNALLOCATED);
                self.lookup(names::UNALLOCATED, SetId::ClusterIps);
                self.element(SetId::ClusterIps, elements::of_address(packet.destination));
            }
            Outcome::Drop => {
                self.unserved(packet, at_node, names::UNALLOCATED);
                let is_of = |statement: &Statement| matches!(statement, Statement::Address(_, _, cidr) if cidr.contains(&packet.destination));
                self.rule(names::UNALLOCATED, is_of);
            }
            Outcome::Endpoints { .. } | Outcome::NotOurs => {}
        }
        self.steps
    }

    /// Returns the elements of a VIP without the elements of session affinity, because only the kernel knows which endpoint has
    /// which slot.
    fn elements(&self, key: &VipKey, vip: &Vip) -> Vec<(SetId, Element)> {
        let mut held = Vec::new();
        elements::of_vip(key, vip, &Slots::default(), &self.names, |set, element| held.push((set, element)));
        held
    }

    fn translation(
        &mut self,
        packet: &Packet,
        target: &Target<'_>,
        vip: &Vip,
        outcome: &Outcome,
        held: &[(SetId, Element)],
    ) {
        let masquerades = matches!(outcome, Outcome::Endpoints { masquerade: true, .. });
        if target.internal {
            if masquerades {
                self.lookup(names::SERVICES, SetId::ClusterIps);
            }
            self.element(SetId::ClusterIps, elements::of_address(packet.destination));
        }
        let mut pool = Pool::Cluster;
        match vip.exposure {
            Exposure::Internal => {}
            Exposure::External => {
                self.lookup(names::SERVICES, SetId::External);
                self.held(held, SetId::External);
            }
            Exposure::ExternalLocal => {
                self.lookup(names::SERVICES, SetId::ExternalLocal);
                self.held(held, SetId::ExternalLocal);
                match packet.origin {
                    Origin::Pod => {
                        self.rule(names::EXTERNAL_LOCAL, |s| matches!(s, Statement::Verdict(Verdict::Return)));
                    }
                    Origin::Node => self.rule(names::EXTERNAL_LOCAL, |s| matches!(s, Statement::Local(..))),
                    Origin::Outside => pool = Pool::Local,
                }
            }
        }
        if masquerades {
            self.rule(names::MARK_MASQUERADE, |_| true);
        }
        let (endpoints, from) = match pool {
            Pool::Cluster => (&vip.endpoints, names::SERVICES),
            Pool::Local => (&vip.local_endpoints, names::EXTERNAL_LOCAL),
        };
        if vip.affinity.is_some() {
            self.lookup(from, SetId::AffinityVips);
            // The element's value is an ID that the backend has chosen for the port. The plan does not contain this ID, so the
            // value is not compared.
            for element in of_set(held, SetId::AffinityVips) {
                self.element(SetId::AffinityVips, Element { data: ElementData::None, ..element.clone() });
            }
            return;
        }
        if endpoints.is_empty() {
            return;
        }
        self.lookup(from, pool.services());
        self.held(held, pool.services());
        let choice = elements::choice(vip, endpoints);
        self.element(pool.sizes(), elements::of_size(pool, choice, &self.names));
        let picks = chains::lb(&self.names, pool, choice);
        // The first rule only clears the priority.
        let text = picks.rules.get(1).map(|rule| rule.line(self.family)).unwrap_or_default();
        self.steps.push(Step { place: picks.name.to_string(), thing: Thing::Chain(Arc::new(picks)), text });
        let known = choice.by == Some(HashBy::Source) && !packet.source.is_unspecified();
        let slot = known.then(|| hashing::slot(HashBy::Source, (packet.source, 0).into(), choice.slots));
        // The elements of hashing have the order of the slots.
        let first = slot.map_or(0, |slot| slot as usize);
        let most = if known { 1 } else { MOST_ENDPOINTS };
        for element in of_set(held, pool.endpoints()).skip(first).take(most) {
            self.element(pool.endpoints(), element.clone());
        }
    }

    /// Adds the rule that jumps from the base chain to the chains for packets of new connections.
    fn entry(&mut self, kind: &str, packet: &Packet) {
        let point = if packet.origin == Origin::Node { "output" } else { "prerouting" };
        self.rule(&format!("{kind}-{point}"), |_| true);
    }

    fn unserved(&mut self, packet: &Packet, at_node: bool, target: &str) {
        let point = match packet.origin {
            Origin::Node => "filter-output",
            _ if at_node => "filter-input",
            _ => "filter-forward",
        };
        let jumps =
            |statement: &Statement| matches!(statement, Statement::Verdict(Verdict::Jump(to)) if **to == *target);
        self.rule(point, jumps);
    }

    /// Adds the rules of a chain in which refused packets end: the one that counts them, if there is one, and the one that refuses them.
    fn refused(&mut self, chain: &str) {
        self.rule(chain, |statement| matches!(statement, Statement::Count(..)));
        self.rule(chain, |statement| matches!(statement, Statement::Reject | Statement::Verdict(Verdict::Drop)));
    }

    /// Adds the rule of `chain` that looks up a key in `set`.
    fn lookup(&mut self, chain: &str, set: SetId) {
        self.rule(chain, |statement| statement.set().is_some_and(|name| **name == *set.name()));
    }

    /// Adds a step for the first rule of the chain that contains a statement accepted by `has`.
    fn rule(&mut self, chain: &str, has: impl Fn(&Statement) -> bool) {
        let Some(chain) = self.chains.iter().find(|planned| *planned.name == *chain) else { return };
        let Some(index) = chain.rules.iter().position(|rule| rule.statements.iter().any(&has)) else { return };
        let text = chain.rules[index].line(self.family);
        self.steps.push(Step { place: chain.name.to_string(), thing: Thing::Rule(chain.clone(), index), text });
    }

    /// Adds those of the VIP's elements that belong to a set.
    fn held(&mut self, held: &[(SetId, Element)], set: SetId) {
        of_set(held, set).for_each(|element| self.element(set, element.clone()));
    }

    fn element(&mut self, set: SetId, element: Element) {
        let text = element_line(&set.declaration(self.family, 1), &element);
        self.steps.push(Step { place: set.name().to_owned(), thing: Thing::Element(set, element), text });
    }

    /// The addresses that answer NodePorts, for messages.
    pub fn node_port_addresses(&self) -> &[IpAddr] {
        &self.facts.node_port_addresses
    }
}

fn of_set(held: &[(SetId, Element)], set: SetId) -> impl Iterator<Item = &Element> {
    held.iter().filter(move |(id, _)| *id == set).map(|(_, element)| element)
}

fn passes(vip: &Vip, source: IpAddr) -> bool {
    vip.sources.as_ref().is_none_or(|ranges| ranges.iter().any(|range| range.contains(&source)))
}

/// Whether `element`, a range of allowed sources, belongs to the VIP `key` and contains `source`.
fn range_has(element: &Element, key: &VipKey, source: IpAddr) -> bool {
    let with = elements::tuple(key).address(source);
    let start = element.key.start();
    *start <= with && with <= *element.key.end().unwrap_or(start)
}

/// Returns the endpoint, the number of slots or the verdict that an element leads to, as text.
pub fn leads_to(element: &Element) -> String {
    match &element.data {
        data @ ElementData::Value(value) => match (elements::read_endpoint(data), value.as_bytes().try_into()) {
            (Some(endpoint), _) => endpoint.to_string(),
            (None, Ok(number)) => {
                let number = u32::from_ne_bytes(number);
                format!("{:x}:{:x}", number >> 16, number & 0xffff)
            }
            (None, Err(_)) => format!("{value:?}"),
        },
        ElementData::Verdict(Verdict::Goto(chain)) => format!("goto {chain}"),
        ElementData::Verdict(Verdict::Jump(chain)) => format!("jump {chain}"),
        ElementData::Verdict(other) => format!("{other:?}").to_lowercase(),
        ElementData::None | ElementData::Expires(_) => String::new(),
    }
}

/// Returns the key of a slot of session affinity, for [`crate::kernel`].
pub fn affinity_key(key: &VipKey, slot: u32) -> localnet_linux::nft::Tuple {
    elements::tuple(key).index(slot)
}
