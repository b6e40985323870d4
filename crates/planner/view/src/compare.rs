//! The page that compares predictions with measurements.

use straightway_planner::measured::{Comparison, ComparisonUnit, MISS};
use straightway_report::{self as report, Cell, Column, Page, Table, Tone};

use crate::basis::with_basis;

/// The meaning of the columns. The assumed figures are those of another machine and must not look like a promise.
const COLUMNS_NOTE: &str = "As assumed: the default node of the cluster planner, with the media, network and cores of \
                            a training cluster. Calibrated: the same with this machine's measured drive and copies, \
                            never with the measurement in the same row. Only the calibrated prediction must agree \
                            with the measurement. Spread: the interquartile range of the measurements over their \
                            median.";

/// The page of comparisons; `in_full` adds every formula and constant.
pub fn page(comparisons: &[Comparison], in_full: bool) -> Page {
    let page = fill(comparisons);
    match comparisons.first() {
        Some(first) => with_basis(page, &first.basis, in_full),
        None => page,
    }
}

/// The number of calibrated predictions that miss the measurement by more than the tolerance.
fn missed(comparisons: &[Comparison]) -> usize {
    let rows = comparisons.iter().flat_map(|c| &c.rows);
    rows.filter(|row| row.misses()).count()
}

fn fill(comparisons: &[Comparison]) -> Page {
    let missed = missed(comparisons);
    let total: usize = comparisons.iter().map(|comparison| comparison.rows.len()).sum();
    let bound = MISS * 100.0;
    let (tone, text) = match (total, missed) {
        (0, _) => (Tone::Neutral, "No measured figure has a prediction.".to_owned()),
        (_, 0) => (Tone::Good, format!("All {total} predictions are within {bound:.0} %.")),
        _ => (
            Tone::Caution,
            format!("{missed} of {total} predictions miss by more than {bound:.0} %."),
        ),
    };
    let mut page = Page::new("Predictions and measurements").verdict(tone, text);
    for comparison in comparisons {
        let missing = comparison.missing.join(", ");
        let note = format!("Not measured (assumed instead, or left out): {missing}.");
        let note = if missing.is_empty() { String::new() } else { note };
        let missed = comparison.rows.iter().filter(|row| row.misses());
        let why = missed.filter_map(|row| Some(format!("{}: {}.", row.what, row.why?)));
        let why = why.collect::<Vec<_>>().join("\n");
        let noisy = comparison.rows.iter().filter(|row| row.is_noisy());
        let noisy = noisy.map(|row| {
            format!(
                "{}: the spread of the measurements exceeds {bound:.0} %; this row proves little.",
                row.what
            )
        });
        let noisy = noisy.collect::<Vec<_>>().join("\n");
        let from = comparison.rows.iter();
        let from = from.map(|row| format!("{}: {}.", row.what, row.calibrated_from));
        let from = format!(
            "Inputs of each calibrated prediction:\n{}",
            from.collect::<Vec<_>>().join("\n")
        );
        let from = if comparison.rows.is_empty() {
            String::new()
        } else {
            from
        };
        let blocks = [
            rows(comparison).into(),
            why.into(),
            noisy.into(),
            from.into(),
            note.into(),
        ];
        page = page.section(&*comparison.machine, blocks);
    }
    if total > 0 {
        page = page.section("", [COLUMNS_NOTE.to_owned().into()]);
    }
    page
}

fn rows(comparison: &Comparison) -> Table {
    let columns = [
        Column::text("what"),
        Column::mixed("as assumed"),
        Column::mixed("calibrated"),
        Column::mixed("measured"),
        Column::new("spread", report::Unit::Share),
        Column::new("calibrated / measured", report::Unit::Count),
        Column::text("follows"),
    ];
    let mut table = Table::new("", columns);
    for row in &comparison.rows {
        let cell = |value: f64| Cell::number(value, unit(row.unit));
        table.push([
            row.what.into(),
            cell(row.assumed),
            cell(row.calibrated),
            cell(row.measured),
            row.spread.map_or(Cell::Missing, Cell::share),
            Cell::count(row.ratio),
            match (row.misses(), row.why, row.is_noisy()) {
                (false, _, false) => "yes".into(),
                (false, _, true) => "yes, noisy".into(),
                (true, None, false) => "NO".into(),
                (true, None, true) => "NO, noisy".into(),
                (true, Some(_), _) => "see below".into(),
            },
        ]);
    }
    table
}

fn unit(unit: ComparisonUnit) -> report::Unit {
    match unit {
        ComparisonUnit::BytesPerSecond => report::Unit::Rate,
        ComparisonUnit::SecondsPerGb => report::Unit::named("s/GB"),
        ComparisonUnit::Seconds => report::Unit::Seconds,
    }
}
