//! [`Watch`]: notices what other processes do to the tables. nf_tables tells of each commit. ip_tables tells nobody: there the lock
//! file of the tools is watched, and the tables are asked from time to time.

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
    lock::{LockWatch, TOLD},
    plan::Table,
};

/// What other processes do to the tables.
#[derive(Debug)]
pub(crate) enum Watch {
    Nft(Rules),
    Legacy(Clock),
}

/// What is to be done.
pub(crate) enum Hint {
    /// See whether the chains of a table are still entered.
    Check(Table),
    /// Read the tables.
    Look,
}

/// As it was before the tools were run.
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
                    |error| warn!(%error, "the lock of iptables cannot be watched: others are noticed later"),
                );
                Self::Legacy(Clock {
                    checks: Table::ALL.map(Check::new),
                    look: Instant::now() + LOOK,
                    look_not_before: Instant::now(),
                    look_is_touched: false,
                    lock: lock.ok(),
                })
            }
        }
    }

    /// Cancel-safe.
    pub(crate) async fn next(&mut self) -> Hint {
        match self {
            Self::Nft(rules) => {
                rules.next().await;
                Hint::Look
            }
            Self::Legacy(clock) => clock.next().await,
        }
    }

    /// The tools are about to be run.
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

    /// The tools have written.
    pub(crate) fn wrote(&mut self, before: Before, tools: &Tools) {
        let after = self.generation();
        match self {
            Self::Nft(rules) => rules.wrote(before.generation.zip(after), tools.commits().wrapping_sub(before.commits)),
            Self::Legacy(clock) => clock.see_others(tools.locks().wrapping_sub(before.locks)),
        }
    }

    /// The tools have asked a table.
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

    /// The tables were read as a whole.
    pub(crate) fn looked(&mut self, took: Duration) {
        if let Self::Legacy(clock) = self {
            let now = Instant::now();
            let again = if std::mem::take(&mut clock.look_is_touched) { took * CHECK_REST } else { Duration::ZERO };
            (clock.look, clock.look_not_before) = (now + LOOK.max(took * LOOK_REST), now + again);
            clock.checks = Table::ALL.map(Check::new);
        }
    }
}

/// How often the tables of ip_tables are asked whether they lead to our chains, and how often they are read as a whole.
const CHECK: Duration = Duration::from_millis(700);
const LOOK: Duration = Duration::from_secs(30);
/// Each takes a small share of a processor only: the kernel copies whole tables to answer. Where the lock is watched the clock is for
/// those alone who take none.
const CHECK_REST: u32 = 8;
const WATCHED_CHECK_REST: u32 = 50;
const LOOK_REST: u32 = 100;
/// When somebody has taken the lock: at once, or so long after the last time. Two who watch the same lock wake each other: who is
/// woken again and again rests for longer.
const TOUCHED: Duration = Duration::from_millis(250);
/// And after this the tables are read.
const LOOK_TOUCHED: Duration = Duration::from_millis(300);

#[derive(Debug)]
pub(crate) struct Clock {
    checks: [Check; 2],
    look: Instant,
    look_not_before: Instant,
    /// The next one is because somebody has taken the lock.
    look_is_touched: bool,
    lock: Option<LockWatch>,
}

#[derive(Debug)]
struct Check {
    table: Table,
    at: Instant,
    not_before: Instant,
    /// The next one is because somebody has taken the lock.
    is_touched: bool,
}

impl Check {
    fn new(table: Table) -> Self {
        let now = Instant::now();
        Self { table, at: now + CHECK, not_before: now, is_touched: false }
    }

    /// Somebody has taken the lock.
    fn touched(&mut self, now: Instant) {
        self.is_touched = true;
        self.at = self.at.min(now.max(self.not_before));
    }

    /// The table was asked, which took so long.
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
                () = time::sleep_until(at.min(self.look).into()) => {
                    return if at <= self.look { Hint::Check(table) } else { Hint::Look };
                }
                () = touched => self.touched(),
            }
        }
    }

    fn touched(&mut self) {
        let now = Instant::now();
        self.checks.iter_mut().for_each(|check| check.touched(now));
        self.look_is_touched = true;
        self.look = self.look.min((now + LOOK_TOUCHED).max(self.look_not_before));
    }

    /// The lock was taken so often by our own tools since this was called last.
    fn see_others(&mut self, own: u32) {
        let told = self.lock.as_mut().map_or(0, LockWatch::drain);
        if told > own as usize * TOLD {
            self.touched();
        }
    }
}

/// So many commits of our own may be untold yet.
const REMEMBERED: usize = 64;
/// After this what failed is tried again.
const AGAIN: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Rules {
    socket: Option<Socket>,
    monitor: Option<Monitor>,
    /// There is no subscription: when to subscribe again.
    again: Option<Instant>,
    /// Generations that our own restores began.
    own: VecDeque<RangeInclusive<u32>>,
}

impl Rules {
    fn subscribe(&mut self) -> bool {
        match Monitor::subscribe(Vec::new()) {
            Ok(monitor) => self.monitor = Some(monitor),
            Err(error) if self.again.is_some() => debug!(%error, "still no subscription to nf_tables"),
            Err(error) => warn!(%error, "changes of the tables by others are not noticed; will be tried again"),
        }
        self.again = self.monitor.is_none().then(|| Instant::now() + AGAIN);
        self.monitor.is_some()
    }

    /// So many of the generations since are ours.
    fn wrote(&mut self, generations: Option<(u32, u32)>, commits: u32) {
        let Some((before, after)) = generations else { return };
        // If there were more commits, some were another's, and nobody knows which.
        if commits > 0 && after.wrapping_sub(before) == commits && before < after {
            self.own.push_back(before + 1..=after);
            if self.own.len() > REMEMBERED {
                self.own.pop_front();
            }
        }
    }

    /// Until somebody else changed the tables, or may have. Cancel-safe.
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
                        debug!(by, pid = commit.process_id, "the tables were changed, looking");
                        return;
                    }
                }
                Err(error) => self.lose(&error),
            }
        }
    }

    fn lose(&mut self, error: &nft::Error) {
        warn!(%error, "the subscription to nf_tables broke; subscribing again");
        self.monitor = None;
        self.again = Some(Instant::now() + AGAIN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOOK: Duration = Duration::from_millis(400);

    /// Asked once at this time after the start.
    fn asked(check: &mut Check, start: Instant) -> Duration {
        let began = check.at;
        check.done(began + TOOK, TOOK, true);
        began - start
    }

    #[test]
    fn who_takes_the_lock_is_noticed_at_once_and_two_who_wake_each_other_rest() {
        let start = Instant::now();
        let mut check = Check { table: Table::Nat, at: start, not_before: start, is_touched: false };
        assert_eq!(asked(&mut check, start), Duration::ZERO);
        // The clock alone would ask again after twenty seconds.
        assert_eq!(check.at, start + TOOK + TOOK * WATCHED_CHECK_REST);
        let flush = start + Duration::from_secs(1);
        check.touched(flush);
        assert_eq!(asked(&mut check, start), flush - start);
        // The other one asks because this one did, and so on.
        check.touched(flush + TOOK);
        assert_eq!(asked(&mut check, start), flush - start + TOOK + TOOK * CHECK_REST);
    }

    #[test]
    fn small_tables_are_asked_often() {
        let start = Instant::now();
        let mut check = Check { table: Table::Filter, at: start, not_before: start, is_touched: false };
        let took = Duration::from_millis(5);
        check.done(start, took, true);
        assert_eq!(check.at, start + CHECK);
        check.touched(start);
        assert_eq!(check.at, start + TOUCHED);
    }
}
