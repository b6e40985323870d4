//! A chart prepared for a canvas: scaled to 0…1, with ticks, and thinned to the canvas's resolution.
//!
//! A series may have a million points, far more than a canvas has columns. Of every column the first, lowest, highest
//! and last point are kept. A line through those covers the same dots as a line through all points, so a spike of one
//! sample is not lost, unlike with decimation or averaging. If the points do not run from left to right, every touched
//! dot is kept instead, and no line is drawn.
//!
//! Points that cannot be shown (not finite, or not positive on a logarithmic axis) become gaps and are counted; the
//! renderers print a note below the plot.

use super::{Axis, Chart, Series, Stroke};
use crate::{
    Unit, ValueRange,
    terminal::{clean, fit},
};

/// The most characters of a note about hidden curves, which is one line.
const NOTE_CHARACTERS: usize = 100;

/// A chart, ready to be drawn on a canvas.
pub(super) struct Frame<'a> {
    pub(super) chart: &'a Chart,
    pub(super) x: Side<'a>,
    pub(super) y: Side<'a>,
    /// One for each series.
    pub(super) traces: Vec<Trace>,
    points: usize,
    left_out: usize,
    thinned: bool,
}

/// The resolution of a canvas, in dots or pixels.
#[derive(Clone, Copy)]
pub(super) struct Grid {
    pub(super) columns: usize,
    pub(super) rows: usize,
    /// The most ticks on the x axis.
    pub(super) x_ticks: usize,
    /// The most ticks on the y axis.
    pub(super) y_ticks: usize,
}

/// An axis with its range and ticks.
pub(super) struct Side<'a> {
    pub(super) axis: &'a Axis,
    range: ValueRange,
    pub(super) ticks: Vec<Tick>,
}

/// A tick's place between 0 and 1, and its label.
pub(super) struct Tick {
    pub(super) place: f64,
    pub(super) label: String,
}

/// A point between (0, 0) at the bottom left and (1, 1) at the top right.
pub(super) type Place = (f64, f64);

/// The drawn points of one series.
#[derive(Default)]
pub(super) struct Trace {
    /// The runs of points between gaps.
    pub(super) runs: Vec<Vec<Place>>,
    /// Whether the points are joined by lines.
    pub(super) joined: bool,
    thinned: bool,
}

impl Trace {
    /// The last point of the curve.
    pub(super) fn end(&self) -> Option<Place> {
        self.runs.last()?.last().copied()
    }

    /// The number of drawn points.
    pub(super) fn len(&self) -> usize {
        self.runs.iter().map(Vec::len).sum()
    }
}

impl<'a> Frame<'a> {
    /// Prepares `chart` for a canvas; `None` if there is no data.
    pub(super) fn new(chart: &'a Chart, grid: Grid) -> Option<Self> {
        let shown = |&(x, y): &(f64, f64)| chart.x.scale.admits(x) && chart.y.scale.admits(y);
        let points = || chart.series.iter().flat_map(|s| s.points.iter().copied()).filter(shown);
        points().next()?;
        let marks = || {
            chart
                .series
                .iter()
                .flat_map(|s| &s.marks)
                .map(|m| (m.x, m.y))
                .filter(shown)
        };
        let zero = (chart.y.scale == crate::Scale::Linear && !chart.y.fitted).then_some(0.0);
        let x_range = chart.x.scale.range(points().chain(marks()).map(|p| p.0))?;
        let limits = chart.limits.iter().map(|limit| limit.y);
        let y_values = points().chain(marks()).map(|p| p.1).chain(limits).chain(zero);
        let y_range = chart.y.scale.range(y_values)?;
        let y_range = chart
            .y
            .scale
            .widen(&chart.y.unit, y_range, grid.y_ticks.saturating_sub(1));
        let x = Side::new(&chart.x, x_range, grid.x_ticks);
        let y = Side::new(&chart.y, y_range, grid.y_ticks);
        let traces: Vec<_> = chart.series.iter().map(|s| trace(s, &x, &y, grid)).collect();
        let total: usize = chart.series.iter().map(|s| s.points.len()).sum();
        Some(Self {
            chart,
            thinned: traces.iter().any(|trace| trace.thinned),
            left_out: total - points().count(),
            points: total,
            x,
            y,
            traces,
        })
    }

