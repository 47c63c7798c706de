//! A moment of the history: parses a revision or a time, and goes back to the state at this moment. Pure, except that a relative
//! time counts from now.

use std::{str::FromStr, time::Duration};

use jiff::{Timestamp, civil::Time, tz::TimeZone};
use localnet_client::Snapshot;
use localnet_config::GoDuration;
use localnet_proto::history::{Broken, Entry, Past, entry::Event, state_after};

use crate::failure::Failure;

/// A point in the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The sequence number of a revision of the running brain.
    Revision(u64),
    /// A time.
    Time(Timestamp),
}

impl FromStr for Moment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.parse() {
            Ok(revision) => Ok(Self::Revision(revision)),
            Err(_) => time(text).map(Self::Time),
        }
    }
}

/// Parses a time: a time of the last 24 hours in UTC (`03:12`), a duration before now (`10m`), or a time in RFC 3339.
///
/// # Errors
/// Returns an error if the text is none of these.
pub fn time(text: &str) -> Result<Timestamp, String> {
    parse(text, Timestamp::now()).ok_or_else(|| {
        "expected a time in UTC (03:12), a duration before now (10m), or 2026-01-31T03:12:00Z".to_owned()
    })
}

fn parse(text: &str, now: Timestamp) -> Option<Timestamp> {
    if let Ok(time) = text.parse() {
        return Some(time);
    }
    if let Some(ago) = text.parse::<GoDuration>().ok().and_then(GoDuration::positive) {
        return now.checked_sub(ago).ok();
    }
    let today = now.to_zoned(TimeZone::UTC).date();
    let time = today.to_datetime(text.parse::<Time>().ok()?).to_zoned(TimeZone::UTC).ok()?.timestamp();
    if time > now { time.checked_sub(Duration::from_secs(24 * 3600)).ok() } else { Some(time) }
}

/// Returns an earlier state. `state` is the newest one. If several brains had a revision with the same number, the newest of them
/// counts.
///
/// # Errors
/// Returns an error if the history does not contain the moment, or is damaged.
pub fn state_at(state: Snapshot, entries: &[Entry], at: Moment) -> Result<Snapshot, Failure> {
    let newest = state.revision.rev;
    let mut is_running = true;
    let mut changes = Vec::new();
    for (index, entry) in entries.iter().enumerate().rev() {
        match &entry.event {
            Some(Event::Start(_)) => is_running = false,
            Some(Event::Change(change)) if change.rev <= newest || !is_running => {
                changes.push((index, time_of(entry), change));
            }
            _ => {}
        }
    }
    let of_revision = |rev: u64| changes.iter().position(|(.., change)| change.rev == rev);
    // The change that led to the state, and the number of changes after the state.
    let (target, undone) = match at {
        Moment::Revision(rev) if rev == newest => (None, 0),
        Moment::Revision(rev) => {
            let before_next = || of_revision(rev.checked_add(1)?).filter(|_| rev > 0).map(|next| (None, next + 1));
            let oldest = changes.last().map_or(newest, |(.., change)| change.rev.saturating_sub(1));
            of_revision(rev).map(|at| (Some(at), at)).or_else(before_next).ok_or_else(|| {
                Failure::Missing(match rev > newest || rev == 0 {
                    true => format!("there is no revision {rev}; the newest one is {newest}"),
                    false => format!("the history begins at revision {oldest}, after revision {rev}"),
                })
            })?
        }
        Moment::Time(at) => {
            let oldest = changes.last().map_or_else(Timestamp::now, |(_, time, _)| *time);
            let missing = || Failure::Missing(format!("the history begins later, at {}", precise(oldest)));
            let at = changes.iter().position(|(_, time, _)| *time <= at).ok_or_else(missing)?;
            (Some(at), at)
        }
    };
    let mut past = Past::from(state);
    for (.., change) in &changes[..undone] {
        if let Err(broken) = past.back(change) {
            let forward = target.and_then(|target| state_after(&entries[..=with_state(entries, changes[target].0)]));
            return forward.map(|past| past.state).ok_or_else(|| match broken {
                Broken::Whole(rev) => Failure::Missing(format!("the history has no state before revision {rev}")),
                broken => Failure::Unreadable(broken.into()),
            });
        }
    }
    Ok(past.state)
}

/// Returns the index of the last part of the full state that follows a change, or of the change if none follows.
fn with_state(entries: &[Entry], change: usize) -> usize {
    let is_state = |entry: &&Entry| matches!(entry.event, Some(Event::State(_)));
    change + entries[change + 1..].iter().take_while(is_state).count()
}

/// Formats a time in UTC to the millisecond.
pub(crate) fn precise(time: Timestamp) -> String {
    time.strftime("%FT%T.%3fZ").to_string()
}

/// Returns the time of an entry.
pub(crate) fn time_of(entry: &Entry) -> Timestamp {
    Timestamp::from_millisecond(i64::try_from(entry.time_millis).unwrap_or(i64::MAX)).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_in_three_forms() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let now = at("2026-11-26T03:30:00Z");
        for (text, expected) in [
            ("03:12", Some("2026-11-26T03:12:00Z")),
            ("03:12:05", Some("2026-11-26T03:12:05Z")),
            ("22:00", Some("2026-11-25T22:00:00Z")),
            ("10m", Some("2026-11-26T03:20:00Z")),
            ("2026-11-20T01:02:03+01:00", Some("2026-11-20T00:02:03Z")),
            ("-10m", None),
            ("noon", None),
        ] {
            assert_eq!(parse(text, now), expected.map(at), "{text}");
        }
        assert_eq!("812".parse(), Ok(Moment::Revision(812)));
    }
}
