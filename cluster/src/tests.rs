//! Tests which objects an event marks, and when the first state is ready.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use localnet_core::Severity;
use localnet_proto::{Family, Protocol, Service, ServiceKey};

use super::*;
use crate::{
    objects::{Extensions, ServiceType, reduce},
    testing::{addresses, endpoint, service as web, slice},
};

fn cluster() -> Cluster {
    Cluster::new(Options::of_node("node-1"))
}

fn named(name: &str, ip: &str) -> ServiceObject {
    ServiceObject { name: name.into(), cluster_ips: addresses(&[ip]), ..web(ip, &[(80, "TCP")]) }
}

fn node(zone: &str, ip: &str) -> Object {
    Object::Node(NodeObject {
        name: "node-1".into(),
        zone: zone.into(),
        addresses: addresses(&[ip]),
        pod_cidrs: [].into(),
        taints: [].into(),
        deleting: false,
        version: None,
    })
}

/// A slice of `default/web` with one endpoint.
fn one(name: &str, address: &str) -> SliceObject {
    slice(name, &[("p80", 8080)], vec![endpoint(address)])
}

fn replace(kind: Kind, objects: Vec<Object>) -> Event {
    Event::Replace { kind, objects }
}

fn delete(kind: Kind, name: &str) -> Event {
    Event::Delete { kind, namespace: "default".into(), name: name.into() }
}

/// A cluster that has received these objects, and in which nothing is marked.
fn synced(services: Vec<ServiceObject>, slices: Vec<SliceObject>) -> Cluster {
    let mut cluster = cluster();
    cluster.handle(replace(Kind::Service, services.into_iter().map(Object::Service).collect()));
    cluster.handle(replace(Kind::Slice, slices.into_iter().map(Object::Slice).collect()));
    cluster.handle(replace(Kind::Node, vec![node("zone-a", "192.168.0.1")]));
    cluster.handle(replace(Kind::ServiceCidr, vec![]));
    cluster.localize().unwrap();
    cluster
}

/// Checks what an event marks: the names of Services, preceded by the node's zone if the node is marked.
#[track_caller]
fn check_marks(cluster: &mut Cluster, event: Event, expected: &[&str]) -> Vec<Option<Arc<Service>>> {
    cluster.handle(event);
    let localized = cluster.localize().unwrap();
    let node = localized.node.iter().map(|node| node.zone.clone());
    let (keys, services): (Vec<_>, Vec<_>) = localized.services.into_iter().unzip();
    let marked: Vec<String> = node.chain(keys.iter().map(|key| key.name.to_string())).collect();
    assert_eq!(marked, expected);
    services
}

#[test]
fn no_state_exists_before_every_kind_is_listed() {
    let mut cluster = cluster();
    for kind in Kind::ALL {
        assert_eq!(cluster.localize(), None);
        cluster.handle(Event::Apply(Object::Service(web("10.96.0.1", &[(80, "TCP")]))));
        assert_eq!(cluster.localize(), None, "an object is not a list");
        let objects = if kind == Kind::Service { vec![Object::Service(named("a", "10.96.0.1"))] } else { vec![] };
        cluster.handle(replace(kind, objects));
    }
    let localized = cluster.localize().unwrap();
    assert_eq!(localized.node.unwrap().name, "node-1");
    assert!(cluster.localize().unwrap() == Localized::default(), "the change is reported once");
}

#[test]
fn equal_objects_mark_nothing() {
    let mut cluster = synced(vec![named("web", "10.96.0.1")], vec![one("web-1", "10.1.0.1")]);
    check_marks(&mut cluster, Event::Apply(Object::Service(named("web", "10.96.0.1"))), &[]);
    check_marks(&mut cluster, Event::Apply(Object::Slice(one("web-1", "10.1.0.1"))), &[]);
    check_marks(&mut cluster, Event::Apply(node("zone-a", "192.168.0.1")), &[]);
    check_marks(&mut cluster, replace(Kind::Slice, vec![Object::Slice(one("web-1", "10.1.0.1"))]), &[]);
    check_marks(&mut cluster, delete(Kind::Slice, "unknown"), &[]);
    check_marks(&mut cluster, delete(Kind::Service, "unknown"), &[]);
    let other = NodeObject { name: "node-2".into(), ..NodeObject::from(k8s_openapi::api::core::v1::Node::default()) };
    check_marks(&mut cluster, Event::Apply(Object::Node(other)), &[]);
}

