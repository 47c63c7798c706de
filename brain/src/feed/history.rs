//! The history: the last changes of the state with the objects that led to them, the progress of the backends, and problems. It explains an
//! incident after the fact (`localnet history`).
//!
//! ```text
//! feed: each revision  ─┐
//! reports of backends  ─┼─► open block ──deflate──► closed blocks, of which the oldest are dropped ─► `History.Read`
//! problems             ─┘  └► `file`, if there is one ───────────────────────────────────────────────────┘
//! ```
//!
//! A change contains only what differs. Names and addresses repeat from change to change, so a block of changes compresses well.

mod file;
mod frames;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, VecDeque},
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{SyncSender, TrySendError},
    },
    time::{Duration, Instant, SystemTime},
};

use bytes::Bytes;
use localnet_cluster::localize::{ChangedObject, ObjectChanges};
use localnet_core::Diagnostic;
use localnet_proto::{
    history::{self, Change, EndpointDrain, Entry, Patch, Problem, Start, entry::Event, hunks, records},
    traffic::{Drains, TrafficReport},
    wire::{BackendReport, FamilyReport, ServiceKey},
};
use miniz_oxide::{deflate::compress_to_vec, inflate::decompress_to_vec};
use prost::Message as _;
use tokio::sync::{oneshot, watch};

use self::file::Message;
use super::{Encoded, State};
use crate::metrics::{Trouble, Troubles};

/// Maximum size of the closed blocks together, in bytes.
const LIMIT: usize = 2 << 20;
/// The size in bytes at which a block is closed.
const BLOCK: usize = 32 << 10;
/// The fastest level of compression. Higher levels take several times as long to save a tenth.
const LEVEL: u8 = 1;
/// Maximum size of the patches of a change in bytes. Of a larger change, only the objects are recorded.
const LARGEST: usize = 256 << 10;
/// Maximum length of a backend's error, in characters.
const LONGEST: usize = 1000;

/// The history of one brain. Clones share it. The default keeps only the open block.
#[derive(Clone, Debug, Default)]
pub struct History(Arc<Mutex<Ring>>);

#[derive(Debug, Default)]
struct Ring {
    /// The first entry, which is never dropped.
    start: Option<Entry>,
    closed: VecDeque<Arc<[u8]>>,
    /// The number of closed blocks that were dropped.
    dropped: u64,
    /// The size of the closed blocks, and its maximum.
    bytes: usize,
    limit: usize,
    /// Entries, each after its length.
    open: Vec<u8>,
    /// Is notified of each entry.
    added: watch::Sender<()>,
    /// The queue of the thread that also records the entries in a file.
    recorder: Option<SyncSender<Message>>,
}

/// A position in the history of a running brain.
#[derive(Debug)]
pub(crate) struct Cursor {
    /// The number of the block.
    block: u64,
    /// The number of bytes in the block.
    bytes: usize,
    added: watch::Receiver<()>,
}

impl History {
    /// A history that begins now. `instance` identifies this run of the brain.
    pub fn new(instance: u64) -> Self {
        let start = Start { instance_id: instance, version: env!("CARGO_PKG_VERSION").to_owned() };
        let ring = Ring { start: Some(entry(SystemTime::now(), Event::Start(start))), limit: LIMIT, ..Ring::default() };
        Self(Arc::new(Mutex::new(ring)))
    }

