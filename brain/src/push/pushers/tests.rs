//! Tests of what pushers do to a cluster, over time. The events are applied to a model of the objects of all sources.

use std::collections::BTreeSet;

use localnet_cluster::objects::Parsed;
use localnet_proto::source::{
    AddressKind, EndpointPort, PushedEndpoint, ServiceAddress, ServiceKey as WireKey, ServicePort,
};

use super::*;

const MESH: Peer = Peer::User(1);
const VMS: Peer = Peer::User(2);

const GRANTS: &str = "
grants:
- {name: mesh, peer: {uid: 1}, namespaces: [mesh], clusterIPs: [10.97.0.0/24], endpoints: [10.0.0.0/8], maxServices: 3, maxEndpoints: 6, keep: 60s}
- {name: vms, peer: {uid: 2}, namespaces: [vms], clusterIPs: [10.98.0.0/24], endpoints: [10.0.0.0/8], keep: forever}
";

struct World {
    now: Instant,
    state: State,
    /// The names of the objects of each source.
    objects: BTreeMap<Arc<str>, BTreeSet<(Kind, String)>>,
    /// The sources that have listed everything.
    listed: BTreeSet<Arc<str>>,
    was_list: bool,
}

impl World {
    fn new() -> Self {
        let now = Instant::now();
        let state = State::new(&Grants::parse(GRANTS).unwrap(), None, now);
        Self { now, state, objects: BTreeMap::new(), listed: BTreeSet::new(), was_list: false }
    }

    fn connect(&mut self, peer: &Peer) -> Stream {
        self.state.connect(peer, self.now).unwrap()
    }

    fn apply(&mut self, Pushes { source, events, is_list, .. }: Pushes) {
        self.was_list = is_list;
        let objects = self.objects.entry(Arc::clone(&source)).or_default();
        for event in events {
            match event {
                Event::Apply(object) => _ = objects.insert((object.kind(), object.name().to_owned())),
                Event::Delete { kind, name, .. } => _ = objects.remove(&(kind, name.to_string())),
                Event::Replace { kind, objects: all } => {
                    objects.retain(|(of, _)| *of != kind);
                    objects.extend(all.iter().map(|object| (kind, object.name().to_owned())));
                    self.listed.insert(Arc::clone(&source));
                }
            }
        }
    }

    /// Commits a change. Returns the Services that cannot be used.
    fn commit(&mut self, stream: &mut Stream, change: impl FnOnce(&mut Changes)) -> Vec<String> {
        let mut changes = stream.changes();
        change(&mut changes);
        let (pushes, refused) = self.state.commit(stream, changes).unwrap();
        self.apply(pushes);
        refused.iter().map(|problem| problem.subject.to_string()).collect()
    }

    /// The Services and slices of a source.
    fn of(&self, source: &str) -> Vec<&str> {
        self.objects.get(source).into_iter().flatten().map(|(_, name)| &**name).collect()
    }

    /// Lets time pass, and does what is due.
    fn wait(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        for pushes in self.state.act(self.now) {
            self.apply(pushes);
        }
        assert!(self.state.due().is_none_or(|due| due > self.now));
    }

    fn load(&mut self, grants: &str) {
        for pushes in self.state.load(&Grants::parse(grants).unwrap(), self.now) {
            self.apply(pushes);
        }
    }

    fn trouble(&self) -> String {
        self.state.trouble().map(|trouble| trouble.problem).unwrap_or_default()
    }
}

/// A Service of a namespace, with endpoints.
fn service(namespace: &str, name: &str, endpoints: usize) -> PushedService {
    let ip = if namespace == "vms" { "10.98.0.1" } else { "10.97.0.1" };
    let endpoint = |number| PushedEndpoint {
        address: format!("10.1.0.{number}"),
        ports: vec![EndpointPort { name: String::new(), number: 80 }],
        ..PushedEndpoint::default()
    };
    PushedService {
        key: Some(WireKey { namespace: namespace.into(), name: name.into() }),
        addresses: vec![ServiceAddress { address: ip.into(), kind: AddressKind::ClusterIp.into() }],
        ports: vec![ServicePort { number: 80, ..ServicePort::default() }],
        endpoints: (0..endpoints).map(endpoint).collect(),
        ..PushedService::default()
    }
}