#[test]
fn a_slice_marks_its_service() {
    let mut cluster =
        synced(vec![named("web", "10.96.0.1"), named("other", "10.96.0.2")], vec![one("web-1", "10.1.0.1")]);
    let endpoints = |services: &[Option<Arc<Service>>]| -> Vec<Vec<IpAddr>> {
        let of = |service: &Option<Arc<Service>>| {
            service.iter().flat_map(|s| s.endpoints.iter().map(|e| e.address)).collect()
        };
        services.iter().map(of).collect()
    };
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    let marked = check_marks(&mut cluster, Event::Apply(Object::Slice(one("web-2", "10.1.0.2"))), &["web"]);
    assert_eq!(endpoints(&marked), [[ip("10.1.0.1"), ip("10.1.0.2")]]);
    // A slice moves to another Service.
    let moved = SliceObject { service: Some("other".into()), ..one("web-2", "10.1.0.2") };
    let marked = check_marks(&mut cluster, Event::Apply(Object::Slice(moved)), &["other", "web"]);
    assert_eq!(endpoints(&marked), [[ip("10.1.0.2")], [ip("10.1.0.1")]]);
    let marked = check_marks(&mut cluster, replace(Kind::Slice, vec![]), &["other", "web"]);
    assert_eq!(endpoints(&marked), [[], []] as [[IpAddr; 0]; 2]);
    assert!(cluster.slices.is_empty() && cluster.owners.is_empty());
}

#[test]
fn slices_may_arrive_before_their_service_and_stay_after_it() {
    let mut cluster = synced(vec![], vec![]);
    let none = check_marks(&mut cluster, Event::Apply(Object::Slice(one("web-1", "10.1.0.1"))), &["web"]);
    assert_eq!(none, [None]);
    let web = check_marks(&mut cluster, Event::Apply(Object::Service(named("web", "10.96.0.1"))), &["web"]);
    assert_eq!(web[0].as_ref().unwrap().endpoints.len(), 1);
    assert_eq!(check_marks(&mut cluster, delete(Kind::Service, "web"), &["web"]), [None]);
    let web = check_marks(&mut cluster, Event::Apply(Object::Service(named("web", "10.96.0.1"))), &["web"]);
    assert_eq!(web[0].as_ref().unwrap().endpoints.len(), 1);
}

#[test]
fn a_changed_node_marks_dependent_services() {
    let mut filtered = named("filtered", "10.96.0.2");
    filtered.source_ranges = [reduce::parsed_cidr("203.0.113.0/24")].into();
    let mut hinted = one("web-1", "10.1.0.1");
    hinted.endpoints[0].zone_hints = ["zone-a".into()].into();
    let mut cluster = synced(vec![named("web", "10.96.0.1"), filtered, named("other", "10.96.0.3")], vec![hinted]);
    check_marks(&mut cluster, Event::Apply(node("zone-b", "192.168.0.1")), &["zone-b", "web"]);
    check_marks(&mut cluster, Event::Apply(node("zone-b", "192.168.0.2")), &["zone-b", "filtered"]);
    let cidr = ServiceCidrObject { name: "kubernetes".into(), cidrs: [reduce::parsed_cidr("10.96.0.0/16")].into() };
    check_marks(&mut cluster, Event::Apply(Object::ServiceCidr(cidr.clone())), &["zone-b"]);
    check_marks(&mut cluster, Event::Apply(Object::ServiceCidr(cidr)), &[]);
    check_marks(&mut cluster, replace(Kind::ServiceCidr, vec![]), &["zone-b"]);
}

