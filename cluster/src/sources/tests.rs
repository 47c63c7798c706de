//! Tests how the objects of several sources become one cluster.

use localnet_proto::{Node, Service};
use proptest::prelude::*;

use super::*;
use crate::{
    Cluster, Lack,
    localize::Localized,
    objects::{NodeObject, ServiceCidrObject, ServiceObject, SliceObject, reduce},
    testing::{addresses, endpoint, service, slice},
};

const NAMES: [&str; 3] = ["api", "site", "rack"];

fn cluster(sources: usize) -> Cluster {
    let sources = NAMES[..sources].iter().map(|name| Arc::from(*name)).collect();
    Cluster::new(Options { sources, ..Options::of_node("node-1") })
}

fn named(name: &str, ip: u8) -> Object {
    let service = service(&format!("10.96.0.{ip}"), &[(80, "TCP")]);
    Object::Service(ServiceObject { name: name.into(), ..service })
}

fn node(name: &str, zone: &str) -> Object {
    Object::Node(NodeObject {
        name: name.into(),
        zone: zone.into(),
        addresses: addresses(&["192.168.0.1"]),
        pod_cidrs: [].into(),
        taints: [].into(),
        deleting: false,
        version: None,
    })
}

fn delete(kind: Kind, name: &str) -> Event {
    Event::Delete { kind, namespace: "default".into(), name: name.into() }
}

/// The lists of a source that has these objects.
fn lists(objects: &[Object]) -> Vec<Event> {
    let of = |kind| objects.iter().filter(|object| object.kind() == kind).cloned().collect();
    Kind::ALL.map(|kind| Event::Replace { kind, objects: of(kind) }).into()
}

/// What a reader of the states has received.
#[derive(Debug, Default, PartialEq)]
struct Reader {
    services: BTreeMap<ServiceKey, Arc<Service>>,
    node: Option<Node>,
    conflicts: BTreeSet<(Option<ServiceKey>, String)>,
}

impl Reader {
    fn read(&mut self, cluster: &mut Cluster) {
        let Some(Localized { services, node, skipped, .. }) = cluster.localize() else { return };
        if node.is_some() {
            self.conflicts.retain(|(about, _)| about.is_some());
        }
        self.node = node.or(self.node.take());
        for (key, service) in services {
            self.conflicts.retain(|(about, _)| about.as_ref() != Some(&key));
            match service {
                Some(service) => self.services.insert(key, service),
                None => self.services.remove(&key),
            };
        }
        let conflicts = skipped.into_iter().filter(|(_, found)| found.code == Code::ObjectShadowed);
        self.conflicts.extend(conflicts.map(|(about, found)| (about, found.to_string())));
    }

    /// The ClusterIPs of all Services.
    fn ips(&self) -> Vec<String> {
        self.services.values().map(|service| service.cluster_ips[0].to_string()).collect()
    }
}

#[test]
fn the_object_of_the_first_source_is_used_until_it_is_deleted() {
    let (mut cluster, mut reader) = (cluster(2), Reader::default());
    lists(&[node("node-1", "a")]).into_iter().for_each(|event| cluster.handle_from(0, event));
    lists(&[named("web", 2), node("node-1", "b")]).into_iter().for_each(|event| cluster.handle_from(1, event));
    let mut after = |source, event| {
        cluster.handle_from(source, event);
        reader.read(&mut cluster);
        let of_service = reader.conflicts.iter().filter(|(about, _)| about.is_some()).map(|(_, text)| text.clone());
        (reader.ips().join(" "), of_service.collect::<Vec<_>>(), reader.node.clone().unwrap().zone)
    };
    let conflict = "Service default/web: is in two sources; the brain uses the object in api, not the one in site; delete or rename one of the objects, or change the order of --source";
    let rows: [(usize, Event, &str, &[&str], &str); 7] = [
        (1, Event::Apply(named("web", 3)), "10.96.0.3", &[], "a"),
        (0, Event::Apply(named("web", 1)), "10.96.0.1", &[conflict], "a"),
        (1, Event::Apply(named("web", 4)), "10.96.0.1", &[conflict], "a"),
        (0, delete(Kind::Service, "web"), "10.96.0.4", &[], "a"),
        (0, Event::Replace { kind: Kind::Service, objects: vec![named("web", 1)] }, "10.96.0.1", &[conflict], "a"),
        (1, Event::Replace { kind: Kind::Service, objects: vec![] }, "10.96.0.1", &[], "a"),
        (0, Event::Replace { kind: Kind::Node, objects: vec![] }, "10.96.0.1", &[], "b"),
    ];
    for (row, (source, event, ip, conflicts, zone)) in rows.into_iter().enumerate() {
        assert_eq!(
            after(source, event),
            (ip.to_owned(), conflicts.iter().map(ToString::to_string).collect(), zone.to_owned()),
            "row {row}"
        );
    }
}

