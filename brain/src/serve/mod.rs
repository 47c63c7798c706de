//! Serves the feed: `localnetv1`, `grpc.health.v1` and gRPC reflection, over unix sockets and TCP.
//!
//! ```text
//! Listener ──accept──► Peers: a share of the listener ──► who is it? (unix: credentials, TCP: TLS) ──► HTTP/2 ──► Usage ──► Routes ─┬► Next     (a cursor into the feed)
//!                                                             ├► Watch    (the same for KPNG's clients)
//!                                                             ├► Reports  (what backends say)
//!                                                             ├► Reasons  (why the state is so, for people who ask)
//!                                                             └► health, reflection
//! ```
//!
//! Listeners come bound, so that the caller has reported what failed and tests can use port 0. Nothing is encoded here and
//! nothing is queued: a reader that is slow holds a state, which shares everything unchanged with the newest one.

mod connection;
pub mod listen;
mod names;
mod next;
mod peer;
mod peers;
mod preface;
mod reasons;
mod reports;
mod routes;
mod stall;
mod tls;
mod unix;
mod usage;
mod verbatim;
mod watch;

use std::{future::Future, time::Duration};

use anyhow::Context as _;
use tokio::{
    task::{JoinError, JoinSet},
    time,
};
use tokio_util::sync::CancellationToken;
use tonic_health::{ServingStatus, server::HealthReporter};
use tracing::{debug, info, warn};

pub(crate) use self::peers::Who;
use self::{connection::Refusals, peers::Peers, routes::Routes, stall::Stalls};
pub use self::{
    listen::{Listener, Options},
    names::{BadName, Name},
    reports::{Received, Reports},
    tls::TlsFiles,
};
use crate::{feed::Feed, pump::Questions, throttle::Throttle, views::Views};

/// Pause after a failed accept, for instance when there are no more file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What is served.
#[derive(Clone, Debug)]
pub struct Told {
    /// The states of the node, and of others that may be asked for.
    pub views: Views,
    /// What backends say is stored there.
    pub reports: Reports,
    /// Where to ask why services are as they are.
    pub questions: Questions,
}

/// Serves `told` on `listeners` until `shutdown`.
///
/// After `shutdown` every waiting reader gets `UNAVAILABLE`, answers under way have two seconds to end, and the files of
/// unix sockets are removed. Dropping the future stops everything at once.
///
/// # Errors
/// A part of the server has crashed or ended although nobody asked for it: readers would wait for nothing.
pub async fn run(listeners: Vec<Listener>, told: Told, shutdown: impl Future<Output = ()>) -> anyhow::Result<()> {
    let stop = CancellationToken::new();
    let (health, health_server) = tonic_health::server::health_reporter();
    set_health(&health, ServingStatus::NotServing).await;
    let stalls = Stalls::default();
    let routes = Routes::new(&told, health_server, stalls.clone(), stop.clone());

    let mut tasks = JoinSet::new();
    tasks.spawn(report_health(health, told.views.own().feed().clone(), stop.clone()));
    tasks.spawn(stall::sweep(stalls, stop.clone()));
    for listener in listeners {
        listener.tell(told.views.own().feed().metrics());
        tasks.spawn(accept(listener, routes.clone(), stop.clone()));
    }
    supervise(tasks, stop, shutdown).await
}

/// Waits for `shutdown`, then for the end of the tasks, which `stop` asks for. None of them may end before.
async fn supervise(
    mut tasks: JoinSet<()>,
    stop: CancellationToken,
    shutdown: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let mut result = tokio::select! {
        () = shutdown => Ok(()),
        Some(ended) = tasks.join_next() => {
            crashed(ended).and_then(|()| Err(anyhow::anyhow!("a part of the server has ended by itself")))
        }
    };
    stop.cancel();
    while let Some(ended) = tasks.join_next().await {
        result = result.and(crashed(ended));
    }
    result
}

fn crashed(ended: Result<(), JoinError>) -> anyhow::Result<()> {
    ended.context("a part of the server has crashed")
}

/// Tells health clients that the brain serves once there is a complete state, and that it does not when it ends.
async fn report_health(health: HealthReporter, feed: Feed, stop: CancellationToken) {
    let mut revisions = feed.subscribe();
    tokio::select! {
        () = stop.cancelled() => return,
        complete = revisions.wait_for(|revision| revision.rev > 0) => if complete.is_err() { return },
    }
    set_health(&health, ServingStatus::Serving).await;
    stop.cancelled().await;
    set_health(&health, ServingStatus::NotServing).await;
}

async fn set_health(health: &HealthReporter, status: ServingStatus) {
    for service in ["", routes::ENDPOINTS, routes::SETS] {
        health.set_service_status(service, status).await;
    }
}

/// Owns the connections of one listener.
async fn accept(mut listener: Listener, routes: Routes, stop: CancellationToken) {
    info!(address = %listener.address(), "serving");
    let mut connections = JoinSet::new();
    let (peers, refusals, failures) = (Peers::default(), Refusals::default(), Throttle::default());
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        let accepted = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                if let Some(held) = failures.pass() {
                    let address = listener.address();
                    warn!(%address, %error, failures_since = held, "failed to accept a connection; raise the limit of open files if it is reached");
                }
                time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        match peers.admit(accepted.who()) {
            Ok(admitted) => {
                let (routes, refusals, stop) = (routes.clone(), refusals.clone(), stop.clone());
                connections.spawn(connection::serve(accepted, admitted, routes, refusals, stop));
            }
            Err(too_many) => refusals.say(accepted.peer(), &too_many),
        }
    }
    drop(listener);
    let drained = async { while connections.join_next().await.is_some() {} };
    if time::timeout(connection::GRACE, drained).await.is_err() {
        debug!("readers that took too long are cut");
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    /// What comes of a task beside one that ends only when it is asked to.
    async fn supervised(task: impl Future<Output = ()> + Send + 'static, shutdown: impl Future<Output = ()>) -> String {
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        tasks.spawn(stop.clone().cancelled_owned());
        tasks.spawn(task);
        let ended = time::timeout(Duration::from_secs(60), supervise(tasks, stop.clone(), shutdown)).await;
        assert!(stop.is_cancelled(), "the other parts go on");
        ended.expect("it is noticed").map_or_else(|error| format!("{error:#}"), |()| "ok".to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_that_crashes_or_ends_is_the_end_of_the_server() {
        let crashed = supervised(async { panic!("out of luck") }, pending()).await;
        assert!(
            crashed.starts_with("a part of the server has crashed: ") && crashed.contains("out of luck"),
            "{crashed}"
        );
        assert_eq!(supervised(async {}, pending()).await, "a part of the server has ended by itself");
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_shutdown_the_parts_end_without_an_error() {
        assert_eq!(supervised(time::sleep(Duration::from_secs(1)), async {}).await, "ok");
        let late = supervised(async { panic!("too late") }, async {}).await;
        assert!(late.contains("too late"), "{late}");
    }
}
