//! A sweep as a table, a chart for each unit, and JSON.

use anyhow::bail;
use serde_json::{Value, json};
use straightway_core::{Bytes, Rate, Seconds};
use straightway_model::{
    check::Refusals,
    claim::lookup,
    scenario::Scenario,
    sweep::{Point, Sweep},
};
use straightway_report::{Axis, Block, Cell, Chart, Column, Page, Scale, Series, Table, Unit};

use super::headline::Headline;

/// The page of a sweep.
pub(super) fn page(
    scenario: &Scenario,
    sweeps: &[Sweep],
    points: &[Point],
    headlines: &[Headline],
) -> anyhow::Result<Page> {
    let answers: Vec<Option<Value>> = points
        .iter()
        .map(|point| {
            point
                .answer
                .as_ref()
                .ok()
                .map(straightway_model::scenario::Answer::to_json)
        })
        .collect();
    if let Some(refused) = all_refused(points) {
        return Err(refused.clone().into());
    }
    check_paths(&answers, headlines)?;
    let over: Vec<&str> = sweeps.iter().map(|sweep| sweep.path.as_str()).collect();
    let title = format!("{} over {}", scenario.topic().name(), over.join(" and "));
    let mut blocks: Vec<Block> = charts(sweeps, points, &answers, headlines);
    blocks.insert(0, table(sweeps, points, &answers, headlines).into());
    let mut page = Page::new(title).section("", blocks);
    let refused = refusals(points);
    if !refused.is_empty() {
        page = page.section("Refused", [Block::from(refused.join("\n\n"))]);
    }
    Ok(page)
}

/// The points as JSON: what was set, and the answer or the refusals.
pub(super) fn json(points: &[Point]) -> Value {
    let point = |point: &Point| {
        let set: serde_json::Map<String, Value> = point
            .settings
            .iter()
            .map(|setting| (setting.path.clone(), json!(setting.value)))
            .collect();
        match &point.answer {
            Ok(answer) => json!({ "set": set, "answer": answer }),
            Err(refused) => json!({ "set": set, "refused": refused }),
        }
    };
    points.iter().map(point).collect()
}

/// A figure that no answer has is a mistake in its path, not a missing value.
fn check_paths(answers: &[Option<Value>], headlines: &[Headline]) -> anyhow::Result<()> {
    let Some(answer) = answers.iter().flatten().next() else {
        return Ok(());
    };
    for headline in headlines {
        if lookup(answer, &headline.path).is_none() {
            let known = answer
                .as_object()
                .map(|fields| fields.keys().cloned().collect::<Vec<_>>());
            let known = known.unwrap_or_default().join(", ");
            bail!(
                "--show {}: the answer has no such figure; it has {known}",
                headline.path
            );
        }
    }
    Ok(())
}

/// The first refusal, where no point has an answer.
fn all_refused(points: &[Point]) -> Option<&Refusals> {
    let answered = points.iter().any(|point| point.answer.is_ok());
    points.first().filter(|_| !answered)?.answer.as_ref().err()
}

fn refusals(points: &[Point]) -> Vec<String> {
    let at = |point: &Point| {
        let set = point
            .settings
            .iter()
            .map(|s| format!("{}={}", s.path, s.value));
        set.collect::<Vec<_>>().join(", ")
    };
    let refused = points
        .iter()
        .filter_map(|point| Some((at(point), point.answer.as_ref().err()?)));
    refused.map(|(at, why)| format!("{at}: {why}")).collect()
}

fn table(
    sweeps: &[Sweep],
    points: &[Point],
    answers: &[Option<Value>],
    headlines: &[Headline],
) -> Table {
    let swept = sweeps.iter().map(column);
    let shown = headlines
        .iter()
        .map(|h| Column::new(&*h.label, h.unit.clone()));
    let mut table = Table::new("", swept.chain(shown));
    for (point, answer) in points.iter().zip(answers) {
        let swept = point
            .settings
            .iter()
            .map(|setting| quantity(&setting.value));
        let shown = headlines.iter().map(|headline| {
            let value = answer
                .as_ref()
                .and_then(|answer| lookup(answer, &headline.path)?.as_f64());
            value.map_or(Cell::Missing, |value| {
                Cell::number(value, headline.unit.clone())
            })
        });
        table.push(swept.chain(shown));
    }
    table
}

