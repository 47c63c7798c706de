//! Plans one port of one Service in one family: its own chains, and its lines in the dispatch chains. Planning never fails.
//!
//! ```text
//!  KUBE-SERVICES ─┬─ ClusterIP ──────────────► KUBE-SVC ─┬► KUBE-SEP ─► DNAT
//!                 ├─ external ─┬───────────► KUBE-EXT ───┤
//!                 │            └► KUBE-FW ──────┘ │      ├► KUBE-SEP
//!                 └─► KUBE-NODEPORTS ─────────────┘      │
//!                                   └──────► KUBE-SVL ───┘
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use ipnet::IpNet;
use localnet_client::vips::{Exposure, Facts, Vip, VipKey, Weights};
use localnet_proto::{Affinity, Family, Protocol, ServiceKey, Verdict};

use super::{
    ChainId, Dispatch, Line, Table, names,
    rule::{Rule, comment_text, probability},
};

/// Identifies a port of a Service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortKey {
    /// The Service that has the port.
    pub service: ServiceKey,
    /// The name of the port; may be empty.
    pub port: Arc<str>,
    /// The protocol of the port.
    pub protocol: Protocol,
}

impl PortKey {
    /// The key of the port that a VIP belongs to.
    pub fn of(key: &VipKey, vip: &Vip) -> Self {
        Self { service: vip.service.clone(), port: vip.port_name.clone(), protocol: key.protocol }
    }

    /// The port's name in kube-proxy's notation: `namespace/name`, or `namespace/name:port` if the port has a name.
    fn name(&self) -> String {
        match &*self.port {
            "" => self.service.to_string(),
            port => format!("{}:{port}", self.service),
        }
    }
}

/// The fields of a Service, other than its VIPs, that a plan depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Whether only local endpoints serve the ClusterIP.
    pub internal_local: bool,
    /// The load balancer IPs. Comments distinguish them from other external addresses.
    pub load_balancer_ips: Vec<IpAddr>,
}

/// The VIPs of one family that a port owns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Port {
    /// The fields of the port's Service.
    pub head: Head,
    /// The VIPs, sorted by key. Most ports have one.
    vips: Vec<(VipKey, Vip)>,
}

/// The chains and lines of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// The chains with their rules; each chain occurs once.
    pub chains: Vec<(ChainId, Vec<String>)>,
    /// The lines of the dispatch chains.
    pub lines: Vec<Line>,
}

/// Which rules have comments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Comments {
    /// Every rule has a comment that contains its port.
    #[default]
    All,
    /// Rules that pick an endpoint or translate to it have no comment, as in kube-proxy with many endpoints. The comment is the
    /// largest part of such a rule, and ip_tables replaces whole tables.
    FewForEndpoints,
}

impl Comments {
    /// If the Services of a family have more endpoints than this in total, there are fewer comments.
    const MANY: usize = 1000;

    /// Which rules have comments in a family with that many endpoints.
    pub fn with(endpoints: usize) -> Self {
        if endpoints > Self::MANY { Self::FewForEndpoints } else { Self::All }
    }
}

impl Port {
    /// Adds or replaces a VIP.
    pub fn set(&mut self, key: VipKey, vip: Vip) {
        match self.vips.binary_search_by_key(&key, |(key, _)| *key) {
            Ok(place) => self.vips[place].1 = vip,
            Err(place) => {
                self.vips.reserve_exact(1);
                self.vips.insert(place, (key, vip));
            }
        }
    }

    /// Removes a VIP.
    pub fn remove(&mut self, key: &VipKey) {
        if let Ok(place) = self.vips.binary_search_by_key(key, |(key, _)| *key) {
            self.vips.remove(place);
        }
    }

    /// The number of VIPs.
    pub fn vips(&self) -> usize {
        self.vips.len()
    }

    fn each(&self) -> impl Iterator<Item = &Vip> {
        self.vips.iter().map(|(_, vip)| vip)
    }

