//! Parses the output of `iptables-save`. The parser skips tables, chains and rules that are not ours. It accepts any text.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

use ipnet::IpNet;
use localnet_client::vips::VipKey;
use localnet_proto::Protocol;

use crate::plan::{ChainId, ChainName, Digest, Dispatch, Table, fixed, names};

/// Our part of the live state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The digests of our chains.
    pub chains: BTreeMap<ChainId, Digest>,
    /// The rules of the dispatch chains that exist.
    pub dispatch: BTreeMap<Dispatch, Vec<Box<str>>>,
    /// The jumps from the kernel's own chains to ours, from top to bottom.
    pub jumps: BTreeMap<(Table, &'static str), Vec<String>>,
    /// The VIPs that the tables serve, except NodePorts.
    pub vips: BTreeSet<VipKey>,
}

/// Parses the tables line by line. It does not keep the text, which is about 10 MB with 10,000 Services.
#[derive(Debug)]
pub struct Reader {
    found: Found,
    entries: Vec<(Table, &'static str)>,
    targets: BTreeSet<&'static str>,
    table: Option<Table>,
}

impl Default for Reader {
    fn default() -> Self {
        Self { found: Found::default(), entries: fixed::entries(), targets: targets(), table: None }
    }
}

impl Reader {
    /// Parses the next line.
    pub fn line(&mut self, line: &str) {
        let line = &*normal(line);
        if let Some(name) = line.strip_prefix('*') {
            self.table = Table::named(name);
        }
        let Some(table) = self.table else { return };
        if let Some(name) = line.strip_prefix(':').and_then(|rest| rest.split(' ').next()) {
            self.found.declared(table, name);
        } else if let Some((chain, rule)) = line.strip_prefix("-A ").and_then(split) {
            let entry = self.entries.iter().find(|entry| **entry == (table, chain));
            match entry {
                Some(entry) if leads_to(rule, &self.targets) => {
                    self.found.jumps.entry(*entry).or_default().push(rule.to_owned());
                }
                Some(_) => {}
                None => self.found.rule(table, chain, rule),
            }
        }
    }

    /// The result, after the last line.
    pub fn found(self) -> Found {
        self.found
    }
}

impl Found {
    /// Parses a whole text.
    pub fn read(saved: &str) -> Self {
        let mut reader = Reader::default();
        saved.lines().for_each(|line| reader.line(line));
        reader.found()
    }

    fn declared(&mut self, table: Table, name: &str) {
        if let Some(chain) = dispatch(table, name) {
            self.dispatch.entry(chain).or_default();
        } else if is_ours(table, name) {
            self.chains.entry(ChainId::new(table, name)).or_default();
        }
    }

    fn rule(&mut self, table: Table, chain: &str, rule: &str) {
        let grouped = chain.starts_with(names::GROUP);
        if let Some(of) = dispatch(table, chain)
            && let Some(rules) = self.dispatch.get_mut(&of)
        {
            rules.push(rule.into());
        } else if is_ours(table, chain)
            && let Some(digest) = self.chains.get_mut(&ChainId::new(table, chain))
        {
            *digest = digest.and(rule);
        } else {
            return;
        }
        if table == Table::Nat && (grouped || dispatch(table, chain).is_some()) {
            self.vips.extend(vip(rule));
        }
    }
}

/// The line with one space before the name of a counter. iptables prints two.
pub(crate) fn normal(line: &str) -> Cow<'_, str> {
    const COUNTED: &str = "--nfacct-name  ";
    if line.contains(COUNTED) { line.replace(COUNTED, "--nfacct-name ").into() } else { line.into() }
}

/// The chains of ours that the kernel's own chains jump to.
pub(crate) fn targets() -> BTreeSet<&'static str> {
    let dispatch = Dispatch::ALL.iter().map(|chain| chain.name);
    dispatch.chain([names::POSTROUTING, names::MARK_MASQ, names::FORWARD]).collect()
}

/// Splits the text after `-A` into chain and rule. The rule may be empty.
pub(crate) fn split(text: &str) -> Option<(&str, &str)> {
    Some(text.split_once(' ').unwrap_or((text, "")))
}

pub(crate) fn dispatch(table: Table, name: &str) -> Option<Dispatch> {
    Dispatch::ALL.into_iter().find(|chain| chain.table == table && chain.name == name)
}

