//! A simulated API server with etcd's history: lists in pages, watches with bookmarks, and faults.
//!
//! Lists are consistent and watches deliver changes in order, as those of a real API server do. The faults are those that
//! clients of a real one see.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use futures::stream;
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use kube::client::Body;
use localnet_brain::watch::kube::ApiServer;
use localnet_cluster::objects::Kind;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _};
use serde_json::{Value, json};
use tokio::{
    sync::{Notify, mpsc, watch},
    time::{self, Instant},
};
use tower::BoxError;

use crate::{
    trace::Trace,
    world::{Key, Objects},
};

use watcher::Watcher;

mod watcher;

type Answer = http::Response<UnsyncBoxBody<Bytes, BoxError>>;
type Line = Result<Frame<Bytes>, BoxError>;

/// The most objects in one page; a run chooses a number. A real API server may also send less than the requested number.
const PAGES: [usize; 3] = [2, 5, 500];
/// The limit of a list that only asks for the version.
const CHECK: usize = 1;
/// From how many Services on the brain may mistrust a list that suddenly lacks them, and how many more lists it then requests.
const SUSPICIOUS: usize = 20;
const SUSPICIOUS_LISTS: u64 = 6;
/// The time in which [`Counts::busiest`] counts requests.
const RUSH: Duration = Duration::from_secs(10);
/// How long the brain may take to list everything after a start or a restore. A request without an answer takes it up to a minute.
const PROMPT: Duration = Duration::from_secs(180);
/// How long the brain may take to notice that a watch is silent.
const SILENCES: Duration = Duration::from_secs(660);
/// The longest time between two bookmarks.
const BOOKMARK: Duration = Duration::from_secs(60);

/// How the open watches of a kind end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The stream ends, as after its timeout.
    Closed,
    /// The connection breaks.
    Broken,
    /// The stream ends in the middle of a line.
    Cut,
    /// An event reports that the version is too old (410).
    Expired,
}

/// How the API server answers requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mood {
    /// It works.
    #[default]
    Well,
    /// It cannot be reached.
    Down,
    /// It answers each request with this error status.
    Refusing(u16),
    /// It answers nothing.
    Hanging,
    /// It breaks off in the middle of some pages of lists.
    Truncating,
}

/// The API server. Clones share it.
#[derive(Clone)]
pub struct Api(Arc<Mutex<State>>);

struct State {
    rng: StdRng,
    trace: Trace,
    version: watch::Sender<u64>,
    objects: Objects,
    /// The version of each object's last write.
    written: BTreeMap<Key, u64>,
    history: Vec<Record>,
    /// The oldest version from which a watch can start.
    floor: u64,
    /// The number of restores from a backup. Watches and tokens do not survive a restore.
    epoch: u64,
    tokens: BTreeMap<String, (u64, u64, Vec<Value>)>,
    page: usize,
    mood: Mood,
    /// Whether the history starts anew when it works again.
    forgets: bool,
    /// When anything last kept the brain from listing everything, or when that ends.
    disturbed: Instant,
    /// Whether watches are served from a cache, as by most versions of the API server, and not by etcd.
    is_cached: bool,
    /// The longest delay of answers and changes, in milliseconds.
    latency: BTreeMap<Kind, u64>,
    /// The kinds whose open watches deliver nothing more.
    silent: BTreeMap<Kind, u64>,
    ends: BTreeMap<Kind, (u64, End)>,
    watches: u64,
    /// The streams of watches that the API server has not ended.
    streams: Vec<(Kind, mpsc::WeakUnboundedSender<Line>)>,
    /// When the last requests arrived.
    requests: BTreeMap<Kind, VecDeque<Instant>>,
    /// After how many more requests the brain crashes.
    crash_in: Option<u32>,
    crash: Arc<Notify>,
    counts: BTreeMap<Kind, Counts>,
}

/// A write.
struct Record {
    version: u64,
    kind: Kind,
    before: Option<Arc<Value>>,
    after: Option<Arc<Value>>,
}

