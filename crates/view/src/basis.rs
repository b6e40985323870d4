//! What an answer rests on: published figures judged, formulas, constants.

use straightway_core::text::shown;
use straightway_report::{Assumption, Block, Cell, Column, Confidence, Page, Table, Unit};
use straightway_scenario::provenance::{self, Basis, Correction, Origin, Source};

/// Adds what an answer rests on to its page: published figures and, in full, every formula and constant.
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
            format!("{formulas} and {constants}; --basis shows them with their sources"),
        );
    }
    page = page.section("Formulas", [formulas(basis).into()]);
    for assumption in &basis.assumptions {
        page = page.assume(Assumption {
            what: assumption.what.clone(),
            value: cell(assumption.value, assumption.unit),
            formula: band(assumption),
            source: format!(
                "{}: {}",
                origin(assumption.origin),
                source(assumption.source)
            ),
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
    let why = corrections
        .iter()
        .filter(|correction| !correction.why.is_empty());
    let why: Vec<String> = why
        .map(|correction| {
            let claim = correction
                .claim
                .split(" (")
                .next()
                .unwrap_or(&correction.claim);
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

/// Base units are shown as people read them.
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

/// How far published values differ, or may be assumed to.
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

/// Who chose the value.
fn origin(origin: Origin) -> &'static str {
    match origin {
        Origin::Default => "default",
        Origin::Scenario => "scenario",
        Origin::User => "user",
        Origin::Derived => "derived",
    }
}

fn source(source: Source) -> String {
    if source.place.is_empty() {
        source.name.to_owned()
    } else {
        format!("{}, {}", source.name, source.place)
    }
}

fn confidence(source: Source) -> Confidence {
    match source.confidence {
        provenance::Confidence::Measured => Confidence::Measured,
        provenance::Confidence::Read => Confidence::Read,
        provenance::Confidence::Computed => Confidence::Computed,
        provenance::Confidence::Quoted => Confidence::Quoted,
        provenance::Confidence::Given => Confidence::Given,
        provenance::Confidence::Assumed => Confidence::Guessed,
        provenance::Confidence::Fitted => Confidence::Fitted,
    }
}
