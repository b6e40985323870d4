//! The page of the headroom of lossless ports.

use straightway_core::Bytes;
use straightway_fabric::headroom::{Headroom, Port, fill_time, incast_corrections};
use straightway_report::{Cell, Column, Page, Table, Tone, Unit};

use crate::{basis::with_basis, cells::gbit};

/// The page of the headroom of each port, and of the time in which incast fills `buffer`; `in_full` adds every formula
/// and constant.
pub fn page(ports: &[Port], answers: &[Headroom], buffer: Bytes, in_full: bool) -> Page {
    let columns = [
        Column::new("rate", Unit::named("Gb/s")),
        Column::new("cable", Unit::named("m")),
        Column::new("xoff", Unit::named("B")),
        Column::new("xon", Unit::named("B")),
        Column::new("size", Unit::named("B")),
        Column::new("on the cable", Unit::named("B")),
        Column::new("peer response", Unit::named("B")),
        Column::new("longest pause", Unit::Seconds),
    ];
    let mut table = Table::new("", columns);
    for (port, answer) in ports.iter().zip(answers) {
        table.push([
            gbit(port.rate),
            Cell::number(port.cable_m, Unit::named("m")),
            Cell::number(answer.xoff.0 as f64, Unit::named("B")),
            Cell::number(answer.xon.0 as f64, Unit::named("B")),
            Cell::number(answer.size.0 as f64, Unit::named("B")),
            Cell::number(answer.cable.0 as f64, Unit::named("B")),
            Cell::number(answer.peer_response.0 as f64, Unit::named("B")),
            answer.pause_max.into(),
        ]);
    }
    let most = answers.iter().map(|a| a.xoff).max().unwrap_or_default();
    let verdict = format!("A lossless port reserves up to {most} for bytes that arrive after XOFF.");
    let mut basis = answers.first().map(|a| a.basis.clone()).unwrap_or_default();
    basis.corrections = incast_corrections();
    let page = Page::new("Headroom of a lossless port")
        .verdict(Tone::Neutral, verdict)
        .section("", [table.into()])
        .section("Time in which incast fills the buffer", [fills(ports, buffer).into()]);
    with_basis(page, &basis, in_full)
}

fn fills(ports: &[Port], buffer: Bytes) -> Table {
    let columns = [
        Column::new("rate", Unit::named("Gb/s")),
        Column::new("16:1", Unit::Seconds),
        Column::new("50:1", Unit::Seconds),
        Column::new("256:1", Unit::Seconds),
        Column::new("1,024:1", Unit::Seconds),
    ];
    let decimal = Cell::number(buffer.0 as f64 / 1e6, Unit::named("MB")).show();
    let mut table = Table::new(format!("{decimal} ({buffer}) behind one port"), columns);
    let mut rates: Vec<_> = ports.iter().map(|port| port.rate).collect();
    rates.dedup();
    for rate in rates {
        let mut row = vec![gbit(rate)];
        row.extend([16, 50, 256, 1024].map(|n| fill_time(buffer, n, rate).into()));
        table.push(row);
    }
    table
}
