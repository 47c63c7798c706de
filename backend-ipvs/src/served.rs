//! The command `dump`: determines from the live virtual servers and tables what they serve. Pure, except for [`read`].
//!
//! The tables take precedence over the virtual servers: packets that the tables reject or drop never reach IPVS, and packets
//! that they translate bypass it. This module reads the elements of the tables, but not the rules. The rules are the same for
//! all Services, and tests verify them with packets.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use anyhow::Context as _;
use localnet_client::{
    served::{Entry, Served, To},
    vips::VipKey,
};
use localnet_linux::{
    addresses::NodeAddresses,
    ipvs::{self, Forwarding, ServerState},
    nft::{self, TableDump},
};
use localnet_linux_backend::elements::{of_set, read_endpoint, read_numbered, verdicts, vips};
use localnet_proto::Family;

use crate::plan::{
    sets::SetId::{Endpoints, ExternalLocal, NoEndpoints, Services},
    table, vip,
};

/// Reads IPVS, both tables and the addresses of this network namespace. Must be called in a tokio runtime.
///
/// # Errors
/// Returns an error if the kernel has no IPVS, or if IPVS, a table or the addresses cannot be read.
pub async fn read() -> anyhow::Result<Served> {
    let servers = ipvs::Socket::open().context("cannot open IPVS")?.list().context("cannot list virtual servers")?;
    let local = NodeAddresses::default().list().await?.into_iter().collect();
    let mut socket = nft::Socket::open().context("cannot open nf_tables")?;
    let mut tables = Vec::new();
    for family in Family::BOTH {
        tables.extend(socket.table(&table(family)).context("cannot read the table")?);
    }
    Ok(of(&servers, &tables, &local))
}

/// What virtual servers and tables serve on a node. A virtual server whose address is not in `local` gets no packets.
pub fn of(servers: &[ServerState], tables: &[TableDump], local: &BTreeSet<IpAddr>) -> Served {
    let reached = servers.iter().filter(|state| local.contains(&state.server.frontend.address.ip()));
    let servers: BTreeMap<VipKey, &ServerState> = reached.map(|state| (vip(&state.server.frontend), state)).collect();
    let verdicts = verdicts(tables, NoEndpoints, &[]);
    let by_policy: BTreeSet<VipKey> = vips(tables, ExternalLocal).collect();
    let picked: BTreeSet<VipKey> = vips(tables, Services).collect();
    let mut translated: BTreeMap<VipKey, Vec<SocketAddr>> = BTreeMap::new();
    for element in of_set(tables, Endpoints) {
        let (vip, endpoint) = (read_numbered(element.key.start()), read_endpoint(&element.data));
        let (Some((key, _)), Some(endpoint)) = (vip, endpoint) else { continue };
        // An endpoint gets packets only if an element of `services` leads to it.
        if picked.contains(&key) && by_policy.contains(&key) {
            translated.entry(key).or_default().push(endpoint);
        }
    }
    let keys: BTreeSet<VipKey> = servers.keys().chain(verdicts.keys()).chain(translated.keys()).copied().collect();
    let entry = |key: VipKey| {
        let server = servers.get(&key);
        let by_ipvs = match verdicts.get(&key) {
            Some(verdict) => Some(To::Nothing(*verdict)),
            None => server.and_then(|state| serving(state)),
        };
        // With external policy Local, this node's own traffic is translated before it reaches IPVS.
        let entry = match translated.get(&key) {
            Some(endpoints) => {
                // Without a destination, the virtual server has no way for packets from outside.
                let outside = by_ipvs.unwrap_or_else(|| To::Endpoints(BTreeSet::new()));
                let to = To::Endpoints(endpoints.iter().copied().collect());
                Entry { to: Some(to), outside: Some(outside), affinity: None }
            }
            None => Entry { to: by_ipvs, ..Entry::default() },
        };
        let affinity = server.and_then(|state| state.server.persistence).map(|persistence| persistence.timeout.into());
        (key, Entry { affinity, ..entry }.plain())
    };
    Served(keys.into_iter().map(entry).collect())
}

