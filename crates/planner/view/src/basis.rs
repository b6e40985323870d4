//! The basis of an answer on its page: published figures, formulas, constants.

use straightway_core::text::shown;
use straightway_report::{Block, Cell, Column, Page, PageAssumption, PageConfidence, Table, Unit};
use straightway_scenario::provenance::{self, Basis, Citation, Correction, ValueOrigin};

/// Adds the basis of an answer to its page: published figures and, if `in_full`, every formula and constant.
pub fn with_basis(mut page: Page, basis: &Basis, in_full: bool) -> Page {
    if !basis.corrections.is_empty() {
        page = page.section("Published figures", published(&basis.corrections));
    }
    if !in_full {
        let count = |number: usize, what: &str| match number {
            1 => format!("1 {what}"),
            _ => format!("{number} {what}s"),
        };
        let formulas = count(basis.formulas.len(), "formula");
        let constants = count(basis.assumptions.len(), "constant");
        return page.fact(
            "rests on",
            format!("{formulas} and {constants}; the full basis lists them with their sources"),
        );
    }
    page = page.section("Formulas", [formulas(basis).into()]);
    for assumption in &basis.assumptions {
        page = page.assume(PageAssumption {
            what: assumption.what.clone(),
            value: cell(assumption.value, assumption.unit),
            formula: band(assumption),
            source: format!("{}: {}", origin(assumption.origin), source(assumption.source)),
            confidence: confidence(assumption.source),
        });
    }
    page
}

fn published(corrections: &[Correction]) -> Vec<Block> {
    let columns = [
        Column::text("claim"),
        Column::mixed("published"),
        Column::mixed("computed"),
        Column::text("follows"),
    ];
    let mut table = Table::new("", columns);
    for correction in corrections {
        table.push([
            Cell::from(correction.claim.as_str()),
            correction.article_says.as_str().into(),
            correction.model_says.as_str().into(),
            match (correction.holds, correction.fitted) {
                (true, true) => "fitted",
                (true, false) => "yes",
                (false, _) => "NO",
            }
            .into(),
        ]);
    }
    let why = corrections.iter().filter(|correction| !correction.why.is_empty());
    let why: Vec<String> = why
        .map(|correction| {
            let claim = correction.claim.split(" (").next().unwrap_or(&correction.claim);
            let sign = if correction.holds { "✓" } else { "✗" };
            let line = format!("{sign} {claim}: {}.", correction.why.trim_end_matches('.'));
            shown(&line).into_owned()
        })
        .collect();
    let mut blocks = vec![table.into()];
    if !why.is_empty() {
        blocks.push(Block::from(why.join("\n")));
    }
    blocks
}

fn formulas(basis: &Basis) -> Table {
    let columns = [
        Column::text("gives"),
        Column::text("formula"),
        Column::text("source"),
        Column::text("confidence"),
    ];
    let mut table = Table::new("", columns);
    for formula in &basis.formulas {
        table.push([
            formula.gives.into(),
            formula.text.into(),
            source(formula.source).into(),
            confidence(formula.source).word().into(),
        ]);
    }
    table
}

/// A cell with a value in a base unit.
fn cell(value: f64, unit: &str) -> Cell {
    let unit = match unit {
        "" | "×" => Unit::Count,
        "s" => Unit::Seconds,
        "B" => Unit::Bytes,
        "B/s" => Unit::Rate,
        other => Unit::named(other),
    };
    Cell::number(value, unit)
}

/// The range of published or assumed values, as text.
fn band(assumption: &provenance::Assumption) -> String {
    let show = |value| cell(value, assumption.unit).show();
    let band = assumption.band;
    band.map_or_else(String::new, |band| {
        let whose = match band.source.confidence {
            provenance::Confidence::Assumed => "assumed",
            _ => "published",
        };
        let (low, high) = (show(band.low), show(band.high));
        format!("{whose}: {low} to {high} ({})", source(band.source))
    })
}

/// The origin of a value, as printed.
fn origin(origin: ValueOrigin) -> &'static str {
    match origin {
        ValueOrigin::Default => "default",
        ValueOrigin::Scenario => "scenario",
        ValueOrigin::User => "user",
        ValueOrigin::Derived => "derived",
    }
}

fn source(source: Citation) -> String {
    if source.place.is_empty() {
        source.name.to_owned()
    } else {
        format!("{}, {}", source.name, source.place)
    }
}

fn confidence(source: Citation) -> PageConfidence {
    match source.confidence {
        provenance::Confidence::Measured => PageConfidence::Measured,
        provenance::Confidence::Read => PageConfidence::Read,
        provenance::Confidence::Computed => PageConfidence::Computed,
        provenance::Confidence::Quoted => PageConfidence::Quoted,
        provenance::Confidence::Given => PageConfidence::Given,
        provenance::Confidence::Assumed => PageConfidence::Guessed,
        provenance::Confidence::Fitted => PageConfidence::Fitted,
    }
}
