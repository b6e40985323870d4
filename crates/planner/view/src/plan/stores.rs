//! The pages of object storage, data reduction and quality of service.

use straightway_planner::{
    qos::{QosAnswer, QosRow},
    reduction::ReductionAnswer,
    s3::{InFlightPoint, S3Answer},
};
use straightway_report::{Axis, Cell, Chart, Column, Page, Series, Table, Tone, Unit};

use crate::cells::{bytes, maybe_time, percent, rate, time};

use super::Shown;

impl Shown for S3Answer {
    const USUAL: &'static [(&'static str, &'static str)] = &[
        ("in_flight_min", "in flight, best"),
        ("in_flight_max", "in flight, worst"),
        ("memory_bytes", "memory"),
        ("prefixes_to_read", "prefixes"),
        ("reached_bytes_per_s", "nodes read"),
        ("written_bytes_per_s", "nodes write"),
    ];

    fn fill(&self, page: Page) -> Page {
        s3(page, self)
    }
}

impl Shown for ReductionAnswer {
    const USUAL: &'static [(&'static str, &'static str)] = &[
        ("table_bytes", "table"),
        ("lookups_per_s_write", "lookups on write"),
        ("codecs[0].cores_write", "{}: cores to write"),
    ];

    fn fill(&self, page: Page) -> Page {
        reduction(page, self)
    }
}

impl Shown for QosAnswer {
    const USUAL: &'static [(&'static str, &'static str)] = &[
        ("fifo[0].latency_s_p99", "{}: p99 FIFO"),
        ("tags[0].latency_s_p99", "{}: p99 by tags"),
        ("tags[2].operations_per_s", "{}: operations a second"),
    ];

    fn fill(&self, page: Page) -> Page {
        qos(page, self)
    }
}

/// The page of object storage.
fn s3(page: Page, answer: &S3Answer) -> Page {
    let line = |of: &dyn Fn(&InFlightPoint) -> f64| {
        answer
            .curve
            .iter()
            .map(|point| (point.in_flight as f64, of(point)))
            .collect::<Vec<_>>()
    };
    let chart = Chart::new(
        "Bandwidth by requests in flight",
        Axis::log10("in flight", Unit::Count),
        Axis::log10("bandwidth", Unit::Rate),
    )
    .with(Series::new("best latency", line(&|p| p.rate_min_latency_bytes_per_s)))
    .with(Series::new("worst latency", line(&|p| p.rate_max_latency_bytes_per_s)));
    let mut table = Table::new("", [Column::text("figure"), Column::mixed("value")]);
    for (name, cell) in [
        ("GETs a second", Cell::count(answer.gets_per_s.round())),
        ("in flight, best latency", Cell::count(answer.in_flight_min.round())),
        ("in flight, worst latency", Cell::count(answer.in_flight_max.round())),
        ("  for each node", Cell::count(answer.in_flight_per_node)),
        ("connections by their rate", Cell::count(answer.connections.round())),
        ("the nodes read", rate(answer.reached_bytes_per_s)),
        ("  bound by", answer.reached_bound_by.into()),
        ("the nodes write", rate(answer.written_bytes_per_s)),
        ("nodes for the required rate", Cell::count(answer.nodes_for_rate)),
        ("memory in flight", bytes(answer.memory_bytes)),
        ("prefixes to read", Cell::count(answer.prefixes_to_read)),
        ("prefixes to write", Cell::count(answer.prefixes_to_write)),
        ("one request at a time", rate(answer.serial_bytes_per_s)),
        ("mean latency behind the cache", time(answer.cached_latency_s)),
        ("cache and store together", rate(answer.cached_bytes_per_s)),
    ] {
        table.push([name.into(), cell]);
    }
    page.verdict(
        Tone::Neutral,
        format!(
            "{} GETs in flight carry the rate; they hold {} of memory and need {:.0} prefixes.",
            between(answer.in_flight_min, answer.in_flight_max),
            bytes(answer.memory_bytes).show(),
            answer.prefixes_to_read
        ),
    )
    .section("Requests in flight", [table.into(), chart.into()])
}

