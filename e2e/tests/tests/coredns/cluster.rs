//! A cluster with Services of all kinds, and the names to ask for.

use std::net::IpAddr;

use anyhow::Context as _;
use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use localnet_controlplane::{ControlPlane, NewNode, NewPod};
use serde_json::{Value, json};

/// A namespace without Services.
pub(crate) const EMPTY_NAMESPACE: &str = "vacant";
/// A namespace that does not exist.
pub(crate) const MISSING_NAMESPACE: &str = "gone";
/// The Services with an endpoint that is in several slices.
pub(crate) const REPEATED: [&str; 2] = ["node", "repeated"];
/// An ExternalName Service that has slices.
pub(crate) const WITH_SLICES: &str = "with-slices";
/// A Service with a port whose name is empty, in one slice with and in another one without a number.
pub(crate) const PORTLESS: &str = "bare";

const NAMESPACES: [&str; 2] = ["shop", "bank"];

/// What endpoints a Service has.
#[derive(Clone, Copy)]
enum Slices {
    None,
    /// IPv4 endpoints: some with host names, and one that is not ready.
    Named,
    /// Two slices with different ports, and one of IPv6.
    Several,
    /// An endpoint in two slices.
    Repeated,
    /// Slices without ports, and with a port without a number.
    Portless,
}

/// Creates the cluster, and returns the names.
pub(crate) async fn create(plane: &ControlPlane) -> anyhow::Result<Vec<String>> {
    plane.objects(EMPTY_NAMESPACE).ensure_namespace().await?;
    let mut names = fixed_names();
    names.extend(pod_names());
    for (at, namespace) in (0..).zip(NAMESPACES) {
        plane.objects(namespace).ensure_namespace().await?;
        for (number, (name, spec, slices)) in (1..).zip(services()) {
            names.extend(create_service(plane, namespace, name, &spec, slices, at * 60 + number).await?);
        }
    }
    names.extend(with_pods(plane).await?);
    Ok(names)
}

/// The Services of a namespace.
fn services() -> Vec<(&'static str, Value, Slices)> {
    let ports = json!([
        {"name": "http", "port": 80, "protocol": "TCP"}, {"name": "dns", "port": 53, "protocol": "UDP"},
        {"name": "dns-tcp", "port": 53, "protocol": "TCP"}, {"name": "media", "port": 5000, "protocol": "SCTP"},
    ]);
    let one = json!([{"port": 80}]);
    let dual =
        |ports: &Value| json!({"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv4", "IPv6"], "ports": ports});
    let headless = |ports: &Value| json!({"clusterIP": "None", "ipFamilyPolicy": "PreferDualStack", "ports": ports});
    let external = |name: &str| json!({"type": "ExternalName", "externalName": name});
    vec![
        ("plain", json!({"ports": one}), Slices::None),
        ("web", json!({"ports": ports}), Slices::Named),
        ("dual", dual(&ports), Slices::Several),
        ("six", json!({"ipFamilies": ["IPv6"], "ports": ports}), Slices::Several),
        (REPEATED[0], json!({"type": "NodePort", "ports": one}), Slices::Repeated),
        ("cloud", json!({"type": "LoadBalancer", "ports": one}), Slices::Portless),
        (PORTLESS, headless(&json!([])), Slices::Portless),
        ("db", headless(&ports), Slices::Named),
        ("several", headless(&ports), Slices::Several),
        (REPEATED[1], headless(&ports), Slices::Repeated),
        ("empty", headless(&one), Slices::None),
        ("out", external("www.example.com"), Slices::None),
        (WITH_SLICES, external("db.example.com"), Slices::Named),
        ("to-web", external("web.shop.svc.cluster.local"), Slices::None),
        ("to-six", external("six.shop.svc.cluster.local."), Slices::None),
        ("to-db", external("db-0.db.bank.svc.cluster.local"), Slices::None),
        ("chain", external("to-web.bank.svc.cluster.local"), Slices::None),
        ("chain-out", external("out.shop.svc.cluster.local"), Slices::None),
        ("dangling", external("gone.shop.svc.cluster.local"), Slices::None),
        ("itself", external("itself.shop.svc.cluster.local"), Slices::None),
        ("below", external("x.below.shop.svc.cluster.local"), Slices::None),
        ("loop-a", external("loop-b.shop.svc.cluster.local"), Slices::None),
        ("loop-b", external("loop-a.shop.svc.cluster.local"), Slices::None),
        ("to-pod", external("10-2-0-1.shop.pod.cluster.local"), Slices::None),
        ("to-pod-6", external("fd00--1.bank.pod.cluster.local"), Slices::None),
        ("address", external("192.0.2.7"), Slices::None),
    ]
}

