//! The one seam to the kernel, and its one user of sockets. Everything else in this crate is pure.

use std::{collections::BTreeSet, net::IpAddr};

use localnet_linux::{
    dummy::{self, Changed, Dummy},
    ipvs::{self, Applied, Change, DestinationState, Frontend, ServerState, Timeouts, VirtualServer},
    nft::{self, Chain, Element, Family, Found, Netlink, Sent, Set, Table, Transaction},
};

use crate::plan::INTERFACE;

/// What the backend needs beside nf_tables. The second implementor is the tests' fake.
pub trait Kernel: nft::Kernel {
    /// All virtual servers with their destinations.
    fn servers(&mut self) -> Result<Vec<ServerState>, ipvs::Error>;
    /// All virtual servers without them, which costs much less.
    fn heads(&mut self) -> Result<Vec<VirtualServer>, ipvs::Error>;
    /// The destinations of a virtual server; none if there is no such virtual server.
    fn destinations(&mut self, frontend: &Frontend) -> Result<Vec<DestinationState>, ipvs::Error>;
    /// Makes changes, one after the other.
    fn change(&mut self, changes: &[Change]) -> Result<Applied, ipvs::Error>;
    /// The addresses of the interface; `None` if there is no interface.
    fn addresses(&mut self) -> impl Future<Output = Result<Option<BTreeSet<IpAddr>>, dummy::Error>> + Send;
    /// Adds addresses to the interface, which is made if there is none, and removes others.
    fn bind(
        &mut self,
        add: Vec<IpAddr>,
        remove: Vec<IpAddr>,
    ) -> impl Future<Output = Result<Changed, dummy::Error>> + Send;
    /// Deletes the interface, if there is one.
    fn delete_interface(&mut self) -> impl Future<Output = Result<(), dummy::Error>> + Send;
}

/// The kernel, in the network namespace in which it was opened.
#[derive(Debug)]
pub struct Host {
    nft: Netlink,
    ipvs: ipvs::Socket,
    interface: Option<Dummy>,
}

impl Host {
    /// Connects to the IPVS and the nf_tables of this thread's network namespace. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The kernel lacks one of them.
    pub fn open() -> anyhow::Result<Self> {
        Ok(Self { nft: Netlink::open()?, ipvs: ipvs::Socket::open()?, interface: None })
    }

    /// The netlink port, by which this process's commits to nf_tables are known.
    pub fn nft_port(&self) -> u32 {
        self.nft.port()
    }

    /// Sets the timeouts that are not 0.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn set_timeouts(&mut self, timeouts: &Timeouts) -> Result<(), ipvs::Error> {
        if *timeouts == Timeouts::default() { Ok(()) } else { self.ipvs.set_timeouts(timeouts) }
    }

    async fn find(&mut self) -> Result<Option<&Dummy>, dummy::Error> {
        if self.interface.is_none() {
            self.interface = Dummy::find(INTERFACE).await?;
        }
        Ok(self.interface.as_ref())
    }
}

impl nft::Kernel for Host {
    fn apply(&mut self, transaction: &Transaction) -> Result<Sent, nft::Error> {
        self.nft.apply(transaction)
    }

    fn read(
        &mut self,
        table: &Table,
        wanted: &dyn Fn(&str) -> Option<std::sync::Arc<Chain>>,
    ) -> Result<Option<Found>, nft::Error> {
        self.nft.read(table, wanted)
    }

    fn elements(&mut self, table: &Table, set: &Set) -> Result<Option<Vec<Element>>, nft::Error> {
        nft::Kernel::elements(&mut self.nft, table, set)
    }

    fn has_family(&self, family: Family) -> bool {
        self.nft.has_family(family)
    }
}

impl Kernel for Host {
    fn servers(&mut self) -> Result<Vec<ServerState>, ipvs::Error> {
        self.ipvs.list()
    }

    fn heads(&mut self) -> Result<Vec<VirtualServer>, ipvs::Error> {
        self.ipvs.servers()
    }

    fn destinations(&mut self, frontend: &Frontend) -> Result<Vec<DestinationState>, ipvs::Error> {
        self.ipvs.destinations(frontend)
    }

    fn change(&mut self, changes: &[Change]) -> Result<Applied, ipvs::Error> {
        self.ipvs.apply(changes)
    }

    async fn addresses(&mut self) -> Result<Option<BTreeSet<IpAddr>>, dummy::Error> {
        // It may have been deleted, and made again by somebody else.
        self.interface = None;
        match self.find().await? {
            Some(interface) => interface.addresses().await.map(Some),
            None => Ok(None),
        }
    }

    async fn bind(&mut self, add: Vec<IpAddr>, remove: Vec<IpAddr>) -> Result<Changed, dummy::Error> {
        let interface = match &self.interface {
            Some(interface) => interface,
            None => self.interface.insert(Dummy::ensure(INTERFACE).await?),
        };
        let result = interface.change(add, remove).await;
        if matches!(result, Err(dummy::Error::Gone { .. })) {
            self.interface = None;
        }
        result
    }

    async fn delete_interface(&mut self) -> Result<(), dummy::Error> {
        self.interface = None;
        match Dummy::find(INTERFACE).await? {
            Some(interface) => interface.delete().await,
            None => Ok(()),
        }
    }
}
