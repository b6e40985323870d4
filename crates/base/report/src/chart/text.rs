//! Renders a chart for a terminal: braille dots between axes, with a legend below.
//!
//! Each series has its own colour and mark, so the plot is readable without colour. The plot contains no labels: knees
//! and limits are named in the legend.

use super::{
    Chart, Mark, Series, Stroke,
    canvas::{Canvas, Ink},
    frame::{Frame, Grid, Place, Side, cell},
};
use crate::{
    Terminal,
    terminal::{clean, fit, marker, width},
};

/// The rows of a plot: about a fifth of its width, within these limits.
const ROWS_MIN: usize = 8;
const ROWS_MAX: usize = 22;
/// The space per tick on each axis.
const ROWS_PER_TICK: usize = 3;
const COLUMNS_PER_TICK: usize = 9;
/// Columns between two marks of one curve.
const MARK_EVERY: usize = 10;
/// The mark of a labelled point.
const KNEE: char = '◎';

impl Chart {
    /// Renders the chart as text for `terminal`.
    pub fn to_text(&self, terminal: Terminal) -> String {
        let columns = terminal.width();
        let rows = (columns / 5).clamp(ROWS_MIN, ROWS_MAX);
        let mut lines = Vec::new();
        if !self.title.is_empty() {
            lines.push(terminal.bold(&fit(&clean(&self.title), columns)));
        }
        // The labels of the y axis determine the width of the plot.
        let grid = |columns: usize| Grid {
            columns: columns * 2,
            rows: rows * 4,
            x_ticks: (columns / COLUMNS_PER_TICK).max(2),
            y_ticks: rows / ROWS_PER_TICK + 1,
        };
        let Some(frame) = Frame::new(self, grid(columns)) else {
            lines.push("no data".to_owned());
            return lines.join("\n") + "\n";
        };
        let margin = margin(&frame.y).min(columns / 2);
        let plot_columns = columns - margin - 1;
        let frame = Frame::new(self, grid(plot_columns)).unwrap_or(frame);
        if !self.y.label.is_empty() {
            lines.push(terminal.dim(&fit(&clean(&self.y.label), columns)));
        }
        lines.extend(plot(&frame, terminal, margin, plot_columns, rows));
        lines.extend(bottom(&frame.x, terminal, margin, plot_columns));
        lines.extend(legend(&frame, terminal, columns));
        lines.extend(frame.note().map(|note| terminal.dim(&fit(&note, columns))));
        let trimmed: Vec<_> = lines.iter().map(|line| line.trim_end()).collect();
        trimmed.join("\n") + "\n"
    }
}

/// The width of the y axis labels.
fn margin(side: &Side) -> usize {
    side.ticks.iter().map(|tick| width(&tick.label)).max().unwrap_or(0) + 1
}

/// The plot with its y axis.
fn plot(frame: &Frame, terminal: Terminal, margin: usize, columns: usize, rows: usize) -> Vec<String> {
    let mut canvas = Canvas::new(columns, rows);
    draw(&mut canvas, frame, columns);
    let row_of = |place: f64| cell(1.0 - place, rows);
    let side = |row: usize| {
        let tick = frame.y.ticks.iter().find(|tick| row_of(tick.place) == row);
        let label = tick.map_or("", |tick| &tick.label);
        let axis = if tick.is_some() { "┤" } else { "│" };
        let pad = " ".repeat((margin - 1).saturating_sub(width(label)));
        terminal.dim(&format!("{pad}{} {axis}", fit(label, margin - 1)))
    };
    let lines = canvas.lines(terminal).into_iter().enumerate();
    lines.map(|(row, line)| side(row) + &line).collect()
}

/// Draws curves first, then their marks, then knees, which curves must not hide, then limits.
fn draw(canvas: &mut Canvas, frame: &Frame, columns: usize) {
    for (index, trace) in frame.traces.iter().enumerate() {
        let dashed = frame.chart.series[index].stroke == Stroke::Dashed;
        for run in &trace.runs {
            for &place in run {
                canvas.dot(place, Ink::Series(index));
            }
            for pair in run.windows(2).filter(|_| trace.joined) {
                stroke(canvas, pair[0], pair[1], dashed, index, columns);
            }
        }
    }
    for (index, trace) in frame.traces.iter().enumerate() {
        for place in sparse(&trace.runs, columns) {
            canvas.over(place, marker(index), Ink::Series(index));
        }
    }
    for (index, series) in frame.chart.series.iter().enumerate() {
        let places = series.marks.iter().filter_map(|mark| frame.place(mark.x, mark.y));
        for place in places {
            canvas.over(place, KNEE, Ink::Series(index));
        }
    }
    for y in frame.chart.limits.iter().filter_map(|limit| frame.y.place(limit.y)) {
        canvas.limit(y);
    }
}

/// Draws a line between two places, solid or dashed.
fn stroke(canvas: &mut Canvas, a: Place, b: Place, dashed: bool, index: usize, columns: usize) {
    if !dashed {
        canvas.line(a, b, Ink::Series(index));
        return;
    }
    // One dash and one gap per two characters.
    let steps = ((b.0 - a.0).abs().max((b.1 - a.1).abs()) * columns as f64)
        .ceil()
        .max(1.0);
    let at = |step: f64| {
        let along = (step / steps).min(1.0);
        (a.0 + (b.0 - a.0) * along, a.1 + (b.1 - a.1) * along)
    };
    let mut step = 0.0;
    while step < steps {
        canvas.line(at(step), at(step + 0.6), Ink::Series(index));
        step += 2.0;
    }
}

