//! Writes clusters to the API server: the differences from the previous cluster, then the sentinel.
//!
//! The sentinel is a Service with one slice in each family. Its port and endpoints change in every round, after all other
//! Services and slices. So a proxy that sends packets as the sentinel demands has seen all earlier writes. Another Service shows
//! the state of the Node, which proxies watch separately: it has an endpoint in each zone, so its answers show the Node's zone.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::{Duration, Instant},
};

use crate::PATIENCE;
use anyhow::Context as _;
use futures::{TryStreamExt as _, stream};
use ipnet::IpNet;
use k8s_openapi::api::{
    core::v1::{self, Node},
    discovery::v1::EndpointSlice,
    networking::v1::{IPAddress, ServiceCIDR},
};
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use localnet_client::Snapshot;
use localnet_lab::{
    Protocol,
    topology::{Place, SERVICE_CIDRS},
};
use localnet_proto::ServiceKey;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{
    cluster::{Cluster, Kind, NAMESPACE, NodeFacts, Port, Service, Slice, SliceEndpoint, SlicePort},
    former, pools, print_line,
};

/// A ServiceCIDR in addition to the one that the API server creates.
const MORE_SERVICE_CIDRS: &str = "more";
const SENTINEL: &str = "sentinel";
const SENTINEL_IPS: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(172, 30, 0, 250)), IpAddr::V6(Ipv6Addr::new(0xfd00, 0x172, 0x30, 0, 0, 0, 0, 0xfa))];
const ZONES_IPS: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(172, 30, 0, 251)), IpAddr::V6(Ipv6Addr::new(0xfd00, 0x172, 0x30, 0, 0, 0, 0, 0xfb))];
const ZONES_PORT: u16 = 80;
const WRITES_AT_ONCE: usize = 8;

/// Writes to the API server, and remembers its objects.
pub(crate) struct Writer {
    services: Api<v1::Service>,
    slices: Api<EndpointSlice>,
    nodes: Api<Node>,
    service_cidrs: Api<ServiceCIDR>,
    ip_addresses: Api<IPAddress>,
    written: Cluster,
    written_nodes: BTreeMap<&'static str, NodeFacts>,
    round: u16,
}

/// The sentinels of a round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sentinel {
    round: u16,
    node: NodeFacts,
    more_service_cidrs: &'static [&'static str],
}

impl Sentinel {
    /// The same sentinel for another node, with these facts.
    pub(crate) fn on(self, node: NodeFacts) -> Self {
        Self { node, ..self }
    }

    /// The port of the Service.
    pub(crate) fn port(self) -> u16 {
        10_000 + self.round
    }

    /// For each family, the address to probe and the endpoint that must answer.
    pub(crate) fn paths(self) -> [(SocketAddr, SocketAddr); 2] {
        let number = pools::PODS[usize::from(self.round) % pools::PODS.len()];
        let pods = pools::pod(Place::Local, number).addresses();
        [0, 1].map(|family| {
            let to = SocketAddr::new(SENTINEL_IPS[family], self.port());
            (to, SocketAddr::new(pods[family], pools::ENDPOINT_PORTS[0]))
        })
    }

    /// The zone of the Node.
    pub(crate) fn zone(self) -> &'static str {
        self.node.zone.unwrap_or_default()
    }

    /// For each family, the address that shows the zone and all endpoints that must answer there.
    pub(crate) fn zones(self) -> [(SocketAddr, BTreeSet<SocketAddr>); 2] {
        let endpoints = zone_endpoints();
        let mut here = endpoints.iter().filter(|(zone, _)| self.node.zone == Some(zone)).peekable();
        // If the zone has no endpoint, hints do not apply.
        let pods: Vec<_> = match here.peek() {
            Some(_) => here.map(|(_, pod)| *pod).collect(),
            None => endpoints.iter().map(|(_, pod)| *pod).collect(),
        };
        [0, 1].map(|family| {
            let endpoint = |pod: &[IpAddr; 2]| SocketAddr::new(pod[family], pools::ENDPOINT_PORTS[0]);
            (SocketAddr::new(ZONES_IPS[family], ZONES_PORT), pods.iter().map(endpoint).collect())
        })
    }

    /// Whether a state has the sentinel's port and endpoints, the facts of the Node, and the ServiceCIDRs.
    pub(crate) fn has_come(self, state: &Snapshot) -> bool {
        let key = ServiceKey::new(NAMESPACE, SENTINEL);
        let parsed = |cidrs: &[&str]| cidrs.iter().filter_map(|cidr| cidr.parse().ok()).collect::<BTreeSet<IpNet>>();
        let set = |cidrs: &[IpNet]| cidrs.iter().copied().collect::<BTreeSet<_>>();
        let is_node = state.node.zone == self.zone()
            && state.node.addresses == self.node.addresses
            && set(&state.node.pod_cidrs) == parsed(&self.node.pod_cidrs)
            && set(&state.node.service_cidrs) == parsed(&[&SERVICE_CIDRS, self.more_service_cidrs].concat());
        let service = state.services.get(&key).filter(|_| is_node);
        service.is_some_and(|service| {
            let endpoints: Vec<IpAddr> = service.endpoints.iter().map(|endpoint| endpoint.address).collect();
            service.ports.iter().any(|port| port.port == self.port())
                && self.paths().iter().all(|(_, endpoint)| endpoints.contains(&endpoint.ip()))
        })
    }

    fn service(self) -> Service {
        let slice = |(to, endpoint_address): (SocketAddr, SocketAddr)| Slice {
            name: format!("{SENTINEL}-{}", if to.is_ipv4() { "v4" } else { "v6" }),
            v4: to.is_ipv4(),
            ports: vec![SlicePort { name: "", protocol: Protocol::Tcp, number: Some(endpoint_address.port()) }],
            endpoints: vec![endpoint(endpoint_address.ip(), vec![])],
        };
        plain(SENTINEL, SENTINEL_IPS, self.port(), self.paths().map(slice).to_vec())
    }
}