#[test]
fn a_changed_node_marks_services_with_its_addresses() {
    let mut taken = named("taken", "10.96.0.2");
    taken.external_ips = addresses(&["192.168.0.2"]);
    let mut cluster = synced(vec![named("web", "10.96.0.1"), taken], vec![]);
    check_marks(&mut cluster, Event::Apply(node("zone-a", "192.168.0.3")), &["zone-a"]);
    cluster.handle(Event::Apply(node("zone-a", "192.168.0.2")));
    let localized = cluster.localize().unwrap();
    let found: Vec<_> =
        localized.skipped.iter().map(|(_, skip)| (skip.severity, skip.subject.to_string(), &*skip.field)).collect();
    assert_eq!(found, [(Severity::Warning, "Service default/taken".to_owned(), "spec.externalIPs[0]")]);
    check_marks(&mut cluster, Event::Apply(node("zone-a", "192.168.0.3")), &["zone-a", "taken"]);
}

#[test]
fn the_reason_for_ignored_hints_can_be_queried() {
    let mut hinted = one("web-1", "10.1.0.1");
    hinted.endpoints[0].zone_hints = ["zone-b".into()].into();
    let mesh = ServiceObject { proxy_name: Some("mesh".into()), ..named("other", "10.96.0.2") };
    let mut cluster = synced(vec![named("web", "10.96.0.1"), mesh], vec![hinted]);
    let topology = |cluster: &Cluster, name: &str| cluster.topology(&ServiceKey::new("default", name));
    let of_zone = |cluster: &Cluster| topology(cluster, "web").unwrap()[0].not_same_zone.clone();
    assert_eq!(of_zone(&cluster), Some(localize::Reason::NoHintForZone("zone-a".into())));
    cluster.handle(Event::Apply(node("zone-b", "192.168.0.1")));
    assert_eq!(of_zone(&cluster), None);
    assert_eq!(topology(&cluster, "web").unwrap()[0].mode, localize::Mode::SameZone);
    assert_eq!((topology(&cluster, "other"), topology(&cluster, "unknown")), (None, None));
}

#[test]
fn the_reasons_for_ineligible_endpoints_can_be_queried() {
    use crate::localize::Standing;
    let mut not_ready = one("web-1", "10.1.0.1");
    not_ready.endpoints[0].conditions.ready = false;
    let mesh = ServiceObject { proxy_name: Some("mesh".into()), ..named("other", "10.96.0.2") };
    let cluster = synced(vec![named("web", "10.96.0.1"), mesh], vec![not_ready]);
    let reasons = |name: &str| cluster.reasons(&ServiceKey::new("default", name));
    let web = reasons("web");
    assert_eq!((web.standing, web.ineligible_count, web.slices), (Standing::Served, 1, 1));
    assert_eq!(web.ineligible[0].rule, localize::Rule::NotServing);
    assert_eq!(reasons("other").standing, Standing::OfAnotherProxy);
    assert_eq!(reasons("unknown"), localize::Reasons { standing: Standing::Absent, ..Default::default() });
}

#[test]
fn changed_node_ips_mark_services_with_these_addresses() {
    let external = |name: &str, ip: &str| ServiceObject {
        name: name.into(),
        external_ips: [Parsed::Good(ip.parse().unwrap())].into(),
        ..web("10.96.0.1", &[(80, "TCP")])
    };
    let services = vec![external("a", "203.0.113.1"), external("b", "10.0.0.9")];
    let mut cluster = synced(services, vec![]);
    let chosen = NodeIps { first: vec!["10.0.0.9".parse().unwrap()], single_stack: false };
    cluster.set_node_ips(chosen.clone());
    let localized = cluster.localize().unwrap();
    let addresses: Vec<_> = localized.node.unwrap().addresses.iter().map(ToString::to_string).collect();
    assert_eq!(addresses, ["10.0.0.9", "192.168.0.1"]);
    let marked: Vec<_> = localized.services.iter().map(|(key, _)| &*key.name).collect();
    assert_eq!(marked, ["b"]);
    cluster.set_node_ips(chosen);
    assert_eq!(cluster.localize(), Some(Localized::default()), "the same choice is none");
}

#[test]
fn external_addresses_can_be_disabled() {
    let mut service = web("10.96.0.1", &[(80, "TCP")]);
    service.external_ips = [Parsed::Good("203.0.113.1".parse().unwrap())].into();
    for external_ips in [true, false] {
        let mut cluster = Cluster::new(Options { external_ips, ..Options::of_node("node-1") });
        for kind in Kind::ALL {
            let services = vec![Object::Service(service.clone())];
            cluster.handle(replace(kind, if kind == Kind::Service { services } else { vec![] }));
        }
        let services = cluster.localize().unwrap().services;
        let served = services[0].1.as_ref().unwrap();
        assert_eq!(served.external_ips.len(), usize::from(external_ips));
    }
}

