//! `straightway plan compare`: prediction beside measurement.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Context;
use straightway_model::{
    check,
    measured::{Comparison, MISS, Measured, Row, Unit},
    path::Node,
};
use straightway_report::{self as report, Cell, Column, Page, Table, Tone};

use super::{page, source};
use crate::command::output::Output;

/// Set the models' predictions beside what was measured on a machine
///
/// The prediction is made twice: with the constants the planner assumes, and with the machine's own
/// simple measurements (drive, memory copy, copy to the GPU) in their place. Exits with 1 where a
/// calibrated prediction misses the measurement by more than a quarter.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// What was measured, as TOML
    #[arg(long, value_name = "FILE")]
    measured: PathBuf,

    /// Show every formula and constant with its source
    #[arg(long)]
    basis: bool,

    #[command(flatten)]
    output: Output,
}

/// Compares.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let name = args.measured.display();
    let text = source::bounded(&args.measured)?;
    let measured: Measured = check::read(&text).with_context(|| format!("measurements {name}"))?;
    let comparison = measured.compare(&Node::default());
    let missed = comparison.rows.iter().filter(|row| misses(row)).count();
    let page = fill(&comparison, missed);
    let page = page::with_basis(page, &comparison.basis, args.basis || args.output.is_html());
    args.output
        .write(&page, &serde_json::to_value(&comparison)?)?;
    Ok(if missed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn misses(row: &Row) -> bool {
    (row.ratio - 1.0).abs() > MISS
}

fn fill(comparison: &Comparison, missed: usize) -> Page {
    let total = comparison.rows.len();
    let (tone, text) = match (total, missed) {
        (0, _) => (
            Tone::Neutral,
            "Nothing was measured that a model predicts.".to_owned(),
        ),
        (_, 0) => (
            Tone::Good,
            format!("All {total} predictions are within {:.0} %.", MISS * 100.0),
        ),
        _ => (
            Tone::Caution,
            format!(
                "{missed} of {total} predictions miss by more than {:.0} %.",
                MISS * 100.0
            ),
        ),
    };
    let columns = [
        Column::text("what"),
        Column::mixed("as assumed"),
        Column::mixed("calibrated"),
        Column::mixed("measured"),
        Column::new("predicted / measured", report::Unit::Count),
    ];
    let mut table = Table::new("", columns);
    for row in &comparison.rows {
        let cell = |value: f64| Cell::number(value, unit(row.unit));
        table.push([
            row.what.into(),
            cell(row.assumed),
            cell(row.calibrated),
            cell(row.measured),
            Cell::count(row.ratio),
        ]);
    }
    let mut page = Page::new(format!(
        "Prediction and measurement: {}",
        comparison.machine
    ))
    .verdict(tone, text)
    .section("", [table.into()]);
    if !comparison.missing.is_empty() {
        let missing = comparison.missing.join(", ");
        page = page.section(
            "",
            [format!("Not measured, and assumed instead or left out: {missing}.").into()],
        );
    }
    page
}

fn unit(unit: Unit) -> report::Unit {
    match unit {
        Unit::BytesPerSecond => report::Unit::Rate,
        Unit::SecondsPerGb => report::Unit::named("s/GB"),
        Unit::Seconds => report::Unit::Seconds,
    }
}
