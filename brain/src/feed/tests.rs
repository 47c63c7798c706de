//! Tests that every reader ends with the same state, whatever the history and however it reads.

use std::{collections::BTreeMap, sync::Arc};

use localnet_proto::{Digest, Node, Port, Revision, Service, ServiceKey, Snapshot, Update, decode::Assembler, wire};
use proptest::prelude::*;
use prost::Message as _;

use super::{Feed, State, TOMBSTONES};
use localnet_cluster::localize::Localized;

/// A Service with one port, whose number distinguishes its versions.
fn service(name: &str, port: u16) -> Arc<Service> {
    Arc::new(Service {
        ports: vec![Port { name: "".into(), port, ..Port::default() }],
        ..Service::new(ServiceKey::new("default", name), vec![[10, 96, 0, 1].into()])
    })
}

fn set(name: &str, port: u16) -> (ServiceKey, Option<Arc<Service>>) {
    let service = service(name, port);
    (service.key.clone(), Some(service))
}

fn gone(name: &str) -> (ServiceKey, Option<Arc<Service>>) {
    (ServiceKey::new("default", name), None)
}

fn services(services: Vec<(ServiceKey, Option<Arc<Service>>)>) -> Localized {
    Localized { services, ..Localized::default() }
}

fn zone(zone: &str) -> Localized {
    Localized { node: Some(Node { zone: zone.into(), ..Node::default() }), ..Localized::default() }
}

/// The update that a client decodes from the wire.
fn received(state: &State, request: Revision, delta: bool) -> Update {
    let mut assembler = Assembler::default();
    for item in state.answer(request, delta).items {
        assembler.push(wire::NextItem::decode(item).unwrap()).unwrap();
    }
    assembler.finish().unwrap()
}

fn is_delta(state: &State, request: Revision) -> bool {
    let update = received(state, request, true);
    assert_eq!(update, state.update(request, true).unwrap(), "the wire and the process deliver the same update");
    matches!(update, Update::Delta { .. })
}

#[test]
fn an_empty_first_state_is_published() {
    let feed = Feed::new(7);
    assert_eq!(feed.state().revision(), Revision { instance: 7, rev: 0 });
    assert_eq!(feed.publish(Localized::default()), Some(Revision { instance: 7, rev: 1 }));
    assert_eq!(feed.publish(Localized::default()), None);
    let empty = received(&feed.state(), Revision::default(), true);
    assert_eq!(empty, Update::Full(Snapshot { revision: Revision { instance: 7, rev: 1 }, ..Snapshot::default() }));
}

#[test]
fn an_equal_result_makes_no_revision() {
    let feed = Feed::new(7);
    let publish = |localized| feed.publish(localized).map(|revision| revision.rev);
    assert_eq!(publish(services(vec![set("a", 1)])), Some(1));
    assert_eq!(publish(services(vec![set("a", 1)])), None);
    assert_eq!(publish(services(vec![gone("b")])), None);
    assert_eq!(publish(zone("z")), Some(2));
    assert_eq!(publish(zone("z")), None);
    assert_eq!(publish(services(vec![set("a", 1), set("b", 1)])), Some(3));
    assert_eq!(publish(services(vec![gone("a")])), Some(4));
    assert_eq!(publish(services(vec![gone("a")])), None);
}

#[test]
fn a_delta_needs_a_known_revision() {
    let feed = Feed::new(7);
    feed.publish(services(vec![set("a", 1)]));
    feed.publish(services(vec![set("b", 1)]));
    let state = feed.state();
    let at = |instance, rev| Revision { instance, rev };
    assert!(is_delta(&state, at(7, 1)));
    assert!(is_delta(&state, at(7, 2)));
    assert!(!is_delta(&state, at(7, 0)), "revision 0 is not a state");
    assert!(!is_delta(&state, at(7, 3)), "a future revision");
    assert!(!is_delta(&state, at(8, 1)), "another instance");
    assert!(!state.answer(at(7, 1), false).delta, "the reader does not accept deltas");
}

#[test]
fn a_reader_older_than_the_tombstones_gets_the_full_state() {
    let feed = Feed::new(7);
    let many = u64::try_from(TOMBSTONES).unwrap() + 10;
    let names: Vec<String> = (0..many).map(|number| format!("s{number}")).collect();
    feed.publish(services(names.iter().map(|name| set(name, 1)).collect()));
    for name in &names {
        feed.publish(services(vec![gone(name)]));
    }
    let state = feed.state();
    assert_eq!((state.revision().rev, state.removals.len(), state.removed.len()), (many + 1, TOMBSTONES, TOMBSTONES));
    // The tenth removal made revision 11, and is the last one without a tombstone.
    assert!(!is_delta(&state, Revision { instance: 7, rev: 10 }));
    assert!(is_delta(&state, Revision { instance: 7, rev: 11 }));
    let mut held = Snapshot { revision: Revision { instance: 7, rev: 11 }, ..Snapshot::default() };
    held.services = names[10..].iter().map(|name| (service(name, 1).key.clone(), service(name, 1))).collect();
    held.apply(received(&state, held.revision, true));
    assert_eq!(held, state.snapshot().unwrap());
}

#[test]
fn a_recreated_service_is_not_in_the_removals() {
    let feed = Feed::new(7);
    feed.publish(services(vec![set("a", 1)]));
    feed.publish(services(vec![gone("a")]));
    feed.publish(services(vec![set("a", 1)]));
    let state = feed.state();
    let update = received(&state, Revision { instance: 7, rev: 1 }, true);
    assert_eq!(
        update,
        Update::Delta { revision: state.revision(), changes: vec![localnet_proto::Change::Service(service("a", 1))] }
    );
}