/// Creates a Service and its slices. Returns its names, and those of its addresses.
async fn create_service(
    plane: &ControlPlane,
    namespace: &str,
    name: &str,
    spec: &Value,
    slices: Slices,
    number: u8,
) -> anyhow::Result<Vec<String>> {
    let service = plane.objects(namespace).ensure_service(name, spec.clone()).await.with_context(|| name.to_owned())?;
    let is_headless = spec["clusterIP"] == "None";
    let api: Api<EndpointSlice> = Api::namespaced(plane.client(), namespace);
    for (position, content) in of(slices, number).into_iter().enumerate() {
        let mut labels = json!({"kubernetes.io/service-name": name});
        if is_headless {
            labels["service.kubernetes.io/headless"] = json!("");
        }
        let mut slice = content;
        slice["metadata"] = json!({"name": format!("{name}-{position}"), "labels": labels});
        api.create(&PostParams::default(), &serde_json::from_value(slice)?).await.with_context(|| name.to_owned())?;
    }
    Ok(names_of(namespace, name, &service, &endpoint_addresses(number)))
}

fn endpoint_addresses(number: u8) -> Vec<IpAddr> {
    let v4 = (0..4).map(|last| IpAddr::from([10, 1, number, last]));
    v4.chain([
        IpAddr::from([0xfd00, 1, 0, 0, 0, 0, u16::from(number), 0]),
        IpAddr::from([0xfd00, 1, 0, 0, 0, 0, u16::from(number), 1]),
    ])
    .collect()
}

/// The slices of a Service, without metadata.
fn of(slices: Slices, number: u8) -> Vec<Value> {
    let all = endpoint_addresses(number);
    let endpoint = |at: usize| json!({"addresses": [all[at]]});
    let named = |at: usize, hostname: &str| json!({"addresses": [all[at]], "hostname": hostname});
    let slice = |kind: &str, ports: Value, endpoints: Vec<Value>| json!({"addressType": kind, "ports": ports, "endpoints": endpoints});
    let http = json!([{"name": "http", "port": 8080}, {"name": "dns", "port": 5353, "protocol": "UDP"}]);
    match slices {
        Slices::None => Vec::new(),
        Slices::Named => {
            let mut unready = named(2, "db-2");
            unready["conditions"] = json!({"ready": false, "serving": true});
            let mut unknown = endpoint(3);
            unknown["conditions"] = json!({"serving": false});
            vec![slice("IPv4", http, vec![named(0, "db-0"), named(1, "db-1"), unready, unknown])]
        }
        Slices::Several => vec![
            slice("IPv4", http.clone(), vec![endpoint(0), named(1, "one")]),
            slice("IPv4", json!([{"name": "http", "port": 9090}]), vec![endpoint(2), named(3, "one")]),
            slice("IPv6", http, vec![endpoint(4), named(5, "one")]),
        ],
        Slices::Repeated => {
            vec![slice("IPv4", http.clone(), vec![endpoint(0), endpoint(1)]), slice("IPv4", http, vec![endpoint(0)])]
        }
        Slices::Portless => vec![
            slice("IPv4", json!([]), vec![endpoint(0), named(1, "none")]),
            slice("IPv4", json!([{"name": ""}]), vec![endpoint(2)]),
            slice("IPv4", json!([{"name": "", "port": 7000}]), vec![endpoint(3)]),
        ],
    }
}

