//! The command `dump`: reads the rules back, and returns what they serve. Pure, except for [`read`].
//!
//! ```text
//!  KUBE-SERVICES, its groups, KUBE-NODEPORTS ─► KUBE-SVC | KUBE-EXT | KUBE-FW ─► … ─► KUBE-SEP ─► DNAT
//!  filter: KUBE-SERVICES, KUBE-EXTERNAL-SERVICES ─► REJECT | DROP
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use anyhow::Context as _;
use localnet_client::{
    served::{Entry, Served, To},
    vips::VipKey,
};
use localnet_proto::{Affinity, Family, Protocol, Verdict};

use crate::{
    kernel::{Kernel, Tools},
    plan::names,
};

/// Reads the tables of this network namespace and returns what they serve.
///
/// # Errors
/// Returns an error if a tool cannot be run or fails.
pub fn read(tools: &mut Tools) -> anyhow::Result<Served> {
    let mut served = Served::default();
    for family in Family::BOTH {
        if !tools.has_family(family) {
            continue;
        }
        let mut rules = Rules::new(family);
        tools.save(family, &mut |line| rules.line(line)).with_context(|| format!("cannot read the {family} tables"))?;
        served.0.append(&mut rules.served().0);
    }
    Ok(served)
}

/// The rules of one family's tables, parsed from the output of `iptables-save`.
#[derive(Clone, Debug)]
pub struct Rules {
    family: Family,
    nat: bool,
    /// The rules of our chains in table nat, by name of the chain.
    chains: BTreeMap<String, Vec<Rule>>,
    /// The VIPs whose packets the table `filter` rejects or drops.
    refused: BTreeMap<VipKey, Verdict>,
}

/// The parts of a rule that this module evaluates.
#[derive(Clone, Debug, Default)]
struct Rule {
    /// The destination, if the rule matches a single address.
    destination: Option<IpAddr>,
    protocol: Option<Protocol>,
    port: Option<u16>,
    target: String,
    /// Whether the rule matches only packets that the node itself sends.
    of_the_node: bool,
    to: Option<SocketAddr>,
    seconds: Option<u32>,
}

impl Rules {
    /// No rules yet. Call [`Self::line`] for each line of the output of `iptables-save`.
    pub fn new(family: Family) -> Self {
        Self { family, nat: false, chains: BTreeMap::new(), refused: BTreeMap::new() }
    }

    /// Parses the next line.
    pub fn line(&mut self, line: &str) {
        if let Some(table) = line.strip_prefix('*') {
            self.nat = table == "nat";
            return;
        }
        let Some((chain, text)) = line.strip_prefix("-A ").and_then(|rest| rest.split_once(' ')) else { return };
        if !chain.starts_with("KUBE-") {
            return;
        }
        let rule = Rule::read(text);
        if self.nat {
            self.chains.entry(chain.to_owned()).or_default().push(rule);
        } else if let Some(key) = self.key(&rule) {
            match rule.target.as_str() {
                "REJECT" => _ = self.refused.insert(key, Verdict::Reject),
                "DROP" => _ = self.refused.insert(key, Verdict::Drop),
                // A VIP with source ranges. If it has no endpoints, packets from permitted sources are rejected. If one
                // of its endpoints is the VIP itself, another rule may drop these packets instead.
                way if way.starts_with("KUBE-FW-") => _ = self.refused.entry(key).or_insert(Verdict::Reject),
                _ => {}
            }
        }
    }

    /// The VIP that a rule matches. Its address is unspecified if the rule matches every address.
    fn key(&self, rule: &Rule) -> Option<VipKey> {
        let address = rule.destination.unwrap_or(self.anywhere());
        Some(VipKey { address, protocol: rule.protocol?, port: rule.port? })
    }

    /// The unspecified address, which stands for all addresses.
    fn anywhere(&self) -> IpAddr {
        match self.family {
            Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
            Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
        }
    }

    fn rules(&self, chain: &str) -> &[Rule] {
        self.chains.get(chain).map(Vec::as_slice).unwrap_or_default()
    }

