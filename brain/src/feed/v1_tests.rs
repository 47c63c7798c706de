//! Tests that readers of `localnetv1` and of the draft `localnet.v1` end with the same state, whatever the history and however
//! they read; and that an answer contains only what has changed.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use localnet_proto::{
    Change, Endpoint, EndpointPort, Facts, Node, Origin, Port, Revision, Scopes, Service, ServiceKey, Snapshot,
    SourceFilter, TargetRef, Update, Verdict, WhenEmpty,
    v1::{self, Answer, Metadata, PUBLISHED, Reader, wire::NextStateResponse},
};
use proptest::{collection::vec, prelude::*};
use prost::Message as _;

use super::{Feed, Selection, State};
use localnet_cluster::localize::Localized;

/// A reader of every kind: it understands everything, understands nothing, or observes. All select everything.
fn selections() -> [Selection; 3] {
    let annotations = PUBLISHED.into_iter().chain(["note"]).map(|key| (Metadata::Annotation, key.into()));
    let metadata: BTreeSet<_> = annotations.chain([(Metadata::Label, "app".into())]).collect();
    [(false, true), (false, false), (true, false)].map(|(observes, source_filters)| Selection {
        observes,
        source_filters,
        metadata: metadata.clone(),
        details: true,
    })
}

/// A reader, its state, and what it selects.
#[derive(Clone, Debug)]
struct V1 {
    selection: Selection,
    reader: Reader,
    state: Snapshot,
}

impl V1 {
    fn new(selection: &Selection) -> Self {
        Self { selection: selection.clone(), reader: Reader::default(), state: Snapshot::default() }
    }

    /// Reads `from` as the server lets it, and returns the messages.
    fn read(&mut self, from: &State, full: bool) -> Vec<NextStateResponse> {
        let held = (!full && !self.reader.token().is_empty()).then_some(self.state.revision);
        let Revision { instance, rev } = from.revision();
        // As long as the tokens of the server.
        let tokens = (self.reader.token().to_owned(), format!("{instance:016x}.{rev}.{:016x}", 0));
        let messages = from.messages(held, self.selection.clone(), tokens).unwrap();
        let messages: Vec<_> = messages.map(|message| NextStateResponse::decode(message).unwrap()).collect();
        let mut answer = Answer::default();
        messages.iter().for_each(|message| answer.push(message.clone()));
        self.state.apply(self.reader.accept(answer).unwrap().unwrap());
        assert_eq!(Some(self.reader.digest()), from.records_digest());
        messages
    }
}

/// What a reader gets of a Service if it does not understand source filters.
fn withheld(service: &Arc<Service>) -> Arc<Service> {
    if service.source_filters.is_empty() {
        return Arc::clone(service);
    }
    let drop = WhenEmpty { internal: Verdict::Drop, external: Verdict::Drop };
    let facts = service.facts.as_deref().map(|facts| Facts { origins: BTreeMap::new(), ..facts.clone() }.into());
    let mut service = Service { endpoints: Vec::new(), source_filters: Vec::new(), facts, ..Service::clone(service) };
    service.ports.iter_mut().for_each(|port| (port.when_empty_v4, port.when_empty_v6) = (drop, drop));
    service.into()
}

fn expected(state: &Snapshot, selection: &Selection) -> Snapshot {
    if selection.observes || selection.source_filters {
        return state.clone();
    }
    let services = state.services.iter().map(|(key, service)| (key.clone(), withheld(service)));
    Snapshot { services: services.collect(), ..state.clone() }
}

fn endpoint(last: u8, version: u16) -> Endpoint {
    Endpoint {
        address: [10, 1, 0, last].into(),
        ports: vec![EndpointPort { name: "".into(), port: 8080 + version }],
        local: version == 1,
        hostname: None,
        scopes: Scopes { internal: true, ..Scopes::default() },
        weight: None,
    }
}

/// The version of a Service: its port, its endpoints (several may have one address), and whether it has a source filter.
type Version = (u16, Vec<(u8, u16)>, bool);

