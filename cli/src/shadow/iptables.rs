//! Evaluates kube-proxy's rules in modes iptables and ipvs, as `iptables-save` prints them. Pure.
//!
//! Only the chains that kube-proxy and kubelet own (`KUBE-…`) are evaluated. The rules of other programs affect both proxies alike.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use ipnet::IpNet;
use localnet_client::route::{Origin, Packet};
use localnet_proto::Protocol;

use super::{
    ipset::{Set, Sets, net, protocol},
    verdict::{Left, Passing, Unknown, Verdict, Verdicts},
};

/// The maximum depth of jumps: kube-proxy's chains need five.
const DEPTH: usize = 16;

/// The tables of one address family.
#[derive(Debug, Default)]
pub struct Tables(BTreeMap<String, Chains>);

type Chains = BTreeMap<String, Chain>;

/// A chain. The chains of Services have a rule for each VIP.
#[derive(Debug, Default)]
struct Chain {
    rules: Vec<Rule>,
    /// The rules for a single destination, as indices.
    of_destination: HashMap<IpAddr, Vec<usize>>,
    /// All other rules.
    of_any: Vec<usize>,
}

#[derive(Debug)]
struct Rule {
    text: String,
    /// Each with whether it is negated.
    matches: Vec<(bool, Match)>,
    target: Target,
    /// Whether the rule remembers the client for session affinity.
    remembers: bool,
}

#[derive(Debug)]
enum Match {
    Source(IpNet),
    Destination(IpNet),
    Protocol(Protocol),
    Port(u16),
    Mark {
        value: u32,
        mask: u32,
    },
    SourceIsLocal,
    DestinationIsLocal,
    /// The interface by which kube-proxy recognizes pods.
    FromPod,
    States(Vec<String>),
    /// The set contains the packet. The list states for each part of the elements whether it is compared with the source.
    Set(Arc<Set>, Vec<bool>),
    /// The address of the virtual server that translated the packet.
    ServerAddress(IpNet),
    /// The port of this virtual server.
    ServerPort(u16),
    /// A random choice, or a property of the interface: may match.
    Chance,
    /// The client is remembered. A new client is not.
    Remembered,
    Unknown,
}

#[derive(Debug)]
enum Target {
    /// Counts only.
    None,
    Jump(String),
    Return,
    Accept,
    Drop,
    Reject,
    Translate(SocketAddr),
    Masquerade,
    Mark {
        value: u32,
        mask: u32,
    },
    Unknown,
}

/// Whether a rule matches.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Matches {
    Yes,
    No,
    Maybe,
}

type Ways<'a> = Vec<(Left, Passing<'a>)>;

/// The rules that a packet meets, in order, each with its table. A rule may occur twice.
pub(super) type Met<'t> = Vec<(&'t str, &'t str)>;

impl Tables {
    /// Reads the output of `iptables-save`. Rules with unknown words are kept, and are an error only if a packet meets them.
    pub fn parse(text: &str) -> Self {
        Self::with_sets(text, &Sets::new())
    }

    /// As [`Self::parse`], for rules that name these sets.
    pub fn with_sets(text: &str, sets: &Sets) -> Self {
        let mut tables = Self::default();
        let mut table = String::new();
        for line in text.lines() {
            match line.split_at_checked(1) {
                Some(("*", name)) => table = name.to_owned(),
                Some((":", chain)) => {
                    let name = chain.split(' ').next().unwrap_or_default();
                    tables.chains(&table).entry(name.to_owned()).or_default();
                }
                Some(("-", _)) => {
                    let words = words(line);
                    if let [append, chain, rest @ ..] = words.as_slice()
                        && append == "-A"
                    {
                        let rule = rule(line, rest, sets);
                        tables.chains(&table).entry(chain.clone()).or_default().push(rule);
                    }
                }
                _ => {}
            }
        }
        tables
    }

    fn chains(&mut self, table: &str) -> &mut Chains {
        self.0.entry(table.to_owned()).or_default()
    }

    /// Whether kube-proxy's rules are there.
    pub fn has_kube_proxy(&self) -> bool {
        self.0.get("nat").is_some_and(|nat| nat.get("KUBE-SERVICES").is_some_and(|chain| !chain.rules.is_empty()))
    }

    /// Whether the rules are those of mode ipvs, which has a chain of its own for NodePorts.
    pub fn is_ipvs(&self) -> bool {
        let services = self.0.get("nat").and_then(|nat| nat.get("KUBE-SERVICES"));
        let to_node_ports = |rule: &Rule| matches!(&rule.target, Target::Jump(to) if to == "KUBE-NODE-PORT");
        services.is_some_and(|chain| chain.rules.iter().any(to_node_ports))
    }