    /// Everything that the rules serve.
    pub fn served(&self) -> Served {
        let leads = |rule: &&Rule| {
            ["KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-"].iter().any(|of| rule.target.starts_with(of))
        };
        // Between two sections of a large change, a group may remain to which no rule leads any more.
        let groups: BTreeSet<&str> = self.chains.values().flatten().map(|rule| rule.target.as_str()).collect();
        let is_met = |chain: &str| !chain.starts_with(names::GROUP) || groups.contains(chain);
        // `Self::key` skips rules without a port number: they only lead from one chain of a Service port to the next.
        let ways: BTreeMap<VipKey, &str> = self
            .chains
            .iter()
            .filter(|(chain, _)| is_met(chain))
            .flat_map(|(_, rules)| rules)
            .filter(leads)
            .filter_map(|rule| Some((self.key(rule)?, rule.target.as_str())))
            .collect();
        // A NodePort has one rejecting rule for each address, but a single rule for all addresses may translate it.
        let anywhere = |key: &VipKey| VipKey { address: self.anywhere(), ..*key };
        let mut refused = BTreeMap::new();
        for (key, verdict) in &self.refused {
            let any = anywhere(key);
            let of = if !ways.contains_key(key) && ways.contains_key(&any) { any } else { *key };
            refused.insert(of, *verdict);
        }
        let keys: BTreeSet<VipKey> = ways.keys().chain(refused.keys()).copied().collect();
        let entry = |key: VipKey| (key, self.entry(refused.get(&key).copied(), ways.get(&key).copied()));
        Served(keys.into_iter().map(entry).collect())
    }

    fn entry(&self, refused: Option<Verdict>, way: Option<&str>) -> Entry {
        let to = |endpoints: BTreeSet<SocketAddr>| match (endpoints.is_empty(), refused) {
            (false, _) => Some(To::Endpoints(endpoints)),
            (true, verdict) => verdict.map(To::Nothing),
        };
        let Some(way) = way else { return Entry { to: to(BTreeSet::new()), ..Entry::default() } };
        let way = match self.rules(way).iter().find(|rule| rule.target.starts_with("KUBE-EXT-")) {
            Some(rule) if way.starts_with("KUBE-FW-") => &rule.target,
            _ => way,
        };
        if way.starts_with("KUBE-SVC-") || way.starts_with("KUBE-SVL-") {
            return Entry { to: to(self.endpoints(way)), outside: None, affinity: self.affinity(way) }.plain();
        }
        let pool = |prefix: &str| {
            self.rules(way).iter().find(|rule| rule.target.starts_with(prefix)).map(|rule| rule.target.as_str())
        };
        let all = pool("KUBE-SVC-");
        // Only `externalTrafficPolicy: Local` leads to a separate rule for packets that the node itself sends.
        let by_policy = self.rules(way).iter().any(|rule| rule.of_the_node);
        let local = pool("KUBE-SVL-");
        let endpoints = |chain: Option<&str>| chain.map(|chain| self.endpoints(chain)).unwrap_or_default();
        let outside = by_policy.then(|| to(endpoints(local))).flatten();
        let affinity = all.or(local).and_then(|chain| self.affinity(chain));
        Entry { to: to(endpoints(all)), outside, affinity }.plain()
    }

    fn endpoints(&self, pool: &str) -> BTreeSet<SocketAddr> {
        let chains = self.rules(pool).iter().filter(|rule| rule.target.starts_with("KUBE-SEP-"));
        chains.flat_map(|rule| self.rules(&rule.target)).filter_map(|rule| rule.to).collect()
    }

    fn affinity(&self, pool: &str) -> Option<Affinity> {
        self.rules(pool).iter().find_map(|rule| rule.seconds.map(Affinity::from))
    }
}

