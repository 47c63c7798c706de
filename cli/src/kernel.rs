//! The only part that asks the kernel: whether it holds what a packet should meet, who else has rules, routes, flows, settings.
//!
//! What cannot be asked, for want of a privilege or of nf_tables, is told as text and stops nothing else.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    num::NonZero,
    panic::resume_unwind,
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use localnet_linux::{
    addresses::Addresses,
    conntrack::{self, Counters, Flow},
    nft::{self, Chain, ChainDump, Element, ElementData, Family, Set, Socket, Table, others},
    routes::{Route, Routes},
    sysctl::Settings,
};
use localnet_nft::plan::{self, sets::SetId};

use crate::path::{self, Step, Thing};

/// The kernel of this network namespace.
#[derive(Debug)]
pub struct Kernel {
    socket: Socket,
    chains: HashMap<Family, Option<Vec<ChainDump>>>,
    others: Option<others::Others>,
}

/// Whether the kernel holds something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Held {
    /// It does; a rule has a handle.
    Yes(Option<u64>),
    /// It does not.
    No,
    /// Something else is in its place.
    Other(String),
}

impl Kernel {
    /// Connects.
    ///
    /// # Errors
    /// There is no nf_tables, or the process may not ask.
    pub fn open() -> Result<Self, nft::Error> {
        let mut kernel = Self { socket: Socket::open()?, chains: HashMap::new(), others: None };
        // Without the privilege this is where it is said.
        kernel.chains(Family::V4)?;
        Ok(kernel)
    }

    /// The chains of our table; none if there is no table. Read once.
    ///
    /// # Errors
    /// The kernel does not show them.
    pub fn chains(&mut self, family: Family) -> Result<Option<&[ChainDump]>, nft::Error> {
        if !self.chains.contains_key(&family) {
            let found = self.socket.chains(&plan::table(family))?;
            self.chains.insert(family, found);
        }
        Ok(self.chains.get(&family).and_then(Option::as_deref))
    }

    /// Our table without the elements of its sets, if it is there.
    ///
    /// # Errors
    /// The kernel does not show it.
    pub fn outline(&mut self, family: Family) -> Result<Option<nft::TableDump>, nft::Error> {
        self.socket.outline(&plan::table(family))
    }

    /// The number of the ruleset's generation: each commit of anyone makes a new one.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn generation(&mut self) -> Result<u32, nft::Error> {
        self.socket.generation()
    }

    /// Whether a table of that name is there.
    pub fn has_table(&mut self, family: Family, name: &str) -> bool {
        self.socket.has_table(&Table::new(family, name)).unwrap_or_default()
    }

    /// Whether the kernel holds what a step says.
    ///
    /// # Errors
    /// The kernel does not show it.
    pub fn holds(&mut self, family: Family, step: &Step) -> Result<Held, nft::Error> {
        match &step.thing {
            Thing::Rule(chain, index) => {
                let Some(found) = self.chain(family, chain)? else { return Ok(Held::No) };
                let wanted = &chain.rules[*index];
                let rule = found.rules.iter().find(|rule| rule.is(family, wanted));
                Ok(rule.map_or(Held::No, |rule| Held::Yes(Some(rule.handle))))
            }
            Thing::Chain(chain) => Ok(match self.chain(family, chain)? {
                None => Held::No,
                Some(found) if found.is(family, chain) => Held::Yes(found.rules.first().map(|rule| rule.handle)),
                Some(found) => Held::Other(format!(
                    "{} rules, {} of them as planned",
                    found.rules.len(),
                    alike(family, found, chain)
                )),
            }),
            Thing::Element(set, element) => self.element(family, *set, element),
        }
    }

    fn chain(&mut self, family: Family, chain: &Chain) -> Result<Option<&ChainDump>, nft::Error> {
        Ok(self.chains(family)?.and_then(|chains| chains.iter().find(|found| found.name == chain.name)))
    }

    fn element(&mut self, family: Family, set: SetId, wanted: &Element) -> Result<Held, nft::Error> {
        let declared = set.declaration(family, 1);
        let found = self.socket.element(&plan::table(family), &declared, wanted.key.start());
        let found = match found {
            Ok(found) => found,
            // A set of another kind in its place.
            Err(nft::Error::Unsupported | nft::Error::RefusedWhole { .. }) => None,
            Err(error) => return Err(error),
        };
        Ok(match found {
            None => Held::No,
            Some(found) if found.data == wanted.data || matches!(wanted.data, ElementData::None) => Held::Yes(None),
            Some(found) => Held::Other(path::leads_to(&found)),
        })
    }

    /// The endpoints of a VIP with session affinity, by slot, as the kernel has them.
    ///
    /// # Errors
    /// The kernel does not show them.
    pub fn affinity(
        &mut self,
        family: Family,
        keys: impl Iterator<Item = nft::Tuple>,
    ) -> Result<Vec<String>, nft::Error> {
        let set = SetId::AffinityEndpoints.declaration(family, 1);
        let mut endpoints = Vec::new();
        for key in keys {
            endpoints.extend(self.socket.element(&plan::table(family), &set, &key)?.as_ref().map(path::leads_to));
        }
        Ok(endpoints)
    }

    /// The chains that should always be there and are not, or are others.
    ///
    /// # Errors
    /// The kernel does not show them.
    pub fn damaged(&mut self, family: Family, wanted: &[Arc<Chain>]) -> Result<Vec<String>, nft::Error> {
        let Some(found) = self.chains(family)? else {
            return Ok(wanted.iter().map(|chain| chain.name.to_string()).collect());
        };
        let is_there = |chain: &Chain| found.iter().any(|known| known.is(family, chain));
        Ok(wanted.iter().filter(|chain| !is_there(chain)).map(|chain| chain.name.to_string()).collect())
    }

    /// The rules of others that stop a packet.
    ///
    /// # Errors
    /// The kernel does not show them.
    pub fn stops(&mut self, packet: &others::Packet) -> Result<Vec<others::Stop>, nft::Error> {
        if self.others.is_none() {
            self.others = Some(self.socket.others(&[plan::TABLE, plan::SUBSTITUTE])?);
        }
        let others = self.others.as_ref().map_or_else(Default::default, Clone::clone);
        Ok(self.socket.stops(&others, packet))
    }

    /// The tables of others.
    ///
    /// # Errors
    /// The kernel does not show them.
    pub fn other_tables(&mut self) -> Result<Vec<String>, nft::Error> {
        Ok(self.socket.others(&[plan::TABLE, plan::SUBSTITUTE])?.tables())
    }
}