    /// The destinations for which kube-proxy's rules translate or stop packets.
    pub fn destinations(&self) -> impl Iterator<Item = (SocketAddr, Protocol)> {
        let chains = self.0.values().flatten().filter(|(name, _)| name.starts_with("KUBE-"));
        chains.flat_map(|(_, chain)| &chain.rules).filter_map(|rule| {
            let (mut protocol, mut port) = (None, None);
            for (negated, one) in &rule.matches {
                match one {
                    Match::Protocol(of) if !negated => protocol = Some(*of),
                    Match::Port(number) if !negated => port = Some(*number),
                    _ => {}
                }
            }
            Some((SocketAddr::new(rule.destination()?, port?), protocol?))
        })
    }

    /// What the rules do with a packet.
    ///
    /// # Errors
    /// Returns an error if the packet meets a rule that compares something unknown.
    pub fn verdicts(&self, packet: &Packet, local: &[IpAddr]) -> Result<Verdicts, Unknown> {
        self.follow(packet, local, &mut Met::new())
    }

    /// The table and the text of each rule that a packet may match, in the order in which the packet meets them. A jump to a chain
    /// in which no rule matches is left out.
    ///
    /// # Errors
    /// Returns an error if the packet meets a rule that compares something unknown.
    pub fn path(&self, packet: &Packet, local: &[IpAddr]) -> Result<Met<'_>, Unknown> {
        let mut met = Met::new();
        self.follow(packet, local, &mut met)?;
        // Each possible endpoint leads through the same rules again.
        let mut known = BTreeSet::new();
        met.retain(|rule| known.insert(*rule));
        Ok(met)
    }

    fn follow<'t>(&'t self, packet: &Packet, local: &[IpAddr], met: &mut Met<'t>) -> Result<Verdicts, Unknown> {
        let first = if packet.origin == Origin::Node { "OUTPUT" } else { "PREROUTING" };
        let mut verdicts = Verdicts::new();
        for (_, passing) in self.hook("nat", first, Passing::new(packet, local), met)? {
            let to_node = passing.is_local(passing.to.ip());
            let hooks: &[&str] = match packet.origin {
                Origin::Node if to_node => &["OUTPUT", "INPUT"],
                Origin::Node => &["OUTPUT"],
                _ if to_node => &["INPUT"],
                _ => &["FORWARD"],
            };
            for passing in self.passes(passing, hooks, &mut verdicts, met)? {
                self.leave(passing, &mut verdicts, met)?;
            }
        }
        Ok(verdicts)
    }

    /// Passes the filter in these hooks. Adds the verdicts for the packets that it stops, and returns the others.
    pub(super) fn passes<'a, 't>(
        &'t self,
        passing: Passing<'a>,
        hooks: &[&str],
        verdicts: &mut Verdicts,
        met: &mut Met<'t>,
    ) -> Result<Vec<Passing<'a>>, Unknown> {
        let mut here = vec![passing];
        for hook in hooks {
            for passing in std::mem::take(&mut here) {
                for (left, passing) in self.hook("filter", hook, passing, met)? {
                    match left.end() {
                        Some(verdict) => _ = verdicts.insert(verdict),
                        None => here.push(passing),
                    }
                }
            }
        }
        Ok(here)
    }

    /// Adds the verdicts for a packet that no filter stops.
    pub(super) fn leave<'t>(
        &'t self,
        passing: Passing<'_>,
        verdicts: &mut Verdicts,
        met: &mut Met<'t>,
    ) -> Result<(), Unknown> {
        if !passing.translated {
            verdicts.insert(Verdict::Untouched);
            return Ok(());
        }
        for (left, passing) in self.hook("nat", "POSTROUTING", passing, met)? {
            verdicts.insert(passing.arrives(left == Left::Masqueraded));
        }
        Ok(())
    }

    /// Passes a built-in chain, in which only the jumps to kube-proxy's chains count.
    pub(super) fn hook<'a, 't>(
        &'t self,
        table: &'t str,
        chain: &str,
        passing: Passing<'a>,
        met: &mut Met<'t>,
    ) -> Result<Ways<'a>, Unknown> {
        let Some(chains) = self.0.get(table) else { return Ok(vec![(Left::AtEnd, passing)]) };
        let ours = |rule: &&Rule| matches!(&rule.target, Target::Jump(to) if to.starts_with("KUBE-"));
        let mut rules = Vec::new();
        let ways = pass(chains, rules_for(chains, chain, &passing).filter(ours), passing, 0, &mut rules)?;
        met.extend(rules.into_iter().map(|rule| (table, rule)));
        Ok(ways)
    }
}