#[test]
fn a_list_removes_only_objects_of_its_source() {
    let (mut cluster, mut reader) = (cluster(2), Reader::default());
    for (source, service) in [named("a", 1), named("b", 2)].into_iter().enumerate() {
        lists(&[service]).into_iter().for_each(|event| cluster.handle_from(source, event));
    }
    reader.read(&mut cluster);
    assert_eq!(reader.ips(), ["10.96.0.1", "10.96.0.2"]);
    assert_eq!(cluster.missing(0, Kind::Service, &[]), [ServiceKey::new("default", "a")]);
    // A deletion has no effect either, unless the source has the object.
    cluster.handle_from(0, delete(Kind::Service, "b"));
    lists(&[]).into_iter().for_each(|event| cluster.handle_from(0, event));
    reader.read(&mut cluster);
    assert_eq!(reader.ips(), ["10.96.0.2"]);
}

#[test]
fn the_first_state_waits_for_the_lists_of_all_sources() {
    let mut cluster = cluster(3);
    for source in [1, 0, 2] {
        assert!(!cluster.is_synced() && cluster.awaited().iter().any(|name| **name == *NAMES[source]));
        for event in lists(&[named("web", 1)]) {
            assert_eq!(cluster.localize(), None);
            cluster.handle_from(source, event);
        }
        assert!(Kind::ALL.into_iter().all(|kind| cluster.has_listed(source, kind)));
    }
    assert!(cluster.awaited().is_empty());
    assert!(cluster.localize().is_some());
}

#[test]
fn a_loss_counts_within_its_source() {
    let mut cluster = cluster(2);
    let services =
        |names: &str, count: u8| (0..count).map(|number| named(&format!("{names}{number}"), number)).collect();
    let big: Vec<Object> = services("big", 200);
    let small: Vec<Object> = services("small", 30);
    lists(&big).into_iter().for_each(|event| cluster.handle_from(0, event));
    lists(&small).into_iter().for_each(|event| cluster.handle_from(1, event));
    let missing: BTreeSet<ServiceKey> = cluster.missing(1, Kind::Service, &small[..9]).into_iter().collect();
    assert_eq!(cluster.lack(1, Kind::Service, &missing, small[..9].iter()), Lack { lost: 21, of: 30 });

    let slices: Vec<Object> = ["big0", "big1", "small0"]
        .map(|of| {
            let endpoints = (0..20).map(|host| endpoint(&format!("10.1.0.{host}"))).collect();
            Object::Slice(SliceObject { service: Some(of.into()), ..slice(of, &[("p80", 80)], endpoints) })
        })
        .into();
    cluster.handle_from(0, Event::Replace { kind: Kind::Slice, objects: slices[..2].to_vec() });
    cluster.handle_from(1, Event::Replace { kind: Kind::Slice, objects: slices[1..].to_vec() });
    let lack = |source| {
        let missing = cluster.missing(source, Kind::Slice, &[]).into_iter().collect();
        cluster.lack(source, Kind::Slice, &missing, [].iter())
    };
    assert_eq!(lack(0), Lack { lost: 40, of: 40 });
    assert_eq!(lack(1), Lack::default(), "of the effective slices, only those of one Service");
}

#[derive(Clone, Debug)]
enum Step {
    Apply(Object),
    Delete(Id),
    List(Kind, Vec<Object>),
}

fn any_object() -> impl Strategy<Value = Object> {
    (0..Kind::ALL.len(), 0..3u8, 0..4u8).prop_map(|(kind, name, value)| match Kind::ALL[kind] {
        Kind::Service => named(&name.to_string(), value),
        Kind::Slice => {
            let service = (value < 3).then(|| (value % 2).to_string().into());
            let with = endpoint(&format!("10.1.{name}.{value}"));
            Object::Slice(SliceObject {
                service,
                headless: value == 2,
                ..slice(&name.to_string(), &[("p80", 80)], vec![with])
            })
        }
        Kind::Node => node(&format!("node-{}", 1 + name / 2), &value.to_string()),
        Kind::ServiceCidr => {
            let cidrs = [reduce::parsed_cidr(&format!("10.{value}.0.0/16"))].into();
            Object::ServiceCidr(ServiceCidrObject { name: name.to_string().into(), cidrs })
        }
    })
}

