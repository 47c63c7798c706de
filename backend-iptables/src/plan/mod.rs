//! What the tables should hold: names, rules, and who has which. Pure.

pub mod fixed;
pub mod groups;
pub mod names;
pub mod port;
pub mod rule;

use std::{
    fmt,
    hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher},
    ops::Deref,
};

/// A table of iptables in which there is anything of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// Lets pass, refuses, drops.
    Filter,
    /// Translates.
    Nat,
}

impl Table {
    /// Both, as far as possible in the order in which they are written: what nothing serves any more is refused before it is left
    /// untranslated.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChainId {
    /// Its table.
    pub table: Table,
    /// Its name.
    pub name: ChainName,
}

impl ChainId {
    /// A chain's. Of a name that is longer than [`ChainName::LONGEST`] the rest is left out: no chain can have it.
    pub fn new(table: Table, name: impl AsRef<str>) -> Self {
        Self { table, name: ChainName::new(name.as_ref()) }
    }
}

/// The name of a chain, in place: there are tens of thousands of them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChainName([u8; Self::LONGEST]);

impl ChainName {
    /// The kernel allows so many bytes.
    pub const LONGEST: usize = 28;

    fn new(name: &str) -> Self {
        let end = (0..=Self::LONGEST.min(name.len())).rev().find(|end| name.is_char_boundary(*end));
        let name = &name.as_bytes()[..end.unwrap_or_default()];
        let mut bytes = [0; Self::LONGEST];
        bytes[..name.len()].copy_from_slice(name);
        Self(bytes)
    }
}

impl Deref for ChainName {
    type Target = str;

    fn deref(&self) -> &str {
        let end = self.0.iter().position(|byte| *byte == 0).unwrap_or(Self::LONGEST);
        // It was made from a text.
        std::str::from_utf8(&self.0[..end]).unwrap_or_default()
    }
}

impl fmt::Debug for ChainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

/// The rules of a chain, in sixteen bytes instead of hundreds: whether they are the ones that should be there is all that has to be
/// known of tens of thousands of chains, and those that are to be written are planned again. Chains with different rules have the
/// same digest once in 2⁶⁴ times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digest {
    hash: u64,
    rules: u32,
}

impl Digest {
    /// That of these rules, from top to bottom.
    pub fn of(rules: &[String]) -> Self {
        rules.iter().fold(Self::default(), |digest, rule| digest.and(rule))
    }

    /// With one more rule at its end.
    #[must_use]
    pub fn and(self, rule: &str) -> Self {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one((self.hash, rule));
        Self { hash, rules: self.rules.saturating_add(1) }
    }

    /// How many rules there are.
    pub fn rules(self) -> usize {
        self.rules as usize
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
    /// Those that refuse, or drop, what was not translated.
    pub const REFUSING: [Self; 3] = [Self::UNSERVED, Self::UNSERVED_EXTERNAL, Self::FIREWALL];
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_kept_whole_and_sort_as_texts_do() {
        let mut names = ["KUBE-VIPS-ABCDEFGHIJKLMNOP", "KUBE-SVC-B", "KUBE-SVC-AB", "KUBE-SVC-A", ""];
        let mut ids = names.map(|name| ChainId::new(Table::Nat, name));
        names.sort_unstable();
        ids.sort_unstable();
        assert_eq!(ids.map(|id| id.name.to_string()), names);
        assert_eq!(ChainId::new(Table::Nat, "é".repeat(20)).name.len(), ChainName::LONGEST);
    }

    #[test]
    fn other_rules_or_another_order_are_another_digest() {
        let of = |rules: &[&str]| Digest::of(&rules.iter().map(|rule| (*rule).to_owned()).collect::<Vec<_>>());
        let digests = [of(&[]), of(&[""]), of(&["a", "b"]), of(&["b", "a"]), of(&["ab"]), of(&["a", "b", ""])];
        for (place, digest) in digests.iter().enumerate() {
            assert_eq!(digests.iter().position(|other| other == digest), Some(place));
        }
        assert_eq!((of(&["a", "b"]), of(&["a", "b"]).rules()), (of(&["a"]).and("b"), 2));
    }
}