/// kubernetes/kubernetes#128928: kube-proxy kept an entry for each deleted Service.
#[test]
fn nothing_remains_of_deleted_objects() {
    let mut cluster = synced(vec![], vec![]);
    for name in ["a", "b"] {
        let slice = SliceObject { service: Some(name.into()), ..one(name, "10.1.0.1") };
        cluster.handle(Event::Apply(Object::Service(named(name, "10.96.0.1"))));
        cluster.handle(Event::Apply(Object::Slice(slice)));
        cluster.handle(delete(Kind::Service, name));
        cluster.handle(delete(Kind::Slice, name));
    }
    cluster.localize().unwrap();
    let left = [cluster.services.len(), cluster.slices.len(), cluster.owners.len(), cluster.dirty.len()];
    assert_eq!(left, [0; 4]);
}

/// A Node may be deleted while its machine still runs and its pods are still reachable. kube-proxy does the same.
#[test]
fn the_facts_of_a_deleted_node_stay() {
    let facts = |cluster: &mut Cluster, event: Event| {
        cluster.handle(event);
        cluster.localize().unwrap()
    };
    for gone in
        [Event::Delete { kind: Kind::Node, namespace: "".into(), name: "node-1".into() }, replace(Kind::Node, vec![])]
    {
        let mut hinted = one("web-1", "10.1.0.1");
        hinted.endpoints[0].zone_hints = ["zone-a".into()].into();
        let mut cluster = synced(vec![named("web", "10.96.0.1")], vec![hinted]);
        let localized = facts(&mut cluster, gone.clone());
        let last_facts = localized.node.unwrap();
        assert_eq!(
            (&*last_facts.zone, last_facts.addresses),
            ("zone-a", vec!["192.168.0.1".parse::<IpAddr>().unwrap()])
        );
        assert_eq!((localized.services, localized.node_eligible), (vec![], Some(true)));
        let [(_, skip)] = &*localized.skipped else { panic!("{:?}", localized.skipped) };
        assert_eq!(
            skip.to_string().split_once("; register").map(|(text, _)| text),
            Some("Node node-1: was deleted; the brain keeps using its last addresses and zone")
        );
        assert_eq!(facts(&mut cluster, gone), Localized::default(), "the change is reported once");
        // A newly registered Node takes effect at once.
        let back = facts(&mut cluster, Event::Apply(node("zone-a", "192.168.0.1")));
        assert_eq!((back.node.unwrap().zone, back.skipped), ("zone-a".to_owned(), vec![]));
        let moved = facts(&mut cluster, replace(Kind::Node, vec![node("zone-b", "192.168.0.1")]));
        assert_eq!((moved.node.unwrap().zone, moved.services.len()), ("zone-b".to_owned(), 1));
    }
    // There are no facts about a Node that never existed.
    let mut never = cluster();
    for kind in Kind::ALL {
        never.handle(replace(kind, vec![]));
    }
    let localized = never.localize().unwrap();
    assert_eq!((localized.node.unwrap().addresses, localized.skipped), (vec![], vec![]));
}

#[test]
fn a_service_of_another_proxy_is_not_served() {
    let mut cluster = synced(vec![named("web", "10.96.0.1")], vec![]);
    let mesh = ServiceObject { proxy_name: Some("mesh".into()), ..named("web", "10.96.0.1") };
    assert_eq!(check_marks(&mut cluster, Event::Apply(Object::Service(mesh)), &["web"]), [None]);
}

