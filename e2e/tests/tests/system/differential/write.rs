//! Writes clusters to the API server: what differs from the cluster before, then the sentinel.
//!
//! The sentinel is a Service with one slice in each family. Its port and its endpoints change in every round, as the last of
//! the Services and the last of the slices: whoever sends packets where the sentinel says has seen everything before it. The Node
//! is watched apart from them: another Service has an endpoint in each zone, and shows which of them the Node is in.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::{
    core::v1::{self, Node},
    discovery::v1::EndpointSlice,
};
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use localnet_client::Snapshot;
use localnet_e2e::PATIENCE;
use localnet_lab::{Protocol, topology::Place};
use localnet_proto::ServiceKey;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{
    cluster::{Cluster, Kind, Port, Service, Slice, SliceEndpoint, SlicePort},
    pools,
};

pub(crate) const NODE_NAME: &str = "node-a";
/// The Kubernetes namespace of everything.
pub(crate) const NAMESPACE: &str = "diff";
const SENTINEL: &str = "sentinel";
const SENTINEL_IPS: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(172, 30, 0, 250)), IpAddr::V6(Ipv6Addr::new(0xfd00, 0x172, 0x30, 0, 0, 0, 0, 0xfa))];
const ZONES_IPS: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(172, 30, 0, 251)), IpAddr::V6(Ipv6Addr::new(0xfd00, 0x172, 0x30, 0, 0, 0, 0, 0xfb))];
const ZONES_PORT: u16 = 80;
const WRITES_AT_ONCE: usize = 8;

/// The way to the API server, and what is there.
pub(crate) struct Writer {
    services: Api<v1::Service>,
    slices: Api<EndpointSlice>,
    nodes: Api<Node>,
    written: Cluster,
    round: u16,
}

/// Where the sentinels of a round lead.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sentinel {
    round: u16,
    zone: Option<&'static str>,
}

impl Sentinel {
    /// The port of the Service.
    pub(crate) fn port(self) -> u16 {
        10_000 + self.round
    }

    /// In each family: the address to ask, and the endpoint that must answer.
    pub(crate) fn paths(self) -> [(SocketAddr, SocketAddr); 2] {
        let number = pools::PODS[usize::from(self.round) % pools::PODS.len()];
        let pods = pools::pod(Place::Local, number).addresses();
        [0, 1].map(|family| {
            let to = SocketAddr::new(SENTINEL_IPS[family], self.port());
            (to, SocketAddr::new(pods[family], pools::ENDPOINT_PORTS[0]))
        })
    }

    /// The zone that the Node says it is in.
    pub(crate) fn zone(self) -> &'static str {
        self.zone.unwrap_or_default()
    }

    /// In each family: the address that shows the zone, and all endpoints that must answer there.
    pub(crate) fn zones(self) -> [(SocketAddr, BTreeSet<SocketAddr>); 2] {
        let endpoints = zone_endpoints();
        let mut here = endpoints.iter().filter(|(zone, _)| self.zone == Some(zone)).peekable();
        // Where no endpoint is, hints are not followed.
        let pods: Vec<_> = match here.peek() {
            Some(_) => here.map(|(_, pod)| *pod).collect(),
            None => endpoints.iter().map(|(_, pod)| *pod).collect(),
        };
        [0, 1].map(|family| {
            let endpoint = |pod: &[IpAddr; 2]| SocketAddr::new(pod[family], pools::ENDPOINT_PORTS[0]);
            (SocketAddr::new(ZONES_IPS[family], ZONES_PORT), pods.iter().map(endpoint).collect())
        })
    }

    /// Whether a state has its port and endpoints, and the Node's zone.
    pub(crate) fn has_come(self, state: &Snapshot) -> bool {
        let key = ServiceKey::new(NAMESPACE, SENTINEL);
        let service = state.services.get(&key).filter(|_| state.node.zone == self.zone());
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

/// Pods that stand for the zones.
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
        slices,
    }
}

impl Writer {
    pub(crate) fn new(client: &Client) -> Self {
        Self {
            services: Api::namespaced(client.clone(), NAMESPACE),
            slices: Api::namespaced(client.clone(), NAMESPACE),
            nodes: Api::all(client.clone()),
            written: Cluster::default(),
            round: 0,
        }
    }

