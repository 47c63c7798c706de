//! The crate's only access to the kernel, and its only use of sockets.

use std::{collections::BTreeSet, net::IpAddr};

use localnet_linux::{
    dummy::{self, Changed, Dummy},
    ipvs::{self, Applied, Change, DestinationState, Frontend, ServerState, Timeouts, VirtualServer},
    nft::{self, Netlink},
};

use crate::plan::INTERFACE;

/// The kernel operations that the backend needs. [`Host`] implements them, and so does a fake for tests.
pub trait Kernel: Send {
    /// The interface to nf_tables.
    fn nft(&mut self) -> &mut impl nft::Kernel;
    /// All virtual servers with their destinations.
    fn servers(&mut self) -> Result<Vec<ServerState>, ipvs::Error>;
    /// All virtual servers without their destinations, which is much cheaper.
    fn heads(&mut self) -> Result<Vec<VirtualServer>, ipvs::Error>;
    /// The destinations of a virtual server; empty if it does not exist.
    fn destinations(&mut self, frontend: &Frontend) -> Result<Vec<DestinationState>, ipvs::Error>;
    /// Applies changes one after the other.
    fn change(&mut self, changes: &[Change]) -> Result<Applied, ipvs::Error>;
    /// The addresses of the interface; `None` if it does not exist.
    fn addresses(&mut self) -> impl Future<Output = Result<Option<BTreeSet<IpAddr>>, dummy::Error>> + Send;
    /// Adds addresses to the interface and removes others. It creates the interface if it does not exist.
    fn bind(
        &mut self,
        add: Vec<IpAddr>,
        remove: Vec<IpAddr>,
    ) -> impl Future<Output = Result<Changed, dummy::Error>> + Send;
    /// Deletes the interface if it exists.
    fn delete_interface(&mut self) -> impl Future<Output = Result<(), dummy::Error>> + Send;
}

/// The kernel, in the network namespace where it was opened.
#[derive(Debug)]
pub struct Host {
    nft: Netlink,
    ipvs: ipvs::Socket,
    interface: Option<Dummy>,
}

impl Host {
    /// Connects to IPVS and nf_tables in the network namespace of this thread. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// Returns an error if the kernel lacks IPVS or nf_tables.
    pub fn open() -> anyhow::Result<Self> {
        Ok(Self { nft: Netlink::open()?, ipvs: ipvs::Socket::open()?, interface: None })
    }

    /// The netlink port, which identifies this process's commits to nf_tables.
    pub fn nft_port(&self) -> u32 {
        self.nft.port()
    }

    /// Sets the timeouts that are not 0.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses them.
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

impl Kernel for Host {
    fn nft(&mut self) -> &mut impl nft::Kernel {
        &mut self.nft
    }

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
        // Another program may have deleted the interface and created it again.
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
        if matches!(result, Err(dummy::Error::Deleted { .. })) {
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