    /// The serialized entries in memory, oldest first.
    pub fn entries(&self) -> impl Iterator<Item = Bytes> + Send + 'static {
        self.lock().entries()
    }

    /// The size of the entries in memory, in bytes.
    pub fn bytes(&self) -> usize {
        let ring = self.lock();
        ring.bytes + ring.open.len()
    }

    /// The serialized entries, oldest first: those in the file, if the brain records into one, and otherwise those in memory.
    pub(crate) async fn recorded(&self) -> Box<dyn Iterator<Item = Bytes> + Send> {
        let recorder = self.lock().recorder.clone();
        if let Some(recorder) = recorder {
            let (reply, files) = oneshot::channel();
            if recorder.try_send(Message::Read(reply)).is_ok()
                && let Ok(files) = files.await
            {
                return Box::new(files.into_iter().flat_map(file::contents).flat_map(framed));
            }
        }
        Box::new(self.entries())
    }

    /// The position after the last entry.
    pub(crate) fn end(&self) -> Cursor {
        let ring = self.lock();
        let block = ring.dropped + ring.closed.len() as u64;
        Cursor { block, bytes: ring.open.len(), added: ring.added.subscribe() }
    }

    /// Waits for the next entries after a position, and moves the position. `None` if they were dropped.
    pub(crate) async fn after(&self, cursor: &mut Cursor) -> Option<Vec<Bytes>> {
        loop {
            cursor.added.mark_unchanged();
            let from = cursor.bytes;
            let (closed, mut content) = {
                let ring = self.lock();
                let index = usize::try_from(cursor.block.checked_sub(ring.dropped)?).unwrap_or(usize::MAX);
                match ring.closed.get(index) {
                    Some(block) => {
                        (cursor.block, cursor.bytes) = (cursor.block + 1, 0);
                        (Some(Arc::clone(block)), Bytes::new())
                    }
                    None => {
                        cursor.bytes = ring.open.len();
                        (None, Bytes::copy_from_slice(&ring.open[from..]))
                    }
                }
            };
            if let Some(block) = &closed {
                content = Bytes::from(decompress_to_vec(block).unwrap_or_default()).slice(from..);
            }
            if !content.is_empty() {
                return Some(framed(content).collect());
            }
            if closed.is_none() {
                changed(&mut cursor.added).await;
            }
        }
    }

    /// Also records into a file from now on. `state` is the newest state, which does not change during the call.
    pub(super) fn record_into(&self, path: PathBuf, limit: u64, state: State) {
        let mut ring = self.lock();
        let state = (state.revision().rev > 0).then_some(state);
        let recorder = file::start(path, limit);
        ring.recorder = recorder
            .inspect_err(|error| tracing::error!(%error, "cannot start the thread that records the history in a file"))
            .ok();
        let entries = ring.entries().collect();
        ring.record(Message::Begin(entries, state));
    }

    /// Records the change from one state of the feed to the next. The first of the changed objects was received at `since`.
    pub(crate) fn changed(&self, before: &State, now: &State, changes: &ObjectChanges, since: Instant) {
        let patches = if before.revision().rev == 0 { None } else { patches(before, now) };
        let change = Change {
            rev: now.revision().rev,
            digest: now.digest().0,
            objects: changes.objects.iter().map(object).collect(),
            more_objects: changes.more_objects,
            whole: patches.is_none(),
            patches: patches.unwrap_or_default(),
        };
        let whole = change.whole;
        let at = SystemTime::now().checked_sub(since.elapsed()).unwrap_or(SystemTime::UNIX_EPOCH);
        let message = |entry| Message::Change { entry, state: now.clone(), whole };
        self.lock().add(&entry(at, Event::Change(change)), message);
    }

    /// Records a report if it contains other progress than `last`, the backend's previous report.
    pub(crate) fn reported(&self, last: Option<&BackendReport>, report: &BackendReport) {
        let now = progress(report);
        if last.is_none_or(|last| progress(last) != now) {
            self.add(&entry(SystemTime::now(), Event::Progress(now)));
        }
    }

    /// Records which endpoints began and ended to drain between two reports of a backend's traffic.
    pub(crate) fn drained(&self, last: Option<&TrafficReport>, now: &TrafficReport) {
        for drain in drains(last, now) {
            self.add(&entry(SystemTime::now(), Event::Drain(drain)));
        }
    }

    /// Records a problem of an object.
    pub(crate) fn problem(&self, Diagnostic { subject, field, code, problem, .. }: &Diagnostic) {
        let (of, field) = (subject.to_string(), field.clone());
        let problem = Problem { of, field, code: code.to_string(), problem: problem.clone() };
        self.add(&entry(SystemTime::now(), Event::Problem(problem)));
    }

    /// Records when troubles of the source begin and end. Never returns.
    pub(crate) async fn follow(self, troubles: Troubles) {
        let mut all = troubles.subscribe();
        let mut known = std::collections::BTreeMap::<Cow<'static, str>, Trouble>::new();
        loop {
            let now = all.borrow_and_update().clone();
            let begun = now.iter().filter(|(of, trouble)| {
                known.get(*of).is_none_or(|known| known.diagnostic.problem != trouble.diagnostic.problem)
            });
            let begun = begun.map(|(of, trouble)| (of, Some(&trouble.diagnostic)));
            let ended = known.keys().filter(|of| !now.contains_key(*of)).map(|of| (of, None));
            for (of, diagnostic) in begun.chain(ended) {
                let code = diagnostic.map(|diagnostic| diagnostic.code.to_string()).unwrap_or_default();
                let problem = diagnostic.map(|diagnostic| diagnostic.problem.clone()).unwrap_or_default();
                let problem = Problem { of: of.to_string(), field: String::new(), code, problem };
                self.add(&entry(SystemTime::now(), Event::Problem(problem)));
            }
            known = now;
            changed(&mut all).await;
        }
    }

    fn add(&self, entry: &Entry) {
        self.lock().add(entry, Message::Entry);
    }

    fn lock(&self) -> MutexGuard<'_, Ring> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ring {
    /// Adds an entry, and passes `message` of its serialized form to the recorder.
    fn add(&mut self, entry: &Entry, message: impl FnOnce(Bytes) -> Message) {
        // Writing to a vector cannot fail.
        _ = entry.encode_length_delimited(&mut self.open);
        if self.recorder.is_some() {
            self.record(message(entry.encode_to_vec().into()));
        }
        self.added.send_replace(());
        if self.open.len() >= BLOCK {
            let block: Arc<[u8]> = compress_to_vec(&self.open, LEVEL).into();
            self.open.clear();
            self.open.shrink_to(BLOCK);
            self.bytes += block.len();
            self.closed.push_back(block);
            while self.bytes > self.limit
                && let Some(oldest) = self.closed.pop_front()
            {
                self.bytes -= oldest.len();
                self.dropped += 1;
            }
        }
    }

    fn record(&mut self, message: Message) {
        let Some(recorder) = &self.recorder else { return };
        if let Err(error) = recorder.try_send(message) {
            if matches!(error, TrySendError::Full(_)) {
                tracing::error!(
                    "the disk is too slow for the history file; the brain keeps the history in memory until it restarts"
                );
            }
            self.recorder = None;
        }
    }

    fn entries(&self) -> impl Iterator<Item = Bytes> + Send + use<> {
        let start = self.start.as_ref().map(|start| Bytes::from(start.encode_to_vec()));
        let (closed, open) = (self.closed.clone(), Bytes::copy_from_slice(&self.open));
        // A block that cannot be decompressed would be a bug in the compression.
        let closed = closed.into_iter().map(|block| decompress_to_vec(&block).unwrap_or_default().into());
        start.into_iter().chain(closed.chain([open]).flat_map(framed))
    }
}