/// The rules of a chain that may match a packet, in their order.
fn rules_for<'r>(chains: &'r Chains, chain: &str, passing: &Passing<'_>) -> impl Iterator<Item = &'r Rule> + use<'r> {
    let to = passing.to.ip();
    chains.get(chain).into_iter().flat_map(move |chain| chain.of(to))
}

impl Chain {
    fn push(&mut self, rule: Rule) {
        let indices = match rule.destination() {
            Some(address) => self.of_destination.entry(address).or_default(),
            None => &mut self.of_any,
        };
        indices.push(self.rules.len());
        self.rules.push(rule);
    }

    /// The rules that may match packets to a destination, in their order.
    fn of(&self, destination: IpAddr) -> impl Iterator<Item = &Rule> {
        let own = self.of_destination.get(&destination).map(Vec::as_slice).unwrap_or_default();
        let mut indices = [own, &self.of_any].concat();
        indices.sort_unstable();
        indices.into_iter().map(move |index| &self.rules[index])
    }
}

/// Passes a packet through rules. Adds the text of each rule that the packet may match to `met`.
fn pass<'a, 'r>(
    chains: &'r Chains,
    rules: impl Iterator<Item = &'r Rule>,
    passing: Passing<'a>,
    depth: usize,
    met: &mut Vec<&'r str>,
) -> Result<Ways<'a>, Unknown> {
    let mut ways = Vec::new();
    let mut here = vec![passing];
    for rule in rules {
        for passing in std::mem::take(&mut here) {
            let matches = rule.matches(&passing)?;
            if matches != Matches::Yes {
                here.push(passing);
            }
            if matches == Matches::No {
                continue;
            }
            let passing = Passing { sticky: passing.sticky || rule.remembers, ..passing };
            let before = met.len();
            met.push(&rule.text);
            match &rule.target {
                Target::None if matches == Matches::Yes => here.push(passing),
                Target::None => {}
                Target::Jump(to) => {
                    if depth > DEPTH {
                        return Err(Unknown(rule.text.clone()));
                    }
                    let rules = rules_for(chains, to, &passing);
                    for (left, passing) in pass(chains, rules, passing, depth + 1, met)? {
                        match left {
                            Left::AtEnd => here.push(passing),
                            _ => ways.push((left, passing)),
                        }
                    }
                    if met.len() == before + 1 {
                        met.pop();
                    }
                }
                Target::Return => ways.push((Left::AtEnd, passing)),
                Target::Accept => ways.push((Left::Accepted, passing)),
                Target::Drop => ways.push((Left::Dropped, passing)),
                Target::Reject => ways.push((Left::Rejected, passing)),
                Target::Translate(to) => ways.push((Left::Accepted, Passing { to: *to, translated: true, ..passing })),
                Target::Masquerade => ways.push((Left::Masqueraded, passing)),
                Target::Mark { value, mask } => here.push(Passing { mark: passing.mark & !mask ^ value, ..passing }),
                Target::Unknown => return Err(Unknown(rule.text.clone())),
            }
        }
        here.dedup();
    }
    ways.extend(here.into_iter().map(|passing| (Left::AtEnd, passing)));
    Ok(ways)
}

impl Rule {
    /// The only destination whose packets the rule can match; `None` if there are several.
    fn destination(&self) -> Option<IpAddr> {
        self.matches.iter().find_map(|(negated, one)| match one {
            Match::Destination(net) if !negated && net.prefix_len() == net.max_prefix_len() => Some(net.addr()),
            _ => None,
        })
    }

    fn matches(&self, passing: &Passing<'_>) -> Result<Matches, Unknown> {
        let mut all = Matches::Yes;
        let mut unknown = false;
        for (negated, one) in &self.matches {
            let yes = match one {
                Match::Source(net) => net.contains(&passing.packet.source),
                Match::Destination(net) => net.contains(&passing.to.ip()),
                Match::Protocol(protocol) => *protocol == passing.packet.protocol,
                Match::Port(port) => *port == passing.to.port(),
                Match::Mark { value, mask } => passing.mark & mask == *value,
                Match::SourceIsLocal => passing.is_local(passing.packet.source),
                Match::DestinationIsLocal => passing.is_local(passing.to.ip()),
                Match::FromPod => passing.packet.origin == Origin::Pod,
                Match::States(states) => {
                    states.iter().any(|state| state == "NEW" || state == "DNAT" && passing.translated)
                }
                Match::Set(set, sources) => set.contains(sources, passing),
                Match::ServerAddress(net) => passing.translated && net.contains(&passing.packet.destination),
                Match::ServerPort(port) => passing.translated && *port == passing.packet.port,
                Match::Remembered => false,
                Match::Chance => {
                    all = Matches::Maybe;
                    continue;
                }
                Match::Unknown => {
                    unknown = true;
                    continue;
                }
            };
            if yes == *negated {
                return Ok(Matches::No);
            }
        }
        if unknown { Err(Unknown(self.text.clone())) } else { Ok(all) }
    }
}

