//! The cluster that users and controllers want, and its random changes. Pure.
//!
//! A change is a sequence of goals. The simulated controllers write the objects of one goal in random order, and then those
//! of the next. An endpoint that moves to another slice is therefore in both slices for a while, or in neither.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use localnet_cluster::objects::Kind;
use rand::{Rng as _, rngs::StdRng, seq::IndexedRandom as _};
use serde_json::{Value, json};

/// The name of the simulated node.
pub const NODE: &str = "node-a";
/// The largest number of Services, in most runs and in large ones. The brain mistrusts lists that suddenly lack 20 objects.
const SERVICES: u8 = 8;
const MANY_SERVICES: u8 = 40;
/// The nodes and their zones; the first one is the simulated node.
const NODES: [(&str, &str); 3] = [(NODE, "zone-a"), ("node-b", "zone-a"), ("node-c", "zone-b")];

/// Identifies an object: its kind, and its namespace and name or only its name.
pub type Key = (Kind, String);

/// Objects without a `resourceVersion`.
pub type Objects = BTreeMap<Key, Arc<Value>>;

/// The desired objects of the cluster.
#[derive(Clone, Debug)]
pub struct World {
    /// The largest number of Services.
    most: u8,
    services: BTreeMap<u8, Service>,
    slices: BTreeMap<(u8, String), Slice>,
    zone: &'static str,
    address: u8,
    wide_cidr: bool,
    /// How often the controller has written all slices again without a change that matters.
    resyncs: u32,
}

#[derive(Clone, Debug, PartialEq)]
struct Service {
    ip: u8,
    port: u16,
    dual: bool,
    affinity: bool,
    internal_local: bool,
    external_local: bool,
    node_port: bool,
    external_ip: bool,
    other_proxy: bool,
    udp: bool,
}

#[derive(Clone, Debug, PartialEq)]
struct Slice {
    v6: bool,
    udp: bool,
    target: u16,
    endpoints: BTreeMap<u8, Endpoint>,
}

#[derive(Clone, Debug, PartialEq)]
struct Endpoint {
    ready: bool,
    terminating: bool,
    hint: bool,
}

impl World {
    /// A cluster with a few Services.
    pub fn new(rng: &mut StdRng) -> Self {
        let most = if rng.random_bool(0.1) { MANY_SERVICES } else { SERVICES };
        let (services, slices) = (BTreeMap::new(), BTreeMap::new());
        let mut world = Self { most, services, slices, zone: NODES[0].1, address: 2, wide_cidr: false, resyncs: 0 };
        for number in 0..rng.random_range(0..=most) {
            world.add_service(number, rng);
        }
        world
    }

    /// A random change, as a sequence of goals, and its name. Some changes are soon undone, as by a pod that is ready only for a
    /// moment, or by a user.
    pub fn change(&self, rng: &mut StdRng) -> (&'static str, Vec<Self>) {
        let (what, mut goals) = if rng.random_bool(0.05) { self.mass_deletion(rng) } else { self.one_change(rng) };
        if rng.random_bool(0.2) {
            goals.push(self.clone());
        }
        (what, goals)
    }

    /// All objects of a namespace, or all slices, are deleted.
    fn mass_deletion(&self, rng: &mut StdRng) -> (&'static str, Vec<Self>) {
        let mut next = self.clone();
        next.slices.clear();
        if rng.random() {
            return ("all slices are deleted", vec![next]);
        }
        next.services.clear();
        ("the namespace is deleted", vec![next])
    }