/// The facts in a version; 0 for none.
fn facts(name: &str, endpoints: &[Endpoint], version: u8) -> Option<Arc<Facts>> {
    let origin = |address: IpAddr| {
        let target = TargetRef { name: format!("{name}-{address}").into(), ..TargetRef::default() };
        Origin { node: format!("node-{version}").into(), zone: Arc::default(), target: Some(target.into()) }
    };
    let places = endpoints.iter().map(|endpoint| (endpoint.address, endpoint.ports[0].clone()));
    let facts = Facts {
        uid: format!("uid of {name}").into(),
        app_protocols: BTreeMap::from([("".into(), "h2c".into())]),
        labels: BTreeMap::from([("app".into(), name.into())]),
        annotations: BTreeMap::from([("note".into(), version.to_string().into())]),
        origins: places.map(|place| (place.clone(), origin(place.0))).collect(),
    };
    (version > 0).then(|| facts.into())
}

fn service(name: &str, (port, endpoints, filtered): Version, facts_version: u8) -> Arc<Service> {
    let target = [192, 0, 2, 1].into();
    let mut endpoints: Vec<_> = endpoints.into_iter().map(|(last, version)| endpoint(last, version)).collect();
    endpoints.sort_unstable();
    let filter = SourceFilter { targets: vec![target], source_ranges: vec!["10.0.0.0/8".parse().unwrap()] };
    Arc::new(Service {
        ports: vec![Port { port, ..Port::default() }],
        load_balancer_ips: vec![target],
        source_filters: filtered.then_some(filter).into_iter().collect(),
        ipvs_scheduler: (port == 2).then(|| "mh".into()),
        preserve_destination: port == 3,
        facts: facts(name, &endpoints, facts_version),
        endpoints,
        ..Service::new(ServiceKey::new("default", name), vec![[10, 96, 0, 1].into()])
    })
}

fn publish(feed: &Feed, services: impl IntoIterator<Item = Arc<Service>>) {
    let services = services.into_iter().map(|service| (service.key.clone(), Some(service))).collect();
    feed.publish(Localized { services, ..Localized::default() });
}

#[derive(Clone, Debug)]
enum Step {
    Publish(Vec<(u8, Option<(Version, u8)>)>, Option<u8>),
    /// The reader reads the newest state, from the one that it has or in full.
    Read {
        reader: usize,
        full: bool,
    },
    /// A reader that was interrupted at an earlier state continues from there.
    Resume(prop::sample::Index),
}

fn step() -> impl Strategy<Value = Step> {
    let version = (1..4_u16, vec((0..4_u8, 0..2_u16), 0..5), prop::bool::weighted(0.2));
    let change = (0..4_u8, prop::option::weighted(0.8, (version, 0..3_u8)));
    let publish = (vec(change, 0..4), prop::option::weighted(0.2, 0..3_u8));
    prop_oneof![
        3 => publish.prop_map(|(services, zone)| Step::Publish(services, zone)),
        2 => (0..3_usize, prop::bool::weighted(0.2)).prop_map(|(reader, full)| Step::Read { reader, full }),
        2 => any::<prop::sample::Index>().prop_map(Step::Resume),
    ]
}

