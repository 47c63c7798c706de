//! A cluster as the generator represents it, and the Kubernetes objects that it stands for.

use std::{collections::BTreeMap, net::IpAddr};

use localnet_lab::{
    Protocol,
    topology::{NODE, POD_CIDRS},
};
use localnet_vm::relay::is_guest;
use serde_json::{Value, json};

/// The names of the nodes.
pub(crate) const NODE_NAMES: [&str; 2] = ["node-a", "node-b"];
/// Of so many Services, two choose endpoints by a hash.
const HASHED_ONE_OF: usize = 11;
/// The greatest weight of an endpoint.
pub(crate) const MOST_WEIGHT: usize = 3;
/// The Kubernetes namespace of all objects.
pub(crate) const NAMESPACE: &str = "diff";

/// The Services of a cluster by slot, the facts of its Node, and the CIDRs of the ServiceCIDR in addition to the default one.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Cluster {
    pub(crate) services: BTreeMap<u8, Service>,
    pub(crate) node: NodeFacts,
    pub(crate) more_service_cidrs: &'static [&'static str],
}

/// The facts in the Node object of the node whose rules are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeFacts {
    pub(crate) zone: Option<&'static str>,
    /// One address of each family.
    pub(crate) addresses: [IpAddr; 2],
    pub(crate) pod_cidrs: [&'static str; 2],
}

impl Default for NodeFacts {
    fn default() -> Self {
        Self { zone: None, addresses: NODE, pod_cidrs: POD_CIDRS }
    }
}

impl NodeFacts {
    /// The Node object.
    pub(crate) fn object(&self, name: &str) -> Value {
        let addresses = self.addresses.iter().map(|ip| json!({ "type": "InternalIP", "address": ip }));
        let labels = self.zone.map(|zone| json!({ "topology.kubernetes.io/zone": zone }));
        json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": { "name": name, "labels": labels },
            "spec": { "podCIDR": self.pod_cidrs[0], "podCIDRs": self.pod_cidrs },
            "status": { "addresses": addresses.collect::<Vec<_>>() },
        })
    }
}