/// Two Services whose slices the controller writes: only one of them publishes addresses that are not ready.
async fn with_pods(plane: &ControlPlane) -> anyhow::Result<Vec<String>> {
    let shop = plane.objects("shop");
    shop.ensure_node(NewNode { name: "node-a", addresses: &["192.0.2.1".parse()?], ..NewNode::default() }).await?;
    let mut names = Vec::new();
    let ips: Vec<IpAddr> = vec!["10.2.0.1".parse()?, "10.2.0.2".parse()?];
    for (name, publishes) in [("published", true), ("ready-only", false)] {
        let spec = json!({
            "clusterIP": "None", "selector": {"app": "pods"}, "publishNotReadyAddresses": publishes,
            "ports": [{"name": "http", "port": 80}],
        });
        let service = shop.ensure_service(name, spec).await?;
        names.extend(names_of("shop", name, &service, &ips));
    }
    for (name, ip, ready) in [("pod-1", ips[0], true), ("pod-2", ips[1], false)] {
        let labels = [("app", "pods")];
        shop.ensure_pod(NewPod { name, node: "node-a", labels: &labels, ips: &[ip], ready, ..NewPod::default() })
            .await?;
    }
    shop.await_ready_addresses("published", &ips).await?;
    shop.await_ready_addresses("ready-only", &ips[..1]).await?;
    Ok(names)
}

/// The names of a Service, its ports and its endpoints; those of its addresses; and some that nothing has.
fn names_of(namespace: &str, name: &str, service: &Service, endpoints: &[IpAddr]) -> Vec<String> {
    let own = format!("{name}.{namespace}.svc.cluster.local.");
    let mut names = vec![own.clone(), own.to_ascii_uppercase(), format!("{name}.{namespace}.pod.cluster.local.")];
    let ports = [
        "_http._tcp",
        "_dns._udp",
        "_dns-tcp._tcp",
        "_media._sctp",
        "_http._udp",
        "_HTTP._TCP",
        "http.tcp",
        "_._tcp",
        "_._",
        "*._tcp",
        "_any._any",
        "_tcp",
        "_http",
        "*",
        "db-0",
        "db-1",
        "db-2",
        "DB-0",
        "one",
        "none",
        "x.y.z",
        "_x._http._tcp",
        "any",
    ];
    names.extend(ports.map(|port| format!("{port}.{own}")));
    for address in endpoints {
        let dashed = address.to_string().replace(['.', ':'], "-");
        names.push(format!("{dashed}{}.{own}", if dashed.ends_with('-') { "0" } else { "" }));
        names.push(format!("{dashed}.{namespace}.pod.cluster.local."));
        names.push(reverse(*address));
    }
    let spec = service.spec.clone().unwrap_or_default();
    let cluster_ips = spec.cluster_ips.into_iter().flatten().filter_map(|ip| ip.parse().ok());
    names.extend(cluster_ips.map(reverse));
    names
}

fn reverse(address: IpAddr) -> String {
    hickory_server::proto::rr::Name::from(address).to_ascii()
}

