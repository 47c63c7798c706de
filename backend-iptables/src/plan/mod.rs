//! The desired chains, rules and their owners. Pure.

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

localnet_core::names! {
    /// A table of iptables that contains rules of ours. Where possible, the tables are written in this order, so that
    /// packets to a VIP that loses its last endpoint are already rejected when their translation ends.
    Table {
        /// Accepts, rejects or drops packets.
        Filter = "filter",
        /// Translates addresses.
        Nat = "nat",
    }
}

/// The table and name of a chain that is always written as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChainId {
    /// The table of the chain.
    pub table: Table,
    /// The name of the chain.
    pub name: ChainName,
}

impl ChainId {
    /// The ID of a chain. A name longer than [`ChainName::LONGEST`] is truncated, because no chain in the kernel has a longer name.
    pub fn new(table: Table, name: impl AsRef<str>) -> Self {
        Self { table, name: ChainName::new(name.as_ref()) }
    }
}

/// The name of a chain, stored inline because there are tens of thousands of chains.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChainName([u8; Self::LONGEST]);

impl ChainName {
    /// The longest name that the kernel allows, in bytes.
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
        // The bytes come from a string, so they are UTF-8.
        std::str::from_utf8(&self.0[..end]).unwrap_or_default()
    }
}

impl fmt::Debug for ChainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

/// A digest of a chain's rules, in 16 bytes instead of hundreds, because there are tens of thousands of chains. A digest is
/// enough to determine whether a chain has the desired rules. If the chain has to be written, its rules are planned again. Two
/// different chains have the same digest with a probability of 2⁻⁶⁴.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digest {
    hash: u64,
    rules: u32,
}

impl Digest {
    /// The digest of these rules, from top to bottom.
    pub fn of(rules: &[String]) -> Self {
        rules.iter().fold(Self::default(), |digest, rule| digest.and(rule))
    }

    /// The digest with one more rule at the end.
    #[must_use]
    pub fn and(self, rule: &str) -> Self {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one((self.hash, rule));
        Self { hash, rules: self.rules.saturating_add(1) }
    }

    /// The number of rules.
    pub fn rules(self) -> usize {
        self.rules as usize
    }
}

/// A dispatch chain: it jumps to the chains of the Services, and its rules are written one by one. Their order does not
/// matter, because each VIP has one owner. The chain ends with fixed rules, its tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dispatch {
    /// The table of the chain.
    pub table: Table,
    /// The name of the chain.
    pub name: &'static str,
}

impl Dispatch {
    const fn new(table: Table, name: &'static str) -> Self {
        Self { table, name }
    }

    /// `KUBE-SERVICES` in table nat.
    pub const SERVICES: Self = Self::new(Table::Nat, names::SERVICES);
    /// `KUBE-NODEPORTS` in table nat.
    pub const NODE_PORTS: Self = Self::new(Table::Nat, names::NODE_PORTS);
    /// `KUBE-SERVICES` in table filter.
    pub const UNSERVED: Self = Self::new(Table::Filter, names::SERVICES);
    /// `KUBE-EXTERNAL-SERVICES` in table filter.
    pub const UNSERVED_EXTERNAL: Self = Self::new(Table::Filter, names::EXTERNAL_SERVICES);
    /// `KUBE-NODEPORTS` in table filter.
    pub const HEALTH_CHECKS: Self = Self::new(Table::Filter, names::NODE_PORTS);
    /// `KUBE-PROXY-FIREWALL` in table filter.
    pub const FIREWALL: Self = Self::new(Table::Filter, names::PROXY_FIREWALL);
    /// `KUBE-CLUSTER-IPS` in table filter.
    pub const CLUSTER_IPS: Self = Self::new(Table::Filter, names::CLUSTER_IPS);
    /// The chains that reject or drop packets that were not translated.
    pub const REFUSING: [Self; 3] = [Self::UNSERVED, Self::UNSERVED_EXTERNAL, Self::FIREWALL];
    /// All dispatch chains.
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

/// A rule of a [`Dispatch`] chain, without its leading `-A CHAIN`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Line {
    /// The chain that contains the rule.
    pub chain: Dispatch,
    /// The text of the rule.
    pub rule: Box<str>,
}

impl Line {
    /// A line of that chain.
    pub fn new(chain: Dispatch, rule: impl Into<Box<str>>) -> Self {
        Self { chain, rule: rule.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_complete_and_sort_like_strings() {
        let mut names = ["KUBE-VIPS-ABCDEFGHIJKLMNOP", "KUBE-SVC-B", "KUBE-SVC-AB", "KUBE-SVC-A", ""];
        let mut ids = names.map(|name| ChainId::new(Table::Nat, name));
        names.sort_unstable();
        ids.sort_unstable();
        assert_eq!(ids.map(|id| id.name.to_string()), names);
        assert_eq!(ChainId::new(Table::Nat, "é".repeat(20)).name.len(), ChainName::LONGEST);
    }

    #[test]
    fn the_digest_depends_on_the_rules_and_their_order() {
        let of = |rules: &[&str]| Digest::of(&rules.iter().map(|rule| (*rule).to_owned()).collect::<Vec<_>>());
        let digests = [of(&[]), of(&[""]), of(&["a", "b"]), of(&["b", "a"]), of(&["ab"]), of(&["a", "b", ""])];
        for (place, digest) in digests.iter().enumerate() {
            assert_eq!(digests.iter().position(|other| other == digest), Some(place));
        }
        assert_eq!((of(&["a", "b"]), of(&["a", "b"]).rules()), (of(&["a"]).and("b"), 2));
    }
}
