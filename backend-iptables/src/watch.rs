//! [`Watch`]: notices when other processes change the tables. nf_tables reports every commit. ip_tables reports nothing, so there
//! the backend watches the lock file of the tools and checks the tables periodically.

use std::{
    collections::VecDeque,
    ops::RangeInclusive,
    time::{Duration, Instant},
};

use localnet_linux::nft::{self, Event, Monitor, Socket};
use tokio::{select, time};
use tracing::{debug, warn};

use crate::{
    Flavour, Tools,
    lock::{EVENTS_PER_LOCK, LockWatch},
    plan::Table,
};

/// Notices when other processes change the tables; there is one variant for each flavour.
#[derive(Debug)]
pub(crate) enum Watch {
    Nft(Rules),
    Legacy(Clock),
}

/// What the backend should do next.
pub(crate) enum Hint {
    /// Check whether the kernel's own chains of a table still jump to ours.
    Check(Table),
    /// Read the tables.
    Read,
}

/// Counters from before the tools ran.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Before {
    generation: Option<u32>,
    commits: u32,
    locks: u32,
}

impl Watch {
    pub(crate) fn new(flavour: Flavour) -> Self {
        match flavour {
            Flavour::Nft => {
                let socket = Socket::open().inspect_err(|error| debug!(%error, "no nf_tables socket")).ok();
                let mut rules = Rules { socket, monitor: None, again: None, own: VecDeque::new() };
                rules.subscribe();
                Self::Nft(rules)
            }
            Flavour::Legacy => {
                let lock = LockWatch::open();
                let lock = lock.inspect_err(
                    |error| warn!(%error, "cannot watch the lock file of iptables; the backend notices changes by other programs only at its periodic checks"),
                );
                Self::Legacy(Clock {
                    checks: Table::ALL.map(Check::new),
                    read_at: Instant::now() + READ,
                    read_not_before: Instant::now(),
                    read_is_touched: false,
                    lock: lock.ok(),
                })
            }
        }
    }

    /// Waits for the next hint. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Hint {
        match self {
            Self::Nft(rules) => {
                rules.next().await;
                Hint::Read
            }
            Self::Legacy(clock) => clock.next().await,
        }
    }

    /// Must be called before the tools run. Returns the argument `before` for the other methods.
    pub(crate) fn before(&mut self, tools: &Tools) -> Before {
        if let Self::Legacy(clock) = self {
            clock.see_others(0);
        }
        Before { generation: self.generation(), commits: tools.commits(), locks: tools.locks() }
    }

    fn generation(&mut self) -> Option<u32> {
        match self {
            Self::Nft(rules) => rules.socket.as_mut()?.generation().ok(),
            Self::Legacy(_) => None,
        }
    }

    /// Must be called after the tools wrote.
    pub(crate) fn wrote(&mut self, before: Before, tools: &Tools) {
        let after = self.generation();
        match self {
            Self::Nft(rules) => rules.wrote(before.generation.zip(after), tools.commits().wrapping_sub(before.commits)),
            Self::Legacy(clock) => clock.see_others(tools.locks().wrapping_sub(before.locks)),
        }
    }

    /// Must be called after the tools checked a table.
    pub(crate) fn checked(&mut self, table: Table, took: Duration, before: Before, tools: &Tools) {
        let Self::Legacy(clock) = self else { return };
        let (now, is_watched) = (Instant::now(), clock.lock.is_some());
        clock
            .checks
            .iter_mut()
            .filter(|check| check.table == table)
            .for_each(|check| check.done(now, took, is_watched));
        clock.see_others(tools.locks().wrapping_sub(before.locks));
    }

    /// Must be called after the tables were read as a whole.
    pub(crate) fn tables_read(&mut self, took: Duration) {
        if let Self::Legacy(clock) = self {
            let now = Instant::now();
            let again = if std::mem::take(&mut clock.read_is_touched) { took * CHECK_REST } else { Duration::ZERO };
            (clock.read_at, clock.read_not_before) = (now + READ.max(took * READ_REST), now + again);
            clock.checks = Table::ALL.map(Check::new);
        }
    }
}

/// How often the backend checks whether the tables of ip_tables still jump to our chains, and how often it reads them as a whole.
const CHECK: Duration = Duration::from_millis(700);
const READ: Duration = Duration::from_secs(30);
/// How long the backend rests after a check or a read, as a multiple of the duration of that check or read. The kernel copies
/// whole tables for each answer, so this limits the use of the CPU. If the lock is watched, the rest is longer, because periodic
/// checks then only have to find changes by programs that do not take the lock.
const CHECK_REST: u32 = 8;
const WATCHED_CHECK_REST: u32 = 50;
const READ_REST: u32 = 100;
/// The shortest pause between checks that follow events on the lock. Two backends that watch the same lock wake each other, so
/// repeated events lead to longer pauses.
const TOUCHED: Duration = Duration::from_millis(250);
/// The tables are read this long after an event on the lock.
const READ_TOUCHED: Duration = Duration::from_millis(300);

#[derive(Debug)]
pub(crate) struct Clock {
    checks: [Check; 2],
    read_at: Instant,
    read_not_before: Instant,
    /// Whether an event on the lock requested the next read.
    read_is_touched: bool,
    lock: Option<LockWatch>,
}

#[derive(Debug)]
struct Check {
    table: Table,
    at: Instant,
    not_before: Instant,
    /// Whether an event on the lock requested the next check.
    is_touched: bool,
}

impl Check {
    fn new(table: Table) -> Self {
        let now = Instant::now();
        Self { table, at: now + CHECK, not_before: now, is_touched: false }
    }