/// The pods that stand for the zones.
fn zone_endpoints() -> [(&'static str, [IpAddr; 2]); 2] {
    [0, 1].map(|number| (pools::ZONES[number], pools::pod(Place::Local, pools::PODS[number]).addresses()))
}

/// The Service that shows the zone. It never changes.
fn zones() -> Service {
    let slice = |family: usize| Slice {
        name: format!("zones-{family}"),
        v4: family == 0,
        ports: vec![SlicePort { name: "", protocol: Protocol::Tcp, number: Some(pools::ENDPOINT_PORTS[0]) }],
        endpoints: zone_endpoints().map(|(zone, pod)| endpoint(pod[family], vec![zone])).to_vec(),
    };
    plain("zones", ZONES_IPS, ZONES_PORT, vec![slice(0), slice(1)])
}

fn endpoint(address: IpAddr, zones: Vec<&'static str>) -> SliceEndpoint {
    let (node, ready) = (Some("node-a"), Some(true));
    SliceEndpoint { address, node, ready, serving: None, terminating: None, zones, nodes: vec![] }
}

/// A Service of type ClusterIP with one port.
fn plain(name: &str, cluster_ips: [IpAddr; 2], port: u16, slices: Vec<Slice>) -> Service {
    Service {
        name: name.to_owned(),
        kind: Kind::ClusterIp,
        cluster_ips: cluster_ips.to_vec(),
        ports: vec![Port { name: "", protocol: Protocol::Tcp, number: port, node_port: 0 }],
        external_ips: vec![],
        ingress: vec![],
        source_ranges: vec![],
        internal_local: false,
        external_local: false,
        affinity: None,
        other_proxy: false,
        allocate_node_ports: false,
        health_port: 0,
        distribution: None,
        keeps_object: false,
        slices,
    }
}

impl Writer {
    pub(crate) fn new(client: &Client) -> Self {
        Self {
            services: Api::namespaced(client.clone(), NAMESPACE),
            slices: Api::namespaced(client.clone(), NAMESPACE),
            nodes: Api::all(client.clone()),
            service_cidrs: Api::all(client.clone()),
            ip_addresses: Api::all(client.clone()),
            written: Cluster::default(),
            written_nodes: BTreeMap::new(),
            round: 0,
        }
    }

    /// The cluster in the API server.
    pub(crate) fn written(&self) -> &Cluster {
        &self.written
    }

    /// Changes the API server's objects to those of `cluster`.
    pub(crate) async fn write(&mut self, cluster: &Cluster) -> anyhow::Result<Sentinel> {
        let by_name = |cluster: &Cluster| -> BTreeMap<String, Service> {
            cluster.services.values().map(|service| (service.name.clone(), service.clone())).collect()
        };
        let (old, new) = (by_name(&self.written), by_name(cluster));
        // Delete first, to free addresses and NodePorts.
        let mut kept: BTreeMap<String, Service> = BTreeMap::new();
        for (name, service) in &old {
            match new.get(name) {
                Some(new) if !must_move(service, new) => _ = kept.insert(name.clone(), service.clone()),
                Some(new) if new.keeps_object => {
                    let aside = Service { kind: Kind::ExternalName, ..service.clone() };
                    self.put(Some(service), &aside).await?;
                    kept.insert(name.clone(), aside);
                }
                _ => remove(&self.services, name).await?,
            }
        }
        // Write one by one: the API server sometimes fails to release a NodePort if several Services change at once.
        for (name, service) in &new {
            self.put(kept.get(name), service).await?;
        }
        let (slices, changed) = (former::owners(&self.written), former::owners(cluster));
        let gone = slices.iter().filter(|(name, _)| !changed.contains_key(*name)).map(|(name, _)| Ok(*name));
        stream::iter(gone).try_for_each_concurrent(WRITES_AT_ONCE, |name| remove(&self.slices, name)).await?;
        let changed = changed.into_iter().filter(|(name, slice)| slices.get(*name) != Some(slice)).map(Ok);
        stream::iter(changed)
            .try_for_each_concurrent(WRITES_AT_ONCE, |(name, (owner, slice))| {
                put(&self.slices, name, slice.object(owner), slices.contains_key(name))
            })
            .await?;
        if self.round == 0 {
            self.put(None, &zones()).await?;
            self.put_slices(None, &zones()).await?;
        }
        if cluster.more_service_cidrs != self.written.more_service_cidrs {
            // A ServiceCIDR cannot be changed.
            if !self.written.more_service_cidrs.is_empty() {
                remove(&self.service_cidrs, MORE_SERVICE_CIDRS).await?;
            }
            if !cluster.more_service_cidrs.is_empty() {
                let object = json!({
                    "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
                    "metadata": { "name": MORE_SERVICE_CIDRS },
                    "spec": { "cidrs": cluster.more_service_cidrs },
                });
                put(&self.service_cidrs, MORE_SERVICE_CIDRS, object, false).await?;
            }
        }
        self.written = cluster.clone();
        self.round += 1;
        let (node, more_service_cidrs) = (cluster.node, cluster.more_service_cidrs);
        let sentinel = |round| Sentinel { round, node, more_service_cidrs };
        let (last, next) = (sentinel(self.round - 1), sentinel(self.round));
        let last = (self.round > 1).then(|| last.service());
        self.put(last.as_ref(), &next.service()).await?;
        self.put_slices(last.as_ref(), &next.service()).await?;
        Ok(next)
    }

    async fn put(&self, old: Option<&Service>, new: &Service) -> anyhow::Result<()> {
        let (name, object) = (&new.name, new.object());
        // Remove the load balancer addresses before the type changes.
        if let Some(old) = old
            && !old.ingress().is_empty()
            && new.ingress().is_empty()
        {
            self.set_ingress(new).await?;
        }
        if old.is_none_or(|old| old.object() != object) {
            self.remove_leaked_addresses(new).await?;
            put(&self.services, name, object, old.is_some()).await?;
        }
        if !new.ingress().is_empty() && old.is_none_or(|old| old.status() != new.status()) {
            self.set_ingress(new).await?;
        }
        Ok(())
    }

    /// Removes the IPAddress object of each of the Service's addresses, if the object's owner no longer has the address. The API
    /// server leaves such an object if the ServiceCIDR no longer exists when the address is released. The address is then refused
    /// until the API server's next repair, up to three minutes later.
    async fn remove_leaked_addresses(&self, service: &Service) -> anyhow::Result<()> {
        for address in service.cluster_ips.iter().map(ToString::to_string) {
            let object = self.ip_addresses.get_opt(&address).await;
            let object = object.with_context(|| format!("reading the IPAddress {address}"))?;
            let Some(owner) = object.map(|object| object.spec.parent_ref.name) else { continue };
            let has_address = |owner: &v1::Service| {
                let addresses = owner.spec.as_ref().and_then(|spec| spec.cluster_ips.as_ref());
                addresses.is_some_and(|addresses| addresses.contains(&address))
            };
            let found = self.services.get_opt(&owner).await.with_context(|| format!("reading {owner}"))?;
            if !found.as_ref().is_some_and(has_address) {
                print_line(&format!(
                    "differential: removing the IPAddress {address} of {owner}, which no longer has it"
                ));
                remove(&self.ip_addresses, &address).await?;
            }
        }
        Ok(())
    }

    async fn put_slices(&self, old: Option<&Service>, new: &Service) -> anyhow::Result<()> {
        let before = |slice: &Slice| old?.slices.iter().find(|old| old.name == slice.name);
        for slice in &new.slices {
            let old = before(slice);
            if old != Some(slice) {
                put(&self.slices, &slice.name, slice.object(&new.name), old.is_some()).await?;
            }
        }
        for old in old.iter().flat_map(|old| &old.slices) {
            if new.slices.iter().all(|new| new.name != old.name) {
                remove(&self.slices, &old.name).await?;
            }
        }
        Ok(())
    }

    /// Writes these facts to a Node. Returns whether more than its zone has changed.
    pub(crate) async fn write_node(&mut self, name: &'static str, facts: NodeFacts) -> anyhow::Result<bool> {
        let old = self.written_nodes.insert(name, facts);
        let object = || serde_json::from_value::<Node>(facts.object(name)).context("reading a Node");
        match old {
            Some(old) if old == facts => return Ok(false),
            Some(old) if old.pod_cidrs == facts.pod_cidrs => {
                if old.zone != facts.zone {
                    self.set_zone(name, facts.zone).await?;
                }
                if old.addresses == facts.addresses {
                    return Ok(false);
                }
                let status = Patch::Merge(json!({ "status": facts.object(name)["status"] }));
                let set = self.nodes.patch_status(name, &PatchParams::default(), &status).await;
                set.with_context(|| format!("setting the addresses {:?}", facts.addresses))?;
            }
            // The pod CIDRs of a Node cannot be changed.
            old => {
                if old.is_some() {
                    remove(&self.nodes, name).await?;
                }
                self.nodes.create(&PostParams::default(), &object()?).await.context("creating a Node")?;
            }
        }
        Ok(true)
    }

    /// Writes this zone to a Node.
    pub(crate) async fn set_zone(&self, name: &str, zone: Option<&str>) -> anyhow::Result<()> {
        let change = Patch::Merge(json!({ "metadata": { "labels": { "topology.kubernetes.io/zone": zone } } }));
        let set = self.nodes.patch(name, &PatchParams::default(), &change).await;
        set.map(drop).with_context(|| format!("setting the zone {zone:?}"))
    }

    async fn set_ingress(&self, service: &Service) -> anyhow::Result<()> {
        let change = Patch::Merge(json!({ "status": service.status() }));
        let set = self.services.patch_status(&service.name, &PatchParams::default(), &change).await;
        set.map(drop).with_context(|| format!("setting the status of {}: {}", service.name, service.status()))
    }
}

/// Whether the API server refuses to change one Service into the other. The first ClusterIP cannot change, and neither can having
/// none. A NodePort that moves from one protocol to another counts as taken by the Service itself. A load balancer keeps its
/// existing NodePorts.
pub(crate) fn must_move(old: &Service, new: &Service) -> bool {
    let addresses = |service: &Service| match service.kind {
        Kind::Headless | Kind::ExternalName => Vec::new(),
        Kind::ClusterIp | Kind::NodePort | Kind::LoadBalancer => service.cluster_ips.clone(),
    };
    let node_ports = |service: &Service| service.node_ports().collect::<BTreeSet<_>>();
    let (had, has) = (node_ports(old), node_ports(new));
    // Remaining numbers have the same protocols, and there is nothing that the API server would keep.
    let stays = |number: u16| had.iter().filter(move |(_, had)| *had == number);
    let taken = has.iter().any(|port| stays(port.1).next().is_some() && !had.contains(port));
    let kept = !had.is_empty() && has.is_empty() && new.kind == Kind::LoadBalancer;
    let (had_ips, has_ips) = (addresses(old), addresses(new));
    let moved = had_ips.first().is_some_and(|first| has_ips.first() != Some(first));
    let other = |service: &Service| service.kind == Kind::ExternalName;
    let headless = (old.kind == Kind::Headless) != (new.kind == Kind::Headless) && !other(old) && !other(new);
    (moved && !other(new)) || taken || kept || headless
}

async fn put<K>(api: &Api<K>, name: &str, object: Value, exists: bool) -> anyhow::Result<()>
where
    K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
{
    let shown = object.to_string();
    let object = serde_json::from_value(object).with_context(|| format!("reading {shown}"))?;
    let params = PostParams::default();
    let deadline = Instant::now() + PATIENCE;
    let written = loop {
        let written = match exists {
            true => api.replace(name, &params, &object).await,
            false => api.create(&params, &object).await,
        };
        match &written {
            // The addresses and ports of a deleted Service are not always free at once.
            Err(kube::Error::Api(status)) if status.message.contains("already allocated") => {
                if Instant::now() > deadline {
                    break written;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            _ => break written,
        }
    };
    written.map(drop).with_context(|| format!("writing {shown}"))
}

async fn remove<K>(api: &Api<K>, name: &str) -> anyhow::Result<()>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    api.delete(name, &DeleteParams::default()).await.map(drop).with_context(|| format!("removing {name}"))
}
