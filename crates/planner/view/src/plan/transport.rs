//! The pages of transports, rails, a DPU and headroom.

use straightway_core::{Rate, Seconds};
use straightway_fabric::headroom::Headroom;
use straightway_planner::{dpu::DpuAnswer, rail::RailAnswer, transport::TransportAnswer};
use straightway_report::{Cell, Column, Page, Table, Tone, Unit};

use crate::cells::{leaders, listed, percent, rate, time};

use super::Shown;

impl Shown for TransportAnswer {
    const USUAL: &'static [(&'static str, &'static str)] = &[
        ("fabrics[0].rate_bytes_per_s", "{}"),
        ("fabrics[1].rate_bytes_per_s", "{}"),
        ("fabrics[3].rate_bytes_per_s", "{}"),
        ("fabrics[3].cores", "{}: cores"),
    ];

    fn fill(&self, page: Page) -> Page {
        fill(page, self)
    }
}

impl Shown for RailAnswer {
    const USUAL: &'static [(&'static str, &'static str)] = &[
        ("rate_bytes_per_s", "as used"),
        ("steered_bytes_per_s", "steered"),
        ("per_gpu_bytes_per_s", "for a GPU"),
    ];

    fn fill(&self, page: Page) -> Page {
        rails(page, self)
    }
}

impl Shown for DpuAnswer {
    const USUAL: &'static [(&'static str, &'static str)] = &[
        ("cores_without", "cores without"),
        ("cores_with", "cores with"),
        ("rate_with_bytes_per_s", "rate with the card"),
    ];

    fn fill(&self, page: Page) -> Page {
        dpu(page, self)
    }
}

impl Shown for Headroom {
    const USUAL: &'static [(&'static str, &'static str)] = &[
        ("xoff", "headroom"),
        ("propagation", "arrives after XOFF"),
        ("pause_max", "longest pause"),
    ];

    fn fill(&self, page: Page) -> Page {
        headroom(page, self)
    }
}

/// The page of transports.
fn fill(page: Page, answer: &TransportAnswer) -> Page {
    let rows = answer.fabrics.iter();
    let fabrics: Vec<_> = rows.map(|row| (row.name.as_str(), row)).collect();
    let (names, best) = leaders(&fabrics, |row| row.rate_bytes_per_s);
    let best = best.expect("a checked scenario has a transport");
    let carried = Rate(best.rate_bytes_per_s);
    let says = match names.as_slice() {
        [name] => format!("{name} has the highest rate: {carried}, bound by {}.", best.bound_by),
        _ => format!("{} share the highest rate: {carried}.", listed(&names)),
    };
    page.verdict(Tone::Neutral, says)
        .section("Transports", [fabrics_table(answer).into()])
        .section("Memory tiers", [tiers_table(answer).into()])
        .section("PCIe in FLIT mode", [flit_table(answer).into()])
}

fn fabrics_table(answer: &TransportAnswer) -> Table {
    let columns = [
        Column::text("transport"),
        Column::new("one I/O", Unit::Seconds),
        Column::new("IOPS", Unit::Count),
        Column::new("rate", Unit::Rate),
        Column::new("cores", Unit::Count),
        Column::new("cores at line rate", Unit::Count),
        Column::text("bound by"),
    ];
    let mut table = Table::new("", columns);
    for row in &answer.fabrics {
        table.push([
            row.name.as_str().into(),
            time(row.latency_s),
            Cell::count(row.iops.round()),
            rate(row.rate_bytes_per_s),
            Cell::count(row.cores),
            Cell::count(row.cores_at_line_rate),
            row.bound_by.into(),
        ]);
    }
    table
}

fn tiers_table(answer: &TransportAnswer) -> Table {
    let cxl = &answer.cxl;
    let mut table = Table::new("", [Column::text("CXL"), Column::mixed("value")]);
    for (name, cell) in [
        ("fastest real device", time(cxl.latency_s_min)),
        ("gain of the claimed latency", Cell::count(cxl.claimed_gain)),
        ("gain of the fastest real device", Cell::count(cxl.gain_max)),
        ("gain of the slowest", Cell::count(cxl.gain_min)),
        (
            "claimed latency over local memory's",
            Cell::count(cxl.claimed_over_dram),
        ),
        ("a core reads from local memory", rate(cxl.dram_bytes_per_s)),
        ("a core reads from the fastest device", rate(cxl.cxl_bytes_per_s_max)),
        ("a core reads from the slowest", rate(cxl.cxl_bytes_per_s_min)),
    ] {
        table.push([name.into(), cell]);
    }
    table
}

fn flit_table(answer: &TransportAnswer) -> Table {
    let mut table = Table::new("", [Column::text("one direction"), Column::new("rate", Unit::Rate)]);
    table.push(["on the wire".into(), rate(answer.flit.raw_bytes_per_s)]);
    table.push(["space for packets".into(), rate(answer.flit.packet_bytes_per_s)]);
    table.push(["payload".into(), rate(answer.flit.payload_bytes_per_s)]);
    table
}