    /// Schedules a check after an event on the lock.
    fn touched(&mut self, now: Instant) {
        self.is_touched = true;
        self.at = self.at.min(now.max(self.not_before));
    }

    /// Schedules the next check after a check that took `took`.
    fn done(&mut self, now: Instant, took: Duration, is_watched: bool) {
        let rest = if is_watched { WATCHED_CHECK_REST } else { CHECK_REST };
        let again = if std::mem::take(&mut self.is_touched) { took * CHECK_REST } else { Duration::ZERO };
        (self.at, self.not_before) = (now + CHECK.max(took * rest), now + TOUCHED.max(again));
    }
}

impl Clock {
    async fn next(&mut self) -> Hint {
        loop {
            let [one, other] = &self.checks;
            let check = if one.at <= other.at { one } else { other };
            let (table, at) = (check.table, check.at);
            let touched = async {
                match &mut self.lock {
                    Some(lock) => lock.touched().await,
                    None => std::future::pending().await,
                }
            };
            select! {
                () = time::sleep_until(at.min(self.read_at).into()) => {
                    return if at <= self.read_at { Hint::Check(table) } else { Hint::Read };
                }
                () = touched => self.touched(),
            }
        }
    }

    fn touched(&mut self) {
        let now = Instant::now();
        self.checks.iter_mut().for_each(|check| check.touched(now));
        self.read_is_touched = true;
        self.read_at = self.read_at.min((now + READ_TOUCHED).max(self.read_not_before));
    }

    /// Schedules checks if other processes took the lock. `own`: how many times our own tools took it since the last call.
    fn see_others(&mut self, own: u32) {
        let events = self.lock.as_mut().map_or(0, LockWatch::drain);
        if events > own as usize * EVENTS_PER_LOCK {
            self.touched();
        }
    }
}

/// How many of our own commits may wait for their notification.
const REMEMBERED: usize = 64;
/// How long to wait before another attempt to subscribe.
const AGAIN: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Rules {
    socket: Option<Socket>,
    monitor: Option<Monitor>,
    /// When to subscribe again, if there is no subscription.
    again: Option<Instant>,
    /// The generations of our own commits.
    own: VecDeque<RangeInclusive<u32>>,
}

impl Rules {
    fn subscribe(&mut self) -> bool {
        match Monitor::subscribe(Vec::new()) {
            Ok(monitor) => self.monitor = Some(monitor),
            Err(error) if self.again.is_some() => debug!(%error, "still no subscription to nf_tables"),
            Err(error) => warn!(%error, "cannot subscribe to changes of nf_tables; retrying every second"),
        }
        self.again = self.monitor.is_none().then(|| Instant::now() + AGAIN);
        self.monitor.is_some()
    }

    /// Records the generations of our own commits. `commits`: how many commits we made between the two generations.
    fn wrote(&mut self, generations: Option<(u32, u32)>, commits: u32) {
        let Some((before, after)) = generations else { return };
        // If there are more generations than commits, another process has also committed. It is then unknown which generations
        // are ours.
        if commits > 0 && after.wrapping_sub(before) == commits && before < after {
            self.own.push_back(before + 1..=after);
            if self.own.len() > REMEMBERED {
                self.own.pop_front();
            }
        }
    }

    /// Waits until another process has changed the tables, or may have changed them. Cancel-safe.
    async fn next(&mut self) {
        loop {
            if let Some(again) = self.again {
                time::sleep_until(again.into()).await;
            }
            let Some(monitor) = &mut self.monitor else {
                if self.subscribe() {
                    return;
                }
                continue;
            };
            match monitor.next().await {
                Ok(Event::Lost) => return,
                Ok(Event::Committed(commit)) => {
                    let concerns = commit.tables.iter().any(|table| ["filter", "nat"].contains(&&*table.name));
                    if concerns && !self.own.iter().any(|range| range.contains(&commit.generation)) {
                        let by = commit.process_name.as_deref().unwrap_or_default();
                        debug!(by, pid = commit.process_id, "another program changed the tables; reading them");
                        return;
                    }
                }
                Err(error) => self.lose(&error),
            }
        }
    }

    fn lose(&mut self, error: &nft::Error) {
        warn!(%error, "the subscription to nf_tables failed; subscribing again");
        self.monitor = None;
        self.again = Some(Instant::now() + AGAIN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOOK: Duration = Duration::from_millis(400);

    /// Runs the next check of `check` and returns its time after `start`.
    fn next_check(check: &mut Check, start: Instant) -> Duration {
        let began = check.at;
        check.done(began + TOOK, TOOK, true);
        began - start
    }

    #[test]
    fn lock_events_cause_immediate_checks_with_growing_pauses() {
        let start = Instant::now();
        let mut check = Check { table: Table::Nat, at: start, not_before: start, is_touched: false };
        assert_eq!(next_check(&mut check, start), Duration::ZERO);
        // The periodic check alone would run again after 20 seconds.
        assert_eq!(check.at, start + TOOK + TOOK * WATCHED_CHECK_REST);
        let flush = start + Duration::from_secs(1);
        check.touched(flush);
        assert_eq!(next_check(&mut check, start), flush - start);
        // The other process reacts to our check, and so on.
        check.touched(flush + TOOK);
        assert_eq!(next_check(&mut check, start), flush - start + TOOK + TOOK * CHECK_REST);
    }

    #[test]
    fn small_tables_are_checked_often() {
        let start = Instant::now();
        let mut check = Check { table: Table::Filter, at: start, not_before: start, is_touched: false };
        let took = Duration::from_millis(5);
        check.done(start, took, true);
        assert_eq!(check.at, start + CHECK);
        check.touched(start);
        assert_eq!(check.at, start + TOUCHED);
    }
}