/// What the API server has seen and sent, for one kind.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// The version up to which the brain knows the objects. 0 after a restart or a restore.
    pub delivered: u64,
    /// The version from which the brain would open a watch. 0 after a restart.
    pub known: u64,
    /// The number of lists that the brain has requested.
    pub lists: u64,
    /// The number of reasons for a list: restarts of the brain, restores, lists that broke off, outdated and silent watches, and lists
    /// that the brain mistrusts.
    pub reasons: u64,
    /// The largest number of requests within 10 s, without those for further pages of a list.
    pub busiest: usize,
    /// The number of watches, except outdated ones, that neither side has ended.
    pub open: usize,
}

/// The contents of a backup.
#[derive(Clone)]
pub struct Backup(u64, Objects, BTreeMap<Key, u64>);

impl Api {
    /// An empty API server, whose delays follow from `seed`.
    pub fn new(seed: u64, trace: Trace) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        Self(Arc::new(Mutex::new(State {
            is_cached: rng.random(),
            page: *PAGES.choose(&mut rng).unwrap_or(&5),
            rng,
            trace,
            version: watch::Sender::new(100),
            objects: Objects::new(),
            written: BTreeMap::new(),
            history: Vec::new(),
            floor: 100,
            epoch: 0,
            tokens: BTreeMap::new(),
            mood: Mood::Well,
            forgets: false,
            disturbed: Instant::now(),
            latency: BTreeMap::new(),
            silent: BTreeMap::new(),
            ends: BTreeMap::new(),
            watches: 0,
            streams: Vec::new(),
            requests: BTreeMap::new(),
            crash_in: None,
            crash: Arc::default(),
            counts: BTreeMap::new(),
        })))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The API server as the brain sees it.
    pub fn server(&self) -> ApiServer {
        let this = self.clone();
        ApiServer::new("https://api.sim", tower::service_fn(move |request| this.clone().answer(request)))
    }

    /// Looks at the objects, which are without their versions. `look` must not use this API server.
    pub fn with_objects<T>(&self, look: impl FnOnce(&Objects) -> T) -> T {
        look(&self.lock().objects)
    }

    /// The newest version.
    pub fn version(&self) -> u64 {
        *self.lock().version.borrow()
    }

    /// Writes an object, or deletes it. Returns the version.
    pub fn write(&self, key: &Key, object: Option<Arc<Value>>) -> u64 {
        let mut state = self.lock();
        let version = *state.version.borrow() + 1;
        state.trace.add(format_args!("{version}: {} {} {}", key.0, key.1, if object.is_some() { "+" } else { "-" }));
        state.written.insert(key.clone(), version);
        let before = match object.clone() {
            Some(object) => state.objects.insert(key.clone(), object),
            None => state.objects.remove(key),
        };
        state.history.push(Record { version, kind: key.0, before, after: object });
        state.version.send_replace(version);
        version
    }

    /// A backup of the current state.
    pub fn backup(&self) -> Backup {
        let state = self.lock();
        Backup(*state.version.borrow(), state.objects.clone(), state.written.clone())
    }

    /// Restores a backup. The versions go back, too. Returns the oldest version that the brain knows and that no longer exists.
    pub fn restore(&self, Backup(version, objects, written): Backup) -> u64 {
        let mut state = self.lock();
        let known = state.counts.values().map(|counts| counts.known).filter(|known| *known > version);
        let known = known.min().unwrap_or(u64::MAX);
        state.trace.add(format_args!("etcd is restored to {version}"));
        (state.objects, state.written, state.floor) = (objects, written, version);
        state.epoch += 1;
        state.disturbed = state.disturbed.max(Instant::now());
        state.history.clear();
        state.tokens.clear();
        for kind in Kind::ALL {
            let counts = state.counts.entry(kind).or_default();
            counts.delivered = 0;
            counts.reasons += 1;
        }
        state.version.send_replace(version);
        known
    }

    /// Drops the history. Watches that are not up to date, and lists in progress, get 410.
    pub fn compact(&self) {
        let mut state = self.lock();
        let version = *state.version.borrow();
        state.floor = version;
        state.trace.add("the history is compacted");
    }