    /// The position of a point; `None` if the axes cannot show it.
    pub(super) fn place(&self, x: f64, y: f64) -> Option<Place> {
        Some((self.x.place(x)?, self.y.place(y)?))
    }

    /// A note for the reader about thinned or omitted points, if any.
    pub(super) fn note(&self) -> Option<String> {
        let count = |n: usize| Unit::Count.show(n as f64);
        let thinned = self.thinned.then(|| {
            format!(
                "{} points; every column shows its lowest and highest",
                count(self.points)
            )
        });
        let left_out = (self.left_out > 0).then(|| {
            let log = [&self.x, &self.y].iter().any(|s| s.axis.scale != crate::Scale::Linear);
            let why = if log {
                "not finite, or not above zero"
            } else {
                "not finite"
            };
            let noun = if self.left_out == 1 { "point" } else { "points" };
            format!("{} {noun} not shown: {why}", count(self.left_out))
        });
        let notes: Vec<_> = self.hidden().into_iter().chain(thinned).chain(left_out).collect();
        (!notes.is_empty()).then(|| notes.join("; "))
    }
}

impl Frame<'_> {
    /// A note about curves that a later one covers everywhere.
    fn hidden(&self) -> Option<String> {
        let is_covered = |index: usize| {
            let trace = &self.traces[index];
            self.traces[index + 1..].iter().any(|later| trace.covers(later))
        };
        let names = self.chart.series.iter().map(|series| clean(&series.name)).enumerate();
        let hidden = names.filter(|(index, name)| !name.is_empty() && is_covered(*index));
        let hidden: Vec<String> = hidden.map(|(_, name)| name).collect();
        (!hidden.is_empty()).then(|| fit(&format!("under other lines: {}", hidden.join(", ")), NOTE_CHARACTERS))
    }
}

impl Trace {
    /// Whether two curves have the same places, so that only the one drawn later is visible.
    fn covers(&self, other: &Self) -> bool {
        /// Half of a line's width, as a part of the plot.
        const NEAR: f64 = 0.003;
        let (ours, theirs) = (self.runs.iter().flatten(), other.runs.iter().flatten());
        let near = |((ax, ay), (bx, by)): (&Place, &Place)| (ax - bx).abs() < NEAR && (ay - by).abs() < NEAR;
        self.len() > 1 && self.len() == other.len() && ours.zip(theirs).all(near)
    }
}

impl<'a> Side<'a> {
    fn new(axis: &'a Axis, range: ValueRange, count: usize) -> Self {
        let ticks = axis.scale.ticks(&axis.unit, range, count);
        let labels = axis.unit.labels(&ticks);
        let places = ticks.iter().map(|&tick| axis.scale.place(range, tick));
        let ticks = places.zip(labels).map(|(place, label)| Tick { place, label }).collect();
        Self { axis, range, ticks }
    }

    /// The position of `value` between 0 and 1; `None` if the axis cannot show it.
    pub(super) fn place(&self, value: f64) -> Option<f64> {
        let scale = self.axis.scale;
        scale
            .admits(value)
            .then(|| scale.place(self.range, value).clamp(0.0, 1.0))
    }
}