/// Resolves after a change. Never resolves if the sender is dropped.
async fn changed<T>(receiver: &mut watch::Receiver<T>) {
    if receiver.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// The parts of the state that differ. `None` if they are too large.
fn patches(before: &State, now: &State) -> Option<Vec<Patch>> {
    let content = |encoded: Option<Encoded>| encoded.map(|encoded| records(encoded.items())).unwrap_or_default();
    let node =
        (!now.has_node_of(before)).then(|| (String::new(), String::new(), before.node_record(), now.node_record()));
    let services = now
        .differing(Some(before))
        .into_iter()
        .map(|(key, before, now)| (key.namespace.to_string(), key.name.to_string(), content(before), content(now)));
    let (mut patches, mut bytes) = (Vec::new(), 0);
    for (namespace, name, before, now) in node.into_iter().chain(services) {
        let patch = Patch { namespace, name, hunks: hunks(&before, &now) };
        bytes += patch.encoded_len();
        if bytes > LARGEST {
            return None;
        }
        patches.push(patch);
    }
    Some(patches)
}

fn object(ChangedObject { kind, namespace, name, version, deleted }: &ChangedObject) -> history::ChangedObject {
    history::ChangedObject {
        kind: kind.as_str().to_owned(),
        namespace: namespace.to_string(),
        name: name.to_string(),
        resource_version: version.map_or(0, std::num::NonZeroU64::get),
        deleted: *deleted,
    }
}

/// The drains that have begun or ended between two reports.
fn drains(last: Option<&TrafficReport>, now: &TrafficReport) -> Vec<EndpointDrain> {
    let of = |report: &TrafficReport| {
        let ports = report.ports.iter();
        let drains = ports.flat_map(|port| {
            let ServiceKey { namespace, name } = port.service.clone().unwrap_or_default();
            port.endpoints.iter().filter_map(move |of| {
                let key = (namespace.clone(), name.clone(), port.port.clone(), port.protocol, of.endpoint.clone());
                Some((key, of.drains?))
            })
        });
        drains.collect::<BTreeMap<_, _>>()
    };
    let (before, now) = (last.map(of).unwrap_or_default(), of(now));
    let keys: BTreeSet<_> = before.keys().chain(now.keys()).collect();
    let drain = |key: &(String, String, String, i32, String)| {
        let [before, now] = [&before, &now].map(|of| of.get(key).copied());
        let open = |of: Option<Drains>| of.unwrap_or_default().open;
        let (namespace, name, port, protocol, endpoint) = key.clone();
        let service = Some(ServiceKey { namespace, name });
        // An endpoint without connections is no longer in the report.
        let closed = if open(now) > 0 { 0 } else { now.or(before).unwrap_or_default().closed };
        ((open(before) > 0) != (open(now) > 0)).then_some(EndpointDrain {
            service,
            port,
            protocol,
            endpoint,
            open: open(now),
            closed,
        })
    };
    keys.into_iter().filter_map(drain).collect()
}

/// The part of a report that the history contains.
fn progress(report: &BackendReport) -> history::BackendProgress {
    let families = report.families.iter().map(|family| FamilyReport {
        family: family.family,
        applied_rev: family.applied_rev,
        applied_digest: family.applied_digest,
        error: family.error.chars().take(LONGEST).collect(),
        ..FamilyReport::default()
    });
    history::BackendProgress {
        backend: report.backend.clone(),
        instance_id: report.instance_id,
        families: families.collect(),
    }
}

fn entry(at: SystemTime, event: Event) -> Entry {
    let since_1970 = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    Entry { time_millis: since_1970.as_millis().try_into().unwrap_or(u64::MAX), event: Some(event) }
}

/// Splits a block into its entries.
fn framed(mut block: Bytes) -> impl Iterator<Item = Bytes> {
    std::iter::from_fn(move || {
        let length = prost::decode_length_delimiter(&mut block).ok()?;
        (length <= block.len()).then(|| block.split_to(length))
    })
}

#[cfg(test)]
mod tests {
    use localnet_core::{Code, Subject};
    use localnet_proto::{
        Endpoint, EndpointPort, Port, Scopes, Service, ServiceKey,
        history::{Past, Step},
        traffic::{EndpointTraffic, PortTraffic},
        wire,
    };

    use super::*;
    use crate::feed::Feed;
    use localnet_cluster::{localize::Localized, objects::Kind};

    fn read(history: &History) -> Vec<Entry> {
        history.entries().map(|entry| Entry::decode(entry).unwrap()).collect()
    }

    fn changes(history: &History) -> Vec<Change> {
        let changes = read(history).into_iter().filter_map(|entry| match entry.event {
            Some(Event::Change(change)) => Some(change),
            _ => None,
        });
        changes.collect()
    }

    /// A Service with an endpoint for each number.
    fn service(name: &str, numbers: &[u16]) -> Arc<Service> {
        let mut service = Service::new(ServiceKey::new("shop", name), vec!["10.96.0.1".parse().unwrap()]);
        service.ports.push(Port { name: "http".into(), port: 80, ..Port::default() });
        service.endpoints = numbers
            .iter()
            .map(|number| Endpoint {
                address: [10, 244, (number >> 8) as u8, *number as u8].into(),
                ports: vec![EndpointPort { name: "http".into(), port: 8080 }],
                local: false,
                hostname: None,
                scopes: Scopes { internal: true, external: true, short_circuit: false, established: true },
                weight: None,
            })
            .collect();
        service.into()
    }

    /// The name of a Service, and its new version.
    type Published = (&'static str, Option<Arc<Service>>);

    fn publish(feed: &Feed, services: Vec<Published>, changes: ObjectChanges) {
        let services = services.into_iter().map(|(name, service)| (ServiceKey::new("shop", name), service)).collect();
        feed.publish(Localized { services, changes, ..Localized::default() });
    }

    fn slice(name: &str, version: u64) -> ObjectChanges {
        let object = ChangedObject {
            kind: Kind::Slice,
            namespace: "shop".into(),
            name: name.into(),
            version: version.try_into().ok(),
            deleted: false,
        };
        ObjectChanges { objects: vec![object], ..ObjectChanges::default() }
    }

    #[test]
    fn each_revision_is_recorded_and_can_be_undone_and_redone() {
        let feed = Feed::new(7);
        let steps: Vec<Vec<Published>> = vec![
            vec![("web", Some(service("web", &[1, 2, 3])))],
            vec![("web", Some(service("web", &[1, 3]))), ("api", Some(service("api", &[9])))],
            vec![("web", Some(service("web", &[0, 3, 4])))],
            vec![("api", None), ("web", Some(service("web", &[])))],
        ];
        let mut states = Vec::new();
        for step in steps {
            publish(&feed, step, slice("web-1", 41));
            states.push(feed.state().snapshot().unwrap());
        }
        let recorded = changes(feed.history());
        assert_eq!(
            recorded.iter().map(|change| (change.rev, change.whole)).collect::<Vec<_>>(),
            [(1, true), (2, false), (3, false), (4, false)]
        );
        assert_eq!(recorded[1].objects[0].resource_version, 41);
        let mut past = Past::from(states[3].clone());
        for (before, change) in states.iter().zip(&recorded[1..]).rev() {
            let now = past.state.clone();
            let steps = past.back(change).unwrap();
            assert_eq!(past.state, *before);
            for step in steps {
                let Step::Service(key, old, new) = step else { panic!("the node does not change") };
                assert_eq!((old.as_ref(), new.as_ref()), (before.services.get(&key), now.services.get(&key)));
            }
        }
        for (after, change) in states[1..].iter().zip(&recorded[1..]) {
            past.forward(change).unwrap();
            assert_eq!(past.state, *after);
        }
        assert!(past.back(&recorded[1]).is_err(), "the change does not fit the state");
        assert!(Past::from(states[0].clone()).back(&recorded[0]).is_err(), "the state before the first one is unknown");
    }

    /// A change of one endpoint, with the report of a backend, takes at most 100 bytes.
    #[test]
    fn memory_is_bounded_and_small_for_each_change() {
        let feed = Feed::new(7);
        const LIMIT: usize = 64 << 10;
        feed.history().lock().limit = LIMIT;
        let many: Vec<u16> = (0..40).collect();
        let mut count = 0_usize;
        publish(&feed, vec![("checkout-api", Some(service("checkout-api", &many)))], ObjectChanges::default());
        let dropped = |count: usize| changes(feed.history()).len() < count;
        while !dropped(count) {
            for _ in 0..200 {
                count += 1;
                let others: Vec<u16> =
                    many.iter().copied().filter(|number| usize::from(*number) != count % 40).collect();
                let version = 51_000_000 + 37 * count as u64;
                publish(
                    &feed,
                    vec![("checkout-api", Some(service("checkout-api", &others)))],
                    slice("checkout-api-x7k2p", version),
                );
                let state = feed.state();
                let family = |family| FamilyReport {
                    family,
                    applied_rev: state.revision().rev,
                    applied_digest: state.digest().0,
                    ..FamilyReport::default()
                };
                let report = BackendReport {
                    backend: "nft".to_owned(),
                    instance_id: 7,
                    families: vec![family(1), family(2)],
                    ..BackendReport::default()
                };
                feed.history().reported(None, &report);
            }
        }
        let ring = feed.history().lock();
        assert!(ring.bytes <= LIMIT && ring.open.capacity() <= 2 * BLOCK, "{} bytes", ring.bytes);
        drop(ring);
        let kept = changes(feed.history()).len();
        assert!(kept * 100 >= LIMIT, "{kept} changes in {LIMIT} bytes");
        assert!(matches!(read(feed.history())[0].event, Some(Event::Start(_))));
    }

    #[test]
    fn a_large_change_is_recorded_without_its_content() {
        let feed = Feed::new(7);
        publish(&feed, vec![], ObjectChanges::default());
        let many: Vec<u16> = (0..10_000).collect();
        publish(&feed, vec![("web", Some(service("web", &many)))], slice("web-1", 3));
        let recorded = changes(feed.history());
        assert_eq!((recorded[1].whole, recorded[1].patches.len(), recorded[1].objects.len()), (true, 0, 1));
    }

    #[tokio::test]
    async fn troubles_are_recorded_when_they_begin_and_end() {
        let (feed, troubles) = (Feed::new(7), Troubles::default());
        let mut following = std::pin::pin!(feed.history().clone().follow(troubles.clone()));
        let diagnostic = Diagnostic::new(Code::YamlInvalid, Subject::text(1), "is no YAML");
        for of in ["files", "files", ""] {
            if of.is_empty() {
                troubles.is_over("files");
            } else {
                troubles.is(of, diagnostic.clone());
            }
            assert!(futures::poll!(&mut following).is_pending());
        }
        let problems: Vec<_> = read(feed.history())
            .into_iter()
            .filter_map(|entry| match entry.event {
                Some(Event::Problem(problem)) => Some((problem.of, problem.code, problem.problem)),
                _ => None,
            })
            .collect();
        let of = |code: &str, problem: &str| ("files".to_owned(), code.to_owned(), problem.to_owned());
        assert_eq!(problems, [of("yaml-invalid", "is no YAML"), of("", "")]);
    }

    #[test]
    fn drains_are_recorded_when_they_begin_and_end() {
        let report = |endpoints: &[(&str, u64, u64)]| {
            let endpoint = |(endpoint, open, closed): &(&str, u64, u64)| EndpointTraffic {
                endpoint: (*endpoint).to_owned(),
                drains: (*open + *closed > 0).then_some(Drains { open: *open, closed: *closed }),
                ..EndpointTraffic::default()
            };
            let service = Some(wire::ServiceKey { namespace: "shop".to_owned(), name: "web".to_owned() });
            let (port, endpoints) = ("http".to_owned(), endpoints.iter().map(endpoint).collect());
            let port = PortTraffic { service, port, endpoints, ..PortTraffic::default() };
            TrafficReport { ports: vec![port], ..TrafficReport::default() }
        };
        let (a, b) = ("10.0.0.1:80", "10.0.0.2:80");
        let reports = [
            report(&[(a, 0, 0), (b, 0, 0)]),
            report(&[(a, 3, 0), (b, 0, 0)]),
            report(&[(a, 2, 0), (b, 1, 0)]),
            report(&[(a, 0, 2)]),
            report(&[]),
        ];
        let mut found = Vec::new();
        for (at, now) in reports.iter().enumerate() {
            let last = at.checked_sub(1).map(|last| &reports[last]);
            found.extend(drains(last, now).into_iter().map(|of| (at, of.endpoint, of.open, of.closed)));
        }
        let of = |at, endpoint: &str, open, closed| (at, endpoint.to_owned(), open, closed);
        assert_eq!(found, [of(1, a, 3, 0), of(2, b, 1, 0), of(3, a, 0, 2), of(3, b, 0, 0)]);
    }
}