    fn one_change(&self, rng: &mut StdRng) -> (&'static str, Vec<Self>) {
        let mut next = self.clone();
        let number = rng.random_range(0..self.most);
        let slices: Vec<_> = next.slices.keys().filter(|(of, _)| *of == number).cloned().collect();
        let slice = slices.choose(rng).cloned();
        let Some(service) = next.services.get_mut(&number) else {
            next.add_service(number, rng);
            return ("a Service is created", vec![next]);
        };
        let what = match (rng.random_range(0..18_u8), slice) {
            (0, _) => {
                next.services.remove(&number);
                if rng.random() {
                    return ("a Service is deleted", vec![next]);
                }
                next.slices.retain(|(of, _), _| *of != number);
                "a Service and its slices are deleted"
            }
            (1, _) => {
                let gone = next.without(number);
                if rng.random() {
                    return ("a Service is deleted and created again as it was", vec![gone, next]);
                }
                next = gone.clone();
                next.add_service(number, rng);
                return ("a Service is deleted and created again", vec![gone, next]);
            }
            (2, _) => {
                match rng.random_range(0..7_u8) {
                    0 => service.internal_local ^= true,
                    1 => service.external_local ^= true,
                    2 => service.affinity ^= true,
                    3 => service.node_port ^= true,
                    4 => service.external_ip ^= true,
                    5 => service.other_proxy ^= true,
                    _ => service.port ^= 1,
                }
                "a Service is modified"
            }
            (3, _) => {
                match rng.random_range(0..3_u8) {
                    0 => next.zone = if next.zone == NODES[0].1 { NODES[2].1 } else { NODES[0].1 },
                    1 => next.address ^= 1,
                    _ => next.wide_cidr ^= true,
                }
                "the Node or the ServiceCIDR is modified"
            }
            (4, Some(key)) => {
                let moved = next.slices.remove(&key);
                let both = self.clone();
                next.slices.extend(moved.map(|slice| ((number, format!("n{}", rng.random_range(0..100_u8))), slice)));
                let mut overlap = both;
                overlap.slices.extend(next.slices.clone());
                let first = if rng.random() { vec![overlap] } else { Vec::new() };
                return ("a slice is replaced", first.into_iter().chain([next]).collect());
            }
            (5 | 6, Some(key)) => {
                let target = (key.0, "b".to_owned());
                let Some(slice) = next.slices.get(&key).cloned().filter(|slice| !slice.v6 && key != target) else {
                    return ("nothing changes", vec![next]);
                };
                let moved: BTreeMap<_, _> = slice.endpoints.clone().into_iter().filter(|_| rng.random()).collect();
                let empty = || Slice { endpoints: BTreeMap::new(), ..slice.clone() };
                let mut copied = next.clone();
                copied.slices.entry(target.clone()).or_insert_with(empty).endpoints.extend(moved.clone());
                let mut taken = next.clone();
                if let Some(slice) = taken.slices.get_mut(&key) {
                    slice.endpoints.retain(|host, _| !moved.contains_key(host));
                }
                let first = if rng.random() { copied } else { taken.clone() };
                taken.slices.entry(target).or_insert_with(empty).endpoints.extend(moved);
                return ("endpoints move to another slice", vec![first, taken]);
            }
            (7, Some(key)) => {
                if let Some(slice) = next.slices.get_mut(&key) {
                    slice.target = 8080 + rng.random_range(0..3_u16);
                }
                "the target port of a slice changes"
            }
            (8, _) => {
                next.add_slices(number, rng);
                "the slices of a Service are written anew"
            }
            (9 | 10, _) => {
                next.resyncs += 1;
                "a controller writes all slices again"
            }
            (_, Some(key)) => {
                let Some(slice) = next.slices.get_mut(&key) else { return ("nothing changes", vec![next]) };
                for _ in 0..rng.random_range(1..4_u8) {
                    let host = rng.random_range(1..16_u8);
                    match slice.endpoints.get_mut(&host) {
                        None => _ = slice.endpoints.insert(host, Endpoint::new(rng)),
                        Some(endpoint) if rng.random() => endpoint.ready ^= true,
                        Some(endpoint) if rng.random() => {
                            (endpoint.ready, endpoint.terminating) = (false, true);
                        }
                        Some(_) => _ = slice.endpoints.remove(&host),
                    }
                }
                "endpoints change"
            }
            (_, None) => {
                next.add_slices(number, rng);
                "a Service gets slices"
            }
        };
        (what, vec![next])
    }

    fn without(&self, number: u8) -> Self {
        let mut next = self.clone();
        next.services.remove(&number);
        next.slices.retain(|(of, _), _| *of != number);
        next
    }

    fn add_service(&mut self, number: u8, rng: &mut StdRng) {
        let service = Service {
            ip: 10 + number + 100 * rng.random_range(0..2_u8),
            port: 80,
            dual: rng.random_bool(0.3),
            affinity: rng.random_bool(0.2),
            internal_local: rng.random_bool(0.1),
            external_local: rng.random_bool(0.3),
            node_port: rng.random_bool(0.4),
            external_ip: rng.random_bool(0.3),
            other_proxy: false,
            udp: rng.random_bool(0.4),
        };
        self.services.insert(number, service);
        self.add_slices(number, rng);
    }

    fn add_slices(&mut self, number: u8, rng: &mut StdRng) {
        let mut names = vec![("a", false)];
        if rng.random() {
            names.push(("b", false));
        }
        if self.services.get(&number).is_some_and(|service| service.dual) {
            names.push(("six", true));
        }
        let udp = self.services.get(&number).is_some_and(|service| service.udp);
        for (name, v6) in names {
            let hosts = 0..rng.random_range(0..6_u8);
            let endpoints = hosts.map(|_| (rng.random_range(1..16_u8), Endpoint::new(rng))).collect();
            self.slices.insert((number, name.to_owned()), Slice { v6, udp, target: 8080, endpoints });
        }
    }