    /// Makes the API server hold `cluster`.
    pub(crate) async fn write(&mut self, cluster: &Cluster) -> anyhow::Result<Sentinel> {
        let by_name = |cluster: &Cluster| -> BTreeMap<String, Service> {
            cluster.services.values().map(|service| (service.name.clone(), service.clone())).collect()
        };
        let (old, new) = (by_name(&self.written), by_name(cluster));
        // What goes makes room for what comes: addresses, node ports.
        let gone = old.iter().filter(|(name, service)| new.get(*name).is_none_or(|new| must_move(service, new)));
        let gone: Vec<&Service> = gone.map(|(_, service)| service).collect();
        for service in &gone {
            remove(&self.services, &service.name).await?;
        }
        let slices = gone.iter().flat_map(|service| &service.slices);
        stream::iter(slices.map(Ok))
            .try_for_each_concurrent(WRITES_AT_ONCE, |slice| remove(&self.slices, &slice.name))
            .await?;
        let left = |name| old.get(name).filter(|old| !must_move(old, &new[name]));
        let changes: Vec<_> =
            new.iter().map(|(name, new)| (left(name), new)).filter(|(old, new)| *old != Some(new)).collect();
        // One by one: the API server sometimes forgets to release a NodePort when several Services change at once.
        for (old, new) in &changes {
            self.put(*old, new).await?;
        }
        let slices = |(old, new)| self.put_slices(old, new);
        stream::iter(changes).map(Ok).try_for_each_concurrent(WRITES_AT_ONCE, slices).await?;
        if self.round == 0 {
            self.put(None, &zones()).await?;
            self.put_slices(None, &zones()).await?;
        }
        if self.round == 0 || cluster.zone != self.written.zone {
            self.set_zone(cluster.zone).await?;
        }
        self.written = cluster.clone();
        self.round += 1;
        let sentinel = |round| Sentinel { round, zone: cluster.zone };
        let (last, next) = (sentinel(self.round - 1), sentinel(self.round));
        let last = (self.round > 1).then(|| last.service());
        self.put(last.as_ref(), &next.service()).await?;
        self.put_slices(last.as_ref(), &next.service()).await?;
        Ok(next)
    }

    async fn put(&self, old: Option<&Service>, new: &Service) -> anyhow::Result<()> {
        let (name, object) = (&new.name, new.object());
        // Addresses of a load balancer are gone before the Service is of another type.
        if let Some(old) = old
            && !old.ingress().is_empty()
            && new.ingress().is_empty()
        {
            self.set_ingress(new).await?;
        }
        if old.is_none_or(|old| old.object() != object) {
            put(&self.services, name, object, old.is_some()).await?;
        }
        if !new.ingress().is_empty() && old.is_none_or(|old| old.status() != new.status()) {
            self.set_ingress(new).await?;
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

    /// Makes the Node say that it is in this zone.
    pub(crate) async fn set_zone(&self, zone: Option<&str>) -> anyhow::Result<()> {
        let change = Patch::Merge(json!({ "metadata": { "labels": { "topology.kubernetes.io/zone": zone } } }));
        let set = self.nodes.patch(NODE_NAME, &PatchParams::default(), &change).await;
        set.map(drop).with_context(|| format!("setting the zone {zone:?}"))
    }

    async fn set_ingress(&self, service: &Service) -> anyhow::Result<()> {
        let change = Patch::Merge(json!({ "status": service.status() }));
        let set = self.services.patch_status(&service.name, &PatchParams::default(), &change).await;
        set.map(drop).with_context(|| format!("setting the status of {}: {}", service.name, service.status()))
    }
}

/// Whether the API server had better not turn one into the other. The first ClusterIP stays, as does having none; a NodePort that
/// goes from one protocol to another is taken, by the Service itself; and a load balancer keeps the NodePorts that it has.
fn must_move(old: &Service, new: &Service) -> bool {
    let addresses = |service: &Service| match service.kind {
        Kind::Headless | Kind::ExternalName => Vec::new(),
        Kind::ClusterIp | Kind::NodePort | Kind::LoadBalancer => service.cluster_ips.clone(),
    };
    let node_ports = |service: &Service| service.node_ports().collect::<BTreeSet<_>>();
    let (had, has) = (node_ports(old), node_ports(new));
    let kept = !had.is_empty() && had != has && (!has.is_empty() || new.kind == Kind::LoadBalancer);
    let moved = addresses(old) != addresses(new) && !addresses(old).is_empty();
    moved || kept || (old.kind == Kind::Headless) != (new.kind == Kind::Headless)
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
            // What a removed Service had is not always free at once.
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
