//! The command `dump`: reads back what HNS serves. Pure, except for [`read`].
//!
//! It reads all load balancers of the host, including those of other programs. HNS does not store every value
//! (`docs/backends/windows.md`). For example, the duration of session affinity is always 0 s.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use localnet_client::{
    served::{Entry, Served, To},
    vips::VipKey,
};
use localnet_proto::{Affinity, Family};

use crate::{
    hcn::{
        Guid, Hcn, Kind,
        schema::{Distribution, Endpoint, LoadBalancer, Query},
    },
    inventory::{self, Error},
    plan::{Address, Frontend},
};

/// Reads the load balancers and endpoints of this host.
///
/// # Errors
/// Returns an error if HNS does not answer or a list cannot be parsed.
pub fn read(hcn: &mut impl Hcn) -> Result<Served, Error> {
    let endpoints: BTreeMap<Guid, Endpoint> = inventory::documents(hcn, Kind::Endpoint, "endpoint", &Query::all())?;
    let balancers: BTreeMap<Guid, LoadBalancer> =
        inventory::documents(hcn, Kind::LoadBalancer, "load balancer", &Query::all())?;
    Ok(of(balancers.values(), &endpoints))
}

/// Returns what the load balancers serve with these endpoints. Identifiers without an endpoint are skipped.
pub fn of<'a>(balancers: impl IntoIterator<Item = &'a LoadBalancer>, endpoints: &BTreeMap<Guid, Endpoint>) -> Served {
    let mut served = Served::default();
    for balancer in balancers {
        for (frontend, mapping) in Frontend::mappings_of(balancer) {
            let named = balancer.host_compute_endpoints.iter().filter_map(|id| endpoints.get(id));
            let addresses = named.flat_map(Endpoint::addresses).filter(|one| Family::of(*one) == frontend.family());
            let sockets: BTreeSet<_> = addresses.map(|one| SocketAddr::new(one, mapping.internal_port)).collect();
            if !sockets.is_empty() {
                let affinity = (mapping.distribution_type == Distribution::SOURCE_IP).then(Affinity::default);
                served.0.insert(key(&frontend), Entry { to: Some(To::Endpoints(sockets)), outside: None, affinity });
            }
        }
    }
    served
}

/// Returns the key of a frontend. A NodePort, which answers on all addresses of the node, has the unspecified address.
fn key(frontend: &Frontend) -> VipKey {
    let address = match frontend.address {
        Address::Vip(address) => address,
        Address::Node(Family::V4) => IpAddr::from([0; 4]),
        Address::Node(Family::V6) => IpAddr::from([0; 16]),
    };
    VipKey { address, protocol: frontend.protocol, port: frontend.port }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::FakeHcn;

    #[test]
    fn the_dump_has_each_load_balancer_with_its_endpoints() {
        let mut fake = FakeHcn::with_network("pods", "L2Bridge", &[], &["10.180.0.1", "fd00::1"]);
        let [v4, v6] = ["10.180.0.1", "fd00::1"].map(|pod| fake.add_pod("pods", pod));
        for (number, document) in [
            format!(r#"{{"HostComputeEndpoints":["{v4}","{v6}","{}"],"FrontendVIPs":["10.96.0.1"],
                "PortMappings":[{{"Protocol":6,"InternalPort":8080,"ExternalPort":80,"DistributionType":2}},
                {{"Protocol":17,"InternalPort":5353,"ExternalPort":53}},{{"Protocol":99}}]}}"#, Guid::new(99)),
            format!(r#"{{"HostComputeEndpoints":["{v4}","{v6}"],"PortMappings":[{{"Protocol":6,"InternalPort":8080,"ExternalPort":30080}}],"Flags":2}}"#),
            // A load balancer without endpoints.
            r#"{"FrontendVIPs":["10.96.0.2"],"PortMappings":[{"Protocol":6,"InternalPort":8080,"ExternalPort":80}]}"#.to_owned(),
            // A document that cannot be parsed.
            r#"{"FrontendVIPs":"?"}"#.to_owned(),
        ]
        .iter()
        .enumerate()
        {
            let id = Guid::new(1_000 + number as u128);
            fake.objects.insert((Kind::LoadBalancer, id), serde_json::from_str(document).unwrap());
        }
        let expected = "10.96.0.1 TCP 80 -> 10.180.0.1:8080\n10.96.0.1 TCP 80 affinity 0\n10.96.0.1 UDP 53 -> 10.180.0.1:5353\n\
            :: TCP 30080 -> [fd00::1]:8080\n";
        assert_eq!(read(&mut fake).unwrap().to_string(), expected);
        assert_eq!(fake.log, [""; 0], "reading changes nothing");
    }
}
