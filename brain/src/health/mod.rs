//! Tells load balancers and probes how this node is: `healthCheckNodePort` of each service, `/healthz` and `/livez`, answered as
//! kube-proxy v1.36 does.
//!
//! ```text
//! feed: revisions ─────┐
//! reports of backends ─┴─► Progress ─► Health ─┬─► answer ─► /healthz, /livez
//! feed: HealthFacts ───────────────────────────┴─► answer ─► one port for each service, family and address
//! ```
//!
//! [`progress`] and [`answer`] are pure, and are passed the time; [`port`] owns sockets, [`node_ports`] says which there are.
//! A port that cannot be opened is said in the log and in the [`Status`], tried again, and never in the way of another.

pub mod answer;
pub mod clock;
mod connections;
pub mod node_ports;
pub mod port;
pub mod progress;

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    str::FromStr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use anyhow::Context as _;
use localnet_proto::{Family, Revision, ServiceKey};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};

use self::{
    answer::Answer,
    clock::Clock,
    node_ports::NodePortAddresses,
    port::{Port, Retry, Status},
    progress::{FamilyHealth, Health, Progress},
};
use crate::{
    feed::{Feed, HealthFacts},
    metrics::Metrics,
    serve::{Received, Reports},
};

/// The port of `/healthz` unless said otherwise, as kube-proxy's.
pub const HEALTHZ_PORT: u16 = 10256;
/// A revision that has not been applied for so long makes a node unhealthy: twice kube-proxy's sync period.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// What is answered, for the log.
const CHECKS: &str = "health checks";

/// Where to answer, and when to be unhealthy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Where `/healthz` and `/livez` are.
    pub healthz: HealthzAddress,
    /// On which addresses of the node services' ports for health checks are.
    pub node_port_addresses: NodePortAddresses,
    /// How long a revision may wait to be applied.
    pub timeout: Duration,
}

/// Where `/healthz` and `/livez` are; `None` is nowhere. The unspecified address, of either family, is every address of
/// both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthzAddress(pub Option<SocketAddr>);

impl Default for HealthzAddress {
    fn default() -> Self {
        Self(Some((Ipv4Addr::UNSPECIFIED, HEALTHZ_PORT).into()))
    }
}

impl FromStr for HealthzAddress {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
        if text.is_empty() {
            Ok(Self(None))
        } else if let Ok(address) = text.parse() {
            Ok(Self(Some(address)))
        } else if let Ok(ip) = bare.parse::<IpAddr>() {
            Ok(Self(Some((ip, HEALTHZ_PORT).into())))
        } else {
            Err("expected IP:PORT, like 0.0.0.0:10256 or [::]:10256, or nothing for no server")
        }
    }
}

/// The servers at work. Dropping it closes all of their ports.
#[derive(Debug)]
pub struct Servers {
    status: watch::Receiver<Status>,
    watched: Arc<Watched>,
    work: JoinSet<()>,
}

impl Servers {
    /// Which ports are open, and which are not and why; and a notice of each change.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.clone()
    }

    /// Closes all ports, and returns when they are closed.
    pub async fn stop(mut self) {
        self.work.shutdown().await;
    }

    /// Resolves when a part of the servers has crashed: probes would wait for nothing. Cancel-safe.
    pub async fn failed(&mut self) -> anyhow::Error {
        crashed(&mut self.work).await
    }

    /// The health of the backends.
    pub fn health(&self) -> Health {
        self.watched.health().0
    }
}

/// Resolves when one of the tasks has crashed. That one ends is no failure: what it followed is gone, which others tell.
pub(crate) async fn crashed(work: &mut JoinSet<()>) -> anyhow::Error {
    while let Some(ended) = work.join_next().await {
        if let Err(error) = ended {
            return anyhow::Error::new(error).context("a part of the servers for health and metrics has crashed");
        }
    }
    std::future::pending().await
}

/// Whether `/healthz` can be answered where it is to be.
///
/// # Errors
/// The port is taken, or the address is not the node's.
pub fn check(HealthzAddress(address): HealthzAddress) -> anyhow::Result<()> {
    let Some(address) = address else { return Ok(()) };
    let listened = port::listen(&Port { service: None, address }).map(drop);
    listened.with_context(|| {
        format!("failed to listen for health checks on {address}; free the port, choose another, or set bindAddressHardFail: false")
    })
}

/// Starts the servers. Must be called in a tokio runtime.
pub fn start(options: &Options, feed: &Feed, reports: &Reports, clock: Clock) -> Servers {
    let watched = Arc::new(Watched {
        revision: feed.subscribe(),
        reports: reports.subscribe(),
        facts: feed.health_facts(),
        clock,
        metrics: feed.metrics().clone(),
        seen: Mutex::new(Seen { progress: Progress::new(options.timeout), reports: BTreeMap::new() }),
    });
    let (status, receiver) = watch::channel(Status::new());
    let mut work = JoinSet::new();
    work.spawn(follow(Arc::clone(&watched), options.timeout));
    if let HealthzAddress(Some(address)) = options.healthz {
        let answers = Arc::clone(&watched);
        let answer = Arc::new(move |asked: &http::Uri| port::at_once(answers.proxy(asked.path())));
        work.spawn(port::keep(Port { service: None, address }, answer, Retry::Steady, status.clone(), CHECKS));
    }
    work.spawn(node_ports::run(options.node_port_addresses.clone(), Arc::clone(&watched), status));
    Servers { status: receiver, watched, work }
}

