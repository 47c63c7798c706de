//! Durations in the notation of Kubernetes: `1h0m0s`, `250ms`, `0s`.

use std::{fmt, str::FromStr, time::Duration};

/// A duration in a document, in nanoseconds. As in Go, it is at most 292 years and may be negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GoDuration(i64);

impl GoDuration {
    /// A duration of this many nanoseconds.
    pub const fn from_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    /// Whether the duration is zero.
    pub fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// The duration; `None` if it is negative.
    pub fn positive(self) -> Option<Duration> {
        u64::try_from(self.0).ok().map(Duration::from_nanos)
    }
}

impl From<Duration> for GoDuration {
    /// Converts a duration. A duration that is too long for Go becomes Go's longest duration.
    fn from(duration: Duration) -> Self {
        Self(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
    }
}

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;

/// The error for a string that is not a duration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadDuration(String);

impl fmt::Display for BadDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not a duration; write it like 30s, 1h30m or 250ms", self.0)
    }
}

impl std::error::Error for BadDuration {}

impl FromStr for GoDuration {
    type Err = BadDuration;

    fn from_str(text: &str) -> Result<Self, BadDuration> {
        parse(text).map(Self).ok_or_else(|| BadDuration(text.to_owned()))
    }
}

/// Parses an optional sign and a sequence of numbers with units, or just `0`.
fn parse(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut sum: i128 = 0;
    while !rest.is_empty() {
        let (number, after) = split(rest, |character| character.is_ascii_digit() || character == '.');
        let (unit, after) = split(after, |character| !character.is_ascii_digit() && character != '.');
        sum = sum.checked_add(scaled(number, nanos(unit)?)?)?;
        rest = after;
    }
    i64::try_from(if negative { -sum } else { sum }).ok()
}

fn split(text: &str, belongs: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|character| !belongs(character)).unwrap_or(text.len()))
}

fn nanos(unit: &str) -> Option<u64> {
    Some(match unit {
        "ns" => 1,
        // The micro sign, and the Greek letter that looks the same.
        "us" | "\u{b5}s" | "\u{3bc}s" => MICROSECOND,
        "ms" => MILLISECOND,
        "s" => SECOND,
        "m" => MINUTE,
        "h" => HOUR,
        _ => return None,
    })
}

/// Converts a decimal number of units to nanoseconds, rounded down.
fn scaled(number: &str, unit: u64) -> Option<i128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let whole: i128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    // Digits after the eighteenth amount to less than a nanosecond, even for hours.
    let fraction = &fraction[..fraction.len().min(18)];
    let digits: i128 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    let scale = 10_i128.pow(u32::try_from(fraction.len()).ok()?);
    whole.checked_mul(unit.into())?.checked_add(digits * i128::from(unit) / scale)
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.unsigned_abs();
        let (unit, name) = match nanos {
            0 | SECOND.. => (SECOND, "s"),
            MILLISECOND.. => (MILLISECOND, "ms"),
            MICROSECOND.. => (MICROSECOND, "\u{b5}s"),
            _ => (1, "ns"),
        };
        if self.0 < 0 {
            f.write_str("-")?;
        }
        if nanos >= HOUR {
            write!(f, "{}h", nanos / HOUR)?;
        }
        if nanos >= MINUTE {
            write!(f, "{}m", nanos / MINUTE % 60)?;
        }
        let digits = unit.ilog10() as usize;
        let fraction = format!(".{:0digits$}", nanos % unit);
        let fraction = fraction.trim_end_matches('0').trim_end_matches('.');
        write!(f, "{}{fraction}{name}", nanos % MINUTE / unit)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HOUR: i64 = super::HOUR.cast_signed();
    const MINUTE: i64 = super::MINUTE.cast_signed();
    const SECOND: i64 = super::SECOND.cast_signed();
    const MILLISECOND: i64 = super::MILLISECOND.cast_signed();

    #[track_caller]
    fn check(text: &str, nanos: Option<i64>, written: &str) {
        let parsed = text.parse::<GoDuration>().ok();
        assert_eq!(parsed.map(|duration| duration.0), nanos, "{text}");
        if let Some(parsed) = parsed {
            assert_eq!(parsed.to_string(), written, "{text}");
        }
    }

    #[test]
    fn durations_are_parsed_and_written_like_in_go() {
        for (text, nanos, written) in [
            ("0", 0, "0s"),
            ("0s", 0, "0s"),
            ("-0s", 0, "0s"),
            ("15m", 15 * MINUTE, "15m0s"),
            ("1h0m0s", HOUR, "1h0m0s"),
            ("24h", 24 * HOUR, "24h0m0s"),
            ("1h30m", 90 * MINUTE, "1h30m0s"),
            ("90s", 90 * SECOND, "1m30s"),
            ("1.5s", 1_500 * MILLISECOND, "1.5s"),
            (".5s", 500 * MILLISECOND, "500ms"),
            ("1.s", SECOND, "1s"),
            ("+250ms", 250 * MILLISECOND, "250ms"),
            ("1.5us", 1_500, "1.5\u{b5}s"),
            ("1.5\u{b5}s", 1_500, "1.5\u{b5}s"),
            ("1.5\u{3bc}s", 1_500, "1.5\u{b5}s"),
            ("7ns", 7, "7ns"),
            ("-1m1ns", -MINUTE - 1, "-1m0.000000001s"),
            ("0.3333333333333333333333h", 1_199_999_999_999, "19m59.999999999s"),
            ("9223372036854775807ns", i64::MAX, "2562047h47m16.854775807s"),
            ("-9223372036854775808ns", i64::MIN, "-2562047h47m16.854775808s"),
        ] {
            check(text, Some(nanos), written);
        }
    }

    #[test]
    fn texts_that_go_refuses_are_refused() {
        for text in [
            "",
            "-",
            "+",
            ".",
            "s",
            ".s",
            "30",
            "30 s",
            "1d",
            "1w",
            "1h 30m",
            "--1s",
            "1..5s",
            "1e3s",
            "1H",
            "\u{661}s",
            "9223372036854775808ns",
            "-9223372036854775809ns",
            "9999999h",
            "1s-1s",
            "99999999999999999999999999999999999999999999s",
        ] {
            check(text, None, "");
        }
        let error = "30".parse::<GoDuration>().unwrap_err().to_string();
        assert_eq!(error, "\"30\" is not a duration; write it like 30s, 1h30m or 250ms");
    }

    proptest! {
        #[test]
        fn written_documents_parse_to_the_same_values(nanos: i64) {
            prop_assert_eq!(GoDuration(nanos).to_string().parse(), Ok(GoDuration(nanos)));
        }

        #[test]
        fn any_text_parses(text in "[-+0-9.nusmhµ ]{0,20}|.*") {
            let _ = text.parse::<GoDuration>();
        }
    }
}
