//! Health servers for load balancers and probes: the `healthCheckNodePort` of each Service, `/healthz` and `/livez`. Their
//! answers are those of kube-proxy v1.37.
//!
//! ```text
//! feed: revisions ─────┐
//! reports of backends ─┴─► Progress ─► Health ─┬─► answer ─► /healthz, /livez
//! feed: HealthFacts ───────────────────────────┴─► answer ─► one port for each service, family and address
//! ```
//!
//! [`progress`] and [`answer`] are pure and get the time as an argument. [`node_ports`] decides which ports are open, and
//! [`port`] owns the sockets. If a port cannot be opened, the brain logs the error, records it in the [`Status`] and
//! retries. The other ports are unaffected.

pub mod answer;
mod connections;
pub mod node_ports;
pub mod port;
pub mod progress;

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use localnet_config::NodePortAddresses;
use localnet_proto::{Family, Revision, ServiceKey};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};

use self::{
    answer::Answer,
    port::{Port, Retry, Servers, Status},
    progress::{FamilyHealth, Health, Moment, Progress},
};
use crate::{
    feed::{Feed, HealthFacts},
    metrics::Metrics,
    reports::{Received, Reports},
};

/// The purpose of the ports, for the log.
const CHECKS: &str = "health checks";

/// Where the servers listen, and when the node is unhealthy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The address of `/healthz` and `/livez`. `None` means no server. The unspecified address of either family stands
    /// for all addresses of both families.
    pub healthz: Option<SocketAddr>,
    /// The addresses of the node on which the health check ports of Services are open.
    pub node_port_addresses: NodePortAddresses,
    /// How long a backend may take to apply a revision.
    pub timeout: Duration,
}

/// A function that returns the current time.
pub type Clock = Arc<dyn Fn() -> Moment + Send + Sync>;

/// Returns a clock that reads the time of this machine.
pub fn machine_clock() -> Clock {
    Arc::new(|| Moment { at: Instant::now(), wall: SystemTime::now() })
}

/// Starts the servers. Must be called in a tokio runtime.
pub fn start(options: &Options, inputs: &Arc<Inputs>) -> Servers {
    let (status, receiver) = watch::channel(Status::new());
    let mut work = JoinSet::new();
    work.spawn(follow(Arc::clone(inputs), options.timeout));
    if let Some(address) = options.healthz {
        let answers = Arc::clone(inputs);
        let answer = Arc::new(move |uri: &http::Uri| port::at_once(answers.proxy(uri.path())));
        work.spawn(port::keep(Port { service: None, address }, answer, Retry::Steady, status.clone(), CHECKS));
    }
    work.spawn(node_ports::run(options.node_port_addresses.clone(), Arc::clone(inputs), status));
    Servers::new(work, receiver)
}

/// The inputs of all answers.
pub struct Inputs {
    revision: watch::Receiver<Revision>,
    reports: watch::Receiver<BTreeMap<String, Received>>,
    facts: watch::Receiver<HealthFacts>,
    clock: Clock,
    metrics: Metrics,
    tracked: Mutex<Tracked>,
}

/// The revisions and reports that have been processed.
#[derive(Debug)]
struct Tracked {
    progress: Progress,
    reports: BTreeMap<String, Received>,
}

impl Inputs {
    /// The inputs of servers with these options.
    pub fn new(options: &Options, feed: &Feed, reports: &Reports, clock: Clock) -> Arc<Self> {
        Arc::new(Self {
            revision: feed.subscribe(),
            reports: reports.subscribe(),
            facts: feed.health_facts(),
            clock,
            metrics: feed.metrics().clone(),
            tracked: Mutex::new(Tracked { progress: Progress::new(options.timeout), reports: BTreeMap::new() }),
        })
    }

    /// The current health of the backends, and the current time.
    pub fn health(&self) -> (Health, SystemTime) {
        // Code that holds the lock never panics in the middle of a change.
        let mut tracked = self.tracked.lock().unwrap_or_else(PoisonError::into_inner);
        let now = (self.clock)();
        tracked.progress.publish(*self.revision.borrow(), now.at);
        let reports = self.reports.borrow();
        // A peer could otherwise occupy more and more memory under ever new names.
        tracked.reports.retain(|backend, _| reports.contains_key(backend));
        tracked.progress.retain(|backend| reports.contains_key(backend));
        self.metrics.retain(|backend| reports.contains_key(backend));
        for (backend, received) in reports.iter() {
            if tracked.reports.get(backend) != Some(received) {
                tracked.progress.report(&received.report, now);
                self.metrics.reported(&received.report, received.at.into_std());
                tracked.reports.insert(backend.clone(), received.clone());
            }
        }
        (tracked.progress.health(now.at), now.wall)
    }

    fn proxy(&self, path: &str) -> Answer {
        let (health, now) = self.health();
        match path {
            "/healthz" => {
                let answer = answer::healthz(&health, self.facts.borrow().node_eligible, now);
                self.metrics.healthz(answer.status().as_u16());
                answer
            }
            "/livez" => {
                let answer = answer::livez(&health, now);
                self.metrics.livez(answer.status().as_u16());
                answer
            }
            _ => answer::not_found(),
        }
    }

