//! A line chart as SVG. Pure.
//!
//! Both axes can be logarithmic. Each line has its name at its end, so that the reader needs no legend and colour is not the only
//! distinction.

use std::fmt::Write as _;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 440.0;
const LEFT: f64 = 78.0;
const RIGHT: f64 = 200.0;
const TOP: f64 = 48.0;
const BOTTOM: f64 = 56.0;
/// Minimum distance of the names of lines.
const LINE_HEIGHT: f64 = 16.0;
/// Colours that people with colour blindness can distinguish (Okabe and Ito).
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];

/// The mapping of values to positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scale {
    Linear,
    /// Values must be positive.
    Logarithmic,
}

/// An axis.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Axis {
    pub(crate) name: &'static str,
    pub(crate) scale: Scale,
    /// Formats the label of a value.
    pub(crate) label: fn(f64) -> String,
}

/// A line.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) name: String,
    /// Lines of the same group have the same colour.
    pub(crate) group: usize,
    pub(crate) dashed: bool,
    pub(crate) points: Vec<(f64, f64)>,
}

/// A chart.
#[derive(Clone, Debug)]
pub(crate) struct Chart {
    pub(crate) title: &'static str,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) lines: Vec<Line>,
}

impl Chart {
    /// The chart as SVG. Lines without points are omitted.
    pub(crate) fn svg(&self) -> String {
        let lines: Vec<&Line> = self.lines.iter().filter(|line| !line.points.is_empty()).collect();
        let all = || lines.iter().flat_map(|line| &line.points);
        let x = Positions::new(self.x.scale, all().map(|point| point.0), (LEFT, WIDTH - RIGHT));
        let y = Positions::new(self.y.scale, all().map(|point| point.1), (HEIGHT - BOTTOM, TOP));
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
             font-family=\"system-ui, sans-serif\" font-size=\"13\" role=\"img\" aria-label=\"{title}\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
             <text x=\"{LEFT}\" y=\"26\" font-size=\"16\" font-weight=\"600\" fill=\"#1a1a1a\">{title}</text>\n",
            title = escape(self.title)
        );
        self.axes(&mut svg, &x, &y);
        let mut names = Vec::new();
        for line in &lines {
            let points: Vec<(f64, f64)> = line.points.iter().map(|point| (x.at(point.0), y.at(point.1))).collect();
            draw(&mut svg, line, &points);
            if let Some(last) = points.last() {
                names.push((*last, *line));
            }
        }
        write_names(&mut svg, names);
        svg + "</svg>\n"
    }

    fn axes(&self, svg: &mut String, x: &Positions, y: &Positions) {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        for tick in y.ticks() {
            let at = y.at(tick);
            push(
                svg,
                format_args!(
                    "<line x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\" stroke=\"#e2e2e2\"/>\n\
                     <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#444444\">{}</text>\n",
                    LEFT - 8.0,
                    at + 4.0,
                    escape(&(self.y.label)(tick))
                ),
            );
        }
        for tick in x.ticks() {
            let at = x.at(tick);
            push(
                svg,
                format_args!(
                    "<line x1=\"{at:.1}\" y1=\"{bottom}\" x2=\"{at:.1}\" y2=\"{:.1}\" stroke=\"#888888\"/>\n\
                     <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#444444\">{}</text>\n",
                    bottom + 5.0,
                    bottom + 20.0,
                    escape(&(self.x.label)(tick))
                ),
            );
        }
        push(
            svg,
            format_args!(
                "<line x1=\"{LEFT}\" y1=\"{bottom}\" x2=\"{right}\" y2=\"{bottom}\" stroke=\"#888888\"/>\n\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#1a1a1a\">{}</text>\n\
                 <text transform=\"translate(18 {:.1}) rotate(-90)\" text-anchor=\"middle\" fill=\"#1a1a1a\">{}</text>\n",
                f64::midpoint(LEFT, right),
                HEIGHT - 14.0,
                escape(self.x.name),
                f64::midpoint(TOP, bottom),
                escape(self.y.name)
            ),
        );
    }
}

fn draw(svg: &mut String, line: &Line, points: &[(f64, f64)]) {
    let colour = colour(line);
    let dash = if line.dashed { " stroke-dasharray=\"6 4\"" } else { "" };
    let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    push(
        svg,
        format_args!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>\n",
            path.join(" ")
        ),
    );
    for (x, y) in points {
        push(svg, format_args!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"{colour}\"/>\n"));
    }
}

/// Writes the names at the ends of the lines, and moves names down that would overlap. A thin line connects a moved name with the
/// end of its line.
fn write_names(svg: &mut String, mut names: Vec<((f64, f64), &Line)>) {
    names.sort_by(|left, right| left.0.1.total_cmp(&right.0.1));
    let mut places: Vec<f64> = Vec::new();
    for ((_, y), _) in &names {
        let free = places.last().map_or(f64::MIN, |last| last + LINE_HEIGHT);
        places.push(y.max(free));
    }
    // Names that were moved out of the picture push the others up again.
    let mut limit = HEIGHT - BOTTOM;
    for place in places.iter_mut().rev() {
        *place = place.min(limit);
        limit = *place - LINE_HEIGHT;
    }
    let column = WIDTH - RIGHT + 22.0;
    for (((x, y), line), place) in names.iter().zip(places) {
        let colour = colour(line);
        push(
            svg,
            format_args!(
                "<line x1=\"{:.1}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{place:.1}\" stroke=\"{colour}\" stroke-width=\"0.75\" opacity=\"0.6\"/>\n\
                 <text x=\"{column}\" y=\"{:.1}\" fill=\"{colour}\">{}</text>\n",
                x + 5.0,
                column - 4.0,
                place + 4.0,
                escape(&line.name)
            ),
        );
    }
}

