//! Random clusters from a seed, and random changes of them. Pure: the same seed gives the same clusters.

use std::{collections::BTreeSet, net::IpAddr};

use localnet_lab::{
    Protocol,
    topology::{NODE, Place},
};

use super::{
    cluster::{Cluster, Ingress, Kind, Port, Service, Slice, SliceEndpoint, SlicePort},
    pools,
    random::Random,
};

const FEWEST: usize = 15;
const PORT_NAMES: [&str; 4] = ["http", "dns", "metrics", "p"];
const SOURCE_RANGES: [&str; 10] = [
    "203.0.113.0/25",
    "203.0.113.128/25",
    "10.180.0.0/16",
    "192.168.0.0/24",
    "0.0.0.0/0",
    "2001:db8:2::/121",
    "fd00:10:180::/64",
    "2001:db8::/64",
    "::/0",
    "198.51.100.0/24",
];

impl Cluster {
    /// Creates a random cluster.
    pub(crate) fn random(random: &mut Random) -> Self {
        let mut cluster = Self::default();
        cluster.node.zone = zone(random);
        for slot in random.some(&slots(), FEWEST..usize::from(pools::SLOTS) + 1) {
            cluster.add(slot, 'a', random);
        }
        cluster
    }

    /// Adds, removes and changes some Services, and keeps most. Sometimes changes the Node's facts, or adds, removes or changes a
    /// ServiceCIDR.
    pub(crate) fn change(&mut self, random: &mut Random) {
        if random.percent(20) {
            self.node.zone = zone(random);
        }
        if random.percent(12) {
            self.node.addresses = *random.pick(&pools::NODE_ADDRESSES);
        }
        if random.percent(8) {
            self.node.pod_cidrs = *random.pick(&pools::NODE_POD_CIDRS);
        }
        if random.percent(15) {
            let at = random.below(pools::MORE_SERVICE_CIDRS.len());
            self.more_service_cidrs = pools::MORE_SERVICE_CIDRS[at];
        }
        for _ in 0..3 + random.below(5) {
            let slot = *random.pick(&slots());
            let Some(mut service) = self.services.remove(&slot) else {
                self.add(slot, 'a', random);
                continue;
            };
            match random.below(10) {
                0 => {}
                // Another Service with the same addresses and NodePorts.
                1 => self.add(slot, if service.name.ends_with('a') { 'b' } else { 'a' }, random),
                2..5 => {
                    endpoints_change(&mut service, random);
                    self.services.insert(slot, service);
                }
                5 => {
                    self.give_slices(&mut service, random);
                    self.services.insert(slot, service);
                }
                _ => {
                    let other = self.service(slot, &service.name, random);
                    mix(&mut service, other, slot, random);
                    self.services.insert(slot, service);
                }
            }
        }
        self.rename_slices();
    }

    /// Moves slices from one Service to another by changing their label.
    fn give_slices(&mut self, from: &mut Service, random: &mut Random) {
        let others: Vec<u8> = self.services.keys().copied().collect();
        if others.is_empty() {
            return;
        }
        let Some(to) = self.services.get_mut(random.pick(&others)) else { return };
        let usual = *random.pick(&pools::ENDPOINT_PORTS);
        for _ in 0..1 + random.below(2) {
            let Some(mut slice) = from.slices.pop() else { break };
            if random.percent(80) {
                slice.ports = slice_ports(&to.ports, usual, random);
            }
            to.slices.push(slice);
        }
        agree_on_duplicates(&mut to.slices);
    }

    /// Renames new slices whose names another Service's slices already have.
    fn rename_slices(&mut self) {
        let mut taken = BTreeSet::new();
        for slice in self.services.values_mut().flat_map(|service| &mut service.slices) {
            while !taken.insert(slice.name.clone()) {
                slice.name.push('x');
            }
        }
    }

    fn add(&mut self, slot: u8, suffix: char, random: &mut Random) {
        let service = self.service(slot, &format!("svc-{slot}{suffix}"), random);
        self.services.insert(slot, service);
    }

