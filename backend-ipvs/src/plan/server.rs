//! Plans a VIP as a virtual server.

use std::{net::SocketAddr, sync::Arc};

use localnet_client::vips::{Exposure, Vip, VipKey, Weights};
use localnet_linux::ipvs::{Change, Destination, Persistence, Scheduler, VirtualServer};
use localnet_proto::Family;

use super::frontend;
use crate::options;

/// A virtual server and its destinations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The virtual server.
    pub server: VirtualServer,
    /// The destinations, sorted and without duplicates.
    pub destinations: Arc<[SocketAddr]>,
    /// The weights of the destinations.
    pub weights: Weights,
}

impl Plan {
    /// The destination with this address.
    pub fn destination(&self, address: SocketAddr) -> Destination {
        Destination::masqueraded(address, self.weights.of(&address))
    }

    /// The changes that create the virtual server with its destinations.
    pub fn changes(&self) -> impl Iterator<Item = Change> {
        let frontend = self.server.frontend;
        let add = move |address: &SocketAddr| Change::AddDestination(frontend, self.destination(*address));
        [Change::AddServer(self.server.clone())].into_iter().chain(self.destinations.iter().map(add))
    }
}

/// The virtual server of a VIP. With external policy Local, it has only local endpoints. This node's own traffic to the other
/// endpoints is translated before IPVS (see [`super::chains`]), so IPVS handles only traffic from outside.
pub fn of_vip(key: &VipKey, vip: &Vip, scheduler: &Scheduler) -> Plan {
    let destinations = match vip.exposure {
        Exposure::Internal | Exposure::External => &vip.endpoints,
        Exposure::ExternalLocal => &vip.local_endpoints,
    };
    let family = Family::of(key.address);
    let server = VirtualServer {
        frontend: frontend(key),
        scheduler: scheduler.clone(),
        flags: options::flags(scheduler, vip.hash.as_ref().map(|hashing| hashing.by)),
        persistence: vip.affinity.map(|affinity| Persistence::of_addresses(family, affinity.seconds)),
    };
    Plan { server, destinations: destinations.clone(), weights: vip.weights.clone() }
}