/// Whether this backend, or a kube-proxy before it, writes the chain as a whole. A chain whose name is too long for the tools is
/// not ours.
pub(crate) fn is_ours(table: Table, name: &str) -> bool {
    if name.len() > ChainName::LONGEST {
        return false;
    }
    match table {
        Table::Nat => {
            names::is_of_service(name)
                || name.starts_with(names::GROUP)
                || [names::POSTROUTING, names::MARK_MASQ].contains(&name)
        }
        Table::Filter => name.starts_with(names::FIREWALL) || name == names::FORWARD,
    }
}

pub(crate) fn leads_to(rule: &str, targets: &BTreeSet<&str>) -> bool {
    let mut words = rule.rsplit(' ');
    words.next().is_some_and(|target| targets.contains(target)) && words.next() == Some("-j")
}

fn vip(rule: &str) -> Option<VipKey> {
    let after = |flag: &str| {
        let mut words = rule.split(' ');
        words.find(|word| *word == flag)?;
        words.next()
    };
    let address: IpNet = after("-d")?.parse().ok()?;
    let protocol = Protocol::ALL.into_iter().find(|protocol| after("-p") == Some(protocol.as_lowercase()))?;
    let socket = SocketAddr::new(address.addr(), after("--dport")?.parse().ok()?);
    Some(VipKey { address: socket.ip(), protocol, port: socket.port() })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SAVED: &str = "\
# Generated by iptables-save
*mangle
:KUBE-PROXY-CANARY - [0:0]
COMMIT
*nat
:PREROUTING ACCEPT [12:720]
:KUBE-SERVICES - [0:0]
:KUBE-SEP-A - [0:0]
:KUBE-VIPS-A - [0:0]
:KUBE-MARK-DROP - [0:0]
:DOCKER - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A DOCKER -j RETURN
-A KUBE-MARK-DROP -j MARK --set-xmark 0x8000/0x8000
-A KUBE-SEP-A -s 10.0.0.1/32 -j KUBE-MARK-MASQ
-A KUBE-SEP-A -p udp -j DNAT --to-destination 10.0.0.1:53
-A KUBE-SERVICES -d 10.96.0.10/32 -p udp -m comment --comment \"a/b cluster IP\" -m udp --dport 53 -j KUBE-SVC-A
-A KUBE-SERVICES -d 10.96.1.0/24 -j KUBE-VIPS-A
-A KUBE-VIPS-A -d 10.96.1.1/32 -p tcp -m comment --comment \"a/c cluster IP\" -m tcp --dport 80 -j KUBE-SVC-B
COMMIT
*filter
:KUBE-FIREWALL - [0:0]
:KUBE-SEP-A - [0:0]
:KUBE-FORWARD - [0:0]
";

    #[test]
    fn only_our_own_chains_and_rules_are_found() {
        let found = Found::read(SAVED);
        let chains: Vec<_> = found.chains.iter().map(|(id, rules)| (id.table, &*id.name, rules.rules())).collect();
        assert_eq!(
            chains,
            [(Table::Filter, "KUBE-FORWARD", 0), (Table::Nat, "KUBE-SEP-A", 2), (Table::Nat, "KUBE-VIPS-A", 1)]
        );
        assert_eq!(found.dispatch[&Dispatch::SERVICES].len(), 2);
        assert_eq!(found.dispatch.len(), 1);
        assert_eq!(found.jumps[&(Table::Nat, "PREROUTING")].len(), 1);
        assert_eq!(
            found.vips.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["10.96.0.10:53/udp", "10.96.1.1:80/tcp"]
        );
    }

    #[test]
    fn two_spaces_before_a_counter_are_read_as_one() {
        let of = |spaces| {
            let rule = format!("-m nfacct --nfacct-name{spaces}a -j DROP");
            Found::read(&format!("*filter\n:KUBE-FORWARD - [0:0]\n-A KUBE-FORWARD {rule}\nCOMMIT\n"))
        };
        assert_eq!(of("  "), of(" "));
        assert_ne!(of(" "), of(" b"));
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in "([*:]|-A |[A-Z-]{1,8}| |\n|nat|-d|-p){0,80}") {
            Found::read(&text);
        }
    }
}