/// The places that get a mark: all if they are few, else some at a minimum distance.
fn sparse(runs: &[Vec<Place>], columns: usize) -> impl Iterator<Item = Place> {
    let gap = MARK_EVERY as f64 / columns.max(1) as f64;
    let total: usize = runs.iter().map(Vec::len).sum();
    let few = total * 3 <= columns;
    let mut next = f64::NEG_INFINITY;
    runs.iter().flatten().copied().filter(move |place| {
        let take = few || place.0 >= next;
        if take {
            next = place.0 + gap;
        }
        take
    })
}

/// The x axis: its line, its tick labels, its name.
fn bottom(side: &Side, terminal: Terminal, margin: usize, columns: usize) -> Vec<String> {
    let mut axis = vec!['─'; columns];
    let mut labels = vec![' '; margin + 1 + columns];
    let mut free = 0;
    for tick in &side.ticks {
        let at = cell(tick.place, columns);
        let label: Vec<char> = tick.label.chars().collect();
        let start = (margin + 1 + at).saturating_sub(label.len() / 2);
        let start = start.min(labels.len().saturating_sub(label.len()));
        // A label that would overlap the previous one is left out; its tick stays.
        if start >= free && start + label.len() <= labels.len() {
            labels[start..start + label.len()].copy_from_slice(&label);
            free = start + label.len() + 2;
        }
        axis[at] = '┬';
    }
    let text = |chars: Vec<char>| chars.into_iter().collect::<String>();
    let mut lines = vec![
        terminal.dim(&format!("{}└{}", " ".repeat(margin), text(axis))),
        terminal.dim(text(labels).trim_end()),
    ];
    if !side.axis.label.is_empty() {
        let label = fit(&clean(&side.axis.label), columns);
        let pad = margin + 1 + (columns.saturating_sub(width(&label))) / 2;
        lines.push(terminal.dim(&format!("{}{label}", " ".repeat(pad))));
    }
    lines
}

/// The names of the curves, then knees and limits, one per line.
fn legend(frame: &Frame, terminal: Terminal, columns: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let (mut line, mut used) = (String::new(), 0);
    for (index, series) in frame.chart.series.iter().enumerate() {
        let name = name(series, frame.traces[index].runs.is_empty());
        let entry = fit(&format!("{} {name}", marker(index)), columns.saturating_sub(2));
        if used > 0 && used + 3 + width(&entry) > columns {
            lines.push(std::mem::take(&mut line));
            used = 0;
        }
        line += if used > 0 { "   " } else { "  " };
        used += width(&entry) + 3;
        line += &terminal.series(index, &entry);
    }
    if frame.chart.series.iter().any(|series| !series.name.is_empty()) {
        lines.push(line);
    }
    let units = (&frame.x.axis.unit, &frame.y.axis.unit);
    for (index, series) in frame.chart.series.iter().enumerate() {
        for Mark { x, y, label } in &series.marks {
            let of = if series.name.is_empty() {
                String::new()
            } else {
                format!("{}: ", series.name)
            };
            let at = format!("{}, {}", units.0.show(*x), units.1.show(*y));
            let entry = clean(&format!("{KNEE} {of}{label} ({at})"));
            lines.push(format!("  {}", terminal.series(index, &fit(&entry, columns - 2))));
        }
    }
    for limit in &frame.chart.limits {
        let entry = clean(&format!("╌ {} ({})", limit.label, units.1.show(limit.y)));
        lines.push(format!("  {}", terminal.dim(&fit(&entry, columns - 2))));
    }
    lines
}

fn name(series: &Series, empty: bool) -> String {
    let name = clean(&series.name);
    match (series.stroke, empty) {
        (_, true) => format!("{name} (no data)"),
        (Stroke::Dashed, _) => format!("{name} (dashed)"),
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Axis, Unit,
        chart::tests::{any_chart, sample},
    };
    use proptest::prelude::*;

    #[test]
    fn a_chart_at_eighty_columns() {
        insta::assert_snapshot!(sample().to_text(Terminal::plain(80)));
    }

    #[test]
    fn a_chart_at_a_hundred_and_twenty_columns() {
        insta::assert_snapshot!(sample().to_text(Terminal::plain(120)));
    }

    #[test]
    fn a_single_point_is_drawn_and_an_empty_chart_says_no_data() {
        let axis = || Axis::linear("", Unit::Count);
        let one = Chart::new("one", axis(), axis()).with(Series::new("p", [(3.0, 4.0)]));
        assert!(one.to_text(Terminal::plain(80)).contains('●'));
        let none = Chart::new("none", axis(), axis()).with(Series::new("p", [(f64::NAN, 4.0)]));
        assert_eq!(none.to_text(Terminal::plain(80)), "none\nno data\n");
    }

    #[test]
    fn values_without_a_logarithm_are_left_out_and_counted() {
        let chart = Chart::new("", Axis::log2("", Unit::Count), Axis::log10("", Unit::Count))
            .with(Series::new("s", [(1.0, 1.0), (2.0, -5.0), (4.0, 0.0), (8.0, 100.0)]));
        let text = chart.to_text(Terminal::plain(80));
        assert!(
            text.contains("2 points not shown: not finite, or not above zero"),
            "{text}"
        );
    }

    #[test]
    fn colour_is_used_only_where_it_is_allowed() {
        assert!(!sample().to_text(Terminal::plain(80)).contains('\x1b'));
        let colour = Terminal {
            columns: 80,
            colour: true,
        };
        assert!(sample().to_text(colour).contains('\x1b'));
    }

    proptest! {
        #[test]
        fn any_chart_fits_any_terminal(chart in any_chart(), columns in 0usize..200) {
            let terminal = Terminal::plain(columns);
            let text = chart.to_text(terminal);
            for line in text.lines() {
                prop_assert!(width(line) <= terminal.width(), "{line}");
            }
            prop_assert!(!text.chars().any(|c| c.is_control() && c != '\n'));
        }
    }
}