    /// A Service for a slot that is free or that it takes over.
    fn service(&self, slot: u8, name: &str, random: &mut Random) -> Service {
        let kind = random.weighted(&[
            (35, Kind::ClusterIp),
            (25, Kind::NodePort),
            (32, Kind::LoadBalancer),
            (4, Kind::Headless),
            (4, Kind::ExternalName),
        ]);
        let [v4, v6] = pools::cluster_ips(slot, *random.pick(&pools::CLUSTER_IPS_OF_SLOT));
        let ports = ports(slot, random);
        // Some Services ignore the claims of others.
        let taken = if random.percent(20) { BTreeSet::new() } else { self.taken_beside(slot) };
        let free = |pool: Vec<IpAddr>| -> Vec<IpAddr> {
            let is_free = |ip: &IpAddr| ports.iter().all(|port| !taken.contains(&(*ip, port.protocol, port.number)));
            pool.into_iter().filter(is_free).collect()
        };
        let ingress = random.some(&free(pools::load_balancer_ips()), 0..4);
        let mut external_ips = match random.percent(35) {
            true => random.some(&free(pools::external_ips()), 1..4),
            false => Vec::new(),
        };
        // The same address twice. Source ranges may protect only one of its roles.
        if random.percent(12) {
            external_ips.extend(ingress.first());
        }
        let mode = |ip| Ingress { ip, mode: random.weighted(&[(4, Some("VIP")), (2, None), (1, Some("Proxy"))]) };
        let ingress = ingress.into_iter().map(mode).collect();
        Service {
            name: name.to_owned(),
            kind,
            cluster_ips: random.pick(&[vec![v4, v6], vec![v6, v4], vec![v4], vec![v6], vec![v4, v6]]).clone(),
            external_ips,
            ingress,
            source_ranges: match random.percent(40) {
                true => random.some(&SOURCE_RANGES, 1..4),
                false => Vec::new(),
            },
            internal_local: random.percent(25),
            external_local: random.percent(40),
            affinity: random.percent(25).then(|| *random.pick(&[1, 2, 60, 600, 10_800, 86_400])),
            other_proxy: random.percent(4),
            allocate_node_ports: random.percent(75),
            health_port: pools::health_port(slot),
            distribution: random.weighted(&[(6, None), (1, Some("PreferSameZone")), (1, Some("PreferSameNode"))]),
            keeps_object: random.percent(60),
            slices: slices(name, &ports, random),
            ports,
        }
    }

    /// External addresses that the Services of other slots claim, with protocols and ports.
    fn taken_beside(&self, slot: u8) -> BTreeSet<(IpAddr, Protocol, u16)> {
        let others = self.services.iter().filter(|(other, _)| **other != slot).map(|(_, service)| service);
        others.flat_map(claims).collect()
    }
}

fn zone(random: &mut Random) -> Option<&'static str> {
    random.weighted(&[(6, Some(pools::ZONES[0])), (2, Some(pools::ZONES[1])), (1, None), (1, Some("zone-of-nobody"))])
}

fn slots() -> Vec<u8> {
    (0..pools::SLOTS).collect()
}

/// The external addresses that a Service claims, with protocols and ports.
fn claims(service: &Service) -> impl Iterator<Item = (IpAddr, Protocol, u16)> + '_ {
    let addresses = service.ingress.iter().map(|ingress| ingress.ip).chain(service.external_ips.iter().copied());
    addresses.flat_map(|ip| service.ports.iter().map(move |port| (ip, port.protocol, port.number)))
}

