//! Numbers and durations.

use std::time::Duration;

use serde_json::{Value, json};

use super::FieldType;
use crate::{check::Check, duration::GoDuration, field::Field, kind::Kind};

const NOT_NEGATIVE: &str = "must be greater than or equal to 0";

impl FieldType for f32 {
    const KIND: Kind = Kind::Float;

    #[expect(clippy::cast_possible_truncation, reason = "documents contain a number with fewer digits")]
    fn read(check: &mut Check<'_>, field: &Field) -> Self {
        check.document.get(field.path).as_f64().unwrap_or_default() as Self
    }

    fn write(value: &Self) -> Value {
        // The shortest decimal number that parses to this value.
        json!(value.to_string().parse::<f64>().unwrap_or_default())
    }
}

/// Returns an integer. If the integer is negative, adds an error and returns 0.
fn count(check: &mut Check<'_>, field: &Field, remedy: &str) -> u32 {
    let given = check.document.get(field.path).as_i64().unwrap_or_default();
    u32::try_from(given).unwrap_or_else(|_| {
        check.invalid(field, given, NOT_NEGATIVE, remedy);
        0
    })
}

/// A number that is at least 0.
pub(crate) enum Count {}

impl FieldType<u32> for Count {
    const KIND: Kind = Kind::Int;

    fn read(check: &mut Check<'_>, field: &Field) -> u32 {
        count(check, field, "use 0 for no minimum")
    }
}

/// `clientConnection.burst`
pub(crate) enum Burst {}

impl FieldType<u32> for Burst {
    const KIND: Kind = Kind::Int;

    fn read(check: &mut Check<'_>, field: &Field) -> u32 {
        count(check, field, "use 0 for the default")
    }
}

/// A limit of the kernel. `None`, which is 0 in documents, means that the limit stays unchanged.
impl FieldType for Option<u32> {
    const KIND: Kind = Kind::Int;

    fn read(check: &mut Check<'_>, field: &Field) -> Self {
        Some(count(check, field, "use 0 to keep the kernel's limit")).filter(|limit| *limit > 0)
    }
}

/// A bit of the packet mark, 0–31.
impl FieldType for u8 {
    const KIND: Kind = Kind::Int;

    fn read(check: &mut Check<'_>, field: &Field) -> Self {
        let given = check.document.get(field.path).as_i64().unwrap_or_default();
        Self::try_from(given).ok().filter(|bit| *bit < 32).unwrap_or_else(|| {
            let (used, why) = (check.is_used(field), "must be within the range [0, 31]");
            check.invalid_if_used(used, field.path, &given.to_string(), why, "14 is the default");
            14
        })
    }
}

/// `linux.oomScoreAdj`
impl FieldType for i16 {
    const KIND: Kind = Kind::Int;

    fn read(check: &mut Check<'_>, field: &Field) -> Self {
        let given = check.document.get(field.path).as_i64().unwrap_or_default();
        Self::try_from(given).ok().filter(|score| (-1000..=1000).contains(score)).unwrap_or_else(|| {
            check.invalid(field, given, "must be within the range [-1000, 1000]", "-999 is the default");
            0
        })
    }
}

/// A timeout of the kernel. `None`, which is zero in documents, means that the timeout stays unchanged.
impl FieldType for Option<Duration> {
    const KIND: Kind = Kind::Duration;

    fn read(check: &mut Check<'_>, field: &Field) -> Self {
        let given = check.document.duration(field.path);
        let Some(timeout) = given.positive() else {
            let (used, remedy) = (check.is_used(field), "use 0s to keep the kernel's value");
            check.invalid_if_used(used, field.path, &format!("\"{given}\""), NOT_NEGATIVE, remedy);
            return None;
        };
        Some(timeout).filter(|timeout| !timeout.is_zero())
    }

    fn write(value: &Self) -> Value {
        value.as_ref().map_or(Value::Null, Period::write)
    }
}

/// Returns a duration. If the duration is not more than zero, adds an error.
pub(super) fn more_than_zero(check: &mut Check<'_>, field: &Field, why: &str, remedy: &str) -> Duration {
    let given = check.document.duration(field.path);
    given.positive().filter(|period| !period.is_zero()).unwrap_or_else(|| {
        check.invalid(field, format_args!("\"{given}\""), why, remedy);
        Duration::ZERO
    })
}

/// A duration of more than zero.
pub(crate) enum Period {}

impl FieldType<Duration> for Period {
    const KIND: Kind = Kind::Duration;

    fn read(check: &mut Check<'_>, field: &Field) -> Duration {
        more_than_zero(check, field, "must be greater than 0", "write it like 30s")
    }

    fn write(value: &Duration) -> Value {
        json!(GoDuration::from(*value).to_string())
    }
}

/// `syncPeriod`: a period that is at least `minSyncPeriod`.
pub(crate) enum SyncPeriod {}

impl FieldType<Duration> for SyncPeriod {
    const KIND: Kind = Kind::Duration;

    fn read(check: &mut Check<'_>, field: &Field) -> Duration {
        let (period, min) = (Period::read(check, field), check.document.duration("minSyncPeriod"));
        if !period.is_zero() && GoDuration::from(period) < min {
            let why = format!("must be greater than or equal to minSyncPeriod, \"{min}\"");
            let value = format!("\"{}\"", GoDuration::from(period));
            check.invalid(field, value, &why, "make it longer, or minSyncPeriod shorter");
        }
        period
    }

    fn write(value: &Duration) -> Value {
        Period::write(value)
    }
}

/// `minSyncPeriod`: zero or more.
pub(crate) enum MinSyncPeriod {}

impl FieldType<Duration> for MinSyncPeriod {
    const KIND: Kind = Kind::Duration;

    fn read(check: &mut Check<'_>, field: &Field) -> Duration {
        let given = check.document.duration(field.path);
        given.positive().unwrap_or_else(|| {
            check.invalid(field, format_args!("\"{given}\""), NOT_NEGATIVE, "use 0s to sync at once");
            Duration::ZERO
        })
    }

    fn write(value: &Duration) -> Value {
        Period::write(value)
    }
}
