//! [`Tables`]: the chains and lines of all ports, updated as VIPs come and go.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use ipnet::IpNet;
use localnet_client::vips::{Facts, Hairpin, Program, Vip, VipKey};
use localnet_linux_backend::moved::Moved;
use localnet_proto::{ByFamily, Changes, Family, Protocol, Service, ServiceKey, Snapshot};

use crate::{
    plan::{
        ChainId, Digest, Dispatch, Line, fixed,
        groups::Groups,
        names,
        port::{self, Comments, Head, Port, PortKey},
        rule::{Rule, comment_text},
    },
    ruleset::{Ruleset, Visit},
};

/// The default of [`Tables::many_vips`].
const MANY_VIPS: usize = 1000;

/// The chains and lines of all ports.
#[derive(Debug)]
pub(super) struct Tables {
    pub(super) ports: ByFamily<BTreeMap<PortKey, Port>>,
    /// The ports that changed since the last update, each in its state before the change.
    before: ByFamily<BTreeMap<PortKey, Port>>,
    cluster_ips: BTreeSet<IpAddr>,
    /// The ClusterIPs outside of the service CIDRs.
    outside: ByFamily<BTreeSet<IpAddr>>,
    /// The ClusterIPs that were added or removed since the last update.
    moved_cluster_ips: BTreeSet<IpAddr>,
    /// The lines for health check node ports.
    health_checks: BTreeMap<ServiceKey, Vec<(Family, Line)>>,
    pub(super) moved: Moved,
    pub(super) facts: Option<Facts>,
    /// The number of endpoints and VIPs of all ports.
    counts: ByFamily<Counts>,
    /// How each family's rules are written, which depends on the counts.
    pub(super) shapes: ByFamily<Shape>,
    /// If a family has more VIPs than this, they are grouped by network.
    pub(super) many_vips: usize,
    /// Whether packets that connection tracking calls invalid are dropped instead of forwarded.
    pub(super) drop_invalid: bool,
    /// Whether rules count packets.
    pub(super) counts_packets: bool,
    groups: ByFamily<Groups>,
    stale: ByFamily<Stale>,
    pub(super) rulesets: ByFamily<Ruleset>,
    /// An empty text that replaces the comment of each VIP, because this backend does not use the comment.
    no_comment: Arc<str>,
}

/// The ports and groups whose chains may differ from the live state. They are planned again when they are written.
#[derive(Debug)]
enum Stale {
    All,
    Some { ports: BTreeSet<PortKey>, groups: BTreeSet<IpNet> },
}

impl Stale {
    fn none() -> Self {
        Self::Some { ports: BTreeSet::new(), groups: BTreeSet::new() }
    }

    fn port(&mut self, key: &PortKey) {
        if let Self::Some { ports, .. } = self {
            ports.insert(key.clone());
        }
    }

    fn group(&mut self, network: IpNet) {
        if let Self::Some { groups, .. } = self {
            groups.insert(network);
        }
    }
}

/// The total numbers of endpoints and VIPs of a family's ports.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    endpoints: usize,
    vips: usize,
}

/// How a family's rules are written: which of them have comments, and whether VIPs are grouped by network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) comments: Comments,
    grouped: bool,
}

impl Tables {
    pub(super) fn new() -> Self {
        Self {
            ports: Default::default(),
            before: Default::default(),
            cluster_ips: BTreeSet::new(),
            outside: Default::default(),
            moved_cluster_ips: BTreeSet::new(),
            health_checks: BTreeMap::new(),
            moved: Moved::default(),
            facts: None,
            counts: Default::default(),
            shapes: Default::default(),
            many_vips: MANY_VIPS,
            drop_invalid: true,
            counts_packets: false,
            groups: Default::default(),
            stale: ByFamily::new(Stale::All, Stale::All),
            rulesets: ByFamily::from_fn(Ruleset::new),
            no_comment: "".into(),
        }
    }