fn ports(slot: u8, random: &mut Random) -> Vec<Port> {
    let protocol =
        |random: &mut Random| random.weighted(&[(6, Protocol::Tcp), (3, Protocol::Udp), (1, Protocol::Sctp)]);
    let node_ports = pools::node_ports(slot);
    let count = 1 + random.below(3);
    let unnamed = count == 1 && random.percent(50);
    let names = random.some(&PORT_NAMES, count..count + 1);
    let mut ports: Vec<Port> = Vec::new();
    for (name, node_port) in names.into_iter().zip(node_ports) {
        let name = if unnamed { "" } else { name };
        let (mut number, mut node_port, own) = (*random.pick(&pools::SERVICE_PORTS), node_port, protocol(random));
        // The same number with another protocol is another port.
        if let Some(first) = ports.first()
            && first.protocol != own
            && random.percent(60)
        {
            (number, node_port) = (first.number, first.node_port);
        }
        let is_taken = |port: &Port| port.protocol == own && (port.number == number || port.node_port == node_port);
        if !ports.iter().any(is_taken) {
            ports.push(Port { name, protocol: own, number, node_port });
        }
    }
    ports
}

/// The hints of the endpoints of a slice.
#[derive(Clone, Copy)]
enum Hints {
    None,
    Zones,
    ZonesAndNodes,
    Any,
}

fn slices(service: &str, ports: &[Port], random: &mut Random) -> Vec<Slice> {
    let mut slices = Vec::new();
    let most = random.weighted(&[(9, None), (1, Some(usize::from(pools::FOREIGN)))]);
    for v4 in [true, false] {
        let hints =
            random.weighted(&[(55, Hints::None), (20, Hints::Zones), (15, Hints::ZonesAndNodes), (10, Hints::Any)]);
        // The percentage of healthy endpoints. Most Services work, and some have no ready endpoint.
        let healthy = random.weighted(&[(6, 85), (2, 40), (2, 0)]);
        let of_family = slices.len();
        let usual = *random.pick(&pools::ENDPOINT_PORTS);
        for number in 0..random.weighted(&[(12, 0), (50, 1), (28, 2), (10, 3)]) {
            let name = format!("{service}-{}-{number}", if v4 { "v4" } else { "v6" });
            let usual_count = random.weighted(&[(1, 0), (5, 1), (5, 2), (4, 3), (2, 5)]);
            let (foreign, count) = match most {
                None => (pools::USUAL_FOREIGN, usual_count),
                Some(most) => (pools::FOREIGN, 1 + random.below(most)),
            };
            let endpoints = random.some(&endpoints(v4, foreign), count..count + 1);
            let endpoints =
                endpoints.into_iter().map(|(address, node)| endpoint(address, node, hints, healthy, random));
            slices.push(Slice { name, v4, endpoints: endpoints.collect(), ports: slice_ports(ports, usual, random) });
        }
        settle_duplicates(&mut slices[of_family..], random);
    }
    slices
}

/// Addresses of endpoints, each with a node for its `nodeName`: a pod's own node, and any node or none for others.
fn endpoints(v4: bool, foreign: u8) -> Vec<(IpAddr, Option<&'static str>)> {
    let of_family = |pair: [IpAddr; 2]| if v4 { pair[0] } else { pair[1] };
    let mut endpoints = Vec::new();
    for number in pools::PODS {
        for (place, node) in [(Place::Local, "node-a"), (Place::Remote, "node-b")] {
            endpoints.push((of_family(pools::pod(place, number).addresses()), Some(node)));
        }
    }
    endpoints.push((of_family(NODE), Some("node-a")));
    for number in 0..foreign {
        let node = if number % 2 == 0 { None } else { Some("node-b") };
        endpoints.push((of_family(pools::foreign(number)), node));
    }
    endpoints
}