#[test]
fn an_address_that_two_services_claim_belongs_to_the_older() {
    let external = |name: &str, created: i64, ip: &str| {
        let own_ip = format!("10.96.1.{created}");
        ServiceObject { created, external_ips: addresses(&[ip]), ..named(name, &own_ip) }
    };
    let apply = |service: ServiceObject| Event::Apply(Object::Service(service));
    let owners = |services: &[Option<Arc<Service>>]| -> Vec<bool> {
        services
            .iter()
            .map(|service| service.as_ref().is_some_and(|service| !service.external_ips.is_empty()))
            .collect()
    };
    let mut cluster = synced(vec![external("b", 5, "203.0.113.1")], vec![]);
    // A younger Service gets nothing, and the older one keeps the address.
    let marked = check_marks(&mut cluster, apply(external("c", 7, "203.0.113.1")), &["c"]);
    assert_eq!(owners(&marked), [false]);
    // An even older Service takes the address over.
    let marked = check_marks(&mut cluster, apply(external("z", 3, "203.0.113.1")), &["b", "c", "z"]);
    assert_eq!(owners(&marked), [false, false, true]);
    // Between Services of the same age, the name decides.
    let marked = check_marks(&mut cluster, apply(external("a", 3, "203.0.113.1")), &["a", "b", "c", "z"]);
    assert_eq!(owners(&marked), [true, false, false, false]);
    let marked = check_marks(&mut cluster, delete(Kind::Service, "a"), &["a", "b", "c", "z"]);
    assert_eq!(owners(&marked), [false, false, false, true]);
    let marked = check_marks(&mut cluster, apply(external("z", 3, "203.0.113.2")), &["b", "c", "z"]);
    assert_eq!(owners(&marked), [true, false, true]);
    // A change that is not a claim does not affect other Services.
    let sticky = ServiceObject { affinity: Some(60.into()), ..external("c", 7, "203.0.113.1") };
    assert_eq!(owners(&check_marks(&mut cluster, apply(sticky), &["c"])), [false]);
    // A recreated Service is younger than before. It can also get its previous age back.
    let marked = check_marks(&mut cluster, apply(external("b", 9, "203.0.113.1")), &["b", "c"]);
    assert_eq!(owners(&marked), [false, true]);
    let marked = check_marks(&mut cluster, apply(external("b", 5, "203.0.113.1")), &["b", "c"]);
    assert_eq!(owners(&marked), [true, false]);
    // Services may share an address on different ports.
    let mut other_port = external("c", 7, "203.0.113.1");
    other_port.ports[0].port = 81;
    let marked = check_marks(&mut cluster, apply(other_port), &["c"]);
    assert_eq!(owners(&marked), [true]);
}

#[test]
fn a_service_without_its_address_claims_none_of_its_ports() {
    let on = |name: &str, created: i64, ports: &[(i32, &str)]| ServiceObject {
        created,
        external_ips: addresses(&["203.0.113.1"]),
        ..ServiceObject { name: name.into(), ..web(&format!("10.96.1.{created}"), ports) }
    };
    let lost = |cluster: &Cluster, name: &str| -> Vec<(u16, String)> {
        let service = &cluster.services[&ServiceKey::new("default", name)];
        cluster.claims.lost(service).into_iter().map(|lost| (lost.front.2, lost.to.service.name.to_string())).collect()
    };
    let (a, b, c) = (
        on("a", 1, &[(80, "TCP")]),
        on("b", 2, &[(80, "TCP"), (443, "TCP")]),
        on("c", 3, &[(443, "TCP"), (8443, "TCP")]),
    );
    let mut cluster = synced(vec![a.clone(), b.clone(), c.clone()], vec![]);
    assert_eq!(lost(&cluster, "b"), [(80, "a".into())]);
    assert_eq!(lost(&cluster, "c"), [], "b is not served there");
    // Without the oldest Service, the next one owns all its ports. When the oldest returns, it takes its ports back.
    check_marks(&mut cluster, delete(Kind::Service, "a"), &["a", "b", "c"]);
    assert_eq!((lost(&cluster, "b"), lost(&cluster, "c")), (vec![], vec![(443, "b".into())]));
    check_marks(&mut cluster, Event::Apply(Object::Service(a)), &["a", "b", "c"]);
    assert_eq!((lost(&cluster, "b"), lost(&cluster, "c")), (vec![(80, "a".into())], vec![]));
}