    /// The answer for one Service. A Service that was just deleted has no ready endpoints.
    fn service(&self, key: &ServiceKey, family: Family) -> Answer {
        let ready = self.facts.borrow().checks.get(key).and_then(|check| check.ready[family]).unwrap_or(0);
        answer::service(key, ready, self.health().0.is_healthy())
    }
}

/// Processes each revision and each report immediately, so that their times are exact. Also logs which backends are late.
async fn follow(inputs: Arc<Inputs>, timeout: Duration) {
    let (mut revision, mut reports) = (inputs.revision.clone(), inputs.reports.clone());
    let mut ticks = interval((timeout / 4).max(Duration::from_millis(1)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut logged = Health::default();
    loop {
        revision.mark_unchanged();
        reports.mark_unchanged();
        let (health, _) = inputs.health();
        log_changes(&logged, &health);
        logged = health;
        let ended = tokio::select! {
            changed = revision.changed() => changed.is_err(),
            changed = reports.changed() => changed.is_err(),
            _ = ticks.tick() => false,
        };
        if ended {
            return;
        }
    }
}

fn log_changes(before: &Health, now: &Health) {
    for (family, health) in changes(before, now) {
        if health.is_healthy() {
            tracing::info!(%family, "all backends are up to date again");
        } else {
            let backends = health.late.join(", ");
            tracing::warn!(%family, backends, "this node is unhealthy: backends do not apply new revisions; check their logs");
        }
    }
}

/// The families in which the set of late backends has changed.
fn changes<'a>(before: &'a Health, now: &'a Health) -> impl Iterator<Item = (Family, &'a FamilyHealth)> {
    let was_late = |family| before.families.get(family).map_or(&[][..], |before| &before.late);
    now.families
        .iter()
        .filter(move |(family, health)| health.late != was_late(family))
        .map(|(family, health)| (*family, health))
}

#[cfg(test)]
mod tests {
    use localnet_proto::wire::{Attempts, BackendReport, FamilyReport, IpFamily};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_panic_of_a_task_is_a_failure_and_its_end_is_not() {
        let servers = |work| Servers::new(work, watch::channel(Status::new()).1);
        let mut work = JoinSet::new();
        work.spawn(async {});
        assert!(tokio::time::timeout(Duration::from_secs(60), servers(work).failed()).await.is_err());
        let mut work = JoinSet::new();
        work.spawn(async { panic!("out of luck") });
        let error = format!("{:#}", servers(work).failed().await);
        assert!(error.contains("has crashed") && error.contains("out of luck"), "{error}");
    }

    /// Regression: a peer that reported under ever new names occupied more and more memory.
    #[tokio::test]
    async fn backends_whose_reports_are_forgotten_are_forgotten() {
        let (feed, reports) = (Feed::new(7), Reports::default());
        let options = Options {
            healthz: None,
            node_port_addresses: NodePortAddresses::default(),
            timeout: Duration::from_secs(1),
        };
        let inputs = Inputs::new(&options, &feed, &reports, machine_clock());
        let attempts = Some(Attempts { counts: vec![1], ..Attempts::default() });
        let families = vec![FamilyReport { family: IpFamily::IPv4.into(), full: attempts, ..FamilyReport::default() }];
        for number in 0..200 {
            let report =
                BackendReport { backend: number.to_string(), families: families.clone(), ..Default::default() };
            reports.record(report).unwrap();
            inputs.health();
        }
        let kept = reports.all().len();
        let tracked = inputs.tracked.lock().unwrap();
        let mut lags = 0;
        feed.metrics().lags(|_, _, _| lags += 1);
        assert!(kept < 200);
        assert_eq!([tracked.reports.len(), tracked.progress.backends(), lags, feed.metrics().attempts()], [kept; 4]);
    }

    #[test]
    fn a_family_is_logged_when_its_late_backends_change() {
        let late = |v4: &[&str], v6: Option<&[&str]>| {
            let health = |late: &[&str]| FamilyHealth {
                last_updated: SystemTime::UNIX_EPOCH,
                late: late.iter().map(ToString::to_string).collect(),
            };
            let families = [(Family::V4, Some(health(v4))), (Family::V6, v6.map(health))];
            Health { families: families.into_iter().filter_map(|(family, health)| Some((family, health?))).collect() }
        };
        let changed =
            |before: &Health, now: &Health| changes(before, now).map(|(family, _)| family).collect::<Vec<_>>();
        let nothing: &[&str] = &[];
        assert_eq!(changed(&Health::default(), &late(&[], None)), []);
        assert_eq!(changed(&Health::default(), &late(&["nft"], None)), [Family::V4]);
        assert_eq!(changed(&late(&["nft"], None), &late(&["nft"], Some(nothing))), []);
        assert_eq!(changed(&late(&["nft"], None), &late(&["ipvs", "nft"], Some(&["nft"]))), Family::BOTH);
        assert_eq!(changed(&late(&["nft"], Some(nothing)), &late(&[], Some(nothing))), [Family::V4]);
    }
}
