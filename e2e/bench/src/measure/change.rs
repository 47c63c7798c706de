//! Measures the change of one endpoint, until a packet goes to another endpoint.
//!
//! ```text
//!   write ──► API server ──► event, or answer to the write ──► contestant ──► kernel ──► another answer to a connection
//!   └──────────────────────── "write" ─────────────────────────────────────────────────┘
//!                            └──────────────────────── "event" ────────────────────────┘
//! ```

use std::{
    sync::mpsc::{Receiver, channel},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use tokio::task::JoinHandle;

use crate::{
    api,
    cluster::Probe,
    figures::Change,
    options::Lengths,
    packets::{Answer, Observer},
    site::Site,
    statistics::Times,
};

/// Maximum time to wait for a change.
const PATIENCE: Duration = Duration::from_secs(60);

/// Measures single changes without other activity. `None` if no change arrived.
pub(super) fn measure(site: &Site, rest: Duration, lengths: &Lengths) -> anyhow::Result<Option<Change>> {
    Prober::with(site, |prober| {
        let started = Instant::now();
        while prober.count() < lengths.changes && started.elapsed() < lengths.changing {
            // Do not synchronize with any timer of the contestant.
            thread::sleep(rest.mul_f64(rand::random_range(1.0..1.2)));
            prober.change()?;
        }
        Ok(())
    })
    .map(|(change, ())| change)
}

/// Changes the probe's endpoint, and measures how long it takes.
pub(super) struct Prober<'a, 'scope> {
    site: &'a Site,
    observer: Observer<'scope>,
    events: Receiver<(Instant, Probe)>,
    now: Probe,
    event: Vec<Duration>,
    write: Vec<Duration>,
    lost: usize,
}

impl Prober<'_, '_> {
    /// Runs `work` with a prober. Returns the results of its changes.
    pub(super) fn with<T>(
        site: &Site,
        work: impl FnOnce(&mut Prober<'_, '_>) -> anyhow::Result<T>,
    ) -> anyhow::Result<(Option<Change>, T)> {
        let (tell, events) = channel();
        let client = site.client();
        let watch = Watch(site.runtime.spawn(async move {
            let result = api::watch_probe(client, |at, probe| {
                // The prober may have ended.
                _ = tell.send((at, probe));
            });
            result.await
        }));
        let (first, now) = events.recv_timeout(PATIENCE).context("the probe's slice is not there")?;
        debug_assert!(first <= Instant::now());
        let pod = site.pod()?;
        thread::scope(|scope| {
            let observer = Observer::start(scope, pod, Probe::vip());
            let (event, write) = (Vec::new(), Vec::new());
            let mut prober = Prober { site, observer, events, now, event, write, lost: 0 };
            let result = work(&mut prober);
            let Prober { observer, event, write, lost, .. } = prober;
            observer.finish()?;
            drop(watch);
            let times = Times::of(event).zip(Times::of(write));
            Ok((times.map(|(event, write)| Change { event, write, lost }), result?))
        })
    }

    /// The number of changes.
    pub(super) fn count(&self) -> usize {
        self.event.len() + self.lost
    }

    /// Changes the endpoint, and waits until connections show the change. Returns when they did, or `None` if they never did.
    pub(super) fn change(&mut self) -> anyhow::Result<Option<Instant>> {
        let next = self.now.other();
        self.observer.be_watchful();
        while self.events.try_recv().is_ok() {}
        let written = Instant::now();
        self.site.runtime.block_on(api::replace(&self.site.client(), &next.slice()))?;
        let answered = Instant::now();
        self.now = next;
        let expected = match next {
            Probe::Open => Answer::Open,
            Probe::Closed => Answer::Refused,
        };
        let Some(seen) = self.observer.await_answer(expected, PATIENCE) else {
            self.lost += 1;
            return Ok(None);
        };
        let deadline = Instant::now() + PATIENCE;
        let reported = loop {
            match self.events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok((at, probe)) if probe == next => break at,
                Ok(_) => {}
                Err(error) => return Err(error).context("no event reports a change of the probe's slice"),
            }
        };
        self.event.push(seen.saturating_duration_since(reported.min(answered)));
        self.write.push(seen - written);
        Ok(Some(seen))
    }
}

/// A task that ends when its owner is dropped.
struct Watch(JoinHandle<anyhow::Result<()>>);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.abort();
    }
}