fn fixed_names() -> Vec<String> {
    let names = [
        "cluster.local.",
        "CLUSTER.Local.",
        "svc.cluster.local.",
        "pod.cluster.local.",
        "shop.svc.cluster.local.",
        "SHOP.svc.cluster.local.",
        "gone.svc.cluster.local.",
        "vacant.svc.cluster.local.",
        "x.vacant.svc.cluster.local.",
        "x.gone.svc.cluster.local.",
        "gone.shop.svc.cluster.local.",
        "x.gone.shop.svc.cluster.local.",
        "_http._tcp.gone.shop.svc.cluster.local.",
        "web.shop.cluster.local.",
        "web.cluster.local.",
        "dns-version.cluster.local.",
        "DNS-Version.cluster.local.",
        "x.dns-version.cluster.local.",
        "ns.dns.cluster.local.",
        "dns.cluster.local.",
        "apex.dns.cluster.local.",
        "kubernetes.default.svc.cluster.local.",
        "_https._tcp.kubernetes.default.svc.cluster.local.",
        "1-2-3-4.default.pod.cluster.local.",
        "in-addr.arpa.",
        "ip6.arpa.",
        "10.in-addr.arpa.",
        "96.10.in-addr.arpa.",
        "9.9.9.9.in-addr.arpa.",
        "1.9.9.9.9.in-addr.arpa.",
        "x.in-addr.arpa.",
        "256.0.0.10.in-addr.arpa.",
        "d.f.ip6.arpa.",
        "x.ip6.arpa.",
    ];
    names.map(str::to_owned).into()
}

/// Names of Pods in each kind of namespace: addresses in all forms, and what is no address.
fn pod_names() -> Vec<String> {
    let labels = [
        "1-2-3-4",
        "255-255-255-255",
        "256-2-3-4",
        "01-2-3-4",
        "1-2-3",
        "1-2-3-4-5",
        "1.2.3.4",
        "1--2-3-4",
        "1--2-3",
        "1--",
        "0--0",
        "fd00-1--A",
        "fd00-1-2-3-4-5-6-7",
        "fd00-1-2-3-4-5-6-7-8",
        "fd00-1-2-3-4-5-6--",
        "fd00-1-2-3-4-5-6-7--",
        "fd00--1--2",
        "fd00--10000",
        "0--ffff-102-304",
        "0--102-304",
        "pod-1",
        "web",
        "*",
        "x.1-2-3-4",
        "_http._tcp.1-2-3-4",
        "y.x.1-2-3-4",
        "z.y.x.1-2-3-4",
        "x.fd00--1",
    ];
    let of = |namespace| labels.map(|label| format!("{label}.{namespace}.pod.cluster.local."));
    let namespaces = ["shop", "BANK", EMPTY_NAMESPACE, MISSING_NAMESPACE];
    namespaces.into_iter().flat_map(of).chain(namespaces.map(|of| format!("{of}.pod.cluster.local."))).collect()
}

/// Deletes some Services, changes others, and adds one. Returns the new names.
pub(crate) async fn change(plane: &ControlPlane) -> anyhow::Result<Vec<String>> {
    let shop = plane.objects("shop");
    for name in ["web", "out"] {
        shop.remove_service(name).await?;
    }
    let slices: Api<EndpointSlice> = Api::namespaced(plane.client(), "shop");
    // The slices of a deleted Service are deleted by the garbage collector, which does not run here.
    for name in ["web-0", "several-0", "repeated-1"] {
        slices.delete(name, &DeleteParams::default()).await?;
    }
    shop.set_pod_ready("pod-2", true).await?;
    shop.await_ready_addresses("ready-only", &["10.2.0.1".parse()?, "10.2.0.2".parse()?]).await?;
    shop.ensure_service("plain", json!({"type": "ExternalName", "externalName": "plain.example.com", "clusterIP": ""}))
        .await?;
    let spec = json!({"ports": [{"name": "late", "port": 81}]});
    create_service(plane, "bank", "late", &spec, Slices::Named, 200).await
}

/// Creates a headless Service with one endpoint, after all other objects, and returns its name.
pub(crate) async fn mark(plane: &ControlPlane, round: u8) -> anyhow::Result<String> {
    let name = format!("marker-{round}");
    let spec = json!({"clusterIP": "None", "ports": [{"port": 80}]});
    create_service(plane, "bank", &name, &spec, Slices::Named, 220 + round).await?;
    Ok(format!("{name}.bank.svc.cluster.local."))
}