fn step() -> impl Strategy<Value = (usize, Step)> {
    let list = (0..Kind::ALL.len(), prop::collection::vec(any_object(), 0..8)).prop_map(|(kind, objects)| {
        let unique: BTreeMap<Id, Object> =
            objects.into_iter().map(|object| ((object.kind(), object.key()), object)).collect();
        Step::List(Kind::ALL[kind], unique.into_values().collect())
    });
    let delete = any_object().prop_map(|object| Step::Delete((object.kind(), object.key())));
    (0..NAMES.len(), prop_oneof![4 => any_object().prop_map(Step::Apply), 2 => delete, 3 => list])
}

/// The model: the objects of each source.
#[derive(Default)]
struct Model {
    sources: [BTreeMap<Id, Object>; NAMES.len()],
    listed: BTreeSet<(usize, Kind)>,
    /// The last effective Node. If the Node is deleted, the last facts about it stay in use.
    node: Option<Object>,
}

impl Model {
    fn take(&mut self, source: usize, step: Step) -> Event {
        let objects = &mut self.sources[source];
        let event = match step {
            Step::Apply(object) => {
                objects.insert((object.kind(), object.key()), object.clone());
                Event::Apply(object)
            }
            Step::Delete(id) => {
                objects.remove(&id);
                Event::Delete { kind: id.0, namespace: id.1.namespace, name: id.1.name }
            }
            Step::List(kind, listed) => {
                self.listed.insert((source, kind));
                objects.retain(|(of, _), _| *of != kind);
                let of_kind = listed.iter().filter(|object| object.kind() == kind).cloned();
                objects.extend(of_kind.map(|object| ((kind, object.key()), object)));
                Event::Replace { kind, objects: listed }
            }
        };
        let own = self.effective().remove(&(Kind::Node, ServiceKey::new("", "node-1")));
        self.node = own.or(self.node.take());
        event
    }

    /// The objects of the first source that has them. A Service has the number of this source.
    fn effective(&self) -> BTreeMap<Id, Object> {
        let of = |(number, objects): (usize, &BTreeMap<Id, Object>)| {
            let of_source = move |(id, object): (Id, Object)| match object {
                Object::Service(service) => (id, Object::Service(ServiceObject { source: number as u16, ..service })),
                other => (id, other),
            };
            objects.clone().into_iter().map(of_source)
        };
        self.sources.iter().enumerate().rev().flat_map(of).collect()
    }

    fn conflicts(&self) -> BTreeSet<(Option<ServiceKey>, String)> {
        let mut conflicts = BTreeSet::new();
        for (number, source) in self.sources.iter().enumerate() {
            for (id, object) in source {
                let Some(first) = self.sources[..number].iter().position(|source| source.contains_key(id)) else {
                    continue;
                };
                let about = match object {
                    Object::Service(service) => Some(service.key()),
                    Object::Slice(slice) if slice.headless || slice.service.is_none() => continue,
                    Object::Slice(slice) => slice.owner(),
                    Object::Node(node) if &*node.name != "node-1" => continue,
                    Object::Node(_) | Object::ServiceCidr(_) => None,
                };
                let subject = localnet_core::Object::new(id.0.as_str(), object.namespace(), object.name());
                conflicts.insert((
                    about,
                    format!(
                        "{subject}: is in two sources; the brain uses the object in {}, not the one in {}; delete or rename one of the objects, or change the order of --source",
                        NAMES[first], NAMES[number]
                    ),
                ));
            }
        }
        conflicts
    }
}