/// The destinations that get new connections; `None` if there are none. Destinations with weight 0 drain, so they do not count.
/// Neither do destinations without masquerading, because their packets keep the address and port of the VIP.
fn serving(state: &ServerState) -> Option<To> {
    let destinations = state.destinations.iter().map(|state| state.destination);
    let serving = destinations.filter(|one| one.weight > 0 && one.forwarding == Forwarding::MASQUERADE);
    let endpoints: BTreeSet<SocketAddr> = serving.map(|one| one.address).collect();
    (!endpoints.is_empty()).then_some(To::Endpoints(endpoints))
}

#[cfg(test)]
mod tests {
    use localnet_client::{served::Expected, vips::Config};
    use localnet_lab::{Case, cases};
    use localnet_linux::{
        ipvs::{Connections, Destination, DestinationState},
        nft::SetDump,
    };
    use localnet_proto::{Changes, Snapshot};

    use super::*;
    use crate::{
        Options,
        desired::Desired,
        plan::sets::{SetId, Sets as _},
    };

    /// A kernel that holds a desired state.
    #[derive(Clone)]
    struct Kernel {
        servers: Vec<ServerState>,
        tables: Vec<TableDump>,
        local: BTreeSet<IpAddr>,
    }

    impl Kernel {
        fn holding(state: &Snapshot, local: Vec<IpAddr>) -> Self {
            let mut desired = Desired::new(Config::default(), Options::default());
            desired.set_local_addresses(local.clone());
            desired.update(state, &Changes::everything());
            let server = |plan: &crate::plan::server::Plan| ServerState {
                server: plan.server.clone(),
                destinations: plan.destinations.iter().map(|address| destination(*address, 1)).collect(),
            };
            let tables = desired.content().into_iter().map(|table| TableDump {
                chains: Vec::new(),
                sets: table
                    .sets
                    .into_iter()
                    .map(|(set, elements)| SetDump { name: set.name.clone(), set: Some(set), elements })
                    .collect(),
                generation: 1,
            });
            Self {
                servers: desired.servers().wanted().map(server).collect(),
                tables: tables.collect(),
                local: desired.wanted_addresses().chain(local).collect(),
            }
        }

        /// The kernel after a sync with the Case. The conformance kit runs the backend without flags, too.
        fn of_case(case: &Case) -> Self {
            Self::holding(&case.read_state().unwrap(), case.flows.local_addresses())
        }

        fn served(&self) -> Served {
            of(&self.servers, &self.tables, &self.local)
        }
    }

    fn destination(address: SocketAddr, weight: u32) -> DestinationState {
        DestinationState { destination: Destination::masqueraded(address, weight), connections: Connections::default() }
    }

    #[test]
    fn the_dump_of_every_case_equals_its_state() {
        let mut served = 0;
        for case in cases() {
            let read = Kernel::of_case(&case).served();
            served += read.0.len();
            let expected = Expected::of(&case.read_state::<Snapshot>().unwrap());
            assert_eq!(expected.differences(&read), "", "{}", case.name);
            // The printed form parses to the same value.
            assert_eq!(Served::parse(read.to_string().lines()).unwrap(), read, "{}", case.name);
        }
        assert!(served > 300, "{served} destinations");
    }