/// The page of multiple rails.
fn rails(page: Page, answer: &RailAnswer) -> Page {
    let columns = [
        Column::new("rails", Unit::Count),
        Column::new("one, steered", Unit::Rate),
        Column::new("one, as used", Unit::Rate),
        Column::text("bound by"),
    ];
    let mut table = Table::new("", columns);
    for row in &answer.rails {
        table.push([
            row.count.into(),
            rate(row.near_bytes_per_s),
            rate(row.used_bytes_per_s),
            row.bound_by.into(),
        ]);
    }
    let says = format!(
        "{} ports carry {} as used; steering every rail to its own switch gives {}.",
        answer.ports,
        Rate(answer.rate_bytes_per_s),
        Rate(answer.steered_bytes_per_s)
    );
    let fewer = answer.fewer_gpus.as_ref().map(|fewer| {
        format!(
            "With {} GPUs the ports would carry {}: every GPU gets an equal share, so a further GPU behind a narrow link \
             lowers the node's rate.",
            fewer.gpus,
            Rate(fewer.steered_bytes_per_s)
        )
    });
    let missed = missed(answer.wanted_bytes_per_s, answer.rate_bytes_per_s, answer.bound_by);
    let tone = if missed.is_some() { Tone::Caution } else { Tone::Neutral };
    let says = [says].into_iter().chain(missed).chain(fewer);
    page.verdict(tone, says.collect::<Vec<_>>().join(" "))
        .figure("line rate", rate(answer.line_bytes_per_s), "all ports")
        .figure("as used", rate(answer.rate_bytes_per_s), "")
        .figure("for each GPU", rate(answer.per_gpu_bytes_per_s), "")
        .figure("all crossing switches", rate(answer.crossed_bytes_per_s), "")
        .figure(
            "rails for the wanted rate",
            Cell::count(answer.rails_for_wanted),
            "of the first kind, as used",
        )
        .section("Rails", [table.into()])
}

/// Says that a required rate is not reached; `None` if it is.
fn missed(wanted: f64, reached: f64, bound_by: &str) -> Option<String> {
    let (wanted, reached) = (Rate(wanted), Rate(reached));
    let says = || format!("The required {wanted} are not reached: {reached} are the most, bound by {bound_by}.");
    (reached.0 < wanted.0 * (1.0 - 1e-9)).then(says)
}

/// The page of a DPU.
fn dpu(page: Page, answer: &DpuAnswer) -> Page {
    let columns = [
        Column::text("work"),
        Column::new("host cores", Unit::Count),
        Column::new("the card does", Unit::Rate),
        Column::new("of its engine", Unit::Share),
    ];
    let mut table = Table::new("", columns);
    for row in &answer.work {
        table.push([
            row.name.as_str().into(),
            Cell::count(row.cores),
            row.card_bytes_per_s.map_or(Cell::Missing, rate),
            row.card_load.map_or(Cell::Missing, Cell::share),
        ]);
    }
    let slower = answer.rate_with_bytes_per_s < answer.rate_without_bytes_per_s;
    let missed = missed(
        answer.wanted_bytes_per_s,
        answer.rate_with_bytes_per_s,
        &answer.bound_with,
    );
    let says = format!(
        "The card frees {:.1} cores, {} of the host, and carries {}, bound by {}.",
        answer.cores_freed,
        percent(answer.share_freed),
        Rate(answer.rate_with_bytes_per_s),
        answer.bound_with
    );
    let tone = if slower || missed.is_some() {
        Tone::Caution
    } else {
        Tone::Good
    };
    page.verdict(tone, [says].into_iter().chain(missed).collect::<Vec<_>>().join(" "))
        .figure(
            "cores without",
            Cell::count(answer.cores_without),
            format!("to move {}", Rate(answer.moved_bytes_per_s)),
        )
        .figure("cores with", Cell::count(answer.cores_with), "")
        .figure(
            "host alone carries",
            rate(answer.rate_without_bytes_per_s),
            answer.bound_without.as_str(),
        )
        .figure(
            "with the card",
            rate(answer.rate_with_bytes_per_s),
            answer.bound_with.as_str(),
        )
        .section("Work", [table.into()])
}

/// The page of a lossless port's headroom.
fn headroom(page: Page, answer: &Headroom) -> Page {
    let mut table = Table::new("", [Column::text("part"), Column::new("bytes", Unit::Bytes)]);
    for (part, bytes) in [
        ("on the cable, both ways", answer.cable),
        ("sent while the neighbour reacts", answer.peer_response),
        ("all bytes that arrive after XOFF", answer.propagation),
        ("headroom (xoff)", answer.xoff),
        ("below it (xon)", answer.xon),
        ("reserved in all (size)", answer.size),
    ] {
        table.push([part.into(), bytes.into()]);
    }
    page.verdict(
        Tone::Neutral,
        format!(
            "Reserve {} bytes beyond the XOFF threshold.",
            Cell::count(answer.xoff.0 as f64).show()
        ),
    )
    .figure(
        "headroom",
        answer.xoff,
        format!("{} bytes", Cell::count(answer.xoff.0 as f64).show()),
    )
    .figure(
        "cells taken",
        Cell::number(answer.occupancy, Unit::named("×")),
        "the bytes that arrive, with this share of small packets",
    )
    .figure("longest pause", answer.pause_max, "that one frame can request")
    .section("Parts", [table.into()])
}

/// The shortest wait shown. Below it, a queueing formula says nothing about a real server.
const WAIT_S_MIN: f64 = 1e-7;

/// A wait as text. A queue that grows has no wait, and a very short one is not shown as a number.
pub(super) fn wait(seconds: Option<f64>) -> String {
    match seconds {
        None => "unbounded".to_owned(),
        Some(seconds) if seconds < WAIT_S_MIN => "negligible".to_owned(),
        Some(seconds) => Seconds(seconds).to_string(),
    }
}

/// A wait as a cell: infinite if the queue grows, and text if it is too short to show.
pub(super) fn wait_cell(seconds: Option<f64>) -> Cell {
    match seconds {
        None => Cell::number(f64::INFINITY, Unit::Seconds),
        Some(seconds) if seconds < WAIT_S_MIN => "none".into(),
        Some(seconds) => Cell::number(seconds, Unit::Seconds),
    }
}
