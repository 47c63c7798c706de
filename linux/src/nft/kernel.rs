//! [`Kernel`]: the interface between a backend and nf_tables. [`Netlink`] is the real kernel; tests have fakes.

use std::sync::Arc;

use localnet_core::Family;

use super::{Chain, Element, Error, Name, Set, Socket, Table, Transaction, TransactionSize, Tuple};

/// The operations on nf_tables that a backend needs.
pub trait Kernel: Send {
    /// Applies all changes of a transaction, or none.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses a change, or does not answer.
    fn apply(&mut self, transaction: &Transaction) -> Result<TransactionSize, Error>;
    /// Reads a table and compares its chains with the desired ones, which `desired` returns by name. `None` if there is no such
    /// table.
    ///
    /// # Errors
    /// Returns an error if the process lacks `CAP_NET_ADMIN`, or if the table keeps changing while it is read.
    fn read(&mut self, table: &Table, desired: &dyn Fn(&str) -> Option<Arc<Chain>>)
    -> Result<Option<LiveTable>, Error>;
    /// Reads the elements of a set; `None` if there is no such set.
    ///
    /// # Errors
    /// Returns the errors of [`Self::read`].
    fn elements(&mut self, table: &Table, set: &Set) -> Result<Option<Vec<Element>>, Error>;
    /// Whether the host supports the address family.
    fn has_family(&self, family: Family) -> bool;
    /// The generation of the ruleset. A backend uses it to recognize notifications that are older than its last read. `None` if
    /// the implementation has no generations.
    fn generation(&mut self) -> Option<u32> {
        None
    }
}

/// The live state of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveTable {
    /// The sets and maps with their elements; `None` for one that [`Set`] cannot represent.
    pub sets: Vec<Option<(Arc<Set>, Vec<Element>)>>,
    /// The chains, each with the result of the comparison.
    pub chains: Vec<(Name, ChainMatch)>,
}

/// How a live chain compares with the desired chain of the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainMatch {
    /// Both are equal.
    Exact,
    /// The rules differ.
    RulesDiffer,
    /// The hook differs. The kernel cannot change it.
    DeclarationDiffers,
    /// There is no desired chain of that name.
    NotDesired,
}

/// The nf_tables of the network namespace in which it was opened.
#[derive(Debug)]
pub struct Netlink {
    socket: Socket,
    has_ipv6: bool,
}

impl Netlink {
    /// Connects to the nf_tables of the calling thread's network namespace.
    ///
    /// # Errors
    /// Returns an error if the kernel has no nf_tables.
    pub fn open() -> Result<Self, Error> {
        // The file is missing if IPv6 is not built in or was disabled at boot; then there are no IPv6 packets to translate.
        let has_ipv6 = std::path::Path::new("/proc/self/net/if_inet6").exists();
        Ok(Self { socket: Socket::open()?, has_ipv6 })
    }

    /// Reads how many packets each element of a set has counted; `None` if there is no such set. While packets add elements, an
    /// element may be missing or occur twice.
    ///
    /// # Errors
    /// Returns the errors of [`Kernel::read`].
    pub fn packets(&mut self, table: &Table, set: &Set) -> Result<Option<Vec<(Tuple, u64)>>, Error> {
        self.socket.packets(table, set)
    }

    /// The netlink port, which identifies the commits of this process.
    pub fn port(&self) -> u32 {
        self.socket.port()
    }
}

impl Kernel for Netlink {
    fn apply(&mut self, transaction: &Transaction) -> Result<TransactionSize, Error> {
        self.socket.commit(transaction)
    }

    fn read(
        &mut self,
        table: &Table,
        desired: &dyn Fn(&str) -> Option<Arc<Chain>>,
    ) -> Result<Option<LiveTable>, Error> {
        let Some(dump) = self.socket.table(table)? else { return Ok(None) };
        let chains = dump.chains.into_iter().map(|live| {
            let comparison = match desired(&live.name) {
                Some(chain) if live.is(table.family, &chain) => ChainMatch::Exact,
                Some(chain) if live.is_declared(&chain) => ChainMatch::RulesDiffer,
                Some(_) => ChainMatch::DeclarationDiffers,
                None => ChainMatch::NotDesired,
            };
            (live.name, comparison)
        });
        let sets = dump.sets.into_iter().map(|live| Some((live.set?, live.elements)));
        Ok(Some(LiveTable { sets: sets.collect(), chains: chains.collect() }))
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