    /// Ends the open watches of a kind.
    pub fn end(&self, kind: Kind, how: End) {
        let mut state = self.lock();
        let watch = state.watches;
        state.ends.insert(kind, (watch, how));
        state.trace.add(format_args!("the watches of {kind} end: {how:?}"));
        // Wakes the watches.
        state.version.send_modify(|_| {});
    }

    /// The open watches of a kind deliver nothing more.
    pub fn silence(&self, kind: Kind) {
        let mut state = self.lock();
        let watch = state.watches;
        state.silent.insert(kind, watch);
        state.disturbed = Instant::now() + SILENCES;
        state.trace.add(format_args!("the watches of {kind} are silent"));
    }

    /// Sets how the API server answers requests.
    pub fn set_mood(&self, mood: Mood) {
        let mut state = self.lock();
        if std::mem::replace(&mut state.mood, mood) != mood {
            state.disturbed = state.disturbed.max(Instant::now());
        }
        if mood == Mood::Well && std::mem::take(&mut state.forgets) {
            let version = *state.version.borrow();
            state.floor = version;
        }
        state.trace.add(format_args!("the API server is {mood:?}"));
    }

    /// Lets the history start anew when the API server works again.
    pub fn forget(&self) {
        self.lock().forgets = true;
    }

    /// A kind that the brain should have listed by now, if nothing has kept it from that.
    pub fn overdue(&self) -> Option<Kind> {
        let state = self.lock();
        let listed = |kind: &Kind| state.counts.get(kind).is_some_and(|counts| counts.delivered > 0);
        let is_calm = state.mood == Mood::Well && state.disturbed + PROMPT < Instant::now();
        Kind::ALL.into_iter().find(|kind| is_calm && !listed(kind))
    }

    /// Sets the longest delay of answers and changes of a kind.
    pub fn set_latency(&self, kind: Kind, latency: Duration) {
        let mut state = self.lock();
        let latency = u64::try_from(latency.as_millis()).unwrap_or(u64::MAX);
        if state.latency.insert(kind, latency) != Some(latency) {
            state.disturbed = state.disturbed.max(Instant::now());
        }
    }

    /// Records that a new brain knows nothing.
    pub fn brain_starts(&self) {
        for kind in Kind::ALL {
            let state = &mut *self.lock();
            state.disturbed = state.disturbed.max(Instant::now());
            let counts = state.counts.entry(kind).or_default();
            (counts.delivered, counts.known) = (0, 0);
            counts.reasons += 1;
        }
    }

    /// Time has passed, and no task has run. Lists in progress and quiet watches may be too late now.
    pub fn stood_still(&self) {
        let state = &mut *self.lock();
        state.disturbed = state.disturbed.max(Instant::now());
        Kind::ALL.into_iter().for_each(|kind| state.counts.entry(kind).or_default().reasons += 2);
    }

    /// The counts of each kind.
    pub fn counts(&self) -> BTreeMap<Kind, Counts> {
        let state = &mut *self.lock();
        let is_open = |stream: &mpsc::WeakUnboundedSender<Line>| stream.upgrade().is_some_and(|open| !open.is_closed());
        state.streams.retain(|(_, stream)| is_open(stream));
        for (kind, counts) in &mut state.counts {
            counts.open = state.streams.iter().filter(|(of, _)| of == kind).count();
        }
        state.counts.clone()
    }

    /// Lets [`Self::crash`] resolve after so many more requests, or, if `None`, no more.
    pub fn crash_after(&self, requests: Option<u32>) {
        self.lock().crash_in = requests;
    }

    /// Resolves when the brain has to crash, in the middle of a request.
    pub async fn crash(&self) {
        let crash = Arc::clone(&self.lock().crash);
        crash.notified().await;
    }

