//! The page of a PCIe simulation: the verdict, the streams, the load of every link, possible improvements.

use straightway_pcie::{
    PcieOutcome, PcieScenario, StreamSweep, WhatIf,
    outcome::{LinkOutcome, StreamOutcome},
};
use straightway_report::{Axis, Block, Cell, Chart, Column, Page, Series, Table, Tone, Unit};

use crate::{basis::with_basis, cells::paragraphs};

/// The most rows of a table, which has its fullest or best row first.
const ROWS_MAX: usize = 12;

/// Optional results shown with the outcome.
#[derive(Debug)]
pub struct More {
    /// The result for each number of streams.
    pub sweep: Option<StreamSweep>,
    /// The effect of every single change of the tree, best first.
    pub what_if: Option<Vec<WhatIf>>,
}

/// The page of an outcome with its optional results; `in_full` adds every formula and constant.
pub fn page(scenario: &PcieScenario, outcome: &PcieOutcome, more: &More, in_full: bool) -> Page {
    with_basis(fill(scenario, outcome, more), &outcome.basis, in_full)
}

fn fill(scenario: &PcieScenario, outcome: &PcieOutcome, more: &More) -> Page {
    let (tone, says) = verdict(outcome);
    let mut page = Page::new(&outcome.title).verdict(tone, says);
    let about = paragraphs(&scenario.about);
    if !about.is_empty() {
        page = page.section("", [about.into()]);
    }
    page = page.section("Streams", [streams(outcome).into(), total(outcome).into()]);
    page = page.section("Links, busiest first", links(outcome));
    if let Some(sweep) = &more.sweep {
        page = page.section("Number of streams", how_many(sweep));
    }
    if let Some(changes) = &more.what_if {
        page = page.section("Effect of single changes", what_if(changes));
    }
    page.fact("simulated", outcome.simulated_s.to_string())
        .fact("seed", outcome.seed.0.to_string())
}

fn verdict(outcome: &PcieOutcome) -> (Tone, String) {
    let count = outcome.streams.len();
    if outcome.steady_bytes_per_s.is_none() && count > 1 {
        let says = format!(
            "No steady state: the {count} streams are too short for their depth, so no rate is reported. The mean rate \
             is {} with start and end included. Make `size` larger.",
            outcome.total_bytes_per_s
        );
        return (Tone::Caution, says);
    }
    let rates = match count {
        1 => format!("The stream gets {}", outcome.total_bytes_per_s),
        _ => format!("{count} streams get {} in total", outcome.total_bytes_per_s),
    };
    let limit = &outcome.bottleneck;
    (
        Tone::Neutral,
        format!("{rates}, bound by {}: {}.", limit.what, limit.why),
    )
}

fn streams(outcome: &PcieOutcome) -> Table {
    let fenced = outcome.streams.iter().any(|s| s.fences > 0);
    let mut columns = vec![
        Column::text("stream"),
        Column::new("rate", Unit::Rate),
        Column::new("fair share", Unit::Rate),
        Column::new("IOPS", Unit::Count),
        Column::new("p50", Unit::Seconds),
        Column::new("p99", Unit::Seconds),
        Column::new("p99.9", Unit::Seconds),
    ];
    if fenced {
        columns.push(Column::new("fences", Unit::Count));
        columns.push(Column::new("each", Unit::Seconds));
    }
    columns.push(Column::text("bound by"));
    let mut table = Table::new("", columns);
    for stream in &outcome.streams {
        table.push(stream_row(stream, fenced));
    }
    table
}

fn stream_row(stream: &StreamOutcome, fenced: bool) -> Vec<Cell> {
    let mut row = vec![
        Cell::from(stream.name.as_str()),
        stream.bytes_per_s.into(),
        stream.fair_bytes_per_s.into(),
        Cell::count(stream.ios_per_s),
        stream.latency.median_s.into(),
        stream.latency.p99_s.into(),
        stream.latency.p999_s.into(),
    ];
    if fenced {
        row.push(Cell::count(stream.fences as f64));
        row.push(stream.fence_mean_s.map_or(Cell::Missing, Cell::from));
    }
    row.push(stream.limit.what.as_str().into());
    row
}

