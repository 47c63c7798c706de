//! Where there are many VIPs, `KUBE-SERVICES` leads to them by way of groups: one line for each network of 256 addresses, and a chain
//! for each group. A new connection passes some hundred rules at most instead of one for each VIP. Pure.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;

use super::{ChainId, Dispatch, Line, Table, names, rule::Rule};

/// The lines of the VIPs, by network.
#[derive(Debug, Default)]
pub struct Groups {
    lines: BTreeMap<IpNet, BTreeSet<Line>>,
    /// Networks of which a line came or went.
    touched: BTreeSet<IpNet>,
}

/// What became of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The line that leads to it.
    pub line: Line,
    /// Its chain.
    pub chain: ChainId,
    /// The rules of the chain; none if the group is gone.
    pub rules: Vec<String>,
}

impl Groups {
    /// Takes a line, unless it is none of a VIP.
    pub fn insert(&mut self, line: Line) -> Option<Line> {
        let Some(network) = network(&line) else { return Some(line) };
        self.touched.insert(network);
        self.lines.entry(network).or_default().insert(line);
        None
    }

    /// Gives a line up; says whether it is one of a VIP.
    pub fn remove(&mut self, line: &Line) -> bool {
        let Some(network) = network(line) else { return false };
        self.touched.insert(network);
        if let Some(lines) = self.lines.get_mut(&network) {
            lines.remove(line);
            if lines.is_empty() {
                self.lines.remove(&network);
            }
        }
        true
    }

    /// The networks of which a line came or went since this was called last.
    pub fn take_touched(&mut self) -> BTreeSet<IpNet> {
        std::mem::take(&mut self.touched)
    }

    /// The networks that have a group.
    pub fn networks(&self) -> impl Iterator<Item = IpNet> {
        self.lines.keys().copied()
    }

    /// The group of a network.
    pub fn group(&self, network: IpNet) -> Group {
        let name = names::of_group(&network);
        let rules = self.lines.get(&network).into_iter().flatten().map(|line| line.rule.to_string()).collect();
        let line = Line::new(Dispatch::SERVICES, Rule::new().to(network).jump(&name));
        Group { line, chain: ChainId::new(Table::Nat, name), rules }
    }
}

/// The network of the line's VIP.
fn network(line: &Line) -> Option<IpNet> {
    let vip: IpNet = line.rule.strip_prefix("-d ")?.split(' ').next()?.parse().ok()?;
    let length = match vip {
        IpNet::V4(_) => 24,
        IpNet::V6(_) => 120,
    };
    let network = IpNet::new(vip.addr(), length).ok()?.trunc();
    (line.chain == Dispatch::SERVICES).then_some(network)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_one_network_are_in_one_chain() {
        let vip = |address: &str| Line::new(Dispatch::SERVICES, format!("-d {address} -p tcp -j KUBE-SVC-A"));
        let mut groups = Groups::default();
        for address in ["10.0.1.9/32", "10.0.1.200/32", "10.0.2.1/32", "fd00::1:2/128"] {
            assert_eq!(groups.insert(vip(address)), None);
        }
        let other = Line::new(Dispatch::NODE_PORTS, "-d 10.0.1.1/32 -j KUBE-EXT-A");
        assert_eq!(groups.insert(other.clone()), Some(other.clone()));
        assert!(!groups.remove(&other));
        assert!(groups.networks().eq(groups.touched.iter().copied()));
        let touched: Vec<_> = groups.take_touched().into_iter().map(|network| groups.group(network)).collect();
        let seen = touched.into_iter().map(|group| (group.line.rule, group.rules.len()));
        let name = |network: &str| names::of_group(&network.parse().unwrap());
        let line = |network: &str| format!("-d {network} -j {}", name(network)).into_boxed_str();
        let expected = [(line("10.0.1.0/24"), 2), (line("10.0.2.0/24"), 1), (line("fd00::1:0/120"), 1)];
        assert_eq!(seen.collect::<Vec<_>>(), expected);
        assert_eq!(groups.take_touched(), BTreeSet::new());
        assert!(groups.remove(&vip("10.0.2.1/32")));
        let gone = groups.take_touched().pop_first().unwrap();
        assert_eq!((gone.to_string().as_str(), groups.group(gone).rules.len()), ("10.0.2.0/24", 0));
        assert_eq!(groups.networks().count(), 2);
    }
}
