//! [`Kernel`]: the one seam between a backend and nf_tables, and [`Netlink`], which is the kernel. The other implementors are
//! fakes of tests.

use std::sync::Arc;

use super::{Chain, Element, Error, Family, Name, Sent, Set, Socket, Table, Transaction};

/// What a backend needs of nf_tables.
pub trait Kernel: Send {
    /// Makes all changes of a transaction, or none.
    fn apply(&mut self, transaction: &Transaction) -> Result<Sent, Error>;
    /// Everything in a table, its chains compared with those that are wanted; `None` if there is no such table.
    fn read(&mut self, table: &Table, wanted: &dyn Fn(&str) -> Option<Arc<Chain>>) -> Result<Option<Found>, Error>;
    /// The elements of a set; `None` if there is no such set.
    fn elements(&mut self, table: &Table, set: &Set) -> Result<Option<Vec<Element>>, Error>;
    /// Whether the host has this address family at all.
    fn has_family(&self, family: Family) -> bool;
    /// The number of the ruleset's generation, by which commits of others are told to be older than what was read;
    /// `None` where nobody asks.
    fn generation(&mut self) -> Option<u32> {
        None
    }
}

/// What is in a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its sets and maps with their elements; `None` for one that the plain values cannot say.
    pub sets: Vec<Option<(Arc<Set>, Vec<Element>)>>,
    /// Its chains.
    pub chains: Vec<(Name, Likeness)>,
}

/// How a chain compares with the wanted one of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Likeness {
    /// It is the same.
    Same,
    /// Its rules differ.
    OtherRules,
    /// It is entered elsewhere, or has another comment: neither can be changed.
    OtherDeclaration,
    /// None of its name is wanted.
    Unwanted,
}

/// The nf_tables of the network namespace in which it was opened.
#[derive(Debug)]
pub struct Netlink {
    socket: Socket,
    has_ipv6: bool,
}

impl Netlink {
    /// Connects to the nf_tables of this thread's network namespace.
    ///
    /// # Errors
    /// The kernel has no nf_tables.
    pub fn open() -> Result<Self, Error> {
        // Missing where IPv6 is not built in or was switched off at boot: then there is nothing to translate.
        let has_ipv6 = std::path::Path::new("/proc/self/net/if_inet6").exists();
        Ok(Self { socket: Socket::open()?, has_ipv6 })
    }

    /// The netlink port, by which this process's commits are known.
    pub fn port(&self) -> u32 {
        self.socket.port()
    }
}

impl Kernel for Netlink {
    fn apply(&mut self, transaction: &Transaction) -> Result<Sent, Error> {
        self.socket.commit(transaction)
    }

    fn read(&mut self, table: &Table, wanted: &dyn Fn(&str) -> Option<Arc<Chain>>) -> Result<Option<Found>, Error> {
        let Some(dump) = self.socket.table(table)? else { return Ok(None) };
        let chains = dump.chains.into_iter().map(|found| {
            let likeness = match wanted(&found.name) {
                Some(chain) if found.is(table.family, &chain) => Likeness::Same,
                Some(chain) if found.is_declared(&chain) => Likeness::OtherRules,
                Some(_) => Likeness::OtherDeclaration,
                None => Likeness::Unwanted,
            };
            (found.name, likeness)
        });
        let sets = dump.sets.into_iter().map(|found| Some((found.set?, found.elements)));
        Ok(Some(Found { sets: sets.collect(), chains: chains.collect() }))
    }

    fn elements(&mut self, table: &Table, set: &Set) -> Result<Option<Vec<Element>>, Error> {
        self.socket.elements(table, set)
    }

    fn has_family(&self, family: Family) -> bool {
        family == Family::V4 || self.has_ipv6
    }

    fn generation(&mut self) -> Option<u32> {
        self.socket.generation().ok()
    }
}