    fn local_policy() -> (Snapshot, Kernel) {
        let state = "{node: {name: n, addresses: [192.168.0.2]}, services: [
            {service: a/web, type: LoadBalancer, clusterIPs: [172.30.0.1], loadBalancerIPs: [198.51.100.1], externalTrafficToLocal: true,
             clientIpAffinity: 60, ports: [{protocol: TCP, port: 80}], endpoints: [
             {address: 10.180.0.1, ports: [{port: 8080}], local: true, scopes: {internal: true, external: true, shortCircuit: true}},
             {address: 10.180.1.1, ports: [{port: 8080}], scopes: {internal: true, shortCircuit: true}}]}]}";
        let state: Snapshot = serde_saphyr::from_str(state).unwrap();
        let kernel = Kernel::holding(&state, vec![[192, 168, 0, 2].into()]);
        (state, kernel)
    }

    #[test]
    fn objects_missing_from_the_kernel_are_missing_from_the_dump() {
        let (state, whole) = local_policy();
        let differences = |change: fn(&mut Kernel)| {
            let mut kernel = whole.clone();
            change(&mut kernel);
            Expected::of(&state).differences(&kernel.served())
        };
        assert_eq!(differences(|_| {}), "");
        let balancer = "198.51.100.1 TCP 80";
        let cluster = "172.30.0.1 TCP 80";
        for (change, lacks) in [
            (
                (|kernel| kernel.servers.retain(|state| !state.server.frontend.address.ip().is_ipv4()))
                    as fn(&mut Kernel),
                format!("lacks: {cluster} -> 10.180.0.1:8080 10.180.1.1:8080"),
            ),
            // Packets from outside find no virtual server. Those of the node itself are translated before.
            (
                |kernel| {
                    kernel
                        .servers
                        .retain(|state| state.server.frontend.address.ip() != IpAddr::from([198, 51, 100, 1]));
                },
                format!("has extra: {balancer} outside ->"),
            ),
            // No packet reaches a virtual server whose address is not local.
            (
                |kernel| _ = kernel.local.remove(&IpAddr::from([172, 30, 0, 1])),
                format!("lacks: {cluster} -> 10.180.0.1:8080 10.180.1.1:8080"),
            ),
            (
                |kernel| kernel.servers.iter_mut().for_each(|state| state.server.persistence = None),
                format!("lacks: {cluster} affinity 60"),
            ),
            // A destination with weight 0 drains.
            (
                |kernel| kernel.servers.iter_mut().for_each(|state| state.destinations[0].destination.weight = 0),
                format!("has extra: {cluster} -> 10.180.1.1:8080"),
            ),
            (
                |kernel| {
                    kernel.servers.iter_mut().for_each(|state| {
                        state.destinations[0].destination.forwarding = Forwarding::ROUTE;
                    });
                },
                format!("lacks: {cluster} -> 10.180.0.1:8080 10.180.1.1:8080"),
            ),
            (|kernel| clear(kernel, Services), format!("lacks: {balancer} -> 10.180.0.1:8080 10.180.1.1:8080")),
            (|kernel| clear(kernel, Endpoints), format!("lacks: {balancer} outside -> 10.180.0.1:8080")),
            (|kernel| clear(kernel, ExternalLocal), format!("lacks: {balancer} outside -> 10.180.0.1:8080")),
        ] {
            let differences = differences(change);
            assert!(differences.contains(&lacks), "{lacks}: {differences}");
        }
    }

    fn clear(kernel: &mut Kernel, id: SetId) {
        kernel
            .tables
            .iter_mut()
            .flat_map(|table| &mut table.sets)
            .filter(|set| *set.name == *id.name())
            .for_each(|set| set.elements.clear());
    }

    #[test]
    fn a_verdict_has_precedence_over_destinations() {
        let (mut state, kernel) = local_policy();
        let web = state.services.values_mut().next().unwrap();
        std::sync::Arc::make_mut(web).endpoints.clear();
        let empty = Kernel::holding(&state, vec![[192, 168, 0, 2].into()]);
        assert_eq!(empty.served().to_string(), "172.30.0.1 TCP 80 reject\n198.51.100.1 TCP 80 reject\n");
        // Remaining destinations get nothing, because the table rejects packets before IPVS.
        let both = Kernel { servers: kernel.servers.clone(), ..empty.clone() };
        assert_eq!(both.served(), empty.served());
        // Without elements in the table, they would get packets. A virtual server without destinations serves nothing.
        let mut unguarded = empty.clone();
        clear(&mut unguarded, NoEndpoints);
        assert_eq!(unguarded.served().to_string(), "");
    }
}