proptest! {
    #[test]
    fn both_packages_have_the_same_states(history in vec(step(), 1..40)) {
        let feed = Feed::with_records(7, Arc::default());
        feed.publish(Localized::default());
        let mut state = Snapshot { revision: feed.state().revision(), ..Snapshot::default() };
        let mut older = Snapshot::default();
        let mut readers = selections().each_ref().map(V1::new);
        let mut interrupted: Vec<V1> = readers.to_vec();
        for step in history {
            let newest = feed.state();
            match step {
                Step::Publish(changes, zone) => {
                    let mut localized = Localized::default();
                    for (name, version) in changes.into_iter().collect::<BTreeMap<_, _>>() {
                        let (name, key) = (name.to_string(), ServiceKey::new("default", name.to_string()));
                        let service = version.map(|(version, facts)| service(&name, version, facts));
                        match &service {
                            Some(service) => state.services.insert(key.clone(), Arc::clone(service)),
                            None => state.services.remove(&key),
                        };
                        localized.services.push((key, service));
                    }
                    if let Some(zone) = zone {
                        state.node = Node { zone: zone.to_string(), ..Node::default() };
                        localized.node = Some(state.node.clone());
                    }
                    feed.publish(localized);
                    state.revision = feed.state().revision();
                }
                Step::Read { reader, full } => {
                    let reader = &mut readers[reader];
                    reader.read(&newest, full);
                    prop_assert_eq!(&reader.state, &expected(&state, &reader.selection));
                    prop_assert_eq!(Some(v1::encode::digest(&state)), newest.records_digest());
                    prop_assert_eq!(reader.reader.withheld().count(), newest.withheld(&reader.selection));
                    interrupted.push(reader.clone());
                }
                Step::Resume(index) => {
                    let mut reader = index.get(&interrupted).clone();
                    reader.read(&newest, false);
                    prop_assert_eq!(&reader.state, &expected(&state, &reader.selection));
                }
            }
            older.apply(feed.state().update(older.revision, true).unwrap());
            let mut without_facts = state.services.clone();
            without_facts.values_mut().for_each(|service| Arc::make_mut(service).facts = None);
            prop_assert_eq!(&older.services, &without_facts, "a reader of localnetv1 has the same Services");
            prop_assert_eq!(&older.node, &state.node);
        }
    }
}

/// A Service with many endpoints, of which each number in `versions` has version 1.
fn large(many: u16, versions: &[u16]) -> Arc<Service> {
    let endpoints = (0..many).map(|number| Endpoint {
        address: [10, 1, (number >> 8) as u8, number as u8].into(),
        ..endpoint(0, versions.contains(&number).into())
    });
    let service = service("web", (80, Vec::new(), false), 0);
    Service { endpoints: endpoints.collect(), ..Service::clone(&service) }.into()
}

fn bytes(messages: &[NextStateResponse]) -> usize {
    messages.iter().map(prost::Message::encoded_len).sum()
}

#[test]
fn a_changed_endpoint_is_sent_alone() {
    let (feed, mut reader) = (Feed::with_records(7, Arc::default()), V1::new(&selections()[0]));
    publish(&feed, [large(5000, &[])]);
    let full = reader.read(&feed.state(), false);
    assert!(full.len() > 2 && full.iter().all(|message| message.encoded_len() < 80 << 10), "{} messages", full.len());
    publish(&feed, [large(5000, &[4321])]);
    let mut old = reader.clone();
    let changes = reader.read(&feed.state(), false);
    let [NextStateResponse { services, node: None, .. }] = &changes[..] else { panic!("{changes:?}") };
    assert!(services.len() == 1 && services[0].service.is_none() && !services[0].replace);
    let changed: Vec<_> = services[0].endpoints.iter().map(|endpoint| &endpoint.address).collect();
    assert_eq!(changed, ["10.1.16.225"]);
    assert_eq!(reader.state.services, feed.state().snapshot().unwrap().services);

    // A reader that was away during further changes gets each changed record once.
    for number in [7, 8, 7, 4321] {
        publish(&feed, [large(5000, &[number])]);
    }
    let missed = old.read(&feed.state(), false);
    assert_eq!(missed.iter().flat_map(|message| &message.services).flat_map(|update| &update.endpoints).count(), 3);
    publish(&feed, [large(4999, &[4321])]);
    let removal = old.read(&feed.state(), false);
    let gone: Vec<_> =
        removal.iter().flat_map(|message| &message.services).flat_map(|of| &of.removed_endpoints).collect();
    assert_eq!(gone, [&v1::wire::EndpointKey { address: "10.1.19.135".to_owned(), ordinal: 0 }]);
}