/// All that answers are made of.
#[derive(Debug)]
struct Watched {
    revision: watch::Receiver<Revision>,
    reports: watch::Receiver<BTreeMap<String, Received>>,
    facts: watch::Receiver<HealthFacts>,
    clock: Clock,
    metrics: Metrics,
    seen: Mutex<Seen>,
}

/// What has been taken notice of.
#[derive(Debug)]
struct Seen {
    progress: Progress,
    reports: BTreeMap<String, Received>,
}

impl Watched {
    /// The health of the backends, now.
    fn health(&self) -> (Health, SystemTime) {
        // Nothing in it is half done when a panic leaves it.
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.now();
        seen.progress.publish(*self.revision.borrow(), now.at);
        for (backend, received) in self.reports.borrow().iter() {
            if seen.reports.get(backend) != Some(received) {
                seen.progress.report(&received.report, now);
                self.metrics.reported(&received.report, received.at.into_std());
                seen.reports.insert(backend.clone(), received.clone());
            }
        }
        (seen.progress.health(now.at), now.wall)
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

    /// For a service that has just gone, there is nothing ready.
    fn service(&self, key: &ServiceKey, family: Family) -> Answer {
        let ready = self.facts.borrow().checks.get(key).and_then(|check| check.ready(family)).unwrap_or(0);
        answer::service(key, ready, self.health().0.is_healthy())
    }
}

/// Takes notice of revisions and reports when they come, so that their times are known; says which backends are late.
async fn follow(watched: Arc<Watched>, timeout: Duration) {
    let (mut revision, mut reports) = (watched.revision.clone(), watched.reports.clone());
    let mut look = interval((timeout / 4).max(Duration::from_millis(1)));
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut said = Health::default();
    loop {
        revision.mark_unchanged();
        reports.mark_unchanged();
        let (health, _) = watched.health();
        say(&said, &health);
        said = health;
        let gone = tokio::select! {
            changed = revision.changed() => changed.is_err(),
            changed = reports.changed() => changed.is_err(),
            _ = look.tick() => false,
        };
        if gone {
            return;
        }
    }
}

fn say(before: &Health, now: &Health) {
    for (family, health) in changes(before, now) {
        if health.is_healthy() {
            tracing::info!(%family, "all backends are up to date again");
        } else {
            let backends = health.late.join(", ");
            tracing::warn!(%family, backends, "backends do not apply new states: this node is unhealthy; look at their logs");
        }
    }
}

/// The families of which other backends are late than before.
fn changes<'a>(before: &'a Health, now: &'a Health) -> impl Iterator<Item = (Family, &'a FamilyHealth)> {
    let was_late = |family| before.families.get(family).map_or(&[][..], |before| &before.late);
    now.families
        .iter()
        .filter(move |(family, health)| health.late != was_late(family))
        .map(|(family, health)| (*family, health))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_with_and_without_port() {
        let rows = [
            ("0.0.0.0:10256", Some("0.0.0.0:10256")),
            ("0.0.0.0", Some("0.0.0.0:10256")),
            ("[::]:1", Some("[::]:1")),
            ("[::1]", Some("[::1]:10256")),
            ("::", Some("[::]:10256")),
            ("localhost:1", None),
            (":10256", None),
            ("0.0.0.0:65536", None),
        ];
        for (text, expected) in rows {
            let expected = expected.map(|expected| HealthzAddress(Some(expected.parse().unwrap())));
            assert_eq!(text.parse().ok(), expected, "{text}");
        }
        assert_eq!("".parse(), Ok(HealthzAddress(None)));
        assert_eq!("0.0.0.0".parse(), Ok(HealthzAddress::default()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_that_crashes_is_told_and_one_that_ends_is_not() {
        let mut work = JoinSet::new();
        work.spawn(async {});
        work.spawn(std::future::pending());
        assert!(tokio::time::timeout(Duration::from_secs(60), crashed(&mut work)).await.is_err());
        work.spawn(async { panic!("out of luck") });
        let error = format!("{:#}", crashed(&mut work).await);
        assert!(error.contains("has crashed") && error.contains("out of luck"), "{error}");
    }

    #[test]
    fn who_is_late_is_said_when_it_changes() {
        let late = |v4: &[&str], v6: Option<&[&str]>| {
            let health = |late: &[&str]| FamilyHealth {
                last_updated: SystemTime::UNIX_EPOCH,
                late: late.iter().map(ToString::to_string).collect(),
            };
            let families = [(Family::V4, Some(health(v4))), (Family::V6, v6.map(health))];
            Health { families: families.into_iter().filter_map(|(family, health)| Some((family, health?))).collect() }
        };
        let said = |before: &Health, now: &Health| changes(before, now).map(|(family, _)| family).collect::<Vec<_>>();
        let nothing: &[&str] = &[];
        assert_eq!(said(&Health::default(), &late(&[], None)), []);
        assert_eq!(said(&Health::default(), &late(&["nft"], None)), [Family::V4]);
        assert_eq!(said(&late(&["nft"], None), &late(&["nft"], Some(nothing))), []);
        assert_eq!(said(&late(&["nft"], None), &late(&["ipvs", "nft"], Some(&["nft"]))), Family::BOTH);
        assert_eq!(said(&late(&["nft"], Some(nothing)), &late(&[], Some(nothing))), [Family::V4]);
    }
}