fn colour(line: &Line) -> &'static str {
    COLOURS[line.group % COLOURS.len()]
}

/// Maps values to positions between two ends.
struct Positions {
    scale: Scale,
    from: f64,
    to: f64,
    ends: (f64, f64),
}

impl Positions {
    fn new(scale: Scale, values: impl Iterator<Item = f64>, ends: (f64, f64)) -> Self {
        let (mut from, mut to) =
            values.fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
        if from > to {
            (from, to) = (1.0, 10.0);
        }
        match scale {
            Scale::Linear => {
                (from, to) = (from.min(0.0), to.max(0.0));
                let step = step(to - from);
                (from, to) = ((from / step).floor() * step, (to / step).ceil() * step);
            }
            Scale::Logarithmic => {
                // Leave a margin, so that no point is on the frame.
                (from, to) = (from.max(1e-9) / 1.25, to.max(1e-9) * 1.25);
            }
        }
        if from >= to {
            to = from + 1.0;
        }
        Self { scale, from, to, ends }
    }

    fn at(&self, value: f64) -> f64 {
        let part = match self.scale {
            Scale::Linear => (value - self.from) / (self.to - self.from),
            Scale::Logarithmic => (value.max(1e-9) / self.from).ln() / (self.to / self.from).ln(),
        };
        self.ends.0 + part * (self.ends.1 - self.ends.0)
    }

    fn ticks(&self) -> Vec<f64> {
        match self.scale {
            Scale::Linear => {
                let step = step(self.to - self.from);
                let count = ((self.to - self.from) / step).round() as usize;
                (0..=count).map(|index| self.from + step * index as f64).collect()
            }
            Scale::Logarithmic => {
                let within = |value: &f64| (self.from..=self.to).contains(value);
                let (low, high) = (self.from.log10().floor() as i32, self.to.log10().ceil() as i32);
                let with = |digits: &'static [f64]| {
                    let decades = (low..=high).map(|decade| 10f64.powi(decade));
                    decades.flat_map(move |decade| digits.iter().map(move |digit| digit * decade)).filter(within)
                };
                // With few decades, ticks at their beginnings are not enough.
                let decades: Vec<f64> = with(&[1.0]).collect();
                if decades.len() >= 3 { decades } else { with(&[1.0, 2.0, 5.0]).collect() }
            }
        }
    }
}

/// The step between ticks: 1, 2 or 5 times a power of ten, for about five ticks.
fn step(range: f64) -> f64 {
    let rough = (range / 5.0).max(1e-9);
    let decade = 10f64.powf(rough.log10().floor());
    let digit = [1.0, 2.0, 5.0].into_iter().find(|digit| digit * decade >= rough).unwrap_or(10.0);
    digit * decade
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn push(svg: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    _ = svg.write_fmt(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn positions(scale: Scale, values: &[f64]) -> Positions {
        Positions::new(scale, values.iter().copied(), (0.0, 100.0))
    }

    #[test]
    fn ticks_are_round_numbers_within_the_axis() {
        assert_eq!(positions(Scale::Linear, &[0.0, 9.0]).ticks(), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(positions(Scale::Linear, &[-1.0, 3.0]).ticks(), [-1.0, 0.0, 1.0, 2.0, 3.0]);
        assert_eq!(positions(Scale::Logarithmic, &[10.0, 45_000.0]).ticks(), [10.0, 100.0, 1_000.0, 10_000.0]);
        assert_eq!(positions(Scale::Logarithmic, &[3.0, 40.0]).ticks(), [5.0, 10.0, 20.0, 50.0]);
    }

    #[test]
    fn positions_grow_with_values() {
        for scale in [Scale::Linear, Scale::Logarithmic] {
            let positions = positions(scale, &[1.0, 10.0, 100.0]);
            let at = [1.0, 10.0, 100.0].map(|value| positions.at(value));
            assert!(at.is_sorted() && at[0] >= 0.0 && at[2] <= 100.0, "{at:?}");
        }
    }

    #[test]
    fn nothing_is_drawn_of_nothing() {
        let axis = Axis { name: "<x>", scale: Scale::Logarithmic, label: |value| value.to_string() };
        let line = Line { name: "a".to_owned(), group: 0, dashed: false, points: Vec::new() };
        let svg = Chart { title: "t & t", x: axis, y: axis, lines: vec![line] }.svg();
        assert!(svg.contains("t &amp; t") && svg.contains("&lt;x&gt;"), "{svg}");
        assert!(!svg.contains("polyline") && !svg.contains("NaN"), "{svg}");
    }

    #[test]
    fn names_do_not_overlap() {
        let axis = Axis { name: "x", scale: Scale::Linear, label: |value| value.to_string() };
        let line = |group| Line { name: "n".to_owned(), group, dashed: false, points: vec![(1.0, 1.0)] };
        let svg = Chart { title: "t", x: axis, y: axis, lines: (0..4).map(line).collect() }.svg();
        let names = svg.lines().filter(|line| line.ends_with(">n</text>"));
        let mut places: Vec<f64> =
            names.map(|line| line.split("y=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap()).collect();
        places.sort_by(f64::total_cmp);
        assert_eq!(places.len(), 4);
        assert!(places.windows(2).all(|pair| pair[1] - pair[0] > LINE_HEIGHT - 0.2), "{places:?}");
    }
}