fn endpoint(
    address: IpAddr,
    node: Option<&'static str>,
    hints: Hints,
    healthy: usize,
    random: &mut Random,
) -> SliceEndpoint {
    let (yes, no) = (Some(true), Some(false));
    let [ready, serving, terminating] = match random.percent(healthy) {
        true => *random.pick(&[[yes, yes, no], [yes, None, None], [None, None, None], [yes, yes, None]]),
        false => random.weighted(&[
            (30, [no, yes, yes]),
            (25, [no, no, no]),
            (10, [no, no, yes]),
            (10, [no, None, yes]),
            (5, [no, None, None]),
            (5, [no, yes, no]),
            // As with publishNotReadyAddresses.
            (8, [yes, no, yes]),
            (7, [yes, yes, yes]),
            (5, [None, no, no]),
        ]),
    };
    let zones = |random: &mut Random| random.pick(&[vec!["zone-a"], vec!["zone-b"], vec!["zone-b", "zone-a"]]).clone();
    let nodes = |random: &mut Random| random.pick(&[vec!["node-a"], vec!["node-b"], vec!["node-b"]]).clone();
    let (zones, nodes) = match hints {
        Hints::None => (vec![], vec![]),
        Hints::Zones => (zones(random), vec![]),
        Hints::ZonesAndNodes => (zones(random), nodes(random)),
        Hints::Any => (
            if random.percent(60) { zones(random) } else { vec![] },
            if random.percent(60) { nodes(random) } else { vec![] },
        ),
    };
    SliceEndpoint { address, node, ready, serving, terminating, zones, nodes }
}

fn slice_ports(ports: &[Port], usual: u16, random: &mut Random) -> Vec<SlicePort> {
    let mut of_slice = Vec::new();
    for port in ports {
        let (name, protocol) = (port.name, port.protocol);
        let number = Some(if random.percent(60) { usual } else { *random.pick(&pools::ENDPOINT_PORTS) });
        let as_it_is = SlicePort { name, protocol, number };
        of_slice.extend(match random.below(25) {
            0 => None,
            1 => Some(SlicePort { number: None, ..as_it_is }),
            2 => {
                let other = if protocol == Protocol::Tcp { Protocol::Udp } else { Protocol::Tcp };
                Some(SlicePort { protocol: other, ..as_it_is })
            }
            _ => Some(as_it_is),
        });
    }
    if random.percent(10) {
        of_slice.push(SlicePort { name: "unrelated", protocol: Protocol::Tcp, number: Some(pools::ENDPOINT_PORTS[0]) });
    }
    of_slice
}

/// Removes contradictions that kube-proxy resolves at random. If two slices give one address different conditions, kube-proxy
/// uses whichever endpoint its map yields last, unless exactly one of them is terminating. Only deterministic decisions can be
/// compared.
fn settle_duplicates(slices: &mut [Slice], random: &mut Random) {
    let mut seen: Vec<SliceEndpoint> = Vec::new();
    for endpoint in slices.iter_mut().flat_map(|slice| &mut slice.endpoints) {
        let mut same = seen.iter().filter(|other| other.address == endpoint.address);
        match (same.next().cloned(), same.next()) {
            (None, _) => {}
            (Some(first), None) if random.percent(50) => {
                let terminating = Some(first.terminating != Some(true));
                *endpoint = SliceEndpoint { terminating, ..endpoint.clone() };
            }
            (Some(first), _) => *endpoint = first,
        }
        seen.push(endpoint.clone());
    }
}

/// Makes all slices agree about each address.
fn agree_on_duplicates(slices: &mut [Slice]) {
    let mut seen: Vec<SliceEndpoint> = Vec::new();
    for endpoint in slices.iter_mut().flat_map(|slice| &mut slice.endpoints) {
        match seen.iter().find(|other| other.address == endpoint.address) {
            Some(first) => *endpoint = first.clone(),
            None => seen.push(endpoint.clone()),
        }
    }
}

/// Changes only slices, as a rolling update, scaling or a probe does.
fn endpoints_change(service: &mut Service, random: &mut Random) {
    match random.below(5) {
        0 => service.slices.clear(),
        1 => service.slices.iter_mut().for_each(|slice| slice.endpoints.clear()),
        2 => {
            for slice in &mut service.slices {
                slice.endpoints.pop();
            }
        }
        3 => {
            let end = |endpoint: &mut SliceEndpoint| (endpoint.ready, endpoint.terminating) = (Some(false), Some(true));
            service.slices.iter_mut().flat_map(|slice| &mut slice.endpoints).for_each(end);
            agree_on_duplicates(&mut service.slices);
        }
        _ => service.slices = slices(&service.name, &service.ports, random),
    }
}