fn set(name: &'static str, endpoints: usize) -> impl Fn(&mut Changes) {
    move |changes| changes.set(service("mesh", name, endpoints)).unwrap()
}

fn remove(name: &str) -> impl Fn(&mut Changes) {
    move |changes| changes.remove(ServiceKey::new("mesh", name)).unwrap()
}

#[test]
fn a_list_and_changes_become_objects() {
    let mut world = World::new();
    let mut stream = world.connect(&MESH);
    assert_eq!(
        world.commit(&mut stream, |changes| ["a", "b"].into_iter().for_each(|name| set(name, 1)(changes))),
        [""; 0]
    );
    assert_eq!((world.of("push:mesh"), world.was_list), (vec!["a", "b", "a/0", "b/0"], false));
    assert!(world.listed.contains("push:mesh") && !world.listed.contains("push:vms"));
    world.commit(&mut stream, |changes| {
        set("c", 0)(changes);
        remove("a")(changes);
        remove("unknown")(changes);
    });
    assert_eq!(world.of("push:mesh"), ["b", "c", "b/0"]);
    world.commit(&mut stream, set("b", 0));
    assert_eq!(world.of("push:mesh"), ["b", "c"]);
    // The list of a new stream removes what it lacks, unless the shrink guard objects.
    let mut stream = world.connect(&MESH);
    world.commit(&mut stream, set("b", 1));
    assert_eq!((world.of("push:mesh"), world.was_list), (vec!["b", "b/0"], true));
    world.commit(&mut stream, |changes| {
        set("a", 0)(changes);
        changes.clear();
        set("d", 0)(changes);
    });
    assert_eq!((world.of("push:mesh"), world.was_list), (vec!["d"], false));
}

#[test]
fn services_stay_for_some_time_after_the_stream_has_ended() {
    let mut world = World::new();
    let mut mesh = world.connect(&MESH);
    let mut vms = world.connect(&VMS);
    world.commit(&mut mesh, set("a", 1));
    world.commit(&mut vms, |changes| changes.set(service("vms", "v", 0)).unwrap());
    world.wait(3600);
    assert_eq!((world.of("push:mesh").len(), world.trouble()), (2, String::new()));
    world.state.disconnect(&mesh, world.now);
    world.state.disconnect(&vms, world.now);
    world.wait(59);
    assert_eq!(world.of("push:mesh").len(), 2);
    assert!(
        world.trouble().contains("push:mesh is not connected")
            && world.trouble().contains("its 1 Services stay for 60 s")
    );
    // A stream without a list does not count.
    let silent = world.connect(&MESH);
    world.wait(1);
    assert_eq!((world.of("push:mesh"), world.trouble()), (vec![], String::new()));
    world.state.disconnect(&silent, world.now);
    world.wait(100 * 86_400);
    assert_eq!(world.of("push:vms"), ["v"], "another pusher is not affected, and keeps its Services forever");
    // A list in time ends the wait.
    let mut mesh = world.connect(&MESH);
    world.commit(&mut mesh, set("a", 1));
    world.state.disconnect(&mesh, world.now);
    world.wait(59);
    let mut mesh = world.connect(&MESH);
    world.commit(&mut mesh, set("a", 1));
    world.wait(3600);
    assert_eq!((world.of("push:mesh").len(), world.trouble()), (2, String::new()));
}

#[test]
fn the_first_state_waits_for_30_s() {
    let mut world = World::new();
    world.wait(29);
    let mut stream = world.connect(&VMS);
    world.commit(&mut stream, |changes| changes.set(service("vms", "v", 0)).unwrap());
    assert_eq!((world.listed.len(), world.trouble()), (1, String::new()));
    world.wait(1);
    assert_eq!(world.listed.len(), 2);
    assert!(world.trouble().contains("push:mesh has not sent its list"), "{}", world.trouble());
    // The trouble ends with `keep`: by then, the Services of an earlier brain would be gone, too.
    world.wait(59);
    assert!(world.trouble().contains("push:mesh"));
    world.wait(1);
    assert_eq!(world.trouble(), "");
}

