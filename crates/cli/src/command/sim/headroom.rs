//! `straightway sim headroom`: what a lossless port must keep back.

use std::process::ExitCode;

use straightway_core::{Bytes, Rate};
use straightway_fabric::headroom::Port;
use straightway_scenario::check::checked;
use straightway_view::headroom;

use crate::command::output::Output;

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
    let answers: Vec<_> = ports.iter().map(Port::headroom).collect();
    let page = headroom::page(
        &ports,
        &answers,
        args.buffer,
        args.basis || args.output.is_html(),
    );
    let json: Vec<_> = ports
        .iter()
        .zip(&answers)
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