/// Splits a line at spaces outside of quotes.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted) = (Vec::new(), String::new(), false);
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match c {
            '"' => quoted = !quoted,
            '\\' if quoted => word.extend(chars.next()),
            ' ' if !quoted => words.push(std::mem::take(&mut word)),
            _ => word.push(c),
        }
    }
    words.push(word);
    words
}

/// Reads the words of a rule after the name of its chain.
fn rule(text: &str, words: &[String], sets: &Sets) -> Rule {
    let mut rule = Rule { text: text.to_owned(), matches: Vec::new(), target: Target::None, remembers: false };
    let mut words = words.iter().map(String::as_str);
    let mut negated = false;
    while let Some(word) = words.next() {
        let mut value = || words.next().unwrap_or_default();
        let one = match word {
            "!" => {
                negated = true;
                continue;
            }
            "-s" => value().parse().map_or(Match::Unknown, Match::Source),
            "-d" => value().parse().map_or(Match::Unknown, Match::Destination),
            "-p" | "--vproto" => protocol(value()).map_or(Match::Unknown, Match::Protocol),
            "--dport" => value().parse().map_or(Match::Unknown, Match::Port),
            "--mark" => masked(value()).map_or(Match::Unknown, |(value, mask)| Match::Mark { value, mask }),
            "--src-type" if value() == "LOCAL" => Match::SourceIsLocal,
            "--dst-type" if value() == "LOCAL" => Match::DestinationIsLocal,
            "--ctstate" => Match::States(value().split(',').map(str::to_owned).collect()),
            "--probability" => {
                value();
                Match::Chance
            }
            "--match-set" => {
                let set = sets.get(value()).cloned();
                let sources = value().split(',').map(|part| part == "src").collect();
                set.map_or(Match::Unknown, |set| Match::Set(set, sources))
            }
            "--vaddr" => net(value()).map_or(Match::Unknown, Match::ServerAddress),
            "--vport" => value().parse().map_or(Match::Unknown, Match::ServerPort),
            "--physdev-is-in" => Match::Chance,
            "--rcheck" => Match::Remembered,
            "-i" => {
                value();
                Match::FromPod
            }
            // They say which extension the next words belong to, or change nothing.
            "-m" | "--comment" | "--nfacct-name" | "--mode" | "--seconds" | "--name" | "--mask" | "--reject-with" => {
                value();
                continue;
            }
            "--set" => {
                rule.remembers = true;
                continue;
            }
            "--reap" | "--rsource" | "--random" | "--random-fully" | "--persistent" => continue,
            "-j" => {
                rule.target = target(value());
                continue;
            }
            "--to-destination" => {
                rule.target = value().parse().map_or(Target::Unknown, Target::Translate);
                continue;
            }
            // `--set-xmark` clears the bits of the mask and then flips those of the value.
            "--set-xmark" => {
                rule.target = masked(value()).map_or(Target::Unknown, |(value, mask)| Target::Mark { value, mask });
                continue;
            }
            _ => Match::Unknown,
        };
        rule.matches.push((std::mem::take(&mut negated), one));
    }
    rule
}

fn target(word: &str) -> Target {
    match word {
        "RETURN" => Target::Return,
        "ACCEPT" => Target::Accept,
        "DROP" => Target::Drop,
        "REJECT" => Target::Reject,
        "MASQUERADE" => Target::Masquerade,
        // The words that follow say where to or which mark.
        "DNAT" | "MARK" => Target::Unknown,
        chain => Target::Jump(chain.to_owned()),
    }
}

/// Reads `0x4000/0x4000`; without a mask, all bits count.
fn masked(text: &str) -> Option<(u32, u32)> {
    let number = |text: &str| u32::from_str_radix(text.strip_prefix("0x")?, 16).ok();
    match text.split_once('/') {
        Some((value, mask)) => Some((number(value)?, number(mask)?)),
        None => Some((number(text)?, u32::MAX)),
    }
}

#[cfg(test)]
mod tests;