/// Hands the elements of each of some sets of our tables to `take`; no element for a set that is gone. For each part of a dump the kernel
/// skips what it has told from the set's beginning, so that a big set takes it long: several are read at a time, in the order given,
/// over a socket each.
///
/// # Errors
/// The kernel does not show them.
pub fn elements(
    sets: impl Iterator<Item = (Family, Arc<Set>)> + Send,
    take: impl Fn(Family, &Set, Vec<Element>) + Sync,
) -> Result<(), nft::Error> {
    let sets = Mutex::new(sets);
    let next = || sets.lock().unwrap_or_else(PoisonError::into_inner).next();
    let read = || {
        let mut socket = Socket::open()?;
        while let Some((family, set)) = next() {
            take(family, &set, socket.elements(&plan::table(family), &set)?.unwrap_or_default());
        }
        Ok(())
    };
    on_processors(read).into_iter().collect()
}

/// Does the same on each processor.
fn on_processors<T: Send>(work: impl Fn() -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, NonZero::get);
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(&work)).collect();
        workers.into_iter().map(|worker| worker.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}

/// How many rules of a chain are those of another, in their places.
fn alike(family: Family, found: &ChainDump, wanted: &Chain) -> usize {
    found.rules.iter().zip(&wanted.rules).filter(|(found, wanted)| found.is(family, wanted)).count()
}

/// The addresses of the node's interfaces.
///
/// # Errors
/// rtnetlink does not tell.
pub async fn addresses() -> anyhow::Result<Vec<IpAddr>> {
    Ok(Addresses::watch()?.list().await?.into_iter().map(|address| address.ip).collect())
}

/// The ways to some addresses.
///
/// # Errors
/// rtnetlink does not tell.
pub async fn routes(to: impl IntoIterator<Item = IpAddr>) -> anyhow::Result<Vec<(IpAddr, Route)>> {
    let routes = Routes::open()?;
    let mut ways = Vec::new();
    for address in to {
        ways.push((address, routes.to(address).await?));
    }
    Ok(ways)
}

/// The flows of a family that `wanted` wants.
///
/// # Errors
/// Connection tracking cannot be read.
pub fn flows(family: Family, wanted: impl Fn(&Flow) -> bool) -> Result<Vec<Flow>, conntrack::Error> {
    let mut flows: HashMap<(SocketAddr, SocketAddr, u32), Flow> = HashMap::new();
    let mut see = |flow: &Flow| {
        if wanted(flow) {
            flows.insert((flow.original.source, flow.original.destination, flow.id), *flow);
        }
    };
    conntrack::Kernel::open()?.all(family, &mut see)?;
    let mut flows: Vec<Flow> = flows.into_values().collect();
    flows.sort_by_key(|flow| (flow.original.source, flow.original.destination));
    Ok(flows)
}

/// All flows of both families, with what went through each, if the kernel counts that.
///
/// # Errors
/// Connection tracking cannot be read.
pub fn counted_flows() -> Result<Vec<(Flow, Option<Counters>)>, conntrack::Error> {
    let mut flows = HashMap::new();
    for family in Family::ALL {
        let mut see = |flow: &Flow, counters: Option<Counters>| {
            flows.insert((flow.protocol, flow.original, flow.id), (*flow, counters));
        };
        conntrack::Kernel::open()?.counted(family, &mut see)?;
    }
    Ok(flows.into_values().collect())
}

/// Whether the kernel counts packets and bytes of new flows.
pub fn counts_bytes() -> bool {
    setting("proc/sys/net/netfilter/nf_conntrack_acct").is_some_and(|value| value != 0)
}

/// A setting of the kernel; none if there is no such setting.
pub fn setting(name: &str) -> Option<i64> {
    Settings::default().get(name).ok()
}

/// Whether packets are passed on between interfaces.
pub fn forwards(family: Family) -> Option<bool> {
    let name = match family {
        Family::V4 => "proc/sys/net/ipv4/ip_forward",
        Family::V6 => "proc/sys/net/ipv6/conf/all/forwarding",
    };
    setting(name).map(|value| value != 0)
}
