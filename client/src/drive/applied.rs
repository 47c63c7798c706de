//! Logs applied revisions, at most one line a second. A revision is logged immediately if no line was logged in the
//! last second. Otherwise the next line includes it.

use std::time::Duration;

use localnet_proto::Revision;
use tokio::time::Instant;
use tracing::{debug, info};

/// The shortest time between two lines.
const PAUSE: Duration = Duration::from_secs(1);

/// The syncs that succeeded since the last line.
#[derive(Debug, Default)]
pub(super) struct Applied {
    logged: Option<Instant>,
    waiting: Option<Line>,
}

/// The content of a log line.
#[derive(Clone, Debug, PartialEq)]
struct Line {
    revision: Revision,
    syncs: u32,
    changed: usize,
    services: usize,
    took: Duration,
}

impl Applied {
    /// Records a sync that succeeded at `now`. `took`: its duration. `changed`: how many Services had changed in the state.
    /// `services`: how many Services the state has.
    pub(super) fn add(&mut self, revision: Revision, changed: usize, services: usize, took: Duration, now: Instant) {
        let before = self.waiting.take();
        let joined = before.map_or((0, 0, Duration::ZERO), |line| (line.syncs, line.changed, line.took));
        let line = Line { revision, syncs: joined.0 + 1, changed: joined.1 + changed, services, took: joined.2 + took };
        self.waiting = Some(line);
        if self.logged.is_none_or(|logged| logged + PAUSE <= now) {
            self.log(now);
        } else {
            let took_ms = took.as_secs_f64() * 1000.0;
            debug!(%revision, changed, services, took_ms, "applied");
        }
    }

    /// When the waiting line is due.
    pub(super) fn due(&self) -> Option<Instant> {
        self.waiting.as_ref().and(self.logged).map(|logged| logged + PAUSE)
    }

    /// Logs the waiting line.
    pub(super) fn log(&mut self, now: Instant) {
        let Some(Line { revision, syncs, changed, services, took }) = self.waiting.take() else { return };
        self.logged = Some(now);
        let took_ms = took.as_secs_f64() * 1000.0;
        if syncs == 1 {
            info!(%revision, changed, services, took_ms, "applied");
        } else {
            info!(%revision, syncs, changed, services, took_ms, "applied so far");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_becomes_one_line_a_second_and_its_end_is_logged() {
        let mut applied = Applied::default();
        let begin = Instant::now();
        let at = |millis| begin + Duration::from_millis(millis);
        let revision = |rev| Revision { instance: 7, rev };
        let add = |applied: &mut Applied, rev| applied.add(revision(rev), 2, 9, Duration::from_millis(3), at(rev));
        add(&mut applied, 1);
        assert_eq!((applied.waiting.clone(), applied.due()), (None, None), "the first is logged at once");
        (2..1000).for_each(|rev| add(&mut applied, rev));
        let expected =
            Line { revision: revision(999), syncs: 998, changed: 1996, services: 9, took: Duration::from_millis(2994) };
        assert_eq!((applied.waiting.clone(), applied.due()), (Some(expected), Some(at(1001))));
        applied.log(at(1001));
        assert_eq!(applied.due(), None);
    }
}