/// Scales a series and thins it to the grid.
fn trace(series: &Series, x: &Side, y: &Side, grid: Grid) -> Trace {
    let places = || series.points.iter().map(|p| Some((x.place(p.0)?, y.place(p.1)?)));
    // Thinning keeps up to four points per column, so below that it would save nothing.
    let dense = series.points.len() > 4 * grid.columns;
    let joined = series.stroke != Stroke::Dots;
    if !dense {
        return Trace {
            runs: runs(places()),
            joined,
            thinned: false,
        };
    }
    let forward = places().flatten().is_sorted_by(|a, b| a.0 <= b.0);
    if joined && forward {
        return Trace {
            runs: extremes(places(), grid.columns),
            joined,
            thinned: true,
        };
    }
    Trace {
        runs: vec![touched(places().flatten(), grid)],
        joined: false,
        thinned: true,
    }
}

/// The runs of points between gaps.
fn runs(places: impl Iterator<Item = Option<Place>>) -> Vec<Vec<Place>> {
    let mut runs = vec![Vec::new()];
    for place in places {
        match place {
            Some(place) => runs.last_mut().expect("starts with one").push(place),
            None => runs.push(Vec::new()),
        }
    }
    runs.retain(|run| !run.is_empty());
    runs
}

/// The first, lowest, highest and last place of every column, in order.
fn extremes(places: impl Iterator<Item = Option<Place>>, columns: usize) -> Vec<Vec<Place>> {
    let mut runs = vec![Vec::new()];
    // The current column, and its first, lowest, highest and last places with their indices.
    let mut column: Option<(usize, [(usize, Place); 4])> = None;
    let mut gap = false;
    let flush = |runs: &mut Vec<Vec<Place>>, kept: [(usize, Place); 4]| {
        let mut kept = kept;
        kept.sort_by_key(|(index, _)| *index);
        let run = runs.last_mut().expect("starts with one");
        for (i, (index, place)) in kept.into_iter().enumerate() {
            if i == 0 || kept[i - 1].0 != index {
                run.push(place);
            }
        }
    };
    for (index, place) in places.enumerate() {
        let Some(place) = place else {
            gap = true;
            continue;
        };
        let at = cell(place.0, columns);
        match &mut column {
            // A gap within one column is too narrow to be drawn.
            Some((current, [_, low, high, end])) if *current == at => {
                if place.1 < low.1.1 {
                    *low = (index, place);
                }
                if place.1 > high.1.1 {
                    *high = (index, place);
                }
                *end = (index, place);
            }
            _ => {
                if let Some((_, kept)) = column.replace((at, [(index, place); 4])) {
                    flush(&mut runs, kept);
                }
                if gap {
                    runs.push(Vec::new());
                }
            }
        }
        gap = false;
    }
    if let Some((_, kept)) = column {
        flush(&mut runs, kept);
    }
    runs.retain(|run| !run.is_empty());
    runs
}

/// The centre of every grid dot that contains a place.
fn touched(places: impl Iterator<Item = Place>, grid: Grid) -> Vec<Place> {
    let (columns, rows) = (grid.columns.max(1), grid.rows.max(1));
    let mut seen = vec![false; columns * rows];
    for (x, y) in places {
        seen[cell(x, columns) * rows + cell(y, rows)] = true;
    }
    let middle = |index: usize, count: usize| (index as f64 + 0.5) / count as f64;
    let dots = seen.iter().enumerate().filter(|(_, seen)| **seen);
    dots.map(|(i, _)| (middle(i / rows, columns), middle(i % rows, rows)))
        .collect()
}

