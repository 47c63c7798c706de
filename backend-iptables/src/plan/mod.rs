//! What the tables should hold: names, rules, and who has which. Pure.

pub mod fixed;
pub mod groups;
pub mod names;
pub mod port;
pub mod rule;

use std::fmt;

/// A table of iptables in which there is anything of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// Lets pass, refuses, drops.
    Filter,
    /// Translates.
    Nat,
}

impl Table {
    /// Both, in the order in which they are written: what nothing serves any more is refused before it is left untranslated.
    pub const ALL: [Self; 2] = [Self::Filter, Self::Nat];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Nat => "nat",
        }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A chain that is written as a whole.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChainId {
    /// Its table.
    pub table: Table,
    /// Its name.
    pub name: Box<str>,
}

impl ChainId {
    /// A chain's.
    pub fn new(table: Table, name: impl Into<Box<str>>) -> Self {
        Self { table, name: name.into() }
    }
}

/// A chain that leads to the services, of which single lines are written. They may stand in any order: each VIP has one owner.
/// After them comes a tail of fixed rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dispatch {
    /// Its table.
    pub table: Table,
    /// Its name.
    pub name: &'static str,
}

impl Dispatch {
    const fn new(table: Table, name: &'static str) -> Self {
        Self { table, name }
    }

    /// nat `KUBE-SERVICES`
    pub const SERVICES: Self = Self::new(Table::Nat, names::SERVICES);
    /// nat `KUBE-NODEPORTS`
    pub const NODE_PORTS: Self = Self::new(Table::Nat, names::NODE_PORTS);
    /// filter `KUBE-SERVICES`
    pub const UNSERVED: Self = Self::new(Table::Filter, names::SERVICES);
    /// filter `KUBE-EXTERNAL-SERVICES`
    pub const UNSERVED_EXTERNAL: Self = Self::new(Table::Filter, names::EXTERNAL_SERVICES);
    /// filter `KUBE-NODEPORTS`
    pub const HEALTH_CHECKS: Self = Self::new(Table::Filter, names::NODE_PORTS);
    /// filter `KUBE-PROXY-FIREWALL`
    pub const FIREWALL: Self = Self::new(Table::Filter, names::PROXY_FIREWALL);
    /// filter `KUBE-CLUSTER-IPS`
    pub const CLUSTER_IPS: Self = Self::new(Table::Filter, names::CLUSTER_IPS);
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::UNSERVED,
        Self::UNSERVED_EXTERNAL,
        Self::HEALTH_CHECKS,
        Self::FIREWALL,
        Self::CLUSTER_IPS,
        Self::SERVICES,
        Self::NODE_PORTS,
    ];
}

/// A rule of a [`Dispatch`] chain, without the `-A CHAIN` before it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Line {
    /// Where it stands.
    pub chain: Dispatch,
    /// What it says.
    pub rule: Box<str>,
}

impl Line {
    /// A line.
    pub fn new(chain: Dispatch, rule: impl Into<Box<str>>) -> Self {
        Self { chain, rule: rule.into() }
    }
}