    async fn answer(self, request: http::Request<Body>) -> Result<Answer, BoxError> {
        if request.method() != http::Method::GET {
            return Ok(json_answer(201, &json!({})));
        }
        let query = request.uri().query().unwrap_or_default().to_owned();
        let parameter = |name: &str| query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
        let kind = match request.uri().path().rsplit('/').next() {
            Some("services") => Kind::Service,
            Some("endpointslices") => Kind::Slice,
            Some("nodes") => Kind::Node,
            _ => Kind::ServiceCidr,
        };
        let is_watch = parameter("watch") == Some("true");
        let limit = parameter("limit").and_then(|limit| limit.parse().ok()).unwrap_or(usize::MAX);
        let (delay, mood) = {
            let mut state = self.lock();
            state.count_request(kind, parameter("continue").is_some());
            (state.delay(kind), state.mood)
        };
        time::sleep(delay).await;
        if matches!(mood, Mood::Down | Mood::Refusing(_) | Mood::Hanging) && parameter("continue").is_some() {
            // The list starts again.
            self.lock().counts.entry(kind).or_default().reasons += 1;
        }
        match mood {
            Mood::Down => return Err(io::Error::from(io::ErrorKind::ConnectionRefused).into()),
            Mood::Refusing(code) => return Ok(status(code, "set by the simulation")),
            Mood::Hanging => std::future::pending().await,
            Mood::Well | Mood::Truncating => {}
        }
        if is_watch {
            let version = parameter("resourceVersion").and_then(|version| version.parse().ok()).unwrap_or_default();
            let timeout = parameter("timeoutSeconds").and_then(|seconds| seconds.parse().ok()).unwrap_or(300);
            return Ok(self.watch(kind, version, Duration::from_secs(timeout)).await);
        }
        Ok(self.lock().list(kind, limit, parameter("continue"), mood == Mood::Truncating))
    }

    async fn watch(self, kind: Kind, version: u64, timeout: Duration) -> Answer {
        // Some versions of the API server refuse a version of the future. The others send only what is newer.
        let is_cached = self.lock().is_cached;
        if version > *self.lock().version.borrow() && !is_cached {
            time::sleep(Duration::from_secs(3)).await;
            return status(504, "Too large resource version");
        }
        let (sender, receiver) = mpsc::unbounded_channel();
        let (epoch, watch, changed) = {
            let state = &mut *self.lock();
            // etcd refuses an old version with the status. The cache of the API server reports it in the stream, as `due` does.
            if version < state.floor && !is_cached {
                state.counts.entry(kind).or_default().reasons += 1;
                return status(410, "too old resource version");
            }
            // The brain knows the objects of this version.
            let counts = state.counts.entry(kind).or_default();
            if (state.floor..=*state.version.borrow()).contains(&version) {
                counts.delivered = counts.delivered.max(version);
            }
            state.watches += 1;
            if version >= state.floor {
                state.streams.push((kind, sender.downgrade()));
            }
            (state.epoch, state.watches, state.version.subscribe())
        };
        let watcher = Watcher { api: self, kind, version, epoch, watch, until: Instant::now() + timeout };
        tokio::spawn(watcher.run(changed, sender));
        let lines = stream::unfold(receiver, async |mut receiver| receiver.recv().await.map(|line| (line, receiver)));
        http::Response::new(StreamBody::new(lines).boxed_unsync())
    }
}

impl State {
    fn delay(&mut self, kind: Kind) -> Duration {
        let most = self.latency.get(&kind).copied().unwrap_or(5);
        Duration::from_millis(self.rng.random_range(0..=most))
    }

    /// Counts a request. `continues`: whether it asks for a further page of a list.
    fn count_request(&mut self, kind: Kind, continues: bool) {
        let requests = self.requests.entry(kind).or_default();
        if !continues {
            requests.push_back(Instant::now());
        }
        while requests.front().is_some_and(|first| first.elapsed() > RUSH) {
            requests.pop_front();
        }
        let counts = self.counts.entry(kind).or_default();
        counts.busiest = counts.busiest.max(requests.len());
        if let Some(left) = self.crash_in.take() {
            self.crash_in = left.checked_sub(1);
            if left == 0 {
                self.crash.notify_one();
            }
        }
    }

