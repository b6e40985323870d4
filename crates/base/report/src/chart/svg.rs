//! Renders a chart as SVG, for a page or as a file.
//!
//! The names of curves are in the margin at their ends, so that no legend covers the plot; if there are too many for
//! the margin, they are listed below the plot. Colours are CSS variables: the picture follows the reader's light or
//! dark theme, and prints light. A series with few points has their values as tooltips. There are no scripts.

mod names;

use std::fmt::Write;

use super::{
    Chart, Stroke,
    frame::{Frame, Grid, Place, Trace},
    label::{Area, place_label},
};
use names::{columns, short};

use crate::{
    markup::{escape, px},
    picture::{WIDTH, head, nothing, own_style},
    terminal::{clean, width},
};

const HEIGHT: f64 = 400.0;
/// The space above the plot: the title, and the name of the y axis.
const TOP: f64 = 58.0;
/// The space below the plot: tick labels and the name of the x axis.
const BOTTOM: f64 = 48.0;
/// The height of a line of text in the margin or below the plot.
const LINE: f64 = 17.0;
/// The estimated mean width of a character of the 12-pixel font, rounded up.
const CHARACTER: f64 = 7.2;
/// The most points of a curve that are drawn as dots.
const DOTS_MAX: usize = 64;
/// The number of colours. Further curves repeat them, dashed.
const COLOURS: usize = 8;

impl Chart {
    /// Renders the chart as a standalone SVG file.
    pub fn to_svg(&self) -> String {
        self.svg(&own_style())
    }

    /// Renders the chart as SVG for a page that contains the style.
    pub(crate) fn to_svg_inline(&self) -> String {
        self.svg("")
    }

    fn svg(&self, style: &str) -> String {
        let grid = Grid {
            columns: 720,
            rows: 300,
            x_ticks: 8,
            y_ticks: 7,
        };
        let Some(frame) = Frame::new(self, grid) else {
            return nothing(&self.title, style);
        };
        let layout = Layout::new(&frame);
        let mut svg = head(&self.title, &description(&frame), layout.height, style);
        layout.axes(&mut svg);
        layout.limits(&mut svg);
        for index in 0..frame.traces.len() {
            layout.curve(&mut svg, index);
        }
        layout.names(&mut svg);
        layout.marks(&mut svg);
        svg += "</svg>\n";
        svg
    }
}

/// The description for screen readers.
fn description(frame: &Frame) -> String {
    let chart = frame.chart;
    let mut text = format!("{} over {}.", chart.y.label, chart.x.label);
    for series in &chart.series {
        let shown = series.points.iter().filter(|p| frame.place(p.0, p.1).is_some());
        let span = chart.y.scale.range(shown.map(|p| p.1));
        let span = span.map_or("no data".to_owned(), |range| {
            format!("{} to {}", chart.y.unit.show(range.lo()), chart.y.unit.show(range.hi()))
        });
        let _ = write!(text, " {}: {span}.", series.name);
        for mark in &series.marks {
            let (x, y) = (chart.x.unit.show(mark.x), chart.y.unit.show(mark.y));
            let _ = write!(text, " {} at {x}, {y}.", mark.label);
        }
    }
    text
}

/// The picture's layout.
struct Layout<'a> {
    frame: &'a Frame<'a>,
    plot: Area,
    height: f64,
    /// Whether the names of the curves are in the margin, at their ends.
    direct: bool,
}

impl<'a> Layout<'a> {
    fn new(frame: &'a Frame<'a>) -> Self {
        let series = &frame.chart.series;
        let names = series.iter().map(|s| text_width(&short(&s.name)));
        let widest = names.fold(0.0, f64::max);
        let plot_height = HEIGHT - TOP - BOTTOM;
        let direct = series.len() as f64 * LINE <= plot_height;
        let labels = frame.y.ticks.iter().map(|tick| text_width(&tick.label));
        let left = 24.0 + labels.fold(0.0, f64::max);
        let right = if direct && widest > 0.0 { widest + 30.0 } else { 28.0 };
        let plot = Area {
            left,
            top: TOP,
            width: WIDTH - left - right,
            height: plot_height,
        };
        let rows = if direct {
            0
        } else {
            series.len().div_ceil(columns(widest))
        };
        let note = f64::from(u8::from(frame.note().is_some()));
        let height = HEIGHT + (rows as f64 + note) * LINE + if rows > 0 { 6.0 } else { 0.0 };
        Self {
            frame,
            plot,
            height,
            direct,
        }
    }

