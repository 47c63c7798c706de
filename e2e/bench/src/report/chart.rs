//! A line chart as SVG. Pure.
//!
//! The horizontal axis is logarithmic, the vertical one can be. Each line has its name at its end, so that the reader needs no
//! legend and colour is not the only distinction.

use plotters::{
    coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter},
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

const SIZE: (u32, u32) = (760, 440);
/// The width of the column with the names of the lines.
const NAMES: u32 = 190;
/// Minimum distance of the names of lines.
const LINE_HEIGHT: i32 = 17;
const FONT: (&str, u32) = ("sans-serif", 16);
const MARGIN: u32 = 10;
/// The height of the labels below the plot.
const BELOW: u32 = 48;
/// Colours that people with colour blindness can distinguish (Okabe and Ito).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0x00, 0x00, 0x00),
];

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
    /// Formats the label of a value.
    pub(crate) label: fn(&f64) -> String,
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
    pub(crate) scale: Scale,
    pub(crate) lines: Vec<Line>,
}

type Drawn<'a> = Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>>;

impl Chart {
    /// The chart as SVG. Lines without points are omitted.
    pub(crate) fn svg(&self) -> String {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let (left, right) = ends(points().map(|point| point.0));
        let (low, high) = ends(points().map(|point| point.1));
        let mut svg = String::new();
        let drawn = match self.scale {
            Scale::Linear => self.draw(&mut svg, left..right, 0.0..high),
            Scale::Logarithmic => self.draw(&mut svg, left..right, (low..high).log_scale()),
        };
        drawn.expect("a string takes what is written to it");
        svg
    }

    fn draw<'a, Y>(&self, svg: &'a mut String, x: std::ops::Range<f64>, y: Y) -> Drawn<'a>
    where
        Y: AsRangedCoord<Value = f64>,
        Y::CoordDescType: ValueFormatter<f64> + Ranged<ValueType = f64>,
    {
        let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&root)
            .caption(self.title, ("sans-serif", 20).into_font().style(FontStyle::Bold))
            .margin(MARGIN)
            .margin_right(NAMES)
            .x_label_area_size(BELOW)
            .y_label_area_size(70)
            .build_cartesian_2d(x.log_scale(), y)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .max_light_lines(0)
            .bold_line_style(RGBColor(0xe2, 0xe2, 0xe2))
            .axis_style(RGBColor(0x88, 0x88, 0x88))
            .label_style(FONT)
            .y_labels(6)
            .x_desc(self.x.name)
            .y_desc(self.y.name)
            .x_label_formatter(&self.x.label)
            .y_label_formatter(&self.y.label)
            .draw()?;
        let mut names = Vec::new();
        for line in &self.lines {
            let Some(last) = line.points.last() else { continue };
            let colour = COLOURS[line.group % COLOURS.len()];
            let (points, style) = (line.points.iter().copied(), colour.stroke_width(2));
            match line.dashed {
                true => drop(chart.draw_series(DashedLineSeries::new(points.clone(), 6, 4, style))?),
                false => drop(chart.draw_series(LineSeries::new(points.clone(), style))?),
            }
            chart.draw_series(points.map(|point| Circle::new(point, 3, colour.filled())))?;
            names.push((chart.backend_coord(last), line.name.as_str(), colour));
        }
        let [bottom, column] = [SIZE.1 - BELOW - MARGIN, SIZE.0 - NAMES + 16].map(u32::cast_signed);
        names.sort_by_key(|((_, y), ..)| *y);
        let places = places(names.iter().map(|((_, y), ..)| *y), bottom);
        for (((x, y), name, colour), place) in names.into_iter().zip(places) {
            let text = TextStyle::from(FONT).color(&colour).pos(Pos::new(HPos::Left, VPos::Center));
            root.draw(&PathElement::new([(x + 5, y), (column - 4, place)], colour.mix(0.6)))?;
            root.draw(&Text::new(name, (column, place), text))?;
        }
        root.present()
    }
}

/// The smallest and the largest value, with a margin.
fn ends(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = values.fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
    if low > high { (1.0, 10.0) } else { (low / 1.25, high * 1.25) }
}

/// Moves heights of names, from top to bottom, so that names do not overlap and stay above `bottom`.
fn places(heights: impl Iterator<Item = i32>, bottom: i32) -> Vec<i32> {
    let mut places: Vec<i32> = Vec::new();
    for height in heights {
        let free = places.last().map_or(i32::MIN, |last| last + LINE_HEIGHT);
        places.push(height.max(free));
    }
    let mut limit = bottom;
    for place in places.iter_mut().rev() {
        *place = limit.min(*place);
        limit = *place - LINE_HEIGHT;
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(scale: Scale, points: &[(f64, f64)]) -> String {
        let axis = Axis { name: "<x>", label: |value| value.to_string() };
        let line = |name: &str, dashed| Line { name: name.to_owned(), group: 0, dashed, points: points.to_vec() };
        Chart { title: "t & t", x: axis, y: axis, scale, lines: vec![line("fast", false), line("slow", true)] }.svg()
    }

    #[test]
    fn every_line_has_its_name() {
        for scale in [Scale::Linear, Scale::Logarithmic] {
            let svg = chart(scale, &[(10.0, 1.0), (45_000.0, 800.0)]);
            for text in ["t &amp; t", "&lt;x&gt;", "fast", "slow"] {
                assert!(svg.contains(text), "no {text} in {svg}");
            }
            assert_eq!(svg.matches("<circle").count(), 4, "{svg}");
        }
    }

    #[test]
    fn nothing_is_drawn_of_nothing() {
        let svg = chart(Scale::Logarithmic, &[]);
        assert!(svg.contains("t &amp; t") && !svg.contains("fast") && !svg.contains("NaN"), "{svg}");
    }

    #[test]
    fn names_do_not_overlap() {
        assert_eq!(places([100, 100, 110, 300, 395].into_iter(), 390), [100, 117, 134, 300, 390]);
        assert_eq!(places([380, 385, 390].into_iter(), 390), [356, 373, 390]);
    }
}
