//! Draws the names of the curves: in the margin at their ends, or listed below the plot.

use std::fmt::Write;

use super::{COLOURS, HEIGHT, LINE, Layout, text_width};
use crate::{
    Series,
    chart::{
        frame::Trace,
        label::{Area, spread},
    },
    markup::{escape, px},
    picture::WIDTH,
    terminal::{clean, fit},
};

/// The most characters of a name. Longer names are truncated; the tooltip has the full name.
const NAME_CHARACTERS: usize = 26;

impl Layout<'_> {
    /// Draws the name of every curve, in its colour.
    pub(super) fn names(&self, svg: &mut String) {
        let named = |s: &&Series| !s.name.is_empty();
        if self.frame.chart.series.iter().filter(named).count() == 0 {
            return;
        }
        if self.direct {
            self.direct_names(svg);
        } else {
            self.listed_names(svg);
        }
    }

    /// Draws names in the margin, each as close to the end of its curve as possible.
    fn direct_names(&self, svg: &mut String) {
        let Area { top, height, .. } = self.plot;
        let ends: Vec<_> = self.frame.traces.iter().map(Trace::end).collect();
        let wanted: Vec<f64> = ends
            .iter()
            .map(|end| end.map_or(top + height, |end| self.at(end).1))
            .collect();
        let heights = spread(&wanted, LINE, top, top + height);
        let x = self.plot.left + self.plot.width + 20.0;
        for (index, series) in self.frame.chart.series.iter().enumerate() {
            let (y, colour) = (heights[index], index % COLOURS);
            let _ = write!(svg, "<g class=\"c{colour}\">");
            if let Some(end) = ends[index] {
                let (ex, ey) = self.at(end);
                let _ = write!(
                    svg,
                    "<path class=\"leader stroke\" d=\"M{} {}L{} {}\"/>",
                    px(ex + 4.0),
                    px(ey),
                    px(x - 4.0),
                    px(y)
                );
            }
            name(svg, series, ends[index].is_none(), x, y + 4.0);
            *svg += "</g>\n";
        }
    }

    /// Draws names below the plot, in columns.
    fn listed_names(&self, svg: &mut String) {
        let series = &self.frame.chart.series;
        let widest = series.iter().map(|s| text_width(&short(&s.name))).fold(0.0, f64::max);
        let columns = columns(widest);
        for (index, series) in series.iter().enumerate() {
            let x = 34.0 + (index % columns) as f64 * (widest + 34.0);
            let y = HEIGHT + 8.0 + (index / columns) as f64 * LINE;
            let colour = index % COLOURS;
            let dashed = if index >= COLOURS { " dashed" } else { "" };
            let _ = write!(
                svg,
                "<g class=\"c{colour}\"><path class=\"line stroke{dashed}\" d=\"M{} {}h16\"/>",
                px(x - 20.0),
                px(y - 4.0)
            );
            name(svg, series, self.frame.traces[index].runs.is_empty(), x, y);
            *svg += "</g>\n";
        }
    }
}

/// Draws a curve's name, with the full name as its tooltip.
fn name(svg: &mut String, series: &Series, empty: bool, x: f64, y: f64) {
    let empty = if empty { " (no data)" } else { "" };
    let (x, y, whole) = (px(x), px(y), escape(&clean(&series.name)));
    let _ = write!(
        svg,
        "<text class=\"name fill\" x=\"{x}\" y=\"{y}\">{}{empty}<title>{whole}</title></text>",
        escape(&short(&series.name))
    );
}

/// A name, truncated.
pub(super) fn short(name: &str) -> String {
    fit(&clean(name), NAME_CHARACTERS)
}

/// The number of names per row below the plot.
pub(super) fn columns(widest: f64) -> usize {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small, positive")]
    let columns = ((WIDTH - 32.0) / (widest + 34.0)) as usize;
    columns.max(1)
}