    /// Converts a place to pixels.
    fn at(&self, (x, y): Place) -> (f64, f64) {
        let plot = &self.plot;
        (plot.left + x * plot.width, plot.top + (1.0 - y) * plot.height)
    }

    fn axes(&self, svg: &mut String) {
        let Area {
            left,
            top,
            width,
            height,
        } = self.plot;
        let (right, bottom) = (px(left + width), top + height);
        for tick in &self.frame.y.ticks {
            let (y, label) = (self.at((0.0, tick.place)).1, escape(&tick.label));
            let (l, y, ly) = (px(left), px(y), px(y + 4.0));
            let _ = write!(
                svg,
                "<path class=\"grid\" d=\"M{l} {y}H{right}\"/>\
                 <text x=\"{}\" y=\"{ly}\" text-anchor=\"end\">{label}</text>",
                px(left - 8.0)
            );
        }
        let _ = write!(
            svg,
            "\n<path class=\"axis\" d=\"M{} {}H{right}\"/>",
            px(left),
            px(bottom)
        );
        let mut free = 0.0;
        for tick in &self.frame.x.ticks {
            let x = self.at((tick.place, 0.0)).0;
            let _ = write!(svg, "<path class=\"axis\" d=\"M{} {}v5\"/>", px(x), px(bottom));
            let half = text_width(&tick.label) / 2.0;
            let end = x + half + 8.0;
            if x - half >= free {
                let (x, y, label) = (px(x), px(bottom + 19.0), escape(&tick.label));
                let _ = write!(svg, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"middle\">{label}</text>");
                free = end;
            }
        }
        let _ = write!(
            svg,
            "\n<text x=\"16\" y=\"44\">{}</text>\
             <text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
            escape(&clean(&self.frame.chart.y.label)),
            px(left + width / 2.0),
            px(bottom + 39.0),
            escape(&clean(&self.frame.chart.x.label)),
        );
        if let Some(note) = self.frame.note() {
            let (y, note) = (px(self.height - 8.0), escape(&note));
            let _ = writeln!(svg, "<text x=\"16\" y=\"{y}\" font-size=\"11\">{note}</text>");
        }
    }

    fn limits(&self, svg: &mut String) {
        let chart = self.frame.chart;
        for limit in &chart.limits {
            let Some(y) = self.frame.y.place(limit.y) else {
                continue;
            };
            let (left, y) = self.at((0.0, y));
            let label = escape(&clean(&format!("{}, {}", limit.label, chart.y.unit.show(limit.y))));
            let (l, r) = (px(left), px(left + self.plot.width));
            let (y, x, ly) = (px(y), px(left + 8.0), px(y - 6.0));
            let _ = writeln!(
                svg,
                "<path class=\"limit\" d=\"M{l} {y}H{r}\"/>\
                 <text class=\"halo\" x=\"{x}\" y=\"{ly}\">{label}</text>"
            );
        }
    }

    fn curve(&self, svg: &mut String, index: usize) {
        let (trace, series) = (&self.frame.traces[index], &self.frame.chart.series[index]);
        let colour = index % COLOURS;
        let dashed = series.stroke == Stroke::Dashed || index >= COLOURS;
        let _ = write!(svg, "<g class=\"c{colour}\">");
        let path = self.path(trace);
        if trace.joined {
            let dashed = if dashed { " dashed" } else { "" };
            let dense = if trace.len() > DOTS_MAX { " dense" } else { "" };
            let _ = write!(svg, "<path class=\"line stroke{dashed}{dense}\" d=\"{path}\"/>");
        }
        if trace.len() <= DOTS_MAX {
            self.dots(svg, index);
        } else if !trace.joined {
            let _ = write!(svg, "<path class=\"line stroke\" d=\"{path}\"/>");
        }
        *svg += "</g>\n";
    }

    /// The runs of a trace as path data. Points that are not joined become lines of length zero.
    fn path(&self, trace: &Trace) -> String {
        let mut path = String::new();
        for run in &trace.runs {
            for (i, &place) in run.iter().enumerate() {
                let (x, y) = self.at(place);
                let verb = if i == 0 || !trace.joined { "M" } else { "L" };
                let _ = write!(path, "{verb}{} {}", px(x), px(y));
                if !trace.joined || run.len() == 1 {
                    path += "h0";
                }
            }
        }
        path
    }

