//! What the benchmark has announced about pods, and where connections arrived. Pure: every call takes the time.
//!
//! ```text
//!   status of a ready pod ──► endpointslice controller ──► EndpointSlice event ──► contestant ──► a connection reaches the pod
//!   └───────────────────────────── "status" ─────────────────────────────────────────────────────┘
//!                                                         └───────────────── "event" ────────────┘
//! ```

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    net::Ipv4Addr,
    time::{Duration, Instant},
};

/// The pause between two connections to a Service, except while a new pod is awaited.
const IDLE: Duration = Duration::from_millis(20);
/// While a new pod is awaited, the pause grows with the time since the EndpointSlice event: it is this part of this time. So the
/// client costs a slow contestant no processor time, and all times are equally exact.
const PAUSE: u32 = 200;
/// How long connections to a Service continue after its last pod was deleted.
const LINGER: Duration = Duration::from_secs(5);

/// An event that the client of the Services has to know.
#[derive(Debug)]
pub(super) enum News {
    /// The Deployment of a Service is restarted.
    Restart { service: String },
    /// The status of a ready pod is about to be written.
    Ready { service: String, address: Ipv4Addr, at: Instant },
    /// An EndpointSlice has changed; it has these ready addresses. `age` is that of its last-change-trigger-time.
    Slice { ready: Vec<Ipv4Addr>, age: Option<Duration>, at: Instant },
    /// A pod was deleted.
    Deleted { service: String, address: Ipv4Addr, at: Instant },
    /// No further restart follows.
    End,
}

#[derive(Debug, Default)]
struct Pod {
    service: String,
    ready: Option<Instant>,
    event: Option<(Instant, Option<Duration>)>,
    reached: Option<Instant>,
    deleted: Option<Instant>,
}

/// All news, and all connections.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    pods: HashMap<Ipv4Addr, Pod>,
    /// The ready pods that no connection has reached.
    awaited: HashSet<Ipv4Addr>,
    /// The number of pods that became ready.
    ready: usize,
    /// For each Service with connections, the time of its last news.
    services: BTreeMap<String, Instant>,
    /// The number of restarts, and of slices that changed until the last of them.
    pub(super) restarts: usize,
    pub(super) slices: usize,
    pub(super) ended: Option<Instant>,
    /// The number of connections, of those that failed, and of those that went to a pod that no longer existed.
    pub(super) connections: usize,
    pub(super) failed: usize,
    pub(super) stale: usize,
}

/// The times from an event until the first connection that reaches the new pod.
#[derive(Debug, Default)]
pub(super) struct Reached {
    pub(super) event: Vec<Duration>,
    pub(super) status: Vec<Duration>,
    pub(super) timestamp: Vec<Duration>,
    /// The number of ready pods that no connection reached.
    pub(super) not_reached: usize,
}

impl Ledger {
    pub(super) fn tell(&mut self, news: News, now: Instant) {
        match news {
            News::Restart { service } => {
                self.restarts += 1;
                self.services.insert(service, now);
            }
            News::Ready { service, address, at } => {
                self.services.insert(service.clone(), now);
                self.ready += 1;
                self.awaited.insert(address);
                self.pods.insert(address, Pod { service, ready: Some(at), ..Pod::default() });
            }
            News::Slice { ready, age, at } => {
                self.slices += usize::from(self.ended.is_none());
                for address in ready {
                    if let Some(pod) = self.pods.get_mut(&address) {
                        pod.event.get_or_insert((at, age));
                    }
                }
            }
            News::Deleted { service, address, at } => {
                self.services.insert(service.clone(), now);
                let pod = self.pods.entry(address).or_default();
                (pod.service, pod.deleted) = (service, Some(at));
            }
            News::End => self.ended = Some(now),
        }
    }

    /// The Services to connect to, each with the pause after a connection.
    pub(super) fn due(&mut self, now: Instant) -> Vec<(String, Duration)> {
        let mut awaited: HashMap<&str, Duration> = HashMap::new();
        for pod in self.awaited.iter().filter_map(|address| self.pods.get(address)) {
            let pause = pod.event.map_or(IDLE, |(at, _)| IDLE.min(now.saturating_duration_since(at) / PAUSE));
            let shortest = awaited.entry(&pod.service).or_insert(pause);
            *shortest = pause.min(*shortest);
        }
        self.services.retain(|service, last| awaited.contains_key(&**service) || now - *last < LINGER);
        let pause = |service: &String| awaited.get(&**service).copied().unwrap_or(IDLE);
        self.services.keys().map(|service| (service.clone(), pause(service))).collect()
    }