impl Rule {
    fn read(text: &str) -> Self {
        let mut rule = Self::default();
        let mut words = text.split(' ');
        while let Some(word) = words.next() {
            match word {
                // Skip a negated match.
                "!" => _ = words.nth(1),
                "-d" => rule.destination = words.next().and_then(whole),
                "-p" => rule.protocol = words.next().and_then(protocol),
                "--src-type" => rule.of_the_node = words.next() == Some("LOCAL"),
                "--dport" => rule.port = words.next().and_then(|port| port.parse().ok()),
                "-j" | "-g" => rule.target = words.next().unwrap_or_default().to_owned(),
                "--to-destination" => rule.to = words.next().and_then(|to| to.parse().ok()),
                "--seconds" => rule.seconds = words.next().and_then(|seconds| seconds.parse().ok()),
                "--comment" => skip_comment(&mut words),
                _ => {}
            }
        }
        rule
    }
}

/// Skips a comment. A comment with spaces is quoted.
fn skip_comment<'a>(words: &mut impl Iterator<Item = &'a str>) {
    let Some(first) = words.next() else { return };
    let ends = |word: &str| word.ends_with('"');
    if first.starts_with('"') && !(first.len() > 1 && ends(first)) {
        words.find(|word| ends(word));
    }
}

/// The single address that a text contains; `None` if the text contains a network.
fn whole(text: &str) -> Option<IpAddr> {
    let network: ipnet::IpNet = text.parse().ok()?;
    (network.prefix_len() == network.max_prefix_len()).then(|| network.addr())
}

fn protocol(text: &str) -> Option<Protocol> {
    Protocol::ALL.into_iter().find(|of| of.as_lowercase() == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_back_as_vips() {
        let text = "*filter\n\
            -A KUBE-SERVICES -d 10.96.0.11/32 -p tcp -m comment --comment \"a/none:http has no endpoints\" -m tcp --dport 80 -j REJECT\n\
            -A KUBE-EXTERNAL-SERVICES ! -s 10.1.0.0/16 -d 192.0.2.1/32 -p tcp -m tcp --dport 30080 -m addrtype ! --src-type LOCAL -j DROP\n\
            -A KUBE-PROXY-FIREWALL -d 192.0.2.9/32 -p tcp -m tcp --dport 80 -j DROP\n\
            *nat\n\
            -A KUBE-SERVICES -d 10.96.0.10/32 -p tcp -m comment --comment \"a/web:http -d 1.1.1.1\" -m tcp --dport 80 -j KUBE-SVC-A\n\
            -A KUBE-NODEPORTS -p tcp -m tcp --dport 30080 -j KUBE-EXT-A\n\
            -A KUBE-EXT-A -m addrtype --src-type LOCAL -j KUBE-SVC-A\n\
            -A KUBE-SVC-A ! -s 10.1.0.0/16 -d 10.96.0.10/32 -p tcp -m tcp --dport 80 -j KUBE-MARK-MASQ\n\
            -A KUBE-SVC-A -m recent --rcheck --seconds 60 --reap --name KUBE-SEP-A -j KUBE-SEP-A\n\
            -A KUBE-SVC-A -j KUBE-SEP-A\n\
            -A KUBE-SEP-A -s 10.1.0.1/32 -j KUBE-MARK-MASQ\n\
            -A KUBE-SEP-A -p tcp -m tcp -j DNAT --to-destination 10.1.0.1:8080\n\
            -A KUBE-VIPS-A -d 10.96.0.13/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-A\n\
            -A OTHER -d 10.96.0.12/32 -p tcp --dport 80 -j KUBE-SVC-A\n";
        let mut rules = Rules::new(Family::V4);
        text.lines().for_each(|line| rules.line(line));
        let expected = "0.0.0.0 TCP 30080 -> 10.1.0.1:8080\n0.0.0.0 TCP 30080 outside drop\n0.0.0.0 TCP 30080 affinity 60\n\
            10.96.0.10 TCP 80 -> 10.1.0.1:8080\n10.96.0.10 TCP 80 affinity 60\n10.96.0.11 TCP 80 reject\n192.0.2.9 TCP 80 drop\n";
        assert_eq!(rules.served().to_string(), expected);
    }
}