/// The index of the cell that contains `place`, out of `count`.
pub(super) fn cell(place: f64, count: usize) -> usize {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a place is between 0 and 1, and a canvas is small"
    )]
    let index = (place * count as f64) as usize;
    index.min(count.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GRID: Grid = Grid {
        columns: 50,
        rows: 20,
        x_ticks: 5,
        y_ticks: 5,
    };

    fn chart(points: Vec<(f64, f64)>) -> Chart {
        let axis = || Axis::linear("", Unit::Count).fitted();
        Chart::new("", axis(), axis()).with(Series::new("", points))
    }

    #[test]
    fn one_spike_in_ten_million_points_is_kept() {
        let points = (0..10_000_000).map(|i| (f64::from(i), f64::from(u8::from(i == 7_654_321))));
        let chart = chart(points.collect());
        let frame = Frame::new(&chart, GRID).unwrap();
        let trace = &frame.traces[0];
        assert!(trace.len() <= 4 * GRID.columns, "{}", trace.len());
        assert!(trace.runs[0].iter().any(|p| p.1 > 0.99));
        assert!(frame.note().unwrap().contains("10M points"));
    }

    #[test]
    fn a_curve_under_another_one_is_named() {
        let mut chart = chart(vec![(0.0, 1.0), (1.0, 2.0)]);
        chart.series[0].name = "standard".to_owned();
        let other = |name: &str, y| Series::new(name, [(0.0, 1.0), (1.0, y)]);
        let apart = chart.clone().with(other("direct", 1.5));
        assert_eq!(Frame::new(&apart, GRID).unwrap().note(), None);
        let same = chart.with(other("direct", 2.0));
        assert_eq!(
            Frame::new(&same, GRID).unwrap().note().unwrap(),
            "under other lines: standard"
        );
    }

    #[test]
    fn a_gap_breaks_the_line_and_is_counted() {
        let chart = chart(vec![(0.0, 1.0), (1.0, 2.0), (2.0, f64::NAN), (3.0, 1.0)]);
        let frame = Frame::new(&chart, GRID).unwrap();
        assert_eq!(frame.traces[0].runs.len(), 2);
        assert_eq!(frame.note().unwrap(), "1 point not shown: not finite");
    }

    #[test]
    fn a_linear_y_axis_starts_at_zero_unless_it_is_fitted() {
        let mut chart = chart(vec![(0.0, 900.0), (1.0, 1000.0)]);
        assert!(Frame::new(&chart, GRID).unwrap().y.range.lo() >= 850.0);
        chart.y.fitted = false;
        assert!(Frame::new(&chart, GRID).unwrap().y.range.lo().abs() < f64::EPSILON);
    }

    proptest! {
        #[test]
        fn thinning_keeps_the_extremes_of_every_column(
            ys in prop::collection::vec(-1e3f64..1e3, 201..2000), rising in any::<bool>(),
        ) {
            let count = ys.len() as f64;
            let x = |i: usize| if rising { i as f64 } else { (i as f64 * 0.618).fract() * count };
            let chart = chart(ys.iter().enumerate().map(|(i, &y)| (x(i), y)).collect());
            let frame = Frame::new(&chart, GRID).unwrap();
            let places = |keep: &dyn Fn(f64, f64) -> f64, at: usize, of: &[Place]| {
                of.iter().filter(|p| cell(p.0, GRID.columns) == at).map(|p| p.1).reduce(keep)
            };
            let all: Vec<_> =
                chart.series[0].points.iter().map(|p| frame.place(p.0, p.1).unwrap()).collect();
            let drawn: Vec<_> = frame.traces[0].runs.concat();
            for column in 0..GRID.columns {
                for keep in [f64::min as fn(f64, f64) -> f64, f64::max] {
                    let (want, have) = (places(&keep, column, &all), places(&keep, column, &drawn));
                    prop_assert_eq!(want.is_some(), have.is_some());
                    let error = (want.unwrap_or(0.0) - have.unwrap_or(0.0)).abs();
                    prop_assert!(error <= 1.0 / GRID.rows as f64, "{error}");
                }
            }
        }

        #[test]
        fn every_place_is_inside_the_frame(
            points in prop::collection::vec(any::<(f64, f64)>(), 0..300), log in any::<bool>(),
        ) {
            let mut chart = chart(points);
            if log {
                chart.x.scale = crate::Scale::Log2;
                chart.y.scale = crate::Scale::Log10;
            }
            if let Some(frame) = Frame::new(&chart, GRID) {
                for place in frame.traces[0].runs.concat() {
                    prop_assert!((0.0..=1.0).contains(&place.0) && (0.0..=1.0).contains(&place.1));
                }
            }
        }
    }
}
