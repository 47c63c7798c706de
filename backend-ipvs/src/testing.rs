//! The kernel of the tests: an IPVS that refuses what the real one refuses, an interface, and nf_tables in memory. The contract in
//! `tests/guest` checks that it behaves like the real one.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use localnet_linux::{
    dummy::{self, Changed},
    ipvs::{
        self, Applied, Change, Connections, Destination, DestinationState, Frontend, Refused, ServerState,
        VirtualServer,
    },
    nft::{
        self, Chain, Change as Rules, Element, Error, LiveTable, Set, Table, Transaction, TransactionSize,
        testing::FakeKernel as FakeNft,
    },
};
use localnet_proto::Family;

use crate::{kernel::Kernel, plan::INTERFACE};

/// The live state, and a log of the requests.
#[derive(Clone, Debug, Default)]
pub struct FakeKernel {
    /// The virtual servers.
    pub servers: BTreeMap<Frontend, FakeServer>,
    /// The connections of the destinations that were deleted. They return with their destination.
    pub trash: BTreeMap<(Frontend, SocketAddr), u32>,
    /// The addresses of the interface; `None` if it does not exist.
    pub addresses: Option<BTreeSet<IpAddr>>,
    /// Whether the backend has opened the interface. After another program has deleted it, the next change then fails.
    pub is_open: bool,
    /// nf_tables.
    pub nft: FakeNft,
    /// The schedulers that the kernel lacks.
    pub lacks: BTreeSet<String>,
    /// The virtual servers and destinations that the kernel refuses.
    pub hated: BTreeSet<SocketAddr>,
    /// The addresses that the kernel refuses to add to the interface.
    pub hated_addresses: BTreeSet<IpAddr>,
    /// Whether refusals report a shortage of memory, which the refused object did not cause.
    pub short: bool,
    /// Whether the kernel lacks the memory to delete virtual servers and destinations.
    pub keeps: bool,
    /// The family whose rules the kernel refuses.
    pub no_rules: Option<Family>,
    /// After how many more transactions the answer to one is lost.
    pub unanswered_after: Option<usize>,
    /// The requests as text, one line for each.
    pub log: Vec<String>,
}

/// A virtual server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FakeServer {
    /// The virtual server itself.
    pub server: VirtualServer,
    /// Its destinations, each with the number of its active connections.
    pub destinations: BTreeMap<SocketAddr, (Destination, u32)>,
}

impl FakeServer {
    /// The virtual server with its destinations.
    pub fn state(&self) -> ServerState {
        let destinations = self.destinations.values().map(destination_state).collect();
        ServerState { server: self.server.clone(), destinations }
    }
}

const MISSING: i32 = 2;
const NO_SERVER: i32 = 3;
const NO_MEMORY: i32 = 12;
const EXISTS: i32 = 17;
const INVALID: i32 = 22;
const RANGE: i32 = 34;
const NOT_AVAILABLE: i32 = 99;

impl FakeKernel {
    /// The virtual servers with their destinations.
    pub fn states(&self) -> Vec<ServerState> {
        self.servers.values().map(FakeServer::state).collect()
    }

    /// A client connects to a virtual server. Returns the destination that serves it, if there is one.
    pub fn connect(&mut self, frontend: &Frontend) -> Option<SocketAddr> {
        let all = self.servers.get_mut(frontend)?.destinations.values_mut();
        let (to, active) = all.filter(|(one, _)| one.weight > 0).min_by_key(|(_, active)| *active)?;
        *active += 1;
        Some(to.address)
    }

    /// A connection to this destination ends, and the kernel has forgotten it.
    pub fn disconnect(&mut self, frontend: &Frontend, from: SocketAddr) {
        let held = self.servers.get_mut(frontend).and_then(|fake| fake.destinations.get_mut(&from));
        let active = held.map(|(_, active)| active).or_else(|| self.trash.get_mut(&(*frontend, from)));
        active.into_iter().for_each(|active| *active -= 1);
    }

    fn make(&mut self, change: &Change) -> Result<(), i32> {
        // The kernel first looks for the virtual server.
        let frontend = change.frontend();
        match (change, self.servers.contains_key(frontend)) {
            (Change::AddServer(_), true) => return Err(EXISTS),
            (Change::AddServer(_), false) | (_, true) => {}
            (_, false) => return Err(NO_SERVER),
        }
        match change {
            Change::AddServer(server) | Change::UpdateServer(server)
                if self.lacks.contains(server.scheduler.as_str()) =>
            {
                return Err(MISSING);
            }
            Change::AddServer(server) if self.hated.contains(&server.frontend.address) => {
                return Err(if self.short { NO_MEMORY } else { INVALID });
            }
            Change::AddServer(server) => {
                let fake = FakeServer { server: server.clone(), destinations: BTreeMap::new() };
                self.servers.insert(server.frontend, fake);
            }
            Change::UpdateServer(server) => {
                self.servers.get_mut(frontend).ok_or(NO_SERVER)?.server = server.clone();
            }
            Change::DeleteServer(_) | Change::DeleteDestination(..) if self.keeps => return Err(NO_MEMORY),
            Change::DeleteServer(_) => {
                let gone = self.servers.remove(frontend).ok_or(NO_SERVER)?.destinations;
                gone.into_values().for_each(|(one, active)| self.discard(frontend, &one, active));
            }
            Change::AddDestination(_, one) => {
                let is_hated = self.hated.contains(&one.address);
                let all = &mut self.servers.get_mut(frontend).ok_or(NO_SERVER)?.destinations;
                if is_hated {
                    return Err(if self.short { NO_MEMORY } else { INVALID });
                }
                check(frontend, one)?;
                if all.contains_key(&one.address) {
                    return Err(EXISTS);
                }
                let active = self.trash.remove(&(*frontend, one.address)).unwrap_or_default();
                all.insert(one.address, (*one, active));
            }
            Change::UpdateDestination(_, one) => {
                let all = &mut self.servers.get_mut(frontend).ok_or(NO_SERVER)?.destinations;
                check(frontend, one)?;
                all.get_mut(&one.address).ok_or(MISSING)?.0 = *one;
            }
            Change::DeleteDestination(_, address) => {
                let all = &mut self.servers.get_mut(frontend).ok_or(NO_SERVER)?.destinations;
                let (one, active) = all.remove(address).ok_or(MISSING)?;
                self.discard(frontend, &one, active);
            }
        }
        Ok(())
    }