proptest! {
    /// After any history, the state is that of one source that has the effective objects.
    #[test]
    fn any_history_ends_like_the_model(steps in prop::collection::vec(step(), 1..60), every in 1..4usize, begin in any::<bool>()) {
        let (mut cluster, mut model, mut reader) = (cluster(NAMES.len()), Model::default(), Reader::default());
        let all = (0..NAMES.len()).flat_map(|source| Kind::ALL.map(|kind| (source, kind)));
        for (source, kind) in all.clone().filter(|_| begin) {
            cluster.handle_from(source, model.take(source, Step::List(kind, Vec::new())));
        }
        for (count, (source, step)) in steps.into_iter().enumerate() {
            cluster.handle_from(source, model.take(source, step));
            prop_assert_eq!(cluster.is_synced(), model.listed.len() == NAMES.len() * Kind::ALL.len());
            if count % every == 0 {
                reader.read(&mut cluster);
            }
        }
        // A list of the same objects would repair a wrong state, so only lists that are still missing follow.
        for (source, kind) in all.filter(|all| !model.listed.contains(all)).collect::<Vec<_>>() {
            let objects = model.sources[source].values().cloned().collect();
            cluster.handle_from(source, model.take(source, Step::List(kind, objects)));
        }
        reader.read(&mut cluster);

        let mut fresh = Cluster::new(Options::of_node("node-1"));
        let mut effective: Vec<Object> = model.effective().into_values().collect();
        effective.extend(model.node.clone());
        lists(&effective).into_iter().for_each(|event| fresh.handle(event));
        let mut expected = Reader::default();
        expected.read(&mut fresh);
        expected.conflicts = model.conflicts();
        prop_assert_eq!(&reader, &expected);
        for name in ["0", "1", "2"] {
            let key = ServiceKey::new("default", name);
            let findings = cluster.reasons(&key).findings.into_iter().filter(|found| found.code == Code::ObjectShadowed);
            let findings: BTreeSet<_> = findings.map(|found| (Some(key.clone()), found.to_string())).collect();
            let about: BTreeSet<_> = expected.conflicts.iter().filter(|(about, _)| about.as_ref() == Some(&key)).cloned().collect();
            prop_assert_eq!(findings, about);
        }
    }
}

/// A Service and a slice with one endpoint, both pushed.
fn pushed(name: &str, ip: u8) -> [Object; 2] {
    let Object::Service(service) = named(name, ip) else { panic!("a Service") };
    let slice = SliceObject {
        service: Some(name.into()),
        ..slice(&format!("{name}/0"), &[("p80", 80)], vec![endpoint("10.1.0.9")])
    };
    [Object::Service(ServiceObject { pushed: true, ..service }), Object::Slice(SliceObject { pushed: true, ..slice })]
}

#[test]
fn a_pushed_service_has_its_own_endpoints_and_gives_none_to_others() {
    let (mut cluster, mut reader) = (cluster(2), Reader::default());
    let own = |name: &str| {
        Object::Slice(SliceObject {
            service: Some(name.into()),
            ..slice("own", &[("p80", 80)], vec![endpoint("10.1.0.1")])
        })
    };
    lists(&[own("web")]).into_iter().for_each(|event| cluster.handle_from(0, event));
    lists(&pushed("web", 2)).into_iter().for_each(|event| cluster.handle_from(1, event));
    let mut after = |source, event| {
        cluster.handle_from(source, event);
        reader.read(&mut cluster);
        let of = |service: &Arc<Service>| {
            let endpoints = service.endpoints.iter().map(|endpoint| endpoint.address.to_string());
            format!("{} -> {}", service.cluster_ips[0], endpoints.collect::<Vec<_>>().join(" "))
        };
        reader.services.values().map(of).collect::<Vec<_>>().join(", ")
    };
    let rows = [
        (0, Event::Apply(own("web")), "10.96.0.2 -> 10.1.0.9"),
        (0, Event::Apply(named("web", 1)), "10.96.0.1 -> 10.1.0.1"),
        (1, Event::Apply(pushed("web", 3)[1].clone()), "10.96.0.1 -> 10.1.0.1"),
        (1, delete(Kind::Service, "web"), "10.96.0.1 -> 10.1.0.1"),
        (0, Event::Apply(own("other")), "10.96.0.1 -> "),
        (1, Event::Apply(pushed("web", 3)[0].clone()), "10.96.0.1 -> "),
        (0, delete(Kind::Service, "web"), "10.96.0.3 -> 10.1.0.9"),
        // A Service of the cluster owns its address even if it is younger.
        (
            0,
            Event::Apply(Object::Service(ServiceObject {
                created: 99,
                ..match named("xyz", 3) {
                    Object::Service(service) => service,
                    _ => panic!(),
                }
            })),
            "10.96.0.3 -> ",
        ),
    ];
    for (row, (source, event, expected)) in rows.into_iter().enumerate() {
        assert_eq!(after(source, event), expected, "row {row}");
    }
}