    /// The objects. `known` are objects of `before`; those that have not changed are the same.
    pub fn objects(&self, before: &Self, known: &Objects) -> Objects {
        let mut objects = Objects::new();
        let mut insert = |key: Key, is_known: bool, object: &dyn Fn() -> Value| {
            let known = known.get(&key).filter(|_| is_known);
            objects.insert(key, known.map_or_else(|| Arc::new(object()), Arc::clone));
        };
        for (number, service) in &self.services {
            let is_known = before.services.get(number) == Some(service);
            insert((Kind::Service, format!("default/s{number}")), is_known, &|| service.object(*number));
        }
        for (key, slice) in &self.slices {
            let (number, name) = key;
            let is_known = before.slices.get(key) == Some(slice) && before.resyncs == self.resyncs;
            let name = format!("s{number}-{name}");
            insert((Kind::Slice, format!("default/{name}")), is_known, &|| {
                let mut object = slice.object(*number, &name);
                object["metadata"]["annotations"] = json!({ "example.com/resync": self.resyncs.to_string() });
                object
            });
        }
        let addresses = [format!("192.168.0.{}", self.address), "fd00:192::2".to_owned()];
        let node = json!({
            "metadata": { "name": NODE, "labels": { "topology.kubernetes.io/zone": self.zone } },
            "spec": { "podCIDRs": ["10.1.0.0/24", "fd00:1::/64"] },
            "status": { "addresses": addresses.map(|address| json!({ "type": "InternalIP", "address": address })) },
        });
        objects.insert((Kind::Node, NODE.to_owned()), node.into());
        let cidr = if self.wide_cidr { "10.96.0.0/12" } else { "10.96.0.0/16" };
        let cidrs = json!({ "metadata": { "name": "kubernetes" }, "spec": { "cidrs": [cidr, "fd00:96::/112"] } });
        objects.insert((Kind::ServiceCidr, "kubernetes".to_owned()), cidrs.into());
        objects
    }
}

impl Service {
    fn object(&self, number: u8) -> Value {
        let ips: Vec<String> = if self.dual {
            vec![format!("10.96.0.{}", self.ip), format!("fd00:96::{}", self.ip)]
        } else {
            vec![format!("10.96.0.{}", self.ip)]
        };
        let policy = |local: bool| if local { "Local" } else { "Cluster" };
        let mut port = json!({ "name": "p", "protocol": protocol(self.udp), "port": self.port });
        if self.node_port {
            port["nodePort"] = (30_000 + u16::from(number)).into();
        }
        let labels =
            if self.other_proxy { json!({ "service.kubernetes.io/service-proxy-name": "other" }) } else { json!({}) };
        let external: Vec<String> =
            if self.external_ip { vec![format!("203.0.113.{}", 10 + number)] } else { Vec::new() };
        json!({
            "metadata": { "namespace": "default", "name": format!("s{number}"), "labels": labels },
            "spec": {
                "type": if self.node_port { "NodePort" } else { "ClusterIP" },
                "clusterIP": ips[0],
                "clusterIPs": ips,
                "externalIPs": external,
                "internalTrafficPolicy": policy(self.internal_local),
                "externalTrafficPolicy": policy(self.external_local),
                "sessionAffinity": if self.affinity { "ClientIP" } else { "None" },
                "ports": [port],
            },
        })
    }
}

impl Slice {
    fn object(&self, number: u8, name: &str) -> Value {
        let endpoint = |(host, endpoint): (&u8, &Endpoint)| {
            let address = if self.v6 { format!("fd00:1::{host:x}") } else { format!("10.1.{}.{host}", host % 3) };
            let (node, zone) = NODES[usize::from(host % 3)];
            let Endpoint { ready, terminating, hint } = *endpoint;
            let hints = if hint { json!({ "forZones": [{ "name": zone }] }) } else { json!({}) };
            json!({
                "addresses": [address],
                "nodeName": node,
                "zone": zone,
                "conditions": { "ready": ready, "serving": ready || terminating, "terminating": terminating },
                "hints": hints,
            })
        };
        json!({
            "metadata": { "namespace": "default", "name": name, "labels": { "kubernetes.io/service-name": format!("s{number}") } },
            "addressType": if self.v6 { "IPv6" } else { "IPv4" },
            "ports": [{ "name": "p", "protocol": protocol(self.udp), "port": self.target }],
            "endpoints": self.endpoints.iter().map(endpoint).collect::<Vec<_>>(),
        })
    }
}

impl Endpoint {
    fn new(rng: &mut StdRng) -> Self {
        Self { ready: rng.random_bool(0.9), terminating: false, hint: rng.random_bool(0.8) }
    }
}

fn protocol(udp: bool) -> &'static str {
    if udp { "UDP" } else { "TCP" }
}

/// The keys of the objects that differ between `have` and `want`.
pub fn differing(have: &Objects, want: &Objects) -> Vec<Key> {
    let keys: BTreeSet<&Key> = have.keys().chain(want.keys()).collect();
    keys.into_iter().filter(|key| have.get(*key) != want.get(*key)).cloned().collect()
}