fn total(outcome: &PcieOutcome) -> String {
    let measured = if outcome.measured_s.is_some() {
        "Rates are those of the time in which all streams run, without start and end"
    } else {
        "The streams overlap too briefly for a steady rate, so each rate is that of the stream's own time, and \
         the total that of all time"
    };
    format!(
        "Total: {}, or {} with start and end included; with every link shared evenly it would be {}. \
         {measured}; a latency is from issue to the last byte.",
        outcome.total_bytes_per_s, outcome.overall_bytes_per_s, outcome.fair_bytes_per_s
    )
}

fn links(outcome: &PcieOutcome) -> Vec<Block> {
    let columns = [
        Column::text("link"),
        Column::text("width"),
        Column::new("carries", Unit::Rate),
        Column::new("busy", Unit::Share),
        Column::new("no credits", Unit::Share),
        Column::new("payload", Unit::Bytes),
        Column::new("TLPs", Unit::Count),
    ];
    let mut table = Table::new("", columns);
    let mut links: Vec<&LinkOutcome> = outcome.links.iter().collect();
    links.sort_by(|a, b| b.utilisation.total_cmp(&a.utilisation));
    for link in links.iter().take(ROWS_MAX) {
        table.push([
            Cell::from(link.name.as_str()),
            link.width.as_deref().unwrap_or("").into(),
            link.capacity_bytes_per_s.into(),
            Cell::share(link.utilisation),
            Cell::share(link.starved),
            Cell::number(link.payload_bytes as f64, Unit::Bytes),
            Cell::count(link.tlps as f64),
        ]);
    }
    let mut blocks = vec![table.into()];
    if links.len() > ROWS_MAX {
        let text = format!("{} more links are in the JSON answer.", links.len() - ROWS_MAX);
        blocks.push(text.into());
    }
    blocks
}

fn how_many(sweep: &StreamSweep) -> Vec<Block> {
    let columns = [
        Column::new("streams", Unit::Count),
        Column::new("total", Unit::Rate),
        Column::new("each", Unit::Rate),
        Column::text("bound by"),
    ];
    let mut table = Table::new("", columns);
    for point in &sweep.points {
        table.push([
            Cell::count(point.streams as f64),
            point.total_bytes_per_s.into(),
            point.mean_bytes_per_s.into(),
            point.bottleneck.what.as_str().into(),
        ]);
    }
    let curve = sweep.points.iter().map(|p| (p.streams as f64, p.total_bytes_per_s.0));
    let x = Axis::linear("streams", Unit::Count);
    let y = Axis::linear("total", Unit::Rate);
    let chart = Chart::new("", x, y).with(Series::new("total", curve));
    let best = format!(
        "{} the highest total rate; more streams only share it.",
        match sweep.best_streams {
            1 => "One stream has".to_owned(),
            n => format!("{n} streams have"),
        }
    );
    let mut blocks = vec![table.into()];
    if sweep.points.len() > 2 {
        blocks.push(chart.into());
    }
    blocks.push(best.into());
    blocks
}

fn what_if(changes: &[WhatIf]) -> Vec<Block> {
    let columns = [
        Column::text("change"),
        Column::new("total", Unit::Rate),
        Column::new("gain", Unit::Share),
        Column::text("then bound by"),
    ];
    let mut table = Table::new("", columns);
    for change in changes.iter().take(ROWS_MAX) {
        table.push([
            Cell::from(change.text.as_str()),
            change.total_bytes_per_s.into(),
            Cell::share(change.gain),
            change.bottleneck.what.as_str().into(),
        ]);
    }
    let mut text = format!("{} single changes were tried.", changes.len());
    if changes.iter().all(|c| c.gain < GAIN_WORTH) {
        text.push_str(" None gains 1 % or more: a gain needs several changes at once.");
    }
    vec![table.into(), text.into()]
}

/// The smallest gain of a change that is worth making.
const GAIN_WORTH: f64 = 0.01;
