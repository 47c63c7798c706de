//! Converts Kubernetes' types to the reduced ones. The conversion is total: it accepts every object.
//!
//! This module decides how to read an object, in the same way as the API server and kube-proxy:
//! - It fills in defaults for missing fields (TCP, ready, three hours of affinity).
//! - If two fields contradict each other, it chooses one of them (`clusterIPs` before `clusterIP`, internal addresses of
//!   a Node before external addresses).
//! - It drops whatever service proxies ignore (addresses of `ipMode: Proxy`, all but the first address of an endpoint).
//!
//! [`crate::localize`] decides what an object means for this node.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    num::{NonZeroI64, NonZeroU64},
    sync::Arc,
};

use ipnet::IpNet;
use k8s_openapi::{
    api::{
        core::v1::{Node, Service, ServicePort as KubePort, ServiceSpec},
        discovery::v1::{Endpoint, EndpointPort, EndpointSlice},
        networking::v1::ServiceCIDR,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use localnet_proto::{Affinity, Family, HashBy, Protocol};

use super::{
    Extensions, NodeObject, Parsed, Publish, ServiceCidrObject, ServiceObject, ServicePort, ServiceType, SliceEndpoint,
    SliceObject, SlicePort, address, publish,
};

/// Label of a Service that another proxy serves instead of the ordinary service proxy. The value is the other proxy's name.
pub const SERVICE_PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
/// Label of the EndpointSlices of headless Services.
pub const HEADLESS: &str = "service.kubernetes.io/headless";
/// Annotation of a Service: the IPVS scheduler that chooses its endpoints.
pub const IPVS_SCHEDULER: &str = "localnet.dev/ipvs-scheduler";
/// Annotation of a Service: how long after an endpoint has stopped serving its established TCP connections are closed.
pub const CLOSE_AFTER: &str = "localnet.dev/close-connections-after";
/// Annotation of a Service: what is hashed to choose an endpoint.
pub const HASH: &str = "localnet.dev/hash";
/// Annotation of an EndpointSlice: the weight of its endpoints.
pub const WEIGHT: &str = "localnet.dev/weight";
/// Annotation of a Service: the weights of its endpoints by zone.
pub const ZONE_WEIGHTS: &str = "localnet.dev/zone-weights";
/// The greatest weight in an annotation.
pub const MAX_WEIGHT: u32 = 100;
/// Annotation of a Service that makes kube-proxy on Windows preserve the destination of packets.
pub const PRESERVE_DESTINATION: &str = "preserve-destination";
/// Label of an EndpointSlice: the name of its Service.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// Annotation of an EndpointSlice: the time, in RFC 3339, of the change to a pod or Service that caused the last change
/// to the slice.
pub const TRIGGERED: &str = "endpoints.kubernetes.io/last-change-trigger-time";
/// Label of a Node: the name of its zone.
pub const ZONE: &str = "topology.kubernetes.io/zone";

/// The longest duration in an annotation: 24 hours.
const MAX_SECONDS: u32 = 24 * 3600;
/// The maximum number of zones with a weight. The brain searches the list for each endpoint.
const MAX_ZONES: usize = 64;
/// How much of an invalid annotation a diagnostic shows, in characters.
const MOST_SHOWN: usize = 100;
/// The default timeout of session affinity in the API server.
const DEFAULT_AFFINITY_SECONDS: u32 = 10_800;

/// Reduces a Service, but keeps what `publish` lets readers of the draft `localnet.v1` ask for.
pub fn service(service: Service, publish: Option<&Publish>) -> ServiceObject {
    let facts = publish.map(|publish| publish.facts(&service).into());
    ServiceObject { facts, ..service.into() }
}

/// Reduces an EndpointSlice, but keeps the objects behind its endpoints if there is `publish`.
pub fn slice(mut slice: EndpointSlice, publish: Option<&Publish>) -> SliceObject {
    if publish.is_none() {
        return slice.into();
    }
    let endpoints = slice.endpoints.iter_mut().flatten();
    let targets: Vec<_> = endpoints.map(|endpoint| endpoint.target_ref.take()).collect();
    let mut slice = SliceObject::from(slice);
    for (endpoint, target) in slice.endpoints.iter_mut().zip(targets) {
        endpoint.target = target.map(publish::target);
    }
    slice
}

impl From<Service> for ServiceObject {
    fn from(service: Service) -> Self {
        let spec = service.spec.unwrap_or_default();
        let ingress = service.status.and_then(|status| status.load_balancer?.ingress).unwrap_or_default();
        let load_balancer_ips = ingress
            .into_iter()
            .filter(|ingress| ingress.ip_mode.as_deref().is_none_or(|mode| mode == "VIP"))
            .filter_map(|ingress| ingress.ip.filter(|ip| !ip.is_empty()))
            .map(|ip| parsed_address(&ip))
            .collect();
        let cluster_ips = cluster_ip_texts(&spec);
        Self {
            version: version(&service.metadata),
            source: 0,
            created: created(&service.metadata),
            pushed: false,
            skipped: [].into(),
            proxy_name: label(service.metadata.labels.as_ref(), SERVICE_PROXY_NAME),
            namespace: text(service.metadata.namespace),
            name: text(service.metadata.name),
            kind: spec.type_.as_deref().and_then(ServiceType::named).unwrap_or_default(),
            headless: cluster_ips.first().is_some_and(|ip| *ip == "None"),
            cluster_ips: cluster_ips.iter().filter(|ip| **ip != "None").map(|ip| parsed_address(ip)).collect(),
            families: spec.ip_families.iter().flatten().filter_map(|family| Family::named(family)).collect(),
            external_ips: spec.external_ips.iter().flatten().map(|ip| parsed_address(ip)).collect(),
            load_balancer_ips,
            source_ranges: spec.load_balancer_source_ranges.iter().flatten().map(|cidr| parsed_cidr(cidr)).collect(),
            internal_local: spec.internal_traffic_policy.as_deref() == Some("Local"),
            external_local: spec.external_traffic_policy.as_deref() == Some("Local"),
            affinity: affinity(&spec),
            health_check_node_port: spec.health_check_node_port.unwrap_or(0),
            ipvs_scheduler: annotation(service.metadata.annotations.as_ref(), IPVS_SCHEDULER),
            preserve_destination: service.metadata.annotations.as_ref().is_some_and(|annotations| {
                // Only this exact value counts, as in kube-proxy.
                annotations.get(PRESERVE_DESTINATION).is_some_and(|value| value == "true")
            }),
            extensions: extensions(service.metadata.annotations.as_ref(), &spec),
            facts: None,
            ports: spec.ports.into_iter().flatten().map(Into::into).collect(),
        }
    }
}

fn extensions(annotations: Option<&BTreeMap<String, String>>, spec: &ServiceSpec) -> Option<Box<Extensions>> {
    let pair = |pair: &str| {
        let (zone, number) = pair.split_once('=')?;
        Some((zone.trim().into(), weight(number)?)).filter(|(zone, _): &(Arc<str>, _)| !zone.is_empty())
    };
    let zone_weights = |text: Arc<str>| {
        let few = text.split(',').nth(MAX_ZONES).is_none();
        parsed(&text, few.then(|| text.split(',').map(pair).collect()).flatten())
    };
    let external_name = spec.external_name.as_ref().filter(|_| spec.type_.as_deref() == Some("ExternalName"));
    let extensions = Extensions {
        close_after: annotation(annotations, CLOSE_AFTER).map(|text| seconds(&text)),
        hash: annotation(annotations, HASH).map(|text| parsed(&text, HashBy::named(&text))),
        zone_weights: annotation(annotations, ZONE_WEIGHTS).map(zone_weights),
        external_name: external_name.map(|name| name.as_str().into()),
    };
    (extensions != Extensions::default()).then(|| extensions.into())
}

/// Parses a duration in whole seconds, minutes or hours, such as `90s`, `5m` or `1h30m`; at most [`MAX_SECONDS`].
fn seconds(text: &str) -> Parsed<u32> {
    let parse = || -> Option<u32> {
        let (mut total, mut rest) = (0_u32, text);
        while !rest.is_empty() {
            let (number, unit) = rest.split_at(rest.find(|letter: char| !letter.is_ascii_digit())?);
            let of_unit = match unit.chars().next()? {
                's' => 1,
                'm' => 60,
                'h' => 3600,
                _ => return None,
            };
            total = total.checked_add(number.parse::<u32>().ok()?.checked_mul(of_unit)?)?;
            rest = &unit[1..];
        }
        Some(total).filter(|total| *total <= MAX_SECONDS)
    };
    parsed(text, parse())
}

/// Parses a weight from 0 to [`MAX_WEIGHT`].
fn weight(text: &str) -> Option<u32> {
    text.trim().parse().ok().filter(|weight| *weight <= MAX_WEIGHT)
}

/// The value, or the beginning of the text, which may have 256 KiB.
fn parsed<T>(text: &str, value: Option<T>) -> Parsed<T> {
    value.map_or_else(|| Parsed::Bad(text.chars().take(MOST_SHOWN).collect::<String>().into()), Parsed::Good)
}

fn cluster_ip_texts(spec: &ServiceSpec) -> Vec<&str> {
    let many = spec.cluster_ips.iter().flatten().map(String::as_str);
    let many: Vec<&str> = many.filter(|ip| !ip.is_empty()).collect();
    match spec.cluster_ip.as_deref() {
        Some("None") => vec!["None"],
        Some(ip) if many.is_empty() && !ip.is_empty() => vec![ip],
        _ => many,
    }
}

fn affinity(spec: &ServiceSpec) -> Option<Affinity> {
    if spec.session_affinity.as_deref() != Some("ClientIP") {
        return None;
    }
    let config = spec.session_affinity_config.as_ref().and_then(|config| config.client_ip.as_ref());
    let seconds = config.and_then(|client| client.timeout_seconds).and_then(|seconds| u32::try_from(seconds).ok());
    Some(seconds.filter(|seconds| *seconds > 0).unwrap_or(DEFAULT_AFFINITY_SECONDS).into())
}

impl From<KubePort> for ServicePort {
    fn from(port: KubePort) -> Self {
        Self {
            name: text(port.name),
            protocol: protocol(port.protocol.as_deref()),
            port: port.port,
            node_port: port.node_port.unwrap_or(0),
        }
    }
}

impl From<EndpointSlice> for SliceObject {
    fn from(slice: EndpointSlice) -> Self {
        let labels = slice.metadata.labels.as_ref();
        let triggered = slice.metadata.annotations.as_ref().and_then(|annotations| annotations.get(TRIGGERED));
        let mut endpoints: Box<[SliceEndpoint]> = slice.endpoints.into_iter().flatten().map(Into::into).collect();
        share_zones(&mut endpoints);
        Self {
            weight: annotation(slice.metadata.annotations.as_ref(), WEIGHT).map(|text| parsed(&text, weight(&text))),
            triggered: triggered.and_then(|text| micros(text)),
            version: version(&slice.metadata),
            service: label(labels, SERVICE_NAME),
            headless: labels.is_some_and(|labels| labels.contains_key(HEADLESS)),
            pushed: false,
            namespace: text(slice.metadata.namespace),
            name: text(slice.metadata.name),
            family: Family::named(&slice.address_type)
                .map_or_else(|| Parsed::Bad(slice.address_type.into()), Parsed::Good),
            ports: slice.ports.into_iter().flatten().map(Into::into).collect(),
            endpoints,
        }
    }
}

/// Lets the endpoints of a slice share one copy of each zone's name.
fn share_zones(endpoints: &mut [SliceEndpoint]) {
    let mut names: BTreeSet<Arc<str>> = BTreeSet::new();
    for zone in endpoints.iter_mut().filter_map(|endpoint| endpoint.zone.as_mut()) {
        match names.get(&**zone) {
            Some(shared) => *zone = Arc::clone(shared),
            None => _ = names.insert(Arc::clone(zone)),
        }
    }
}

fn micros(time: &str) -> Option<NonZeroI64> {
    NonZeroI64::new(time.parse::<k8s_openapi::jiff::Timestamp>().ok()?.as_microsecond())
}

impl From<EndpointPort> for SlicePort {
    fn from(port: EndpointPort) -> Self {
        Self { name: port.name.map(Into::into), protocol: protocol(port.protocol.as_deref()), port: port.port }
    }
}

impl From<Endpoint> for SliceEndpoint {
    fn from(endpoint: Endpoint) -> Self {
        let hints = endpoint.hints.unwrap_or_default();
        Self {
            address: endpoint.addresses.first().map(|ip| parsed_address(ip)),
            hostname: endpoint.hostname.filter(|name| !name.is_empty()).map(Into::into),
            node: endpoint.node_name.map(Into::into),
            zone: endpoint.zone.map(Into::into),
            conditions: endpoint.conditions.unwrap_or_default().into(),
            zone_hints: hints.for_zones.into_iter().flatten().map(|zone| zone.name.into()).collect(),
            node_hints: hints.for_nodes.into_iter().flatten().map(|node| node.name.into()).collect(),
            target: None,
        }
    }
}

impl From<Node> for NodeObject {
    fn from(node: Node) -> Self {
        let addresses = node.status.and_then(|status| status.addresses).unwrap_or_default();
        let of_type = |kind| addresses.iter().filter(move |address| address.type_ == kind);
        let host_addresses = of_type("InternalIP").chain(of_type("ExternalIP"));
        let spec = node.spec.unwrap_or_default();
        let pod_cidrs = spec.pod_cidrs.filter(|cidrs| !cidrs.is_empty());
        let pod_cidrs =
            pod_cidrs.unwrap_or_else(|| spec.pod_cidr.into_iter().filter(|cidr| !cidr.is_empty()).collect());
        Self {
            version: version(&node.metadata),
            zone: label(node.metadata.labels.as_ref(), ZONE).unwrap_or_default(),
            name: text(node.metadata.name),
            addresses: host_addresses.map(|address| parsed_address(&address.address)).collect(),
            pod_cidrs: pod_cidrs.iter().map(|cidr| parsed_cidr(cidr)).collect(),
            taints: spec.taints.into_iter().flatten().map(|taint| taint.key.into()).collect(),
            deleting: node.metadata.deletion_timestamp.is_some(),
        }
    }
}

impl From<ServiceCIDR> for ServiceCidrObject {
    fn from(cidr: ServiceCIDR) -> Self {
        let cidrs = cidr.spec.and_then(|spec| spec.cidrs).unwrap_or_default();
        Self { name: text(cidr.metadata.name), cidrs: cidrs.iter().map(|cidr| parsed_cidr(cidr)).collect() }
    }
}

fn text(text: Option<String>) -> Arc<str> {
    text.unwrap_or_default().into()
}

fn label(labels: Option<&BTreeMap<String, String>>, name: &str) -> Option<Arc<str>> {
    labels?.get(name).map(|value| value.as_str().into())
}

/// The trimmed value of an annotation. `None` if it is empty.
fn annotation(annotations: Option<&BTreeMap<String, String>>, name: &str) -> Option<Arc<str>> {
    let value = annotations?.get(name)?.trim();
    (!value.is_empty()).then(|| value.into())
}

fn version(metadata: &ObjectMeta) -> Option<NonZeroU64> {
    metadata.resource_version.as_deref()?.parse().ok()
}

fn created(metadata: &ObjectMeta) -> i64 {
    metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second())
}

fn protocol(text: Option<&str>) -> Parsed<Protocol> {
    let name = text.filter(|text| !text.is_empty()).unwrap_or("TCP");
    Protocol::named(name).map_or_else(|| Parsed::Bad(name.into()), Parsed::Good)
}

/// Parses an address.
pub fn parsed_address(text: &str) -> Parsed<IpAddr> {
    address::address(text).map_or_else(|| Parsed::Bad(text.into()), Parsed::Good)
}

/// Parses a CIDR. The API server accepts white space around source ranges.
pub fn parsed_cidr(text: &str) -> Parsed<IpNet> {
    address::cidr(text.trim()).map_or_else(|| Parsed::Bad(text.into()), Parsed::Good)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn service(spec: &Value, ingress: &Value) -> ServiceObject {
        let object = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "web", "namespace": "shop", "creationTimestamp": "1970-01-01T00:01:00Z"},
            "spec": spec, "status": {"loadBalancer": {"ingress": ingress}},
        });
        serde_json::from_value::<Service>(object).unwrap().into()
    }

    fn texts<T: ToString>(list: &[Parsed<T>]) -> Vec<String> {
        let text = |parsed: &Parsed<T>| match parsed {
            Parsed::Good(value) => value.to_string(),
            Parsed::Bad(text) => format!("bad {text}"),
        };
        list.iter().map(text).collect()
    }

    #[test]
    fn only_load_balancer_addresses_of_mode_vip_count() {
        let ingress = json!([
            {"ip": "192.0.2.1"}, {"ip": "192.0.2.2", "ipMode": "VIP"}, {"ip": "192.0.2.3", "ipMode": "Proxy"},
            {"hostname": "lb.example.com"}, {"ip": ""}, {"ip": "192.0.2.x"}
        ]);
        let service = service(&json!({}), &ingress);
        assert_eq!(texts(&service.load_balancer_ips), ["192.0.2.1", "192.0.2.2", "bad 192.0.2.x"]);
        assert_eq!((&*service.namespace, &*service.name, service.created), ("shop", "web", 60));
    }

    #[test]
    fn cluster_ips_are_many_or_one_or_none() {
        let of = |spec: Value| {
            let service = service(&spec, &json!([]));
            (texts(&service.cluster_ips), service.headless)
        };
        let one = || vec!["10.96.0.41".to_owned()];
        assert_eq!(of(json!({"clusterIP": "10.96.0.041"})), (one(), false));
        assert_eq!(of(json!({"clusterIP": "10.96.0.41", "clusterIPs": ["10.96.0.41"]})), (one(), false));
        assert_eq!(of(json!({"clusterIPs": ["10.96.0.41"]})), (one(), false));
        assert_eq!(of(json!({"clusterIP": "None", "clusterIPs": ["None"]})), (vec![], true));
        assert_eq!(of(json!({"clusterIPs": ["None"]})), (vec![], true));
        assert_eq!(of(json!({"clusterIP": ""})), (vec![], false));
        assert_eq!(of(json!({})), (vec![], false));
    }

    #[test]
    fn affinity_has_a_timeout() {
        let of = |spec: Value| service(&spec, &json!([])).affinity;
        assert_eq!(of(json!({})), None);
        assert_eq!(of(json!({"sessionAffinity": "None"})), None);
        assert_eq!(of(json!({"sessionAffinity": "ClientIP"})), Some(10_800.into()));
        let config =
            json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}}});
        assert_eq!(of(config), Some(60.into()));
    }

    #[test]
    fn a_scheduler_is_named_by_an_annotation() {
        for (annotations, expected) in [
            (json!({}), None),
            (json!({"localnet.dev/ipvs-scheduler": " mh "}), Some("mh")),
            (json!({"localnet.dev/ipvs-scheduler": " "}), None),
            (json!({"ipvs-scheduler": "mh"}), None),
        ] {
            let object = json!({"metadata": {"name": "web", "annotations": annotations}, "spec": {}});
            let service: ServiceObject = serde_json::from_value::<Service>(object).unwrap().into();
            assert_eq!(service.ipvs_scheduler.as_deref(), expected);
        }
    }

    #[test]
    fn a_duration_is_read_from_an_annotation() {
        use Parsed::{Bad, Good};
        let bad = |text: &str| Some(Bad(text.into()));
        for (value, expected) in [
            (" 30s ", Some(Good(30))),
            ("0s", Some(Good(0))),
            ("1h2m3s", Some(Good(3723))),
            ("", None),
            ("30", bad("30")),
            ("s", bad("s")),
            ("-1s", bad("-1s")),
            ("1.5s", bad("1.5s")),
            ("1d", bad("1d")),
            ("24h", Some(Good(86_400))),
            ("24h1s", bad("24h1s")),
            ("2000000h", bad("2000000h")),
            ("1é", bad("1é")),
        ] {
            let object = json!({"metadata": {"name": "web", "annotations": {CLOSE_AFTER: value}}, "spec": {}});
            let service = ServiceObject::from(serde_json::from_value::<Service>(object).unwrap());
            assert_eq!(service.extensions.and_then(|all| all.close_after), expected, "{value:?}");
        }
    }

    #[test]
    fn weights_are_read_from_annotations() {
        use Parsed::{Bad, Good};
        for (value, expected) in [
            (" 5 ", Some(Good(5))),
            ("0", Some(Good(0))),
            ("100", Some(Good(100))),
            ("", None),
            ("101", Some(Bad("101".into()))),
            ("-1", Some(Bad("-1".into()))),
            ("1.5", Some(Bad("1.5".into()))),
        ] {
            let object = json!({"metadata": {"annotations": {WEIGHT: value}}, "addressType": "IPv4", "endpoints": [
                {"addresses": ["10.0.0.1"], "zone": "a"}, {"addresses": ["10.0.0.2"], "zone": "a"}]});
            let slice = SliceObject::from(serde_json::from_value::<EndpointSlice>(object).unwrap());
            assert_eq!(slice.weight, expected, "{value:?}");
            let [first, second] = [0, 1].map(|index: usize| slice.endpoints[index].zone.clone().unwrap());
            assert!(Arc::ptr_eq(&first, &second) && *first == *"a");
        }
        for (value, expected) in [
            ("eu-a=3, eu-b = 0", Some(Good(vec![("eu-a", 3), ("eu-b", 0)]))),
            ("", None),
            ("eu-a", Some(Bad("eu-a".into()))),
            ("=3", Some(Bad("=3".into()))),
            ("a=1,", Some(Bad("a=1,".into()))),
            ("a=101", Some(Bad("a=101".into()))),
        ] {
            let object = json!({"metadata": {"name": "web", "annotations": {ZONE_WEIGHTS: value}}, "spec": {}});
            let service = ServiceObject::from(serde_json::from_value::<Service>(object).unwrap());
            let found =
                service.extensions.as_ref().and_then(|all| all.zone_weights.as_ref()).map(|weights| match weights {
                    Good(weights) => Good(weights.iter().map(|(zone, weight)| (&**zone, *weight)).collect()),
                    Bad(text) => Bad(text.clone()),
                });
            assert_eq!(found, expected, "{value:?}");
        }
    }

    #[test]
    fn an_annotation_preserves_the_destination() {
        for (annotations, expected) in [
            (json!({}), false),
            (json!({"preserve-destination": "true"}), true),
            (json!({"preserve-destination": "True"}), false),
            (json!({"preserve-destination": ""}), false),
        ] {
            let object = json!({"metadata": {"name": "web", "annotations": annotations}, "spec": {}});
            let service: ServiceObject = serde_json::from_value::<Service>(object).unwrap().into();
            assert_eq!(service.preserve_destination, expected);
        }
    }

    #[test]
    fn policies_types_and_ports_are_read() {
        let service = service(
            &json!({
                "type": "LoadBalancer", "internalTrafficPolicy": "Local", "externalTrafficPolicy": "Local",
                "healthCheckNodePort": 30000, "loadBalancerSourceRanges": [" 203.0.113.7/24 ", "x"],
                "ports": [{"port": 53, "protocol": "UDP", "nodePort": 30053}, {"name": "b", "port": 1, "protocol": "X"}],
            }),
            &json!([]),
        );
        assert_eq!(
            (service.kind, service.internal_local, service.external_local),
            (ServiceType::LoadBalancer, true, true)
        );
        assert_eq!(texts(&service.source_ranges), ["203.0.113.0/24", "bad x"]);
        assert_eq!(service.health_check_node_port, 30000);
        let dns = ServicePort { name: "".into(), protocol: Parsed::Good(Protocol::Udp), port: 53, node_port: 30053 };
        let odd = ServicePort { name: "b".into(), protocol: Parsed::Bad("X".into()), port: 1, node_port: 0 };
        assert_eq!(*service.ports, [dns, odd]);
    }

    #[test]
    fn missing_fields_of_an_endpoint_have_defaults() {
        let of = |conditions: Value| {
            let endpoint = json!({"addresses": ["10.0.0.1", "10.0.0.2"], "conditions": conditions});
            let endpoint: SliceEndpoint = serde_json::from_value::<Endpoint>(endpoint).unwrap().into();
            assert_eq!(endpoint.address, Some(Parsed::Good("10.0.0.1".parse().unwrap())), "only the first counts");
            let of = endpoint.conditions;
            (of.ready, of.serving, of.terminating)
        };
        assert_eq!(of(json!(null)), (true, true, false));
        assert_eq!(of(json!({"ready": false})), (false, true, false));
        assert_eq!(of(json!({"ready": false, "serving": false})), (false, false, false));
        assert_eq!(of(json!({"ready": false, "serving": true, "terminating": true})), (false, true, true));
    }

    #[test]
    fn a_node_has_its_internal_addresses_first() {
        let node = json!({
            "metadata": {"name": "n", "labels": {"topology.kubernetes.io/zone": "z"}},
            "spec": {"podCIDR": "10.1.0.0/24"},
            "status": {"addresses": [
                {"type": "Hostname", "address": "n"}, {"type": "ExternalIP", "address": "203.0.113.1"},
                {"type": "InternalIP", "address": "192.168.0.1"}, {"type": "InternalIP", "address": "fd00::1"}
            ]},
        });
        let node: NodeObject = serde_json::from_value::<Node>(node).unwrap().into();
        assert_eq!(texts(&node.addresses), ["192.168.0.1", "fd00::1", "203.0.113.1"]);
        assert_eq!((texts(&node.pod_cidrs), &*node.zone), (vec!["10.1.0.0/24".to_owned()], "z"));
    }
}
