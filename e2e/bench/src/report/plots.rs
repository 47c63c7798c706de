//! The charts of the report. Pure.

use super::chart::{Axis, Chart, Line, Scale};
use crate::{
    cluster::Size,
    contestants::ALL,
    figures::{Change, Figures, Run},
    number_text::time,
};

const SERVICES: Axis = Axis { name: "Services", label: |value| thousands(*value) };
const TIME: Axis = Axis { name: "time", label: |value| round_time(*value) };

/// The charts with their names. Empty charts are omitted.
pub(crate) fn all(figures: &Figures) -> Vec<(&'static str, Chart)> {
    let charts = [
        (
            "start",
            Chart {
                title: "Start → every Service answers",
                x: SERVICES,
                y: TIME,
                scale: Scale::Logarithmic,
                lines: lines(figures, "", false, |run| Some(run.start.as_ref()?.took)),
            },
        ),
        ("change", quantiles(figures, "One endpoint changed → packets go elsewhere", |run| run.change)),
        ("load", quantiles(figures, "The same while other Services change", |run| run.load.as_ref()?.change)),
        (
            "memory",
            Chart {
                title: "Resident memory after the load, all processes",
                x: SERVICES,
                y: Axis { name: "MiB", label: |value| thousands(*value) },
                scale: Scale::Linear,
                lines: lines(figures, "", false, |run| {
                    Some(run.load.as_ref()?.memory.values().map(|memory| memory.resident).sum())
                }),
            },
        ),
        (
            "connect",
            Chart {
                title: "New TCP connection through the slowest of three VIPs",
                x: SERVICES,
                y: Axis { name: "µs", label: |value| thousands(*value) },
                scale: Scale::Linear,
                lines: lines(figures, "", false, |run| Some(run.connect?.slowest_us())),
            },
        ),
    ];
    charts.into_iter().filter(|(_, chart)| chart.lines.iter().any(|line| !line.points.is_empty())).collect()
}

fn quantiles(figures: &Figures, title: &'static str, of: fn(&Run) -> Option<Change>) -> Chart {
    let median = lines(figures, " p50", false, |run| Some(of(run)?.event.p50));
    let slowest = lines(figures, " p99", true, |run| Some(of(run)?.event.p99));
    Chart { title, x: SERVICES, y: TIME, scale: Scale::Logarithmic, lines: median.into_iter().chain(slowest).collect() }
}

/// One line for each contestant.
fn lines(figures: &Figures, suffix: &str, dashed: bool, value: impl Fn(&Run) -> Option<f64>) -> Vec<Line> {
    let line = |(group, contestant): (usize, &crate::contestants::Contestant)| {
        let sizes = figures.sizes().into_iter().filter(|size| size.is_usual());
        let point = |size: Size| Some((f64::from(size.services), value(figures.run(contestant.name, size.services)?)?));
        Line { name: format!("{}{suffix}", contestant.name), group, dashed, points: sizes.filter_map(point).collect() }
    };
    ALL.iter().enumerate().map(line).collect()
}

fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The label of a tick. Only labels below 1 ms have decimals.
fn round_time(millis: f64) -> String {
    match millis {
        m if m < 1.0 => time(m),
        m if m < 1_000.0 => format!("{m:.0} ms"),
        m => format!("{:.0} s", m / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_short() {
        assert_eq!([10.0, 1_000.0, 45_000.0].map(thousands), ["10", "1,000", "45,000"]);
        assert_eq!([1.0, 100.0, 10_000.0].map(round_time), ["1 ms", "100 ms", "10 s"]);
    }
}
