//! [`Subscription`]: a [`Monitor`] that subscribes again when it breaks.

use std::time::{Duration, Instant};

use tokio::time;
use tracing::{debug, warn};

use super::{Error, Event, Monitor};

/// How long to wait before subscribing again.
const RETRY: Duration = Duration::from_secs(1);

/// A lasting subscription to the commits of other processes, in the network namespace of the thread that uses it.
#[derive(Debug)]
pub struct Subscription {
    /// The netlink port of our own commits.
    port: u32,
    monitor: Option<Monitor>,
    /// When to subscribe again, while there is no monitor.
    retry_at: Option<Instant>,
}

impl Subscription {
    /// Subscribes to all commits except those of the socket with this netlink port. If that fails, logs a warning and retries
    /// every second. Must be called within a tokio runtime.
    pub fn subscribe(port: u32) -> Self {
        let mut subscription = Self { port, monitor: None, retry_at: None };
        subscription.try_subscribe();
        subscription
    }

    /// A subscription without events, for a caller that polls instead.
    pub fn none() -> Self {
        Self { port: 0, monitor: None, retry_at: None }
    }

    fn try_subscribe(&mut self) -> bool {
        match Monitor::subscribe(vec![self.port]) {
            Ok(monitor) => self.monitor = Some(monitor),
            Err(error) if self.retry_at.is_some() => debug!(%error, "still failing to subscribe to nf_tables"),
            Err(error) => {
                warn!(%error, "failed to subscribe to nf_tables: changes by other programs go unnoticed; retrying every second");
            }
        }
        self.retry_at = self.monitor.is_none().then(|| Instant::now() + RETRY);
        self.monitor.is_some()
    }

    /// Waits for the next event. The first event of a new subscription is [`Event::Lost`]. Cancel-safe.
    pub async fn next(&mut self) -> Event {
        loop {
            let Some(monitor) = &mut self.monitor else {
                match self.retry_at {
                    Some(retry_at) => time::sleep_until(retry_at.into()).await,
                    None => std::future::pending().await,
                }
                if self.try_subscribe() {
                    return Event::Lost;
                }
                continue;
            };
            match monitor.next().await {
                Ok(event) => return event,
                Err(error) => self.lose(&error),
            }
        }
    }

    /// Stops the events during a large commit of our own, see [`Monitor::pause`].
    pub fn pause(&mut self) {
        self.try_monitor(Monitor::pause);
    }

    /// Continues the events after [`Self::pause`].
    pub fn resume(&mut self) {
        self.try_monitor(Monitor::resume);
    }

    fn try_monitor(&mut self, act: impl FnOnce(&mut Monitor) -> Result<(), Error>) {
        if let Some(Err(error)) = self.monitor.as_mut().map(act) {
            self.lose(&error);
        }
    }

    fn lose(&mut self, error: &Error) {
        warn!(%error, "the subscription to nf_tables failed; subscribing again");
        self.monitor = None;
        self.retry_at = Some(Instant::now() + RETRY);
    }
}