/// Regression: a missing list was no trouble if `keep` was forever, or at most 30 s.
#[test]
fn a_missing_first_list_is_a_trouble_with_each_keep() {
    for (keep, stays) in [("5s", false), ("30s", false), ("forever", true)] {
        let now = Instant::now();
        let grants = Grants::parse(&GRANTS.replace("keep: 60s", &format!("keep: {keep}"))).unwrap();
        let mut world = World { now, state: State::new(&grants, None, now), ..World::new() };
        let mut vms = world.connect(&VMS);
        world.commit(&mut vms, |changes| changes.set(service("vms", "v", 0)).unwrap());
        world.wait(30);
        assert!(world.trouble().contains("push:mesh has not sent its list"), "{keep}: {}", world.trouble());
        world.wait(3600);
        assert_eq!(!world.trouble().is_empty(), stays, "{keep}");
        let mut mesh = world.connect(&MESH);
        world.commit(&mut mesh, set("a", 0));
        assert_eq!(world.trouble(), "", "{keep}");
    }
}

#[test]
fn a_new_stream_replaces_the_previous_one() {
    let mut world = World::new();
    let mut first = world.connect(&MESH);
    world.commit(&mut first, set("a", 0));
    let mut second = world.connect(&MESH);
    assert_eq!(first.end.try_recv(), Ok(End::Replaced));
    let changes = first.changes();
    assert!(world.state.commit(&mut first, changes).is_none());
    world.state.disconnect(&first, world.now);
    world.commit(&mut second, set("b", 0));
    assert_eq!(world.of("push:mesh"), ["b"]);
    assert!(
        world.state.connect(&Peer::User(3), world.now).is_none()
            && world.state.connect(&Peer::Anonymous, world.now).is_none()
    );
}

#[test]
fn what_a_new_grant_does_not_contain_is_removed_at_once() {
    let mut world = World::new();
    let (mut mesh, mut vms) = (world.connect(&MESH), world.connect(&VMS));
    world.commit(&mut mesh, |changes| ["a", "b"].into_iter().for_each(|name| set(name, 1)(changes)));
    world.commit(&mut vms, |changes| changes.set(service("vms", "v", 0)).unwrap());
    world.load(&GRANTS.replace("maxServices: 3", "maxServices: 1"));
    assert_eq!((world.of("push:mesh"), mesh.end.try_recv()), (vec!["a", "a/0"], Ok(End::Changed)));
    assert!(vms.end.try_recv().is_err(), "the other grant has not changed");
    world.load(&GRANTS.replace("[mesh]", "[mesh-2]"));
    assert_eq!(world.of("push:mesh"), [""; 0]);
    let mut mesh = world.connect(&MESH);
    assert_eq!(world.commit(&mut mesh, set("a", 1)), ["Service mesh/a"]);
    world.load("{}");
    assert_eq!((world.of("push:vms"), vms.end.try_recv()), (vec![], Ok(End::Revoked)));
    assert!(world.state.connect(&VMS, world.now).is_none());
    assert_eq!((world.state.due(), world.trouble()), (None, String::new()));
}