    /// Draws a dot for each point, with its values as a tooltip.
    fn dots(&self, svg: &mut String, index: usize) {
        let (chart, series) = (self.frame.chart, &self.frame.chart.series[index]);
        for &(x, y) in &series.points {
            let Some(place) = self.frame.place(x, y) else {
                continue;
            };
            let (cx, cy) = self.at(place);
            let tip = format!("{}: {}, {}", series.name, chart.x.unit.show(x), chart.y.unit.show(y));
            let (cx, cy, tip) = (px(cx), px(cy), escape(&clean(&tip)));
            let _ = write!(
                svg,
                "<circle class=\"fill\" cx=\"{cx}\" cy=\"{cy}\" r=\"3\"><title>{tip}</title></circle>"
            );
        }
    }

    fn marks(&self, svg: &mut String) {
        // Lines are sampled between their points, so that labels do not cover them there either.
        let curve: Vec<(f64, f64)> = self.frame.traces.iter().flat_map(|t| self.sampled(t)).collect();
        let mut taken = Vec::new();
        for (index, series) in self.frame.chart.series.iter().enumerate() {
            for mark in &series.marks {
                let Some(place) = self.frame.place(mark.x, mark.y) else {
                    continue;
                };
                let (x, y) = self.at(place);
                let label = clean(&mark.label);
                let size = (text_width(&label), 14.0);
                let spot = place_label((x, y), size, &self.plot, &taken, &curve);
                taken.push(spot);
                let (tx, ty) = (px(spot.left), px(spot.top + 11.0));
                let _ = writeln!(
                    svg,
                    "<g class=\"c{}\"><circle class=\"knee stroke\" cx=\"{}\" cy=\"{}\" r=\"5.5\"/>\
                     <text class=\"halo name fill\" x=\"{tx}\" y=\"{ty}\">{}</text></g>",
                    index % COLOURS,
                    px(x),
                    px(y),
                    escape(&label),
                );
            }
        }
    }

    /// Samples a trace in pixels, densely enough for the placement of labels.
    fn sampled(&self, trace: &Trace) -> Vec<(f64, f64)> {
        const EVERY: f64 = 4.0;
        const SAMPLES_MAX: f64 = 200.0;
        let mut samples = Vec::new();
        for pair in trace.runs.iter().flat_map(|run| run.windows(2)) {
            let ((ax, ay), (bx, by)) = (self.at(pair[0]), self.at(pair[1]));
            let steps = ((bx - ax).hypot(by - ay) / EVERY).clamp(1.0, SAMPLES_MAX);
            let mut step = 0.0;
            while step <= steps {
                samples.push((ax + (bx - ax) * step / steps, ay + (by - ay) * step / steps));
                step += 1.0;
            }
        }
        samples
    }
}

fn text_width(text: &str) -> f64 {
    width(text) as f64 * CHARACTER
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Axis, Series, Unit,
        chart::tests::{any_chart, sample},
    };
    use proptest::prelude::*;

    #[test]
    fn a_chart_as_a_picture() {
        insta::assert_snapshot!(sample().to_svg_inline());
    }

    #[test]
    fn a_picture_alone_brings_its_style() {
        assert!(sample().to_svg().contains("prefers-color-scheme:dark"));
    }

    #[test]
    fn many_curves_are_named_under_the_plot() {
        let axis = || Axis::linear("", Unit::Count);
        let mut chart = Chart::new("", axis(), axis());
        for i in 0..40 {
            let y = f64::from(i);
            chart = chart.with(Series::new(format!("curve {i}"), [(0.0, y), (1.0, y)]));
        }
        let svg = chart.to_svg_inline();
        assert_eq!(svg.matches("class=\"name fill\"").count(), 40);
        assert!(!svg.contains("leader"));
    }

    #[test]
    fn a_million_points_make_a_small_picture() {
        let points = (0..1_000_000u32).map(|i| (f64::from(i), f64::from(i % 977)));
        let axis = || Axis::linear("", Unit::Count);
        let line = Chart::new("", axis(), axis()).with(Series::new("", points.clone()));
        assert!(line.to_svg().len() < 100_000, "{}", line.to_svg().len());
        // Points without a line may touch every pixel, which bounds the size.
        let cloud = Chart::new("", axis(), axis()).with(Series::new("", points).dots());
        assert!(cloud.to_svg().len() < 4_000_000, "{}", cloud.to_svg().len());
    }

    proptest! {
        #[test]
        fn any_chart_makes_a_picture_with_finite_numbers(chart in any_chart()) {
            let svg = chart.to_svg_inline();
            for value in ["NaN", "inf"] {
                for attribute in ["x", "y", "cx", "cy", "width", "height"] {
                    let bad = format!(" {attribute}=\"{value}");
                    prop_assert!(!svg.contains(&bad), "{svg}");
                }
            }
            prop_assert!(svg.ends_with("</svg>\n"));
        }
    }
}