/// Copies some properties of another Service in the same slot.
fn mix(service: &mut Service, other: Service, slot: u8, random: &mut Random) {
    service.keeps_object = other.keeps_object;
    match random.below(12) {
        0 => service.kind = other.kind,
        9 => service.kind = if service.kind == Kind::Headless { Kind::ClusterIp } else { Kind::Headless },
        // Adds or removes a family.
        10 if service.cluster_ips.len() == 2 => service.cluster_ips.truncate(1),
        10 => service.cluster_ips = both_families(service.cluster_ips[0], slot),
        11 => {
            let mut numbers: Vec<u16> = pools::node_ports(slot);
            for port in &mut service.ports {
                port.node_port = numbers.swap_remove(random.below(numbers.len()));
            }
        }
        1 => (service.internal_local, service.external_local) = (other.internal_local, other.external_local),
        2 => service.affinity = other.affinity.xor(service.affinity),
        3 => service.source_ranges = other.source_ranges,
        4 => service.other_proxy = !service.other_proxy,
        5 => service.cluster_ips = other.cluster_ips,
        6 => service.allocate_node_ports = !service.allocate_node_ports,
        // Copy all claims together, because other Services may have claimed the rest since.
        7 => {
            service.ports = other.ports;
            service.external_ips = other.external_ips;
            service.ingress = other.ingress;
        }
        _ => *service = other,
    }
}

/// The pair of a slot's addresses that begins with this address.
fn both_families(first: IpAddr, slot: u8) -> Vec<IpAddr> {
    let pairs = pools::CLUSTER_IPS_OF_SLOT.map(|pair| pools::cluster_ips(slot, pair));
    let pair = pairs.into_iter().find(|pair| pair.contains(&first)).unwrap_or([first; 2]);
    if pair[0] == first { pair.to_vec() } else { vec![pair[1], pair[0]] }
}

/// Whether kube-proxy's choice among equal addresses is not random: they are equal in all, or exactly one of two terminates.
#[cfg(test)]
fn duplicates_are_settled(slices: &[Slice]) -> bool {
    let all: Vec<&SliceEndpoint> = slices.iter().flat_map(|slice| &slice.endpoints).collect();
    all.iter().enumerate().all(|(position, endpoint)| {
        let terminates = |of: &SliceEndpoint| of.terminating == Some(true);
        let mut others = all[..position].iter().filter(|other| other.address == endpoint.address);
        others.all(|other| other == endpoint || terminates(other) != terminates(endpoint))
    })
}

/// Seed 2412830908: a slice that moved to another Service kept hints of its own for an address that the Service already had.
#[test]
fn the_same_seed_gives_the_same_cluster_and_some_services_claim_the_same() {
    let grow = |seed| {
        let mut random = Random::new(seed);
        let mut cluster = Cluster::random(&mut random);
        let mut all = vec![cluster.clone()];
        for _ in 0..20 {
            cluster.change(&mut random);
            all.push(cluster.clone());
        }
        all
    };
    let (mut clashing, mut all) = (0, 0);
    for seed in 0..50 {
        let clusters = grow(seed);
        assert_eq!(clusters, grow(seed));
        assert_ne!(clusters, grow(seed + 1));
        for cluster in clusters {
            assert!(cluster.services.len() <= usize::from(pools::SLOTS));
            assert!(cluster.services.values().all(|service| duplicates_are_settled(&service.slices)));
            let mut claimed = BTreeSet::new();
            let clashes = |service: &Service| {
                let own: BTreeSet<_> = claims(service).collect();
                own.into_iter().filter(|claim| !claimed.insert(*claim)).count()
            };
            let clashes: usize = cluster.services.values().map(clashes).sum();
            clashing += usize::from(clashes > 0);
            all += 1;
        }
    }
    assert!((all / 4..all).contains(&clashing), "{clashing} of {all} clusters have Services that claim the same");
}
