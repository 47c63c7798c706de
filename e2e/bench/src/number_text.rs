//! Formats durations, sizes and ratios for tables and charts.

/// Formats milliseconds, in a suitable unit.
pub(crate) fn time(millis: f64) -> String {
    match millis {
        m if m < 0.1 => format!("{:.0} µs", m * 1e3),
        m if m < 9.95 => format!("{m:.2} ms"),
        m if m < 99.5 => format!("{m:.1} ms"),
        m if m < 999.5 => format!("{m:.0} ms"),
        m if m < 99_500.0 => format!("{:.2} s", m / 1e3),
        m => format!("{:.0} s", m / 1e3),
    }
}

/// Formats MiB.
pub(crate) fn memory(mebibytes: f64) -> String {
    format!("{mebibytes:.0} MiB")
}

/// Formats how many times as large theirs is as ours.
pub(crate) fn ratio(theirs: f64, ours: f64) -> String {
    match theirs / ours {
        r if !r.is_finite() => "–".to_owned(),
        r if r >= 9.95 => format!("× {r:.0}"),
        r => format!("× {r:.1}"),
    }
}

/// The text, or a dash if there is none.
pub(crate) fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "–".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_fit() {
        for (millis, text) in [
            (0.0213, "21 µs"),
            (3.456, "3.46 ms"),
            (34.56, "34.6 ms"),
            (345.6, "346 ms"),
            (17_512.0, "17.51 s"),
            (180_000.0, "180 s"),
        ] {
            assert_eq!(time(millis), text);
        }
        assert_eq!(ratio(20.0, 2.0), "× 10");
        assert_eq!(ratio(3.0, 2.0), "× 1.5");
        assert_eq!(ratio(3.0, 0.0), "–");
    }
}