    /// Plans the changed ports, or all ports if the facts changed.
    pub(super) fn update(&mut self, facts: &Facts) {
        for family in Family::BOTH {
            let inside = |address: &IpAddr| facts.service_cidrs.iter().any(|cidr| cidr.contains(address));
            let changed = self.facts.as_ref() != Some(facts);
            let moved = if changed { &self.cluster_ips } else { &self.moved_cluster_ips };
            if changed {
                self.outside[family].clear();
            }
            for address in moved.iter().filter(|address| Family::of(**address) == family) {
                match self.cluster_ips.contains(address) && !inside(address) {
                    true => self.outside[family].insert(*address),
                    false => self.outside[family].remove(address),
                };
            }
            let ruleset = &mut self.rulesets[family];
            for chain in Dispatch::ALL {
                ruleset.set_tail(chain, fixed::tail(chain, facts, family, !self.outside[family].is_empty()));
            }
            let before = std::mem::take(&mut self.before[family]);
            let shape = self.shape(family, &before);
            if std::mem::replace(&mut self.shapes[family], shape) != shape || changed {
                self.plan_all(facts, family);
                continue;
            }
            for (key, port) in &before {
                let rules = self.plan(key, port, facts, family);
                rules.chains.iter().for_each(|(id, _)| self.rulesets[family].remove_chain(id));
                for line in rules.lines {
                    if !shape.grouped || !self.groups[family].remove(&line) {
                        self.rulesets[family].remove_line(&line);
                    }
                }
            }
            for key in before.keys() {
                let Some(port) = self.ports[family].get(key) else { continue };
                let rules = self.plan(key, port, facts, family);
                self.stale[family].port(key);
                for (id, rules) in rules.chains {
                    self.rulesets[family].set_chain(id, Digest::of(&rules));
                }
                for line in rules.lines {
                    let line = if shape.grouped { self.groups[family].insert(line) } else { Some(line) };
                    line.into_iter().for_each(|line| self.rulesets[family].set_line(line));
                }
            }
            for network in self.groups[family].take_touched() {
                self.stale[family].group(network);
                let group = self.groups[family].group(network);
                match group.rules.is_empty() {
                    true => {
                        self.rulesets[family].remove_chain(&group.chain);
                        self.rulesets[family].remove_line(&group.line);
                    }
                    false => {
                        self.rulesets[family].set_chain(group.chain, Digest::of(&group.rules));
                        self.rulesets[family].set_line(group.line);
                    }
                }
            }
        }
        self.moved_cluster_ips.clear();
        if self.facts.as_ref() != Some(facts) {
            self.facts = Some(facts.clone());
        }
    }

    /// Updates the counts of a family for its changed ports, and returns the resulting shape of the rules. `before` holds the
    /// changed ports as they were before the change.
    fn shape(&mut self, family: Family, before: &BTreeMap<PortKey, Port>) -> Shape {
        let counts = &mut self.counts[family];
        for port in before.keys().filter_map(|key| self.ports[family].get(key)) {
            counts.endpoints += port.endpoints().len();
            counts.vips += port.vips();
        }
        for port in before.values() {
            counts.endpoints -= port.endpoints().len();
            counts.vips -= port.vips();
        }
        Shape { comments: Comments::with(counts.endpoints), grouped: counts.vips > self.many_vips }
    }

    /// The rules of a port.
    pub(super) fn plan(&self, key: &PortKey, port: &Port, facts: &Facts, family: Family) -> port::Rules {
        port::plan(key, port, facts, family, self.shapes[family].comments, self.counts_packets)
    }

    fn plan_all(&mut self, facts: &Facts, family: Family) {
        let digest = |(id, rules): (ChainId, Vec<String>)| (id, Digest::of(&rules));
        let mut chains: Vec<(ChainId, Digest)> =
            fixed::chains(facts, self.drop_invalid, self.counts_packets).into_iter().map(digest).collect();
        let mut lines: Vec<Line> = self
            .cluster_ips
            .iter()
            .filter(|address| Family::of(**address) == family)
            .map(|ip| cluster_ip(*ip))
            .collect();
        let health_checks = self.health_checks.values().flatten();
        lines.extend(health_checks.filter(|(of, _)| *of == family).map(|(_, line)| line.clone()));
        // A tree that is built from sorted entries has full nodes, which saves memory.
        self.ports[family] = std::mem::take(&mut self.ports[family]).into_iter().collect();
        let grouped = self.shapes[family].grouped;
        let mut groups = Groups::default();
        for (key, port) in &self.ports[family] {
            let rules = self.plan(key, port, facts, family);
            chains.extend(rules.chains.into_iter().map(digest));
            lines.extend(
                rules.lines.into_iter().filter_map(|line| if grouped { groups.insert(line) } else { Some(line) }),
            );
        }
        for network in groups.take_touched() {
            let group = groups.group(network);
            chains.push((group.chain, Digest::of(&group.rules)));
            lines.push(group.line);
        }
        self.groups[family] = groups;
        self.stale[family] = Stale::All;
        self.rulesets[family].replace(chains, lines);
    }

