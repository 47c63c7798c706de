//! What the API server has contained, and for how long. The invariants compare the brain and the kernel with it. Pure.

use std::collections::BTreeMap;

use localnet_client::vips::VipKey;
use localnet_cluster::objects::Kind;
use localnet_proto::Protocol;
use serde_json::Value;
use tokio::time::Instant;

use crate::{api::is_selected, world::Objects};

/// The history of the Services and their ready endpoints.
#[derive(Debug, Default)]
pub struct Truth {
    services: BTreeMap<String, Standing>,
}

/// How long a Service has been as it is.
#[derive(Clone, Debug)]
pub struct Standing {
    /// When the Service was created.
    pub created: Instant,
    /// The ClusterIP, the protocol and the port.
    pub vip: Option<VipKey>,
    /// Whether all nodes' endpoints are eligible for the ClusterIP.
    cluster_wide: bool,
    /// The version since which `vip` and `cluster_wide` are as they are.
    since: u64,
    /// The ready IPv4 endpoints, and the version since which each has been ready.
    endpoints: BTreeMap<String, u64>,
}

impl Standing {
    /// The version since which the ClusterIP has had the same ready endpoint. `None` if there is no such endpoint.
    pub fn served_since(&self) -> Option<u64> {
        let oldest = self.endpoints.values().min().filter(|_| self.cluster_wide)?;
        Some(self.since.max(*oldest))
    }
}

impl Truth {
    /// The Services with a ClusterIP that this proxy serves, by namespace and name.
    pub fn services(&self) -> &BTreeMap<String, Standing> {
        &self.services
    }

    /// Forgets everything: etcd was restored.
    pub fn restored(&mut self) {
        self.services.clear();
    }

    /// Records the objects of a version.
    pub fn update(&mut self, objects: &Objects, version: u64) {
        let before = std::mem::take(&mut self.services);
        let slices = slices(objects);
        for ((kind, key), object) in objects {
            if *kind != Kind::Service || !is_selected(*kind, object) {
                continue;
            }
            let port = &object["spec"]["ports"][0];
            let vip = vip(&object["spec"]["clusterIP"], port);
            let cluster_wide = object["spec"]["internalTrafficPolicy"] != "Local";
            let was = before.get(key);
            let same = was.filter(|was| was.vip == vip && was.cluster_wide == cluster_wide);
            let since_of = |endpoint: &String| was.and_then(|was| was.endpoints.get(endpoint)).copied();
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            let own = slices.get(name).map(Vec::as_slice).unwrap_or_default();
            let ready = ready(own, &port["protocol"]);
            let endpoints = ready.map(|endpoint| (endpoint.clone(), since_of(&endpoint).unwrap_or(version)));
            let standing = Standing {
                created: was.map_or_else(Instant::now, |was| was.created),
                vip,
                cluster_wide,
                since: same.map_or(version, |same| same.since),
                endpoints: endpoints.collect(),
            };
            self.services.insert(key.clone(), standing);
        }
    }
}

fn vip(ip: &Value, port: &Value) -> Option<VipKey> {
    let protocol = Protocol::named(port["protocol"].as_str()?)?;
    Some(VipKey { address: ip.as_str()?.parse().ok()?, protocol, port: port["port"].as_u64()?.try_into().ok()? })
}

/// The slices of each Service.
fn slices(objects: &Objects) -> BTreeMap<&str, Vec<&Value>> {
    let mut slices: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (_, slice) in objects.iter().filter(|((kind, _), _)| *kind == Kind::Slice) {
        let service = slice["metadata"]["labels"]["kubernetes.io/service-name"].as_str().unwrap_or_default();
        slices.entry(service).or_default().push(&**slice);
    }
    slices
}

/// The ready IPv4 endpoints of slices with this protocol, as `address:port`.
fn ready<'a>(slices: &'a [&Value], protocol: &'a Value) -> impl Iterator<Item = String> + 'a {
    let of_protocol =
        slices.iter().filter(move |slice| slice["addressType"] == "IPv4" && slice["ports"][0]["protocol"] == *protocol);
    of_protocol.flat_map(|slice| {
        let endpoints = slice["endpoints"].as_array().into_iter().flatten();
        let ready = endpoints.filter(|endpoint| endpoint["conditions"]["ready"] == true);
        ready.map(|endpoint| format!("{}:{}", endpoint["addresses"][0], slice["ports"][0]["port"]))
    })
}