/// `2384 to 4768`, or one number if both are equal.
fn between(least: f64, most: f64) -> String {
    let show = |count: f64| Cell::count(count.round()).show();
    let (least, most) = (show(least), show(most));
    if least == most {
        least
    } else {
        format!("{least} to {most}")
    }
}

/// The page of data reduction.
fn reduction(page: Page, answer: &ReductionAnswer) -> Page {
    let columns = [
        Column::text("by"),
        Column::new("stored", Unit::Bytes),
        Column::new("cores to write", Unit::Count),
        Column::new("cores to read", Unit::Count),
        Column::new("lookups a second to write", Unit::Count),
    ];
    let mut table = Table::new("", columns);
    table.push([
        "deduplication".into(),
        bytes(answer.dedup_stored_bytes),
        Cell::count(answer.hash_cores.round()),
        Cell::count(0.0),
        Cell::count(answer.lookups_per_s_write.round()),
    ]);
    for row in &answer.codecs {
        table.push([
            row.name.as_str().into(),
            bytes(row.stored_bytes),
            Cell::count(row.cores_write.round()),
            Cell::count(row.cores_read.round()),
            Cell::count(0.0),
        ]);
    }
    let least = answer
        .codecs
        .iter()
        .map(|row| row.stored_bytes)
        .fold(f64::MAX, f64::min);
    let wins = if answer.dedup_stored_bytes < least {
        "Deduplication"
    } else {
        "Compression"
    };
    page.verdict(
        Tone::Neutral,
        format!(
            "{wins} stores less. The deduplication table takes {}, of which memory holds {}.",
            bytes(answer.table_bytes).show(),
            percent(answer.table_in_memory)
        ),
    )
    .figure("table", bytes(answer.table_bytes), "")
    .figure("a lookup", time(answer.lookup_s), "mean over memory and flash")
    .figure(
        "lookups in flight",
        Cell::count(answer.lookups_in_flight),
        "to write at the requested rate",
    )
    .figure(
        "space the table takes",
        Cell::share(answer.dedup_ratio_to_break_even - 1.0),
        "of the data; a smaller share of duplicates saves nothing",
    )
    .section("Deduplication and compression", [table.into()])
}

/// The page of quality of service.
fn qos(page: Page, answer: &QosAnswer) -> Page {
    let columns = [
        Column::text("tenant"),
        Column::text("served"),
        Column::new("operations a second", Unit::Count),
        Column::new("mean latency", Unit::Seconds),
        Column::new("p99 latency", Unit::Seconds),
        Column::new("still waiting", Unit::Count),
        Column::new("refused", Unit::Count),
        Column::text("promise"),
    ];
    let mut table = Table::new("", columns);
    for (fifo, tags) in answer.fifo.iter().zip(&answer.tags) {
        for (rule, row) in [("FIFO", fifo), ("by tags", tags)] {
            table.push([
                row.name.as_str().into(),
                rule.into(),
                Cell::count(row.operations_per_s),
                maybe_time(row.latency_s),
                maybe_time(row.latency_s_p99),
                row.waiting.into(),
                row.refused.into(),
                match row.promise_kept {
                    Some(true) => "kept".into(),
                    Some(false) => "broken".into(),
                    None => Cell::Missing,
                },
            ]);
        }
    }
    let kept = |rows: &[QosRow]| rows.iter().all(|row| row.promise_kept != Some(false));
    let promised = answer.tags.iter().find(|row| row.promise_kept.is_some());
    let (tone, text) = match (kept(&answer.fifo), kept(&answer.tags), promised) {
        (_, _, None) => (Tone::Neutral, "No tenant was promised a latency.".to_owned()),
        (_, true, Some(row)) => (
            Tone::Good,
            format!(
                "With reservations, limits and weights every promise is kept; p99 of {}: {}.",
                row.name,
                maybe_time(row.latency_s_p99).show()
            ),
        ),
        (_, false, Some(_)) => (
            Tone::Bad,
            "A promise is broken even with reservations, limits and weights.".to_owned(),
        ),
    };
    page.verdict(tone, text)
        .figure("reserved", Cell::share(answer.reserved), "of the store")
        .figure(
            "mean wait of the open load alone",
            maybe_time(answer.open_wait_s),
            "Pollaczek–Khinchine",
        )
        .section("Tenants", [table.into()])
}
