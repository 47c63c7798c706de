//! [`Follow`]: what other processes do to nf_tables, for as long as a backend lives: a subscription that breaks is made again.

use std::time::{Duration, Instant};

use tokio::time;
use tracing::{debug, warn};

use super::{Error, Event, Monitor};

/// After this a subscription that broke is made again.
const AGAIN: Duration = Duration::from_secs(1);

/// A subscription to the commits of others, in the network namespace of the thread that uses it.
#[derive(Debug)]
pub struct Follow {
    /// Of the socket whose commits are our own.
    port: u32,
    monitor: Option<Monitor>,
    /// There is no subscription: when to subscribe again.
    again: Option<Instant>,
}

impl Follow {
    /// Subscribes to all commits but those of the socket with this netlink port. Must be called in a tokio runtime.
    pub fn subscribe(port: u32) -> Self {
        let mut follow = Self { port, monitor: None, again: None };
        follow.try_subscribe();
        follow
    }

    /// One that is told nothing, for who learns by looking.
    pub fn deaf() -> Self {
        Self { port: 0, monitor: None, again: None }
    }

    fn try_subscribe(&mut self) -> bool {
        match Monitor::subscribe(vec![self.port]) {
            Ok(monitor) => self.monitor = Some(monitor),
            Err(error) if self.again.is_some() => debug!(%error, "still no subscription to nf_tables"),
            Err(error) => warn!(%error, "changes of the tables by others are not noticed; will be tried again"),
        }
        self.again = self.monitor.is_none().then(|| Instant::now() + AGAIN);
        self.monitor.is_some()
    }

    /// What happened next; that events were lost, after a subscription broke. Cancel-safe.
    pub async fn next(&mut self) -> Event {
        loop {
            let Some(monitor) = &mut self.monitor else {
                match self.again {
                    Some(again) => time::sleep_until(again.into()).await,
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

    fn lose(&mut self, error: &Error) {
        warn!(%error, "the subscription to nf_tables broke; subscribing again");
        self.monitor = None;
        self.again = Some(Instant::now() + AGAIN);
    }
}