/// kube-proxy opens the port for whichever Service it sees first, and posts an Event for the other.
#[test]
fn a_port_for_health_checks_that_two_services_claim_belongs_to_the_older() {
    let balanced = |name: &str, created: i64, port: i32| ServiceObject {
        created,
        kind: ServiceType::LoadBalancer,
        external_local: true,
        health_check_node_port: port,
        ..named(name, &format!("10.96.1.{}", name.as_bytes()[0]))
    };
    let ports = |services: &[Option<Arc<Service>>]| -> Vec<Option<u16>> {
        services.iter().map(|service| service.as_ref().and_then(|service| service.health_check_node_port)).collect()
    };
    let apply = |service: ServiceObject| Event::Apply(Object::Service(service));
    let mut cluster = synced(vec![balanced("b", 5, 30_200)], vec![]);
    // A younger Service gets a diagnostic instead of the port, and has no answers to health checks.
    cluster.handle(apply(balanced("a", 7, 30_200)));
    let localized = cluster.localize().unwrap();
    assert_eq!(localized.services.len(), 1);
    assert_eq!((ports(&[localized.services[0].1.clone()]), localized.health_checks), (vec![None], vec![]));
    let [(_, skip)] = &*localized.skipped else { panic!("{:?}", localized.skipped) };
    assert_eq!(
        (&*skip.field, &*skip.problem),
        (
            "spec.healthCheckNodePort",
            "30200/TCP belongs to Service default/b, which is older (or equally old and first by name)"
        )
    );
    // An even older Service takes the port over. Between Services of the same age, the name decides.
    assert_eq!(
        ports(&check_marks(&mut cluster, apply(balanced("z", 3, 30_200)), &["a", "b", "z"])),
        [None, None, Some(30_200)]
    );
    let marked = check_marks(&mut cluster, apply(balanced("c", 3, 30_200)), &["a", "b", "c", "z"]);
    assert_eq!(ports(&marked), [None, None, Some(30_200), None]);
    // A Service that needs no health checks or changes its port leaves the port to the next claimant.
    let elsewhere = ServiceObject { external_local: false, ..balanced("c", 3, 30_200) };
    let marked = check_marks(&mut cluster, apply(elsewhere), &["a", "b", "c", "z"]);
    assert_eq!(ports(&marked), [None, None, None, Some(30_200)]);
    let marked = check_marks(&mut cluster, apply(balanced("z", 3, 30_201)), &["a", "b", "z"]);
    assert_eq!(ports(&marked), [None, Some(30_200), Some(30_201)]);
    // A NodePort of that number is a claim, too, because its traffic would never reach the health checks.
    let mut node_port = named("n", "10.96.1.1");
    (node_port.created, node_port.ports[0].node_port) = (1, 30_200);
    let marked = check_marks(&mut cluster, apply(node_port), &["a", "b", "n"]);
    assert_eq!(ports(&marked), [None, None, None]);
    assert_eq!(marked[2].as_ref().unwrap().ports[0].node_port, Some(30_200));
}

#[test]
fn a_node_port_is_claimed_in_the_families_of_its_service() {
    let on = |name: &str, created: i64, cluster_ips: &[&str]| {
        let mut service = ServiceObject { created, cluster_ips: addresses(cluster_ips), ..named(name, "10.96.0.1") };
        service.ports[0].node_port = 30_080;
        service
    };
    let cluster = synced(vec![on("a", 1, &["10.96.1.1"]), on("b", 2, &["10.96.1.2", "fd00::2"])], vec![]);
    let lost = cluster.claims.lost(&cluster.services[&ServiceKey::new("default", "b")]);
    let fronts: Vec<String> = lost.iter().map(|lost| format!("{} {}", lost.front.0, lost.front.2)).collect();
    assert_eq!(fronts, ["0.0.0.0 30080"]);
}

