//! Serves the feed: `localnetv1`, the draft of `localnet.v1`, `grpc.health.v1` and gRPC reflection, over unix sockets,
//! named pipes and TCP.
//!
//! ```text
//! Listener ──accept──► quota ──► authentication (unix: credentials, TCP: TLS) ──► HTTP/2 ──► Usage ──► Routes ─┬► Next    (long poll of the feed)
//!                                                                                                              ├► Watch   (the feed for KPNG's clients)
//!                                                                                                              ├► NextState (long poll of the feed's records)
//!                                                                                                              ├► Reports, Backends (progress of the backends)
//!                                                                                                              ├► Reasons (explains the state to operators)
//!                                                                                                              ├► Push    (Services of other programs)
//!                                                                                                              ├► Read    (the history of the feed)
//!                                                                                                              └► health, reflection
//! ```
//!
//! The caller binds the listeners, so that it can report errors, and so that tests can use port 0. This module encodes
//! nothing and queues nothing. A slow reader only keeps a state in memory, and states share whatever has not changed.

mod backend;
mod connection;
#[cfg(unix)]
mod credentials;
mod history;
pub mod listen;
mod names;
mod next;
mod pace;
#[cfg(windows)]
mod pipe;
mod push;
mod quota;
mod reasons;
mod reports;
mod routes;
mod stall;
mod state;
mod tls;
pub mod token;
#[cfg(unix)]
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

pub(crate) use self::quota::PeerId;
use self::{connection::Refusals, quota::Peers, routes::Routes, stall::Stalls};
pub use self::{
    listen::{Listener, Options},
    state::selection as draft_selection,
    tls::TlsFiles,
};
pub use crate::peer::{BadName, Name};
use crate::{
    feed::Feed, metrics::Metrics, pump::Questions, push::Pushers, reports::Reports, throttle::Throttle, views::Views,
};

/// Pause after a failed accept, for instance when the process has no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What the gRPC services read and write.
#[derive(Clone, Debug)]
pub struct ServerState {
    /// The feed of this node, and of the other nodes that `--serve-node` allows.
    pub views: Views,
    /// The latest report of each backend.
    pub reports: Reports,
    /// Requests for explanations, which the pump answers.
    pub questions: Questions,
    /// The programs that may push Services. `None` without `--push-grants`.
    pub pushers: Option<Pushers>,
}

/// Serves `state` on `listeners` until `shutdown` resolves.
///
/// After `shutdown`, every waiting reader gets `UNAVAILABLE`, and answers in progress have two seconds to finish. The
/// files of unix sockets are removed. Dropping the future stops the server immediately.
///
/// # Errors
/// Returns an error if a task of the server panics, or ends before `shutdown`. Without the error, readers would wait
/// forever.
pub async fn run(
    listeners: Vec<Listener>,
    state: ServerState,
    shutdown: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let stop = CancellationToken::new();
    let (health, health_server) = tonic_health::server::health_reporter();
    let stalls = Stalls::default();
    let routes = Routes::new(&state, health_server, stalls.clone(), stop.clone());

    let mut tasks = JoinSet::new();
    let services = routes.health_names();
    set_health(&health, services, ServingStatus::NotServing).await;
    tasks.spawn(report_health(health, services, state.views.own().feed().clone(), stop.clone()));
    tasks.spawn(stall::sweep(stalls, stop.clone()));
    for listener in listeners {
        let metrics = state.views.own().feed().metrics().clone();
        tasks.spawn(accept(listener, routes.clone(), metrics, stop.clone()));
    }
    supervise(tasks, stop, shutdown).await
}

/// Waits for `shutdown`, cancels `stop`, and waits for the tasks to end. Returns an error if a task ends before
/// `shutdown`.
async fn supervise(
    mut tasks: JoinSet<()>,
    stop: CancellationToken,
    shutdown: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let mut result = tokio::select! {
        () = shutdown => Ok(()),
        Some(ended) = tasks.join_next() => {
            crashed(ended).and_then(|()| Err(anyhow::anyhow!("a task of the server has ended by itself")))
        }
    };
    stop.cancel();
    while let Some(ended) = tasks.join_next().await {
        result = result.and(crashed(ended));
    }
    result
}

fn crashed(ended: Result<(), JoinError>) -> anyhow::Result<()> {
    ended.context("a task of the server has crashed")
}

/// Sets the status of `grpc.health.v1`: `SERVING` from the first complete state until `stop`, else `NOT_SERVING`.
async fn report_health(health: HealthReporter, services: &[&str], feed: Feed, stop: CancellationToken) {
    let mut revisions = feed.subscribe();
    tokio::select! {
        () = stop.cancelled() => return,
        complete = revisions.wait_for(|revision| revision.rev > 0) => if complete.is_err() { return },
    }
    set_health(&health, services, ServingStatus::Serving).await;
    stop.cancelled().await;
    set_health(&health, services, ServingStatus::NotServing).await;
}

async fn set_health(health: &HealthReporter, services: &[&str], status: ServingStatus) {
    for service in services {
        health.set_service_status(*service, status).await;
    }
}

/// Accepts connections on one listener, and owns their tasks.
async fn accept(mut listener: Listener, routes: Routes, metrics: Metrics, stop: CancellationToken) {
    info!(address = %listener.address(), "serving");
    let mut connections = JoinSet::new();
    let (peers, refusals, failures) = (Peers::default(), Refusals::default(), Throttle::default());
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept(&metrics) => accepted,
        };
        let accepted = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                if let Some(suppressed) = failures.pass() {
                    let address = listener.address();
                    warn!(%address, %error, failures_since = suppressed, "failed to accept a connection; raise the limit of open files if it is reached");
                }
                time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        match peers.admit(accepted.peer_id) {
            Ok(admitted) => {
                let (routes, refusals, stop) = (routes.clone(), refusals.clone(), stop.clone());
                connections.spawn(connection::serve(accepted, admitted, routes, refusals, stop));
            }
            Err(too_many) => refusals.log(&accepted.peer, &too_many),
        }
    }
    drop(listener);
    let drained = async { while connections.join_next().await.is_some() {} };
    if time::timeout(connection::GRACE, drained).await.is_err() {
        debug!("closing connections that exceeded the grace period");
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    /// The result of supervising `task` beside a task that ends only when it is cancelled.
    async fn supervised(task: impl Future<Output = ()> + Send + 'static, shutdown: impl Future<Output = ()>) -> String {
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        tasks.spawn(stop.clone().cancelled_owned());
        tasks.spawn(task);
        let ended = time::timeout(Duration::from_secs(60), supervise(tasks, stop.clone(), shutdown)).await;
        assert!(stop.is_cancelled(), "the other task keeps running");
        ended.expect("the supervisor returns").map_or_else(|error| format!("{error:#}"), |()| "ok".to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_panics_or_ends_early_stops_the_server() {
        let crashed = supervised(async { panic!("out of luck") }, pending()).await;
        assert!(
            crashed.starts_with("a task of the server has crashed: ") && crashed.contains("out of luck"),
            "{crashed}"
        );
        assert_eq!(supervised(async {}, pending()).await, "a task of the server has ended by itself");
    }

    #[tokio::test(start_paused = true)]
    async fn tasks_that_end_after_a_shutdown_cause_no_error() {
        assert_eq!(supervised(time::sleep(Duration::from_secs(1)), async {}).await, "ok");
        let late = supervised(async { panic!("too late") }, async {}).await;
        assert!(late.contains("too late"), "{late}");
    }
}