    /// The kernel keeps a deleted destination as long as it has connections.
    fn discard(&mut self, frontend: &Frontend, one: &Destination, active: u32) {
        if active > 0 {
            self.trash.insert((*frontend, one.address), active);
        }
    }
}

/// Whether the kernel accepts a destination's address and numbers.
fn check(frontend: &Frontend, one: &Destination) -> Result<(), i32> {
    let is_v4 = one.address.is_ipv4();
    match one {
        Destination { weight, .. } if i32::try_from(*weight).is_err() => Err(RANGE),
        Destination { upper_threshold, lower_threshold, .. } if lower_threshold > upper_threshold => Err(RANGE),
        _ if is_v4 != frontend.address.is_ipv4() || one.address.ip().is_multicast() => Err(INVALID),
        _ => Ok(()),
    }
}

impl nft::Kernel for FakeKernel {
    fn apply(&mut self, transaction: &Transaction) -> Result<TransactionSize, Error> {
        let of_family =
            |change: &Rules| matches!(change, Rules::AddTable(table) if Some(table.family) == self.no_rules);
        if transaction.changes().iter().any(of_family) {
            return Err(Error::TransactionRefused { errno: NO_MEMORY, message: None });
        }
        self.log.push("rules".to_owned());
        let is_lost = self.unanswered_after == Some(0);
        self.unanswered_after = self.unanswered_after.and_then(|transactions| transactions.checked_sub(1));
        let size = self.nft.apply(transaction)?;
        if is_lost { Err(Error::Unanswered) } else { Ok(size) }
    }

    fn read(&mut self, table: &Table, wanted: &dyn Fn(&str) -> Option<Arc<Chain>>) -> Result<Option<LiveTable>, Error> {
        self.nft.read(table, wanted)
    }

    fn elements(&mut self, table: &Table, set: &Set) -> Result<Option<Vec<Element>>, Error> {
        self.nft.elements(table, set)
    }

    fn has_family(&self, _family: Family) -> bool {
        true
    }
}

impl Kernel for FakeKernel {
    fn nft(&mut self) -> &mut impl nft::Kernel {
        self
    }

    fn servers(&mut self) -> Result<Vec<ServerState>, ipvs::Error> {
        Ok(self.states())
    }

    fn heads(&mut self) -> Result<Vec<VirtualServer>, ipvs::Error> {
        Ok(self.servers.values().map(|fake| fake.server.clone()).collect())
    }

    fn destinations(&mut self, frontend: &Frontend) -> Result<Vec<DestinationState>, ipvs::Error> {
        let destinations = self.servers.get(frontend).map(|fake| fake.destinations.values().map(destination_state));
        Ok(destinations.into_iter().flatten().collect())
    }

    fn change(&mut self, changes: &[Change]) -> Result<Applied, ipvs::Error> {
        let mut refused = Vec::new();
        for (index, change) in changes.iter().enumerate() {
            if let Err(errno) = self.make(change) {
                refused.push(Refused::new(index, change, errno));
            }
        }
        self.log.push(ipvs::script(changes).trim_end().replace('\n', "; "));
        Ok(Applied { changes: changes.len(), batches: 1, refused })
    }

    async fn addresses(&mut self) -> Result<Option<BTreeSet<IpAddr>>, dummy::Error> {
        self.is_open = self.addresses.is_some();
        Ok(self.addresses.clone())
    }

    async fn bind(&mut self, add: Vec<IpAddr>, remove: Vec<IpAddr>) -> Result<Changed, dummy::Error> {
        self.log.push(format!("addresses +{add:?} -{remove:?}"));
        let was_open = std::mem::replace(&mut self.is_open, true);
        if was_open && self.addresses.is_none() && !(add.is_empty() && remove.is_empty()) {
            self.is_open = false;
            return Err(dummy::Error::Deleted { name: INTERFACE.to_owned() });
        }
        let held = self.addresses.get_or_insert_default();
        let removed = remove.iter().filter(|address| held.remove(*address)).count();
        let mut changed = Changed { removed, ..Changed::default() };
        for address in add {
            let errno = match address {
                _ if self.hated_addresses.contains(&address) => {
                    if self.short {
                        NO_MEMORY
                    } else {
                        INVALID
                    }
                }
                IpAddr::V6(one) if one.is_multicast() => NOT_AVAILABLE,
                _ => {
                    changed.added += usize::from(held.insert(address));
                    continue;
                }
            };
            changed.refused.push(dummy::Refused::new(address, true, INTERFACE, Some(errno), "hated".to_owned()));
        }
        Ok(changed)
    }

    async fn delete_interface(&mut self) -> Result<(), dummy::Error> {
        (self.addresses, self.is_open) = (None, false);
        Ok(())
    }
}

fn destination_state((destination, active): &(Destination, u32)) -> DestinationState {
    let connections = Connections { active: *active, ..Connections::default() };
    DestinationState { destination: *destination, connections }
}