#[test]
fn an_address_is_claimed_only_by_a_service_that_would_be_served_on_it() {
    let externals = |created: i64, cluster_ips: &[&str], families: &[Family]| ServiceObject {
        created,
        cluster_ips: addresses(cluster_ips),
        families: families.into(),
        external_ips: addresses(&["203.0.113.1"]),
        ..named(&format!("s{created}"), "10.96.0.1")
    };
    let rows = [
        externals(1, &["fd00::1"], &[]),
        externals(2, &["127.0.0.1"], &[]),
        externals(3, &["10.96.1.3"], &[Family::V6]),
        externals(4, &["fd00::4", "10.96.1.4"], &[Family::V6, Family::V6]),
    ];
    for older in rows {
        let name = older.name.clone();
        let cluster = synced(vec![older, externals(9, &["10.96.1.9"], &[])], vec![]);
        let younger = &cluster.services[&ServiceKey::new("default", "s9")];
        assert_eq!(cluster.claims.lost(younger), [], "{name}");
    }
    // Of several ClusterIPs of one family, only one is used. An address that is local to each machine is never used.
    let mut two = externals(1, &["10.96.1.1", "10.96.1.9"], &[]);
    two.external_ips = addresses(&["127.0.0.9", "10.96.1.1"]);
    assert_eq!(
        claims::Claimed::by(&two),
        claims::Claimed::by(&ServiceObject { external_ips: [].into(), ..two.clone() })
    );
    let cluster = synced(vec![two, externals(9, &["10.96.1.9"], &[])], vec![]);
    assert_eq!(cluster.claims.lost(&cluster.services[&ServiceKey::new("default", "s9")]), []);
}

/// Proxies see the same, whether DNS is served or not.
#[test]
fn what_dns_needs_changes_nothing_for_proxies() {
    let headless = ServiceObject { headless: true, cluster_ips: [].into(), ..named("db", "10.96.0.2") };
    let external = ServiceObject {
        kind: ServiceType::ExternalName,
        cluster_ips: [].into(),
        extensions: Some(Extensions { external_name: Some("example.com".into()), ..Extensions::default() }.into()),
        ..named("out", "10.96.0.3")
    };
    let of_mesh = ServiceObject { proxy_name: Some("mesh".into()), ..named("mesh", "10.96.0.4") };
    let services = [web("10.96.0.1", &[(80, "TCP")]), headless, external, of_mesh];
    let of = |name: &str, service: &str, address: &str, headless| SliceObject {
        service: Some(service.into()),
        headless,
        ..one(name, address)
    };
    // A slice of a Service with a ClusterIP may have the label, too.
    let slices = [
        of("web-1", "web", "10.1.0.1", false),
        of("web-2", "web", "10.1.0.2", true),
        of("db-1", "db", "10.1.0.3", true),
        of("mesh-1", "mesh", "10.1.0.4", false),
    ];
    let [mut plain, mut with_dns] =
        [false, true].map(|dns| Cluster::new(Options { dns, ..Options::of_node("node-1") }));
    let events = Kind::ALL.map(|kind| {
        replace(
            kind,
            match kind {
                Kind::Service => services.iter().cloned().map(Object::Service).collect(),
                Kind::Slice => slices.iter().cloned().map(Object::Slice).collect(),
                _ => Vec::new(),
            },
        )
    });
    let gone = [delete(Kind::Slice, "db-1"), delete(Kind::Slice, "web-2"), delete(Kind::Service, "mesh")];
    let (mut known, mut states) = (BTreeMap::new(), [BTreeMap::new(), BTreeMap::new()]);
    for event in events.into_iter().chain(gone) {
        plain.handle(event.clone());
        with_dns.handle(event);
        let (Some(plain), Some(with_dns)) = (plain.localize(), with_dns.localize()) else { continue };
        // A change that concerns DNS only may localize a Service again, with the same result.
        for (state, of) in states.iter_mut().zip([&plain, &with_dns]) {
            state.extend(of.services.iter().cloned());
            state.retain(|_, service| service.is_some());
        }
        assert_eq!(states[0], states[1]);
        assert_eq!((&plain.health_checks, &plain.skipped), (&with_dns.health_checks, &with_dns.skipped));
        assert_eq!(plain.names, []);
        known.extend(with_dns.names);
    }
    let known: Vec<_> =
        known.iter().map(|(key, names)| (&*key.name, names.as_ref().map(|names| names.endpoints.len()))).collect();
    assert_eq!(known, [("db", Some(0)), ("mesh", None), ("out", Some(0)), ("web", Some(1))]);
}