/// Regression: a Service in a file has no time of creation and is therefore the oldest, so it took the address of a Service of the
/// API server.
#[test]
fn the_first_source_owns_an_address_that_services_of_several_sources_claim() {
    let (mut cluster, mut reader) = (cluster(3), Reader::default());
    (0..3).for_each(|source| lists(&[]).into_iter().for_each(|event| cluster.handle_from(source, event)));
    let aged = |name: &str, created| match named(name, 1) {
        Object::Service(service) => Object::Service(ServiceObject { created, ..service }),
        _ => panic!("a Service"),
    };
    let apply = |name: &str, created| Event::Apply(aged(name, created));
    let list = |objects| Event::Replace { kind: Kind::Service, objects };
    let [of_site, of_rack] = ["site", "mesh"].map(|name| Event::Apply(pushed(name, 1)[0].clone()));
    // The source, its event, and the owner of the address afterwards.
    let rows = [
        (1, apply("a", 0), "a"),
        (0, apply("web", 60), "web"),
        (1, apply("b", 0), "web"),
        (0, apply("vip", 50), "vip"),
        (0, delete(Kind::Service, "vip"), "web"),
        (1, apply("web", 1), "web"),
        (0, delete(Kind::Service, "web"), "a"),
        (1, delete(Kind::Service, "a"), "b"),
        (1, delete(Kind::Service, "b"), "web"),
        (2, apply("a", 0), "web"),
        (0, list(vec![aged("z", 99)]), "z"),
        (0, list(vec![]), "web"),
        (1, list(vec![]), "a"),
        (1, of_site, "a"),
        (2, of_rack, "a"),
        // The order of pushed sources has no effect.
        (2, delete(Kind::Service, "a"), "mesh"),
    ];
    for (row, (source, event, owner)) in rows.into_iter().enumerate() {
        cluster.handle_from(source, event);
        reader.read(&mut cluster);
        let owners: Vec<&str> = reader.services.keys().map(|key| &*key.name).collect();
        assert_eq!(owners, [owner], "row {row}");
    }

    cluster.handle_from(0, apply("web", 60));
    let findings = cluster.reasons(&ServiceKey::new("default", "mesh")).findings;
    assert_eq!(
        findings.iter().map(ToString::to_string).collect::<Vec<_>>(),
        [
            "Service default/mesh: spec.clusterIPs[0]: 10.96.0.1 port 80/TCP belongs to Service default/web, whose source has precedence; change the address or port of one of the two Services"
        ]
    );
}

#[test]
fn a_source_that_is_added_later_follows_all_others() {
    let options = Options { sources: vec!["api".into()], may_grow: true, ..Options::of_node("node-1") };
    let (mut cluster, mut reader) = (Cluster::new(options), Reader::default());
    lists(&[named("a", 1)]).into_iter().for_each(|event| cluster.handle_from(0, event));
    reader.read(&mut cluster);
    assert_eq!(
        (cluster.source(&"push".into()), cluster.source(&"api".into()), cluster.source(&"push".into())),
        (1, 0, 1)
    );
    assert!(cluster.is_synced(), "a complete state stays complete");
    [named("a", 2), named("b", 3)].into_iter().for_each(|object| cluster.handle_from(1, Event::Apply(object)));
    reader.read(&mut cluster);
    assert_eq!(reader.ips(), ["10.96.0.1", "10.96.0.3"]);
    let web = |name| ServiceKey::new("default", name);
    assert_eq!(["a", "b", "c"].map(|name| cluster.effective(1, &web(name))), [Some(false), Some(true), None]);
    cluster.handle_from(0, delete(Kind::Service, "a"));
    reader.read(&mut cluster);
    assert_eq!(reader.ips(), ["10.96.0.2", "10.96.0.3"]);
}

#[test]
fn parts_that_a_source_has_left_out_are_reported() {
    let mut cluster = cluster(1);
    let skipped = Diagnostic::new(Code::PushNotGranted, localnet_core::Subject::Program, "left out");
    let service = ServiceObject { skipped: [skipped.clone()].into(), ..service("10.96.0.1", &[(80, "TCP")]) };
    lists(&[Object::Service(service)]).into_iter().for_each(|event| cluster.handle(event));
    let key = ServiceKey::new("default", "web");
    assert_eq!(cluster.localize().unwrap().skipped, [(Some(key.clone()), skipped.clone())]);
    assert_eq!(cluster.reasons(&key).findings, [skipped]);
}
