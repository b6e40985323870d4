//! `straightway sim headroom`: what a lossless port must keep back.

use std::process::ExitCode;

use straightway_core::{Bytes, Rate};
use straightway_model::{
    check::checked,
    headroom::{Port, fill_time, incast_corrections},
};
use straightway_report::{Cell, Column, Page, Table, Tone, Unit};

use super::gbit;
use crate::command::{output::Output, plan::page::with_basis};

/// Calculate the headroom of lossless ports, as SONiC does, and how long pauses and buffers last
///
/// Without a rate and a cable it gives the table of NVIDIA's SN4280, to the byte.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The link's rate, such as 400Gb/s (repeatable)
    #[arg(long, value_name = "RATE", default_values = ["100Gb/s", "200Gb/s", "400Gb/s"])]
    rate: Vec<Rate>,

    /// The cable in metres (repeatable)
    #[arg(long, value_name = "METRES", allow_negative_numbers = true, default_values_t = [5.0, 40.0, 300.0])]
    cable_m: Vec<f64>,

    /// The longest frame of any class
    #[arg(long, default_value = "9100")]
    mtu: Bytes,

    /// The longest frame of the lossless class
    #[arg(long, default_value = "1024")]
    lossless_mtu: Bytes,

    /// What MAC and PHY hold
    #[arg(long, default_value = "819")]
    mac_phy: Bytes,

    /// What a gearbox on the way holds
    #[arg(long, default_value = "0")]
    gearbox: Bytes,

    /// A cell of the switch's buffer
    #[arg(long, default_value = "192")]
    cell: Bytes,

    /// The share of packets small enough to waste cells
    #[arg(long, value_name = "SHARE", default_value_t = 0.01)]
    small_packet_share: f64,

    /// The neighbour's reaction in quanta of 512 bits, instead of SONiC's table
    #[arg(long, value_name = "QUANTA")]
    peer_quanta: Option<u32>,

    /// Also say how long this much buffer lasts when many send to one port
    #[arg(long, value_name = "SIZE", default_value = "64MB")]
    buffer: Bytes,

    /// Show every formula and constant with its source
    #[arg(long)]
    basis: bool,

    #[command(flatten)]
    output: Output,
}

/// Answers with a table.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let ports = ports(args);
    for port in &ports {
        checked(port)?;
    }
    let mut answers: Vec<_> = ports.iter().map(Port::headroom).collect();
    let columns = [
        Column::new("rate", Unit::named("Gb/s")),
        Column::new("cable", Unit::named("m")),
        Column::new("xoff", Unit::named("B")),
        Column::new("on the cable", Unit::Bytes),
        Column::new("peer response", Unit::Bytes),
        Column::new("longest pause", Unit::Seconds),
    ];
    let mut table = Table::new("", columns);
    for (port, answer) in ports.iter().zip(&answers) {
        table.push([
            gbit(port.rate),
            Cell::number(port.cable_m, Unit::named("m")),
            Cell::number(answer.xoff.0 as f64, Unit::named("B")),
            answer.cable.into(),
            answer.peer_response.into(),
            answer.pause_max.into(),
        ]);
    }
    let most = answers.iter().map(|a| a.xoff).max().unwrap_or_default();
    let verdict = format!("A lossless port keeps back up to {most} for what arrives after XOFF.");
    let mut basis = answers.first().map(|a| a.basis.clone()).unwrap_or_default();
    basis.corrections = incast_corrections();
    let page = Page::new("Headroom of a lossless port")
        .verdict(Tone::Neutral, verdict)
        .section("", [table.into()])
        .section("How long the buffer lasts", [fills(args).into()]);
    let page = with_basis(page, &basis, args.basis || args.output.is_html());
    let json: Vec<_> = ports
        .iter()
        .zip(answers.iter_mut())
        .map(|(port, answer)| serde_json::json!({ "port": port, "headroom": answer }))
        .collect();
    args.output.write(&page, &serde_json::Value::from(json))?;
    Ok(ExitCode::SUCCESS)
}

fn ports(args: &Args) -> Vec<Port> {
    let port = |rate: Rate, cable_m: f64| Port {
        rate,
        cable_m,
        mtu: args.mtu,
        lossless_mtu: args.lossless_mtu,
        mac_phy: args.mac_phy,
        gearbox: args.gearbox,
        cell: args.cell,
        small_packet_share: args.small_packet_share,
        peer_quanta: args.peer_quanta,
    };
    let cables = |rate: &Rate| {
        let rate = *rate;
        args.cable_m.iter().map(move |m| port(rate, *m))
    };
    args.rate.iter().flat_map(cables).collect()
}

fn fills(args: &Args) -> Table {
    let columns = [
        Column::new("rate", Unit::named("Gb/s")),
        Column::new("16:1", Unit::Seconds),
        Column::new("50:1", Unit::Seconds),
        Column::new("256:1", Unit::Seconds),
        Column::new("1,024:1", Unit::Seconds),
    ];
    let mut table = Table::new(format!("{} behind one port", args.buffer), columns);
    for rate in &args.rate {
        let mut row = vec![gbit(*rate)];
        row.extend([16, 50, 256, 1024].map(|n| fill_time(args.buffer, n, *rate).into()));
        table.push(row);
    }
    table
}
