//! The client of the Services: opens connections to each Service whose pods are being replaced.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::mpsc::{Receiver, RecvTimeoutError},
    time::{Duration, Instant},
};

use super::ledger::{Ledger, News};
use crate::{cluster::Size, packets::reached};

/// How long to wait for the pods of the last restarts.
const PATIENCE: Duration = Duration::from_secs(60);
/// The time without any Service to connect to after which the client checks again.
const LOOK: Duration = Duration::from_millis(20);

/// Connects from the namespace of this thread, until all restarts have ended and all new pods were reached, or the time is over.
pub(super) fn run(size: Size, news: &Receiver<News>) -> anyhow::Result<Ledger> {
    let vips: HashMap<String, SocketAddr> =
        (0..size.services).map(|number| (size.name(number), size.vip(number))).collect();
    let mut connected: HashMap<String, Instant> = HashMap::new();
    let mut ledger = Ledger::default();
    loop {
        let mut next = Instant::now() + LOOK;
        for (service, pause) in ledger.due(Instant::now()) {
            let opened = Instant::now();
            if connected.get(&service).is_none_or(|last| *last + pause <= opened) {
                let at = reached(vips[&service])?;
                ledger.connected(opened, Instant::now(), at);
                connected.insert(service.clone(), Instant::now());
            }
            next = next.min(connected[&service] + pause);
        }
        // The next piece of news may shorten a pause.
        loop {
            match news.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(one) => {
                    ledger.tell(one, Instant::now());
                    next = Instant::now();
                }
                Err(RecvTimeoutError::Timeout) => break,
                // A task has failed and will report it.
                Err(RecvTimeoutError::Disconnected) => return Ok(ledger),
            }
        }
        if let Some(ended) = ledger.ended
            && (ledger.is_complete(size.endpoints) || ended.elapsed() > PATIENCE)
        {
            return Ok(ledger);
        }
    }
}