/// docs/decisions/0027-localnet-v1.md and CHANGELOG.md contain these numbers.
#[test]
fn a_change_of_one_endpoint_of_5000_has_the_size_in_the_docs() {
    let (feed, mut reader) = (Feed::with_records(7, Arc::default()), V1::new(&Selection::default()));
    let publish = |many, versions: &[u16], removed: Option<usize>| {
        let mut service = Service::clone(&large(many, versions));
        service.ports[0].name = "http".into();
        service.endpoints.iter_mut().for_each(|endpoint| endpoint.ports[0].name = "http".into());
        removed.map(|at| service.endpoints.remove(at));
        publish(&feed, [service.into()]);
    };
    publish(5000, &[], None);
    reader.read(&feed.state(), false);
    let before = feed.state().revision();
    publish(5000, &[4321], None);
    let older: usize = feed.state().answer(before, true).items.map(|item| item.len()).sum();
    let changed = bytes(&reader.read(&feed.state(), false));
    publish(5001, &[4321], Some(1234));
    let replaced = bytes(&reader.read(&feed.state(), false));
    assert_eq!((older / 1000, changed, replaced), (155, 167, 179));
}

/// Reads a change that does not fit into one message, and compares the states.
fn read_in_parts(feed: &Feed, reader: &mut V1) -> Vec<NextStateResponse> {
    let messages = reader.read(&feed.state(), false);
    assert!(messages.len() > 1 && messages.iter().all(|message| message.encoded_len() < 80 << 10));
    assert_eq!(reader.state.services, feed.state().snapshot().unwrap().services);
    messages
}

#[test]
fn a_change_of_many_endpoints_is_complete() {
    let (feed, mut reader) = (Feed::with_records(7, Arc::default()), V1::new(&selections()[0]));
    publish(&feed, [large(5000, &[]), service("z", (1, vec![(1, 0)], false), 0)]);
    read_in_parts(&feed, &mut reader);
    let odd: Vec<_> = (0..5000).filter(|number| number % 2 == 1).collect();
    publish(&feed, [large(2500, &odd), service("z", (2, vec![(1, 0)], false), 0)]);
    let changes = read_in_parts(&feed, &mut reader);
    let services = || changes.iter().flat_map(|message| &message.services);
    assert_eq!(services().map(|update| update.removed_endpoints.len()).sum::<usize>(), 2500);
    assert_eq!(services().map(|update| update.endpoints.len()).sum::<usize>(), 1250);

    publish(&feed, [large(5000, &[])]);
    read_in_parts(&feed, &mut reader);
    let removed = vec![(ServiceKey::new("default", "web"), None)];
    feed.publish(Localized { services: removed, ..Localized::default() });
    publish(&feed, [large(5000, &odd)]);
    let again = read_in_parts(&feed, &mut reader);
    let replaced: Vec<_> = updates(&again).into_iter().map(|(_, replace)| replace).collect();
    assert!(replaced[0] && !replaced[1..].contains(&true), "only the first update discards the old endpoints");
}

/// The Services in an answer, and whether each is to be replaced.
fn updates(messages: &[NextStateResponse]) -> Vec<(&str, bool)> {
    let updates = messages.iter().flat_map(|message| &message.services);
    updates.map(|update| (&*update.key.as_ref().unwrap().name, update.replace)).collect()
}

#[test]
fn a_service_is_replaced_only_if_removals_may_be_missing() {
    let (feed, mut reader) = (Feed::with_records(7, Arc::default()), V1::new(&selections()[1]));
    publish(&feed, [service("a", (1, vec![(1, 0), (2, 0)], false), 0)]);
    assert_eq!(updates(&reader.read(&feed.state(), false)), [("a", false)], "a full state");
    publish(&feed, [service("b", (1, vec![(1, 0)], false), 0)]);
    assert_eq!(updates(&reader.read(&feed.state(), false)), [("b", false)], "a new Service");
    let removed = vec![(ServiceKey::new("default", "a"), None)];
    feed.publish(Localized { services: removed, ..Localized::default() });
    publish(&feed, [service("a", (1, vec![(1, 0)], false), 0)]);
    assert_eq!(updates(&reader.read(&feed.state(), false)), [("a", true)], "deleted and created again");
    publish(&feed, [service("a", (1, vec![(1, 0)], true), 0)]);
    assert_eq!(updates(&reader.read(&feed.state(), false)), [("a", true)], "its requirements have changed");
    assert_eq!(reader.reader.withheld().count(), 1);
    publish(&feed, [service("a", (1, vec![(2, 0)], true), 0)]);
    let changes = reader.read(&feed.state(), false);
    assert_eq!(updates(&changes), [("a", false)], "it is still withheld");
    assert!(changes[0].services[0].endpoints.is_empty());
}