#[test]
fn deltas_of_every_size_are_sorted_by_name() {
    for many in [3, super::walk::FEW, super::walk::FEW + 1, 1000] {
        let feed = Feed::new(7);
        feed.publish(zone("z"));
        for number in (0..many).rev() {
            feed.publish(services(vec![set(&format!("s{number:04}"), 1)]));
        }
        let items = feed.state().answer(Revision { instance: 7, rev: 1 }, true).items;
        let names: Vec<String> =
            items.filter_map(|item| Some(wire::NextItem::decode(item).unwrap().endpoints?.service?.name)).collect();
        assert_eq!(names.len(), many);
        assert!(names.is_sorted());
    }
}

#[test]
fn all_answers_share_the_bytes_of_a_service() {
    let feed = Feed::new(7);
    feed.publish(services(vec![set("a", 1)]));
    let bytes = |state: &State| state.answer(Revision::default(), false).items.last().unwrap();
    let first = bytes(&feed.state());
    feed.publish(services(vec![set("b", 1)]));
    let again = feed.state().answer(Revision::default(), false).items.nth(2).unwrap();
    assert_eq!(first.as_ptr(), again.as_ptr());
}

#[tokio::test]
async fn the_long_poll_returns_a_state_that_differs() {
    let feed = Feed::new(7);
    let poll = |held| {
        let feed = feed.clone();
        tokio::spawn(async move { feed.differing(held).await.revision().rev })
    };
    let first = poll(Revision::default());
    tokio::task::yield_now().await;
    assert!(!first.is_finished());
    feed.publish(Localized::default());
    assert_eq!(first.await.unwrap(), 1);
    assert_eq!(poll(Revision { instance: 6, rev: 1 }).await.unwrap(), 1);
    let next = poll(Revision { instance: 7, rev: 1 });
    tokio::task::yield_now().await;
    assert!(!next.is_finished());
    feed.publish(services(vec![set("a", 1)]));
    assert_eq!(next.await.unwrap(), 2);
}

#[derive(Clone, Debug)]
enum Step {
    Publish(Vec<(u8, Option<u16>)>, Option<u8>),
    /// `delta`: whether the reader accepts a delta. `cut`: after how many items the stream breaks.
    Read {
        reader: usize,
        delta: bool,
        cut: Option<usize>,
    },
    Update {
        reader: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let change = (0..6u8, prop::option::weighted(0.7, 1..3u16));
    let publish = (prop::collection::vec(change, 0..4), prop::option::weighted(0.2, 0..3u8));
    let read = (0..3usize, any::<bool>(), prop::option::weighted(0.3, 0..4usize));
    prop_oneof![
        3 => publish.prop_map(|(services, zone)| Step::Publish(services, zone)),
        3 => read.prop_map(|(reader, delta, cut)| Step::Read { reader, delta, cut }),
        1 => (0..3usize).prop_map(|reader| Step::Update { reader }),
    ]
}

proptest! {
    /// Covers any history, read in full or as deltas, over the wire or in process, with streams that break anywhere.
    #[test]
    fn deltas_fold_to_the_full_state(history in prop::collection::vec(step(), 1..40)) {
        let feed = Feed::new(7);
        feed.publish(Localized::default());
        let mut readers: Vec<Snapshot> = vec![Snapshot::default(); 3];
        let mut model: BTreeMap<ServiceKey, Arc<Service>> = BTreeMap::new();
        let mut node = Node::default();
        for step in history {
            match step {
                Step::Publish(changes, zone) => {
                    // The cluster reports each Service once in a batch, so only the last change counts.
                    let changes: BTreeMap<u8, Option<u16>> = changes.into_iter().collect();
                    let list = changes.iter().map(|(name, port)| match port {
                        Some(port) => set(&name.to_string(), *port),
                        None => gone(&name.to_string()),
                    });
                    let before = (model.clone(), node.clone());
                    for (key, service) in list.clone() {
                        match service {
                            Some(service) => model.insert(key, service),
                            None => model.remove(&key),
                        };
                    }
                    if let Some(zone) = zone {
                        node.zone = zone.to_string();
                    }
                    let localized = Localized { node: zone.map(|_| node.clone()), services: list.collect(), ..Localized::default() };
                    let revision = feed.publish(localized);
                    prop_assert_eq!(revision.is_some(), (&before.0, &before.1) != (&model, &node));
                }
                Step::Read { reader, delta, cut } => {
                    let (state, held) = (feed.state(), &mut readers[reader]);
                    let items: Vec<_> = state.answer(held.revision, delta).items.collect();
                    if cut.is_some_and(|cut| cut < items.len()) {
                        continue;
                    }
                    held.apply(received(&state, held.revision, delta));
                    prop_assert_eq!(&*held, &state.snapshot().unwrap());
                    prop_assert_eq!(Digest::of(held), state.digest());
                }
                Step::Update { reader } => {
                    let (state, held) = (feed.state(), &mut readers[reader]);
                    held.apply(state.update(held.revision, true).unwrap());
                    prop_assert_eq!(&*held, &state.snapshot().unwrap());
                }
            }
            let state = feed.state();
            prop_assert_eq!((&state.snapshot().unwrap().services, state.node()), (&model, &node));
            prop_assert_eq!(state.changed.len(), state.services.len());
            prop_assert_eq!(state.removals.len(), state.removed.len());
        }
    }
}
