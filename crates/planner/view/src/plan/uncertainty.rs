//! The uncertainty of an answer on its page: ranges, and the constants that change the verdict.

use straightway_planner::uncertainty::{Flip, Uncertainty};
use straightway_report::{Block, Cell, Column, Page, Table, Unit};

use crate::sweep::unit;

/// Adds the ranges of the figures and the constants that change the verdict.
pub(super) fn fill(page: Page, uncertainty: &Uncertainty) -> Page {
    if uncertainty.figures.is_empty() && uncertainty.flips.is_empty() {
        return page;
    }
    let mut blocks: Vec<Block> = Vec::new();
    let verdict = &uncertainty.verdict;
    if !uncertainty.flips.is_empty() {
        let flips: Vec<String> = uncertainty.flips.iter().map(flip).collect();
        let says = format!("The verdict “{verdict}” changes within the ranges of its constants:");
        blocks.push(format!("{says}\n{}", flips.join("\n")).into());
    } else if !verdict.is_empty() {
        let count = uncertainty.banded;
        let ranges = match count {
            1 => "the range of its one uncertain constant".to_owned(),
            _ => format!("the range of each of its {count} uncertain constants"),
        };
        let says = format!("The verdict “{verdict}” holds at both ends of {ranges}.");
        blocks.push(says.into());
    }
    if !uncertainty.figures.is_empty() {
        blocks.push(figures(uncertainty).into());
    }
    page.section("Uncertainty", blocks)
}

fn flip(flip: &Flip) -> String {
    let at = Cell::number(flip.at, Unit::of(flip.unit)).show();
    format!("• {} at {at} ({}): {}", flip.what, flip.path, flip.verdict)
}

fn figures(uncertainty: &Uncertainty) -> Table {
    let columns = [
        Column::text("figure"),
        Column::mixed("low"),
        Column::mixed("value"),
        Column::mixed("high"),
        Column::text("main cause"),
    ];
    let mut table = Table::new("", columns);
    for spread in &uncertainty.figures {
        let cell = |value: f64| Cell::number(value, unit(&spread.figure));
        table.push([
            spread.label.as_str().into(),
            cell(spread.low),
            cell(spread.value),
            cell(spread.high),
            spread.mostly.as_str().into(),
        ]);
    }
    table
}
