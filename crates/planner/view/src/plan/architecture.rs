//! The page of storage architectures.

use straightway_core::Seconds;
use straightway_planner::architecture::{ArchitectureAnswer, ArchitectureRow};
use straightway_report::{Cell, Column, Page, Table, Tone, Unit};

use super::transport::wait_cell;
use crate::cells::{leaders, listed, rate, time};

use super::Shown;

impl Shown for ArchitectureAnswer {
    const USUAL: &'static [(&'static str, &'static str)] = &[
        ("systems[0].write_bytes_per_s", "{}: write"),
        ("systems[1].write_bytes_per_s", "{}: write"),
        ("systems[0].write_s", "{}: checkpoint"),
        ("systems[1].write_s", "{}: checkpoint"),
        ("systems[0].read_bytes_per_s", "{}: read"),
        ("systems[1].read_bytes_per_s", "{}: read"),
        ("systems[0].storm_s", "{}: storm"),
        ("systems[1].storm_s", "{}: storm"),
    ];

    fn fill(&self, page: Page) -> Page {
        fill(page, self)
    }
}

fn fill(page: Page, answer: &ArchitectureAnswer) -> Page {
    let rows = &answer.systems;
    let fast = first(rows, "writes the checkpoint", "write the checkpoint", |row| row.write_s);
    let calm = first(rows, "finishes the storm", "finish the storm", |row| row.storm_s);
    page.verdict(Tone::Neutral, format!("With the same hardware {fast}, and {calm}."))
        .figure(
            "a remote metadata operation takes at least",
            time(answer.metadata_floor_s),
            "a round trip and one service time",
        )
        .section("Checkpoint and ingest", [loads(answer).into()])
        .section("Metadata storm", [storm(answer).into()])
}

/// Says which system has the shortest time, or that several are equal.
fn first(rows: &[ArchitectureRow], one: &str, several: &str, time: impl Fn(&ArchitectureRow) -> f64) -> String {
    let systems: Vec<_> = rows.iter().map(|row| (row.name.as_str(), row)).collect();
    let (names, best) = leaders(&systems, |row| -time(row));
    let took = Seconds(time(best.expect("a checked scenario has a system")));
    match names.as_slice() {
        [name] => format!("{name} {one} first ({took})"),
        _ if names.len() == rows.len() => format!("all {several} in the same time ({took})"),
        _ => format!("{} {several} first, in the same time ({took})", listed(&names)),
    }
}

fn loads(answer: &ArchitectureAnswer) -> Table {
    let columns = [
        Column::text("system"),
        Column::new("writes", Unit::Rate),
        Column::new("checkpoint", Unit::Seconds),
        Column::text("bound by"),
        Column::new("files a second", Unit::Count),
        Column::new("reads", Unit::Rate),
        Column::text("reads bound by"),
    ];
    let mut table = Table::new("", columns);
    for row in &answer.systems {
        table.push([
            row.name.as_str().into(),
            rate(row.write_bytes_per_s),
            time(row.write_s),
            row.write_bound_by.into(),
            Cell::count(row.files_per_s.round()),
            rate(row.read_bytes_per_s),
            row.read_bound_by.into(),
        ]);
    }
    table
}

fn storm(answer: &ArchitectureAnswer) -> Table {
    let columns = [
        Column::text("system"),
        Column::new("servers", Unit::Count),
        Column::new("load", Unit::Share),
        Column::new("mean wait", Unit::Seconds),
        Column::new("p99 wait", Unit::Seconds),
        Column::new("all done after", Unit::Seconds),
    ];
    let mut table = Table::new("", columns);
    for row in &answer.systems {
        table.push([
            row.name.as_str().into(),
            row.storm_servers.into(),
            Cell::share(row.storm.load),
            wait_cell(row.storm.mean_s),
            wait_cell(row.storm.p99_s),
            time(row.storm_s),
        ]);
    }
    table
}