/// Events in any order lead to the same state as one list.
mod any_order {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Service(u8, u8, bool),
        Slice(u8, u8, u8),
        Node(u8),
        DeleteService(u8),
        DeleteSlice(u8),
        Relist,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0..4u8, 0..3u8, any::<bool>()).prop_map(|(name, ip, node_port)| Step::Service(name, ip, node_port)),
            3 => (0..4u8, 0..4u8, 0..3u8).prop_map(|(name, of, ip)| Step::Slice(name, of, ip)),
            1 => (0..3u8).prop_map(Step::Node),
            1 => (0..4u8).prop_map(Step::DeleteService),
            1 => (0..4u8).prop_map(Step::DeleteSlice),
            1 => Just(Step::Relist),
        ]
    }

    fn all(objects: &BTreeMap<(Kind, String), Object>, kind: Kind) -> Vec<Object> {
        objects.iter().filter(|((of, _), _)| *of == kind).map(|(_, object)| object.clone()).collect()
    }

    proptest! {
        #[test]
        fn ends_in_the_same_state(steps in prop::collection::vec(step(), 1..40), every in 1..5usize) {
            let mut cluster = synced(vec![], vec![]);
            let mut objects: BTreeMap<(Kind, String), Object> = BTreeMap::new();
            objects.insert((Kind::Node, String::new()), node("zone-a", "192.168.0.1"));
            let mut state: BTreeMap<ServiceKey, Arc<Service>> = BTreeMap::new();
            let fold = |localized: Localized, state: &mut BTreeMap<ServiceKey, Arc<Service>>| {
                for (key, service) in localized.services {
                    match service {
                        Some(service) => state.insert(key, service),
                        None => state.remove(&key),
                    };
                }
            };
            for (count, step) in steps.into_iter().enumerate() {
                let mut put = |kind: Kind, name: u8, object: Object| {
                    objects.insert((kind, name.to_string()), object.clone());
                    vec![Event::Apply(object)]
                };
                let events = match step {
                    Step::Service(name, ip, node_port) => {
                        let mut service = named(&name.to_string(), &format!("10.96.0.{ip}"));
                        service.external_ips = addresses(&[&format!("203.0.113.{ip}")]);
                        service.created = i64::from(ip % 2);
                        service.ports[0].node_port = if node_port { 30000 } else { 0 };
                        put(Kind::Service, name, Object::Service(service))
                    }
                    Step::Slice(name, of, ip) => {
                        let mut slice = one(&name.to_string(), &format!("10.1.0.{ip}"));
                        slice.service = Some(of.to_string().into());
                        slice.endpoints[0].zone_hints = [format!("zone-{ip}").into()].into();
                        put(Kind::Slice, name, Object::Slice(slice))
                    }
                    Step::Node(zone) => {
                        let node = node(&format!("zone-{zone}"), &format!("192.168.0.{zone}"));
                        objects.insert((Kind::Node, String::new()), node.clone());
                        vec![Event::Apply(node)]
                    }
                    Step::DeleteService(name) => {
                        objects.remove(&(Kind::Service, name.to_string()));
                        vec![delete(Kind::Service, &name.to_string())]
                    }
                    Step::DeleteSlice(name) => {
                        objects.remove(&(Kind::Slice, name.to_string()));
                        vec![delete(Kind::Slice, &name.to_string())]
                    }
                    Step::Relist => Kind::ALL.map(|kind| replace(kind, all(&objects, kind))).into(),
                };
                for event in events {
                    cluster.handle(event);
                }
                if count % every == 0 {
                    fold(cluster.localize().unwrap(), &mut state);
                }
            }
            fold(cluster.localize().unwrap(), &mut state);

            let mut fresh = super::cluster();
            for kind in Kind::ALL {
                fresh.handle(replace(kind, all(&objects, kind)));
            }
            let mut expected = BTreeMap::new();
            fold(fresh.localize().unwrap(), &mut expected);
            prop_assert_eq!(&state, &expected);
            // Two Services never share an address, protocol and port.
            let mut fronts = std::collections::BTreeSet::new();
            for service in state.values() {
                for ip in service.cluster_ips.iter().chain(&service.external_ips) {
                    prop_assert!(fronts.insert((*ip, Protocol::Tcp, service.ports[0].port)));
                }
                if let Some(port) = service.ports[0].node_port {
                    prop_assert!(service.has_family(Family::V4) && fronts.insert(([0, 0, 0, 0].into(), Protocol::Tcp, port)));
                }
            }
        }
    }
}