/// A column of swept values: of one unit where they all have the same.
fn column(sweep: &Sweep) -> Column {
    let mut units = sweep
        .values
        .iter()
        .map(|value| quantity(value).unit().cloned());
    let first = units.next().flatten();
    match first.filter(|unit| units.all(|other| other.as_ref() == Some(unit))) {
        Some(unit) => Column::new(&*sweep.path, unit),
        None => Column::mixed(&*sweep.path),
    }
}

/// A swept value as a number with its unit, or as the word it is.
fn quantity(text: &str) -> Cell {
    if let Ok(number) = text.parse::<f64>() {
        Cell::count(number)
    } else if let Ok(rate) = text.parse::<Rate>() {
        rate.into()
    } else if let Ok(seconds) = text.parse::<Seconds>() {
        seconds.into()
    } else if let Ok(bytes) = text.parse::<Bytes>() {
        bytes.into()
    } else {
        text.into()
    }
}

/// One chart for each unit, over the first sweep; a second sweep makes more lines.
fn charts(
    sweeps: &[Sweep],
    points: &[Point],
    answers: &[Option<Value>],
    headlines: &[Headline],
) -> Vec<Block> {
    let Some(x) = axis(&sweeps[0]) else {
        return Vec::new();
    };
    let mut units: Vec<&Unit> = Vec::new();
    for headline in headlines {
        if !units.contains(&&headline.unit) {
            units.push(&headline.unit);
        }
    }
    let chart = |unit: &Unit| {
        let mut chart = Chart::new("", x.clone(), Axis::linear("", unit.clone()));
        for headline in headlines.iter().filter(|headline| headline.unit == *unit) {
            for (name, line) in lines(points, answers, headline) {
                chart = chart.with(Series::new(name, line));
            }
        }
        chart
    };
    // More lines than colours are a tangle.
    let legible = |chart: &Chart| chart.series.len() <= 8;
    units
        .into_iter()
        .map(chart)
        .filter(legible)
        .map(Block::from)
        .collect()
}

/// The axis of a sweep: logarithmic where its values grow by factors; none where they are words.
fn axis(sweep: &Sweep) -> Option<Axis> {
    let cells: Vec<Cell> = sweep.values.iter().map(|value| quantity(value)).collect();
    let numbers: Option<Vec<f64>> = cells.iter().map(number).collect();
    let numbers = numbers.filter(|numbers| numbers.len() > 1)?;
    let unit = cells[0].unit().cloned().unwrap_or_default();
    let (least, most) = (
        numbers.iter().copied().fold(f64::MAX, f64::min),
        numbers.iter().copied().fold(0.0, f64::max),
    );
    let mut axis = Axis::linear(&*sweep.path, unit);
    // A span of more than a decade crowds on a linear axis.
    if least > 0.0 && most / least > 10.0 {
        axis.scale = Scale::Log10;
    }
    Some(axis)
}

fn number(cell: &Cell) -> Option<f64> {
    match cell {
        Cell::Number { value, .. } => Some(*value),
        _ => None,
    }
}

/// A figure's lines over the first sweep, one for each setting of the others.
fn lines(
    points: &[Point],
    answers: &[Option<Value>],
    headline: &Headline,
) -> Vec<(String, Vec<(f64, f64)>)> {
    let mut lines: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
    for (point, answer) in points.iter().zip(answers) {
        let (first, others) = point
            .settings
            .split_first()
            .expect("a sweep sets something");
        let others: Vec<String> = others
            .iter()
            .map(|s| format!("{}={}", s.path, s.value))
            .collect();
        let name = [std::slice::from_ref(&headline.label), &others]
            .concat()
            .join(" ");
        let x = number(&quantity(&first.value));
        let y = answer
            .as_ref()
            .and_then(|answer| lookup(answer, &headline.path)?.as_f64());
        let Some(at) = x.zip(y) else { continue };
        match lines.iter_mut().find(|(known, _)| *known == name) {
            Some((_, line)) => line.push(at),
            None => lines.push((name, vec![at])),
        }
    }
    lines
}