    /// Whether each restart has replaced this number of pods, and all new pods were reached.
    pub(super) fn is_complete(&self, endpoints: u32) -> bool {
        self.ready >= self.restarts * endpoints as usize && self.awaited.is_empty()
    }

    /// A connection that was opened at a time had an outcome: it arrived at a pod, or failed.
    pub(super) fn connected(&mut self, opened: Instant, answered: Instant, at: Option<Ipv4Addr>) {
        self.connections += 1;
        self.failed += usize::from(at.is_none());
        if let Some(address) = at
            && let Some(pod) = self.pods.get_mut(&address)
        {
            self.awaited.remove(&address);
            pod.reached.get_or_insert(answered);
            self.stale += usize::from(pod.deleted.is_some_and(|deleted| deleted < opened));
        }
    }

    pub(super) fn reached(&self) -> Reached {
        let mut all = Reached::default();
        for pod in self.pods.values() {
            match (pod.ready, pod.reached, pod.event) {
                (Some(ready), Some(reached), Some((event, age))) => {
                    all.status.push(reached.saturating_duration_since(ready));
                    // The contestant may get the event before the benchmark does.
                    all.event.push(reached.saturating_duration_since(event));
                    all.timestamp.extend(age.map(|age| (reached + age).saturating_duration_since(event)));
                }
                (Some(_), _, _) => all.not_reached += 1,
                (None, _, _) => {}
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: Ipv4Addr = Ipv4Addr::new(10, 64, 0, 1);
    const NEW: Ipv4Addr = Ipv4Addr::new(10, 80, 0, 1);

    #[test]
    fn times_end_at_the_first_connection_to_a_new_pod() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let millis = Duration::from_millis;
        let service = || "a".to_owned();
        let mut ledger = Ledger::default();
        ledger.tell(News::Restart { service: service() }, at(0));
        assert_eq!(ledger.due(at(1)), [(service(), IDLE)]);
        assert!(!ledger.is_complete(1));
        ledger.tell(News::Ready { service: service(), address: NEW, at: at(10) }, at(11));
        assert_eq!(ledger.due(at(12)), [(service(), IDLE)], "no contestant can know the pod yet");
        let slice = || News::Slice { ready: vec![OLD, NEW], age: Some(millis(500)), at: at(20) };
        ledger.tell(slice(), at(21));
        assert_eq!(ledger.due(at(420)), [(service(), millis(2))]);
        ledger.connected(at(25), at(26), Some(OLD));
        ledger.connected(at(27), at(28), None);
        ledger.connected(at(29), at(30), Some(NEW));
        ledger.connected(at(31), at(32), Some(NEW));
        assert!(ledger.is_complete(1));
        ledger.tell(News::Deleted { service: service(), address: OLD, at: at(40) }, at(41));
        ledger.connected(at(39), at(42), Some(OLD));
        ledger.connected(at(43), at(44), Some(OLD));
        assert_eq!((ledger.connections, ledger.failed, ledger.stale), (6, 1, 1));
        ledger.tell(News::End, at(50));
        ledger.tell(slice(), at(51));
        assert_eq!((ledger.restarts, ledger.slices), (1, 1));
        let reached = ledger.reached();
        assert_eq!((reached.event, reached.status), (vec![millis(10)], vec![millis(20)]));
        assert_eq!((reached.timestamp, reached.not_reached), (vec![millis(510)], 0));
        assert_eq!(ledger.due(at(41) + LINGER), []);
    }

    #[test]
    fn pods_that_no_connection_reached_are_counted() {
        let now = Instant::now();
        let mut ledger = Ledger::default();
        ledger.tell(News::Ready { service: "a".to_owned(), address: NEW, at: now }, now);
        assert_eq!(ledger.reached().not_reached, 1);
        assert!(!ledger.is_complete(1));
    }
}
