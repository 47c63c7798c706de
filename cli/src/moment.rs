//! A moment of the history: parses a revision or a time, and goes back to the state at this moment. Pure, except that a relative
//! time counts from now.

use std::{str::FromStr, time::Duration};

use jiff::{Timestamp, civil::Time, tz::TimeZone};
use localnet_client::Snapshot;
use localnet_config::GoDuration;
use localnet_proto::history::{Broken, Entry, Past, entry::Event};

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

/// Returns an earlier state. `state` is the newest one.
///
/// # Errors
/// Returns an error if the history does not contain the moment, or is damaged.
pub fn state_at(state: Snapshot, entries: &[Entry], at: Moment) -> Result<Snapshot, Failure> {
    let newest = state.revision.rev;
    let changes = || {
        entries.iter().rev().filter_map(|entry| match &entry.event {
            Some(Event::Change(change)) if change.rev <= newest => Some((time_of(entry), change)),
            _ => None,
        })
    };
    let rev = match at {
        Moment::Revision(rev) => rev,
        Moment::Time(at) => {
            let found = changes().find(|(time, _)| *time <= at);
            let oldest = changes().next_back().map_or_else(Timestamp::now, |(time, _)| time);
            let missing = || format!("the history begins later, at {}", precise(oldest));
            found.map(|(_, change)| change.rev).ok_or_else(|| Failure::Missing(missing()))?
        }
    };
    if rev > newest || rev == 0 {
        return Err(Failure::Missing(format!("there is no revision {rev}; the newest one is {newest}")));
    }
    let mut past = Past::from(state);
    for (_, change) in changes() {
        if past.state.revision.rev == rev {
            break;
        }
        past.back(change).map_err(|broken| match broken {
            Broken::Whole(_) => Failure::Missing(format!("the history has no state before revision {}", change.rev)),
            broken => Failure::Unreadable(broken.into()),
        })?;
    }
    match past.state.revision.rev {
        reached if reached == rev => Ok(past.state),
        reached => Err(Failure::Missing(format!("the history begins at revision {reached}, after revision {rev}"))),
    }
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