    /// Whether the brain may mistrust a list, because it lacks many of the objects that the brain knows.
    fn is_suspicious(&self, kind: Kind) -> bool {
        let delivered = self.counts.get(&kind).map_or(0, |counts| counts.delivered);
        let gone = |record: &&Record| record.kind == kind && record.version > delivered && record.after.is_none();
        let gone = self.history.iter().filter(gone).count();
        match kind {
            _ if delivered == 0 => self.epoch > 0,
            Kind::Service => gone >= SUSPICIOUS,
            // Of two Services, with many endpoints.
            Kind::Slice => gone > 1,
            Kind::Node | Kind::ServiceCidr => false,
        }
    }

    fn list(&mut self, kind: Kind, limit: usize, token: Option<&str>, truncates: bool) -> Answer {
        let current = *self.version.borrow();
        let is_check = limit == CHECK;
        let (epoch, version, mut rest) = match token {
            None => {
                if !is_check {
                    let reasons = if self.is_suspicious(kind) { SUSPICIOUS_LISTS } else { 0 };
                    let counts = self.counts.entry(kind).or_default();
                    counts.lists += 1;
                    counts.reasons += reasons;
                }
                let of_kind = self.objects.iter().filter(|((of, _), object)| *of == kind && is_selected(kind, object));
                let written = |key| self.written.get(key).copied().unwrap_or_default();
                (self.epoch, current, of_kind.map(|(key, object)| at(object, written(key))).collect())
            }
            Some(token) => self.tokens.remove(token).unwrap_or_default(),
        };
        if epoch != self.epoch || version < self.floor {
            self.counts.entry(kind).or_default().reasons += 1;
            return status(410, "The provided continue parameter is too old");
        }
        let page: Vec<_> = rest.drain(..rest.len().min(limit).min(self.page)).collect();
        let next = if rest.is_empty() { String::new() } else { format!("{epoch}-{version}-{kind}-{}", rest.len()) };
        self.trace.add(format_args!("list of {kind} at {version}: {} objects, {} more", page.len(), rest.len()));
        let text = json!({ "metadata": { "resourceVersion": version.to_string(), "continue": next }, "items": page });
        if truncates && self.rng.random() {
            self.counts.entry(kind).or_default().reasons += u64::from(!is_check);
            let half = text.to_string();
            let half = Bytes::from(half[..half.len() / 2].to_owned());
            let lines: [Line; 2] = [Ok(Frame::data(half)), Err("connection reset".into())];
            return http::Response::new(StreamBody::new(stream::iter(lines)).boxed_unsync());
        }
        if rest.is_empty() && !is_check {
            let counts = self.counts.entry(kind).or_default();
            (counts.delivered, counts.known) = (version, version);
        } else {
            self.tokens.insert(next, (epoch, version, rest));
        }
        json_answer(200, &text)
    }
}

/// Whether the brain's selectors select the object.
pub fn is_selected(kind: Kind, object: &Value) -> bool {
    let has = |label: &str| object["metadata"]["labels"].get(label).is_some();
    match kind {
        Kind::Service => !has("service.kubernetes.io/service-proxy-name") && object["spec"]["clusterIP"] != "None",
        Kind::Slice => !has("service.kubernetes.io/headless"),
        Kind::Node | Kind::ServiceCidr => true,
    }
}

fn at(object: &Value, version: u64) -> Value {
    let mut object = object.clone();
    object["metadata"]["resourceVersion"] = version.to_string().into();
    object
}

fn json_answer(code: u16, body: &Value) -> Answer {
    let body = Full::new(Bytes::from(body.to_string())).map_err(|never| match never {}).boxed_unsync();
    let mut answer = http::Response::new(body);
    *answer.status_mut() = http::StatusCode::from_u16(code).unwrap_or_default();
    if matches!(code, 429 | 503) {
        answer.headers_mut().insert(http::header::RETRY_AFTER, http::HeaderValue::from_static("1"));
    }
    answer
}

fn status(code: u16, message: &str) -> Answer {
    json_answer(code, &status_object(code, message))
}

fn status_object(code: u16, message: &str) -> Value {
    json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message, "reason": "Simulated" })
}