    /// Calls `each` with the chains of a family, as [`Chains`](crate::ruleset::Chains) describes. Unless `all` is set, it skips
    /// chains that cannot differ from the live state.
    pub(super) fn chains(&self, family: Family, all: bool, each: &mut Visit<'_>) {
        let Some(facts) = &self.facts else { return };
        each(&fixed::chains(facts, self.drop_invalid, self.counts_packets));
        let mut port = |key: &PortKey, port: &Port| each(&self.plan(key, port, facts, family).chains);
        let groups: Vec<IpNet> = match &self.stale[family] {
            Stale::Some { ports, groups } if !all => {
                let known = ports.iter().filter_map(|key| self.ports[family].get_key_value(key));
                known.for_each(|(key, known)| port(key, known));
                groups.iter().copied().collect()
            }
            Stale::Some { .. } | Stale::All => {
                self.ports[family].iter().for_each(|(key, known)| port(key, known));
                self.groups[family].networks().collect()
            }
        };
        for network in groups {
            let group = self.groups[family].group(network);
            each(&[(group.chain, group.rules)]);
        }
    }

    /// Records that the kernel holds the desired state.
    pub(super) fn commit(&mut self, family: Family) {
        self.rulesets[family].commit();
        self.stale[family] = Stale::none();
    }

    /// Forgets the applied state.
    pub(super) fn forget(&mut self, family: Family) {
        self.rulesets[family].forget();
        self.stale[family] = Stale::All;
    }

    /// Sets the lines for the health check node ports of the changed Services.
    pub(super) fn update_health_checks(&mut self, state: &Snapshot, changes: &Changes) {
        if changes.everything {
            let before: Vec<ServiceKey> = self.health_checks.keys().cloned().collect();
            before.iter().for_each(|key| self.update_health_check(key, None));
            state.services.iter().for_each(|(key, service)| self.update_health_check(key, Some(service)));
        }
        changes
            .services
            .iter()
            .for_each(|key| self.update_health_check(key, state.services.get(key).map(|one| &**one)));
    }

    fn update_health_check(&mut self, key: &ServiceKey, service: Option<&Service>) {
        for (family, line) in self.health_checks.remove(key).unwrap_or_default() {
            self.rulesets[family].remove_line(&line);
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
            self.rulesets[*family].set_line(line.clone());
        }
        self.health_checks.insert(key.clone(), lines);
    }

    /// Returns the port of a VIP, so that the caller can change it. Keeps a copy of the unchanged port in `before`.
    fn changing(&mut self, key: &VipKey, vip: &Vip) -> &mut Port {
        let family = key.family();
        let id = PortKey::of(key, vip);
        let port = self.ports[family].entry(id.clone()).or_default();
        self.before[family].entry(id).or_insert_with(|| port.clone());
        port
    }
}

impl Program for Tables {
    fn program(&mut self, key: &VipKey, vip: &Vip, service: &Service) {
        self.moved.add(key, vip);
        let comment = self.no_comment.clone();
        let port = self.changing(key, vip);
        port.head = Head {
            internal_local: service.internal_traffic_to_local,
            load_balancer_ips: service.load_balancer_ips.clone(),
        };
        port.set(*key, Vip { comment, ..vip.clone() });
    }

    fn unprogram(&mut self, key: &VipKey, vip: &Vip) {
        self.moved.remove(key);
        let port = self.changing(key, vip);
        port.remove(key);
        if port.vips() == 0 {
            self.ports[key.family()].remove(&PortKey::of(key, vip));
        }
    }

    fn cluster_ip(&mut self, address: IpAddr, present: bool) {
        self.moved_cluster_ips.insert(address);
        let ruleset = &mut self.rulesets[Family::of(address)];
        if present {
            self.cluster_ips.insert(address);
            ruleset.set_line(cluster_ip(address));
        } else {
            self.cluster_ips.remove(&address);
            ruleset.remove_line(&cluster_ip(address));
        }
    }

    /// Does nothing: the chain of an endpoint already masquerades packets from that endpoint.
    fn hairpin(&mut self, _hairpin: &Hairpin, _present: bool) {}
}

fn cluster_ip(address: IpAddr) -> Line {
    let rule = Rule::new().to_address(address).comment("unused ports of cluster IPs").reject(Family::of(address));
    debug_assert_eq!(Dispatch::CLUSTER_IPS.name, names::CLUSTER_IPS);
    Line::new(Dispatch::CLUSTER_IPS, rule)
}