/// The type of a Service. A service proxy ignores ExternalName and headless Services.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    ClusterIp,
    NodePort,
    LoadBalancer,
    Headless,
    ExternalName,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Service {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    /// One address of each family, in the order of the Service's families.
    pub(crate) cluster_ips: Vec<IpAddr>,
    pub(crate) ports: Vec<Port>,
    pub(crate) external_ips: Vec<IpAddr>,
    pub(crate) ingress: Vec<Ingress>,
    pub(crate) source_ranges: Vec<&'static str>,
    pub(crate) internal_local: bool,
    pub(crate) external_local: bool,
    pub(crate) affinity: Option<u32>,
    pub(crate) other_proxy: bool,
    pub(crate) allocate_node_ports: bool,
    pub(crate) health_port: u16,
    pub(crate) distribution: Option<&'static str>,
    /// How to make a change that the API server refuses. If true, the Service first gets type ExternalName, which keeps the
    /// object. Otherwise, the Service is deleted and created again.
    pub(crate) keeps_object: bool,
    pub(crate) slices: Vec<Slice>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Port {
    pub(crate) name: &'static str,
    pub(crate) protocol: Protocol,
    pub(crate) number: u16,
    /// Used if the type has NodePorts.
    pub(crate) node_port: u16,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ingress {
    pub(crate) ip: IpAddr,
    pub(crate) mode: Option<&'static str>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Slice {
    pub(crate) name: String,
    pub(crate) v4: bool,
    pub(crate) ports: Vec<SlicePort>,
    pub(crate) endpoints: Vec<SliceEndpoint>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SlicePort {
    pub(crate) name: &'static str,
    pub(crate) protocol: Protocol,
    pub(crate) number: Option<u16>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SliceEndpoint {
    pub(crate) address: IpAddr,
    pub(crate) node: Option<&'static str>,
    pub(crate) ready: Option<bool>,
    pub(crate) serving: Option<bool>,
    pub(crate) terminating: Option<bool>,
    pub(crate) zones: Vec<&'static str>,
    pub(crate) nodes: Vec<&'static str>,
}

impl Service {
    fn has_node_ports(&self) -> bool {
        self.kind == Kind::NodePort || self.kind == Kind::LoadBalancer && self.allocate_node_ports
    }

    /// The NodePorts.
    pub(crate) fn node_ports(&self) -> impl Iterator<Item = (Protocol, u16)> + '_ {
        let ports = self.has_node_ports().then_some(&self.ports);
        ports.into_iter().flatten().map(|port| (port.protocol, port.node_port))
    }

    /// The load balancer addresses in the status.
    pub(crate) fn ingress(&self) -> &[Ingress] {
        if self.kind == Kind::LoadBalancer { &self.ingress } else { &[] }
    }

    pub(crate) fn object(&self) -> Value {
        let mut labels = json!({});
        if self.other_proxy {
            labels["service.kubernetes.io/service-proxy-name"] = "another".into();
        }
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": { "name": self.name, "labels": labels, "annotations": self.annotations() },
            "spec": self.spec(),
        })
    }

    /// Annotations that kube-proxy does not know, and that do not change which endpoints may get connections. They follow from the name.
    /// In the guest, there are none: each VIP that hashes has 1,024 elements, which take long there.
    fn annotations(&self) -> Value {
        if is_guest() {
            return json!({});
        }
        match number_of(&self.name).map(|number| number % HASHED_ONE_OF) {
            Some(0) => json!({ "localnet.dev/hash": "connection" }),
            Some(1) => json!({ "localnet.dev/hash": "source" }),
            _ => json!({}),
        }
    }

    fn spec(&self) -> Value {
        let mut spec = json!({ "ports": self.port_objects(), "externalIPs": self.external_ips });
        match self.kind {
            Kind::ExternalName => {
                spec["type"] = "ExternalName".into();
                spec["externalName"] = "example.org".into();
                return spec;
            }
            Kind::Headless => {
                spec["type"] = "ClusterIP".into();
                spec["clusterIP"] = "None".into();
                spec["clusterIPs"] = json!(["None"]);
                return spec;
            }
            Kind::ClusterIp => spec["type"] = "ClusterIP".into(),
            Kind::NodePort => spec["type"] = "NodePort".into(),
            Kind::LoadBalancer => {
                spec["type"] = "LoadBalancer".into();
                spec["allocateLoadBalancerNodePorts"] = self.allocate_node_ports.into();
                spec["loadBalancerSourceRanges"] = json!(self.source_ranges);
            }
        }
        let family = |ip: &IpAddr| if ip.is_ipv4() { "IPv4" } else { "IPv6" };
        spec["clusterIP"] = json!(self.cluster_ips[0]);
        spec["clusterIPs"] = json!(self.cluster_ips);
        spec["ipFamilies"] = self.cluster_ips.iter().map(family).collect();
        spec["ipFamilyPolicy"] = if self.cluster_ips.len() == 2 { "RequireDualStack" } else { "SingleStack" }.into();
        spec["internalTrafficPolicy"] = policy(self.internal_local).into();
        if self.kind != Kind::ClusterIp || !self.external_ips.is_empty() {
            spec["externalTrafficPolicy"] = policy(self.external_local).into();
        }
        if self.kind == Kind::LoadBalancer && self.external_local {
            spec["healthCheckNodePort"] = self.health_port.into();
        }
        if let Some(seconds) = self.affinity {
            spec["sessionAffinity"] = "ClientIP".into();
            spec["sessionAffinityConfig"] = json!({ "clientIP": { "timeoutSeconds": seconds } });
        }
        if let Some(distribution) = self.distribution {
            spec["trafficDistribution"] = distribution.into();
        }
        spec
    }

    fn port_objects(&self) -> Vec<Value> {
        let object = |port: &Port| {
            let mut object = json!({ "name": port.name, "protocol": port.protocol.as_str(), "port": port.number });
            if self.has_node_ports() {
                object["nodePort"] = port.node_port.into();
            }
            object
        };
        self.ports.iter().map(object).collect()
    }

    /// The status of the object.
    pub(crate) fn status(&self) -> Value {
        let entry = |ingress: &Ingress| match ingress.mode {
            Some(mode) => json!({ "ip": ingress.ip, "ipMode": mode }),
            None => json!({ "ip": ingress.ip }),
        };
        match self.ingress() {
            [] => json!({ "loadBalancer": { "ingress": null } }),
            ingress => json!({ "loadBalancer": { "ingress": ingress.iter().map(entry).collect::<Vec<_>>() } }),
        }
    }
}

/// A number that follows from the name of a Service or slice; `None` for a sentinel, whose endpoints all have to answer soon.
fn number_of(name: &str) -> Option<usize> {
    name.starts_with("svc-").then(|| name.bytes().map(usize::from).sum())
}

impl Slice {
    pub(crate) fn object(&self, service: &str) -> Value {
        let port = |port: &SlicePort| {
            let mut object = json!({ "name": port.name, "protocol": port.protocol.as_str() });
            if let Some(number) = port.number {
                object["port"] = number.into();
            }
            object
        };
        // kube-proxy spreads evenly, and each endpoint still gets connections.
        let annotations = match number_of(&self.name).map(|number| 1 + number % MOST_WEIGHT) {
            None | Some(1) => json!({}),
            Some(weight) => json!({ "localnet.dev/weight": weight.to_string() }),
        };
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": { "name": self.name, "labels": { "kubernetes.io/service-name": service }, "annotations": annotations },
            "addressType": if self.v4 { "IPv4" } else { "IPv6" },
            "ports": self.ports.iter().map(port).collect::<Vec<_>>(),
            "endpoints": self.endpoints.iter().map(SliceEndpoint::object).collect::<Vec<_>>(),
        })
    }
}

impl SliceEndpoint {
    fn object(&self) -> Value {
        let mut object = json!({ "addresses": [self.address], "conditions": {} });
        let conditions = [("ready", self.ready), ("serving", self.serving), ("terminating", self.terminating)];
        for (name, condition) in conditions {
            if let Some(condition) = condition {
                object["conditions"][name] = condition.into();
            }
        }
        if let Some(node) = self.node {
            object["nodeName"] = node.into();
        }
        let named = |names: &[&str]| names.iter().map(|name| json!({ "name": name })).collect::<Vec<_>>();
        for (kind, names) in [("forZones", &self.zones), ("forNodes", &self.nodes)] {
            if !names.is_empty() {
                object["hints"][kind] = named(names).into();
            }
        }
        object
    }
}

fn policy(local: bool) -> &'static str {
    if local { "Local" } else { "Cluster" }
}