#[test]
fn services_beyond_the_limits_are_skipped_in_the_order_of_their_names() {
    let mut world = World::new();
    let mut stream = world.connect(&MESH);
    // The order of the steps has no effect.
    for names in [["a", "b", "c", "d"], ["d", "c", "b", "a"]] {
        let refused = world.commit(&mut stream, |changes| {
            changes.clear();
            names.into_iter().for_each(|name| set(name, 1)(changes));
        });
        assert_eq!(
            (world.of("push:mesh"), refused),
            (vec!["a", "b", "c", "a/0", "b/0", "c/0"], vec!["Service mesh/d".into()])
        );
    }
    assert_eq!(world.commit(&mut stream, set("0", 0)), ["Service mesh/c", "Service mesh/d"]);
    assert_eq!(world.of("push:mesh"), ["0", "a", "b", "a/0", "b/0"]);
    assert_eq!(world.commit(&mut stream, set("a", 6)), ["Service mesh/b", "Service mesh/c", "Service mesh/d"]);
    assert_eq!(world.of("push:mesh"), ["0", "a", "a/0"]);
    // One Service that is too large does not displace others.
    assert_eq!(world.commit(&mut stream, set("00", 7)).len(), 4);
    assert_eq!(world.of("push:mesh"), ["0", "a", "a/0"]);
    assert_eq!(world.commit(&mut stream, |changes| ["00", "c"].iter().for_each(|name| remove(name)(changes))).len(), 2);
    assert_eq!(world.commit(&mut stream, Changes::clear), [""; 0]);
    assert_eq!(world.of("push:mesh"), [""; 0]);
}

#[test]
fn the_memory_of_a_change_is_limited() {
    let mut world = World::new();
    let mut stream = world.connect(&MESH);
    let names: Vec<String> = (0..1000).map(|number| format!("n{number:04}")).collect();
    let mut changes = stream.changes();
    names.iter().rev().for_each(|name| changes.set(service("mesh", name, 1)).unwrap());
    assert_eq!((changes.steps.len(), changes.refused.len()), (3, 997));
    world.state.commit(&mut stream, changes).unwrap();
    let mut changes = stream.changes();
    let removed = names.iter().map(|name| changes.remove(ServiceKey::new("mesh", name.as_str())));
    assert!(removed.collect::<Result<(), _>>().is_err());
    assert!(changes.steps.len() <= 7);
    // Regression: only `remove` limited the removals, so each refused `set` of a change took memory.
    for (namespace, endpoints) in [("other", 1), ("mesh", 7), ("mesh", 2)] {
        let mut changes = stream.changes();
        let set = names.iter().map(|name| changes.set(service(namespace, name, endpoints)));
        assert!(set.collect::<Result<(), _>>().is_err(), "{namespace}, {endpoints} endpoints");
        assert!(changes.steps.len() <= 10);
    }
}

#[test]
fn the_objects_of_a_change_are_those_of_its_services() {
    let mut world = World::new();
    let mut stream = world.connect(&MESH);
    world.commit(&mut stream, |changes| ["a", "b"].into_iter().for_each(|name| set(name, 1)(changes)));
    let mut changes = stream.changes();
    set("b", 2)(&mut changes);
    let (pushes, _) = world.state.commit(&mut stream, changes).unwrap();
    let [Event::Apply(Object::Service(service)), Event::Apply(Object::Slice(slice))] = &pushes.events[..] else {
        panic!("{:?}", pushes.events)
    };
    assert_eq!((&*service.name, slice.endpoints.len()), ("b", 2));
    assert_eq!(*service.cluster_ips, [Parsed::Good("10.97.0.1".parse().unwrap())]);
}

/// Regression: the slices that the shrink guard held for a list stayed after a later `set` of their Service.
#[test]
fn a_change_removes_the_slices_that_an_earlier_list_lacked() {
    // The ports of the endpoints differ, so each endpoint has a slice.
    let slices = |count| {
        let mut service = service("mesh", "a", count);
        for (number, endpoint) in (80..).zip(&mut service.endpoints) {
            endpoint.ports[0].number = number;
        }
        service
    };
    // The number of slices in the list, if it contains the Service.
    for listed in [None, Some(1)] {
        let mut world = World::new();
        let mut stream = world.connect(&MESH);
        world.commit(&mut stream, |changes| changes.set(slices(2)).unwrap());
        for _ in 0..2 {
            stream = world.connect(&MESH);
            let before = world.objects.clone();
            world.commit(&mut stream, |changes| {
                listed.into_iter().for_each(|count| changes.set(slices(count)).unwrap());
            });
            assert!(world.was_list);
            // The guard holds all objects.
            world.objects = before;
        }
        world.commit(&mut stream, |changes| changes.set(slices(1)).unwrap());
        assert_eq!(world.of("push:mesh"), ["a", "a/0"]);
    }
}