    /// All endpoints that the port may translate to.
    pub fn endpoints(&self) -> BTreeSet<SocketAddr> {
        self.each().flat_map(|vip| vip.endpoints.iter().chain(vip.local_endpoints.iter()).copied()).collect()
    }
}

/// Plans a port of a Service. `counts`: whether rules count packets.
pub fn plan(key: &PortKey, port: &Port, facts: &Facts, family: Family, comments: Comments, counts: bool) -> Rules {
    let name = key.name();
    let text = comment_text(&name);
    let (protocol, rules, pools) = (key.protocol, Rules::default(), BTreeMap::new());
    let mut planner = Planner { name, text, protocol, family, facts, comments, counts, rules, pools };
    planner.port(port);
    planner.rules
}

struct Planner<'a> {
    /// The name of the port. Chain names contain its hash.
    name: String,
    /// The name of the port, fit for comments.
    text: String,
    protocol: Protocol,
    family: Family,
    facts: &'a Facts,
    comments: Comments,
    counts: bool,
    rules: Rules,
    /// The endpoints that a chain picks from, by the name of the chain.
    pools: BTreeMap<String, Arc<[SocketAddr]>>,
}

impl Planner<'_> {
    fn port(&mut self, port: &Port) {
        let internal = |vip: &&Vip| vip.exposure == Exposure::Internal;
        let outer = port.each().find(|vip| !internal(vip));
        let external_chain = outer.and_then(|vip| self.external(port, vip));
        let inner = port.each().find(internal);
        let internal_chain = inner.and_then(|vip| {
            let prefix = if port.head.internal_local { names::LOCAL } else { names::CLUSTER };
            self.pool(prefix, &vip.endpoints)
        });
        let masquerade = internal_chain.as_ref().map(|chain| (chain.clone(), self.masquerade_internal(port)));
        let affinity = port.each().find_map(|vip| vip.affinity);
        // All VIPs of a port have the same weights.
        let weights = port.each().next().map(|vip| vip.weights.clone()).unwrap_or_default();
        self.pick(masquerade, affinity, &weights);

        let mut firewalls: Vec<(Arc<[IpNet]>, String)> = Vec::new();
        let mut node_ports = BTreeSet::new();
        for (key, vip) in &port.vips {
            let chain = if internal(&vip) { &internal_chain } else { &external_chain };
            if let Some(chain) = chain {
                let comment = self.vip_comment(key, vip, &port.head);
                match &vip.sources {
                    None if vip.by_node_port => _ = node_ports.insert(key.port),
                    None => self.line(Dispatch::SERVICES, Rule::new().to_vip(key, &comment).jump(chain)),
                    Some(sources) => {
                        let firewall = self.firewall(&mut firewalls, sources, chain);
                        self.line(Dispatch::SERVICES, Rule::new().to_vip(key, &comment).jump(&firewall));
                    }
                }
            }
            self.unserved(key, vip);
        }
        if let Some(chain) = &external_chain {
            node_ports.into_iter().for_each(|number| self.node_port(port, number, chain));
        }
    }

    fn line(&mut self, chain: Dispatch, rule: String) {
        self.rules.lines.push(Line::new(chain, rule));
    }

    fn chain(&mut self, name: &str, rules: Vec<String>) {
        self.rules.chains.push((ChainId::new(Table::Nat, name), rules));
    }

    fn chain_name(&self, prefix: &str, distinct: &str) -> String {
        names::of_port(prefix, &self.name, self.protocol, distinct)
    }

    fn vip_comment(&self, key: &VipKey, vip: &Vip, head: &Head) -> String {
        let kind = match vip.exposure {
            Exposure::Internal => "cluster IP",
            _ if vip.by_node_port => return self.text.clone(),
            _ if head.load_balancer_ips.contains(&key.address) => "loadbalancer IP",
            _ => "external IP",
        };
        format!("{} {kind}", self.text)
    }

    /// The chain that picks one of these endpoints; `None` if there are none.
    fn pool(&mut self, prefix: &str, endpoints: &Arc<[SocketAddr]>) -> Option<String> {
        if endpoints.is_empty() {
            return None;
        }
        // The VIPs that share a chain normally have the same endpoints. If a state breaks this rule, there are two
        // chains.
        let mut name = self.chain_name(prefix, "");
        if self.pools.get(&name).is_some_and(|known| known != endpoints) {
            name = self.chain_name(prefix, "internal");
        }
        self.pools.insert(name.clone(), endpoints.clone());
        Some(name)
    }

    /// The chain for packets to an external address; `None` if no endpoint is eligible.
    fn external(&mut self, port: &Port, vip: &Vip) -> Option<String> {
        let cluster = self.pool(names::CLUSTER, &vip.endpoints);
        let text = self.text.clone();
        let comment = |words: &str| format!("{words} traffic for {text} external destinations");
        let mut rules = match vip.exposure {
            Exposure::ExternalLocal => {
                let mut rules = Vec::new();
                if let Some((chain, pods)) = cluster.as_ref().zip(self.facts.pods(self.family)) {
                    rules.push(Rule::new().from_pod(pods).comment(&comment("pod")).jump(chain));
                }
                rules.push(Rule::new().comment(&comment("masquerade LOCAL")).from_node().jump(names::MARK_MASQ));
                if let Some(chain) = &cluster {
                    rules.push(Rule::new().comment(&comment("route LOCAL")).from_node().jump(chain));
                }
                let local = self.pool(names::LOCAL, &vip.local_endpoints);
                if cluster.is_none() && local.is_none() {
                    return None;
                }
                rules.extend(local.map(|local| Rule::new().jump(&local)));
                rules
            }
            Exposure::External | Exposure::Internal => {
                let chain = cluster?;
                vec![Rule::new().comment(&comment("masquerade")).jump(names::MARK_MASQ), Rule::new().jump(&chain)]
            }
        };
        // kube-proxy counts in KUBE-NODEPORTS instead. There, each NodePort would have a second rule, which every packet to
        // another NodePort would have to pass.
        let on_loopback = |(key, vip): &(VipKey, Vip)| vip.by_node_port && key.address.is_loopback();
        let loopback = self.facts.loopback(self.family).filter(|_| self.counts && port.vips.iter().any(on_loopback));
        if let Some(network) = loopback {
            let rule = Rule::new().to(network).comment(&comment("count localhost")).count(names::LOCALHOST_ACCEPTED);
            rules.insert(0, rule.nothing());
        }
        let name = self.chain_name(names::EXTERNAL, "");
        self.chain(&name, rules);
        Some(name)
    }

    /// The rules that masquerade packets to the ClusterIP.
    fn masquerade_internal(&self, port: &Port) -> Vec<String> {
        let pods = self.facts.pods(self.family);
        if !self.facts.masquerade_all && pods.is_none() {
            return Vec::new();
        }
        let pods = pods.filter(|_| !self.facts.masquerade_all);
        let internal = port.vips.iter().filter(|(_, vip)| vip.exposure == Exposure::Internal);
        let rule = |(key, _): &(VipKey, Vip)| {
            let comment = format!("{} cluster IP", self.text);
            let matched = match pods {
                Some(pods) => Rule::new().to_vip_not_from_pod(key, pods, &comment),
                None => Rule::new().to_vip(key, &comment),
            };
            matched.jump(names::MARK_MASQ)
        };
        internal.map(rule).collect()
    }

    /// Adds the chains that pick an endpoint, and the chain of each endpoint.
    fn pick(&mut self, mut masquerade: Option<(String, Vec<String>)>, affinity: Option<Affinity>, weights: &Weights) {
        let pools = std::mem::take(&mut self.pools);
        let endpoints: BTreeSet<SocketAddr> = pools.values().flat_map(|pool| pool.iter().copied()).collect();
        for (name, pool) in &pools {
            let mut rules = Vec::new();
            if let Some((_, first)) = masquerade.take_if(|(chain, _)| chain == name) {
                rules = first;
            }
            let targets: Vec<_> = pool
                .iter()
                .map(|endpoint| {
                    let chain = names::of_endpoint(&self.name, self.protocol, *endpoint);
                    (self.of_endpoint(Rule::new(), &format!("{} -> {endpoint}", self.text)), chain)
                })
                .collect();
            if let Some(Affinity { seconds }) = affinity {
                rules.extend(targets.iter().map(|(rule, chain)| {
                    let mask = self.host_mask();
                    let recent = format!("recent --rcheck --seconds {seconds} --reap --name {chain} {mask} --rsource");
                    rule.clone().matches(&recent).jump(chain)
                }));
            }
            // The sum of the weights of this endpoint and those after it.
            let mut left: u64 = pool.iter().map(|endpoint| u64::from(weights.of(endpoint))).sum();
            for (endpoint, (rule, chain)) in pool.iter().zip(targets) {
                let weight = u64::from(weights.of(endpoint));
                let rule = match left == weight {
                    true => rule,
                    false => {
                        rule.matches(&format!("statistic --mode random --probability {}", probability(weight, left)))
                    }
                };
                rules.push(rule.jump(&chain));
                left -= weight;
            }
            self.chain(name, rules);
        }
        for endpoint in endpoints {
            let name = names::of_endpoint(&self.name, self.protocol, endpoint);
            let hairpin = self.of_endpoint(Rule::new().from(endpoint.ip().into()), &self.text).jump(names::MARK_MASQ);
            let mut translate = self.of_endpoint(Rule::new().protocol(self.protocol), &self.text);
            if affinity.is_some() {
                translate = translate.matches(&format!("recent --set --name {name} {} --rsource", self.host_mask()));
            }
            let of_protocol = self.protocol.as_lowercase();
            let translate = translate.matches(of_protocol).jump(&format!("DNAT --to-destination {endpoint}"));
            self.chain(&name, vec![hairpin, translate]);
        }
    }

    /// A rule that concerns one endpoint, with a comment if such rules have comments.
    fn of_endpoint(&self, rule: Rule, comment: &str) -> Rule {
        match self.comments {
            Comments::All => rule.comment(comment),
            Comments::FewForEndpoints => rule,
        }
    }

    fn host_mask(&self) -> &'static str {
        match self.family {
            Family::V4 => "--mask 255.255.255.255",
            Family::V6 => "--mask ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
        }
    }

    /// The chain that jumps to the chain `to` for packets from these sources.
    fn firewall(&mut self, known: &mut Vec<(Arc<[IpNet]>, String)>, sources: &Arc<[IpNet]>, to: &str) -> String {
        let key: Arc<[IpNet]> = sources.clone();
        // All VIPs of a port share one chain, unless a state gives them different ranges or targets.
        let distinct = |known: &[(Arc<[IpNet]>, String)]| match known.len() {
            0 => String::new(),
            more => more.to_string(),
        };
        let wanted: Vec<String> = {
            let comment = format!("{} loadbalancer IP", self.text);
            let allow = |range: &IpNet| match range.prefix_len() {
                // `iptables-save` prints no source for a range that contains every address.
                0 => Rule::new().comment(&comment).jump(to),
                _ => Rule::new().from(*range).comment(&comment).jump(to),
            };
            let rest = format!("other traffic to {} will be dropped by {}", self.text, names::PROXY_FIREWALL);
            key.iter().map(allow).chain([Rule::new().comment(&rest).nothing()]).collect()
        };
        let same = |name: &str| self.rules.chains.iter().any(|(id, rules)| *id.name == *name && *rules == wanted);
        if let Some((_, name)) = known.iter().find(|(ranges, name)| **ranges == *key && same(name)) {
            return name.clone();
        }
        let name = self.chain_name(names::FIREWALL, &distinct(known));
        self.chain(&name, wanted);
        known.push((key, name.clone()));
        name
    }

    /// Adds one line for the NodePort if the port owns it on all addresses of the node. Otherwise, adds one line for each address
    /// on which the port owns it.
    fn node_port(&mut self, port: &Port, number: u16, to: &str) {
        let open = |vip: &Vip| vip.by_node_port && vip.sources.is_none();
        let owned: Vec<IpAddr> =
            port.vips.iter().filter(|(key, vip)| key.port == number && open(vip)).map(|(key, _)| key.address).collect();
        let all = self.facts.node_port_addresses.iter().filter(|address| Family::of(**address) == self.family).count();
        let rule = |rule: Rule| rule.protocol(self.protocol).comment(&self.text).port(self.protocol, number).jump(to);
        let rules: Vec<String> = match owned.len() == all {
            true => vec![rule(Rule::new())],
            false => owned.into_iter().map(|address| rule(Rule::new().to_address(address))).collect(),
        };
        rules.into_iter().for_each(|rule| self.line(Dispatch::NODE_PORTS, rule));
    }

    /// Adds the rules that reject or drop untranslated packets to a VIP.
    fn unserved(&mut self, key: &VipKey, vip: &Vip) {
        let local_is_empty = vip.exposure == Exposure::ExternalLocal && vip.local_endpoints.is_empty();
        let unserved = vip.endpoints.is_empty() || local_is_empty;
        let refuse = unserved && vip.when_empty == Verdict::Reject;
        if let Some(sources) = &vip.sources {
            let own = self.chain_name(names::FIREWALL, "");
            let comment = format!("{} traffic not accepted by {own}", self.text);
            let rule = Rule::new().to_vip(key, &comment).untranslated();
            // The kernel does not treat such a connection as translated; see `untranslated`.
            let to_itself =
                vip.endpoints.iter().chain(vip.local_endpoints.iter()).any(|endpoint| *endpoint == key.socket());
            if !refuse && !to_itself {
                self.line(Dispatch::FIREWALL, rule.jump("DROP"));
                return;
            }
            let name = self.chain_name(names::FIREWALL, &key.address.to_string());
            let words = if refuse { "has no endpoints" } else { "loadbalancer IP" };
            let comment = format!("{} {words}", self.text);
            let allow = |range: &IpNet| {
                let from = if range.prefix_len() == 0 { Rule::new() } else { Rule::new().from(*range) };
                let rule = from.comment(&comment);
                // A TCP reset would need rules that match TCP only. An ICMP error does not.
                if refuse { rule.reject(self.family) } else { rule.jump("RETURN") }
            };
            let rules = sources.iter().map(allow).chain([Rule::new().jump("DROP")]).collect();
            self.rules.chains.push((ChainId::new(Table::Filter, name.as_str()), rules));
            self.line(Dispatch::FIREWALL, rule.jump(&name));
            if refuse {
                return;
            }
        }
        if !unserved {
            return;
        }
        let chain = match vip.exposure {
            Exposure::Internal => Dispatch::UNSERVED,
            Exposure::External | Exposure::ExternalLocal => Dispatch::UNSERVED_EXTERNAL,
        };
        let of_all = vip.endpoints.is_empty();
        let rule = match vip.when_empty {
            Verdict::Reject => self.untranslated(key, of_all, "has no endpoints").reject(self.family),
            Verdict::Drop => self.untranslated(key, of_all, "has no local endpoints").jump("DROP"),
        };
        self.line(chain, rule);
    }

    /// A rule that matches untranslated packets to a VIP. Unless `of_all` is set, it matches only packets from outside of this
    /// node. The kernel does not treat a connection as translated if the endpoint has the VIP's own address and port, for
    /// example if the VIP is a node's address and the endpoint is a host-network pod of that node. So the rule must not match
    /// packets from senders for which an endpoint is eligible.
    fn untranslated(&self, key: &VipKey, of_all: bool, words: &str) -> Rule {
        let comment = format!("{} {words}", self.text);
        if of_all {
            return Rule::new().to_vip(key, &comment).untranslated();
        }
        let rule = match self.facts.pods(self.family) {
            Some(pods) => Rule::new().to_vip_not_from_pod(key, pods, &comment),
            None => Rule::new().to_vip(key, &comment),
        };
        rule.untranslated().not_from_node()
    }
}
