//! Groups many VIPs by network: `KUBE-SERVICES` then has one line for each network of 256 addresses, which jumps to the chain
//! for that network. A new connection passes a few hundred rules at most, instead of one for each VIP. Pure.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;

use super::{ChainId, Dispatch, Line, Table, names, rule::Rule};

/// The lines of the VIPs, by network.
#[derive(Debug, Default)]
pub struct Groups {
    lines: BTreeMap<IpNet, BTreeSet<Line>>,
    /// The networks that gained or lost a line.
    touched: BTreeSet<IpNet>,
}

/// The group of one network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The line that jumps to the group's chain.
    pub line: Line,
    /// The chain of the group.
    pub chain: ChainId,
    /// The rules of the chain; empty if the group no longer exists.
    pub rules: Vec<String>,
}

impl Groups {
    /// Adds the line of a VIP to its group. Returns any other line unchanged.
    pub fn insert(&mut self, line: Line) -> Option<Line> {
        let Some(network) = network(&line) else { return Some(line) };
        self.touched.insert(network);
        self.lines.entry(network).or_default().insert(line);
        None
    }

    /// Removes the line of a VIP from its group. For any other line, does nothing and returns false.
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

    /// The networks that gained or lost a line since the last call.
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

/// The network of the line's VIP; `None` if it is not the line of a VIP.
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
    fn rules_of_one_network_share_a_chain() {
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
