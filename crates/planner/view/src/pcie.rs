//! The page of a PCIe simulation: the verdict, the streams, the load of every link, possible improvements.

use straightway_core::Rate;
use straightway_pcie::{
    PcieOutcome, PcieScenario, StreamSweep, WhatIf,
    machine::LINK_EFFICIENCY,
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
    let mut rates: Vec<Block> = vec![streams(outcome).into(), total(outcome).into()];
    rates.extend(ports_note(scenario).map(Block::from));
    rates.extend(
        outcome
            .warnings
            .iter()
            .map(|warning| Block::from(format!("Warning: {warning}"))),
    );
    page = page.section("Streams", rates);
    page = page.section("Links, busiest first", links(outcome));
    if let Some(sweep) = &more.sweep {
        page = page.section("Number of streams", how_many(sweep));
    }
    if let Some(changes) = &more.what_if {
        page = page.section("Effect of single changes", what_if(changes));
    }
    page.fact("valid for", outcome.valid_for)
        .fact("simulated", outcome.simulated_s.to_string())
        .fact("seed", outcome.seed.0.to_string())
}

fn verdict(outcome: &PcieOutcome) -> (Tone, String) {
    let count = outcome.streams.len();
    if outcome.steady_bytes_per_s.is_none() && count > 1 {
        let says = format!(
            "No steady state: the {count} streams are too short for their depth, so there is no total. Make `size` \
             larger."
        );
        return (Tone::Caution, says);
    }
    let total = outcome.total_bytes_per_s.unwrap_or(outcome.overall_bytes_per_s);
    let rates = match count {
        1 => format!("The stream gets {total}"),
        _ => format!("{count} streams get {total} in total"),
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
    let latency = "a latency is from issue to the last byte";
    let Some(total) = outcome.total_bytes_per_s else {
        return format!(
            "The streams overlap too briefly for a steady rate: each rate is that of the stream's own time, and rates of \
             different times have no total; {latency}."
        );
    };
    let measured = if outcome.measured_s.is_some() {
        "Rates are those of the time in which all streams run, without start and end"
    } else {
        "The rate is that of the stream's own time"
    };
    format!(
        "Total: {total}, or {} with start and end included; with every link shared evenly it would be {}. \
         {measured}; {latency}.",
        outcome.overall_bytes_per_s, outcome.fair_bytes_per_s
    )
}

/// What the data rate of network ports rests on, if a stream uses one.
fn ports_note(scenario: &PcieScenario) -> Option<String> {
    let machine = scenario.machine.as_ref()?;
    let is_port = |name: &str| name.starts_with("hca");
    let used = scenario.stream.iter().any(|s| is_port(&s.from) || is_port(&s.to));
    let ports = machine.ports.first().filter(|_| used)?;
    let [low, _, high] = LINK_EFFICIENCY;
    let of_line = |share: f64| Rate(machine.line_bytes_per_s() * share);
    Some(format!(
        "Network ports carry {} of their line rate here (machine.ports[0].efficiency); published nodes carry {low} to \
         {high} of it, {} to {} for all ports together.",
        ports.efficiency,
        of_line(low),
        of_line(high)
    ))
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
            point.total_bytes_per_s.map_or(Cell::Missing, Cell::from),
            point.mean_bytes_per_s.map_or(Cell::Missing, Cell::from),
            point.bottleneck.what.as_str().into(),
        ]);
    }
    let with_total = sweep.points.iter();
    let curve = with_total.filter_map(|p| Some((p.streams as f64, p.total_bytes_per_s?.0)));
    let x = Axis::linear("streams", Unit::Count);
    let y = Axis::linear("total", Unit::Rate);
    let chart = Chart::new("Total rate by number of streams", x, y).with(Series::new("total", curve));
    let most = |who: String| format!("{who} the highest total rate; more streams only share it.");
    let mut best = match sweep.best_streams {
        None => "No number of streams has a steady state: make `size` larger.".to_owned(),
        Some(1) => most("One stream has".to_owned()),
        Some(n) => most(format!("{n} streams have")),
    };
    if sweep.best_streams.is_some() && sweep.points.iter().any(|p| p.total_bytes_per_s.is_none()) {
        best.push_str(" Rows without a total have no steady state.");
    }
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
            change.total_bytes_per_s.map_or(Cell::Missing, Cell::from),
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