#[test]
fn metadata_and_details_are_sent_only_if_selected() {
    let feed = Feed::with_records(7, Arc::default());
    let facts = facts("a", &[endpoint(1, 0)], 1);
    publish(&feed, [Service { facts, ..Service::clone(&service("a", (2, vec![(1, 0)], false), 0)) }.into()]);
    let read = |metadata: &[(Metadata, &str)], details| {
        let metadata = metadata.iter().map(|(kind, key)| (*kind, (*key).into())).collect();
        let mut reader = V1::new(&Selection { metadata, details, ..Selection::default() });
        let mut answer = reader.read(&feed.state(), false);
        let update = answer.remove(0).services.remove(0);
        let service = update.service.unwrap();
        let texts = |map: BTreeMap<String, String>| map.into_iter().map(|(key, value)| format!("{key}={value}"));
        let texts: Vec<_> = texts(service.labels).chain(texts(service.annotations)).collect();
        (service.uid, texts.join(" "), update.endpoints[0].details.as_ref().map(|details| details.node_name.clone()))
    };
    let uid = "uid of a".to_owned();
    assert_eq!(read(&[], false), (uid.clone(), String::new(), None));
    let note = (Metadata::Annotation, "note");
    assert_eq!(read(&[(Metadata::Label, "note"), note], false), (uid.clone(), "note=1".to_owned(), None));
    let scheduler = (Metadata::Annotation, "localnet.dev/ipvs-scheduler");
    let all = read(&[(Metadata::Label, "app"), note, scheduler], true);
    assert_eq!(all, (uid, "app=a localnet.dev/ipvs-scheduler=mh note=1".to_owned(), Some("node-1".to_owned())));
}

/// Readers of `localnetv1` do not get facts, so for them the Service does not change.
#[test]
fn a_change_of_the_facts_alone_reaches_the_readers_of_the_draft() {
    let (feed, mut reader) = (Feed::with_records(7, Arc::default()), V1::new(&selections()[0]));
    let version = (1, vec![(1, 0), (2, 0)], false);
    publish(&feed, [service("a", version.clone(), 1)]);
    reader.read(&feed.state(), false);
    publish(&feed, [service("a", version.clone(), 1)]);
    assert_eq!(feed.state().revision().rev, 1, "nothing has changed");
    let before = feed.state();
    publish(&feed, [service("a", version.clone(), 2)]);
    assert_eq!((feed.state().revision().rev, feed.state().digest()), (2, before.digest()));
    reader.read(&feed.state(), false);
    assert_eq!(reader.state.services.into_values().next(), Some(service("a", version.clone(), 2)));
    let changes = |from: &State| {
        let Update::Delta { changes, .. } = feed.state().update(from.revision(), true).unwrap() else { panic!("full") };
        changes
    };
    assert_eq!(changes(&before), []);
    assert!(feed.state().differing(Some(&before)).is_empty());

    // A reader that has also missed a change of the Service gets the Service.
    let other = (2, vec![(1, 0)], false);
    publish(&feed, [service("a", other.clone(), 2)]);
    let changed = feed.state();
    publish(&feed, [service("a", other.clone(), 1)]);
    assert_eq!(changes(&before), [Change::Service(service("a", other, 0))]);
    assert_eq!(changes(&changed), []);

    let old = Feed::new(7);
    publish(&old, [service("a", (1, vec![], false), 1)]);
    publish(&old, [service("a", (1, vec![], false), 2)]);
    assert_eq!(old.state().revision().rev, 1, "a brain without the draft makes no revision");
}

#[test]
fn a_feed_that_keeps_no_records_has_no_messages() {
    let feed = Feed::new(7);
    publish(&feed, [service("a", (1, vec![], false), 0)]);
    assert!(feed.published().is_none());
    assert!(feed.state().messages(None, Selection::default(), Default::default()).is_none());
}
