//! `straightway sim headroom`: the buffer that a lossless port must reserve.

use std::process::ExitCode;

use straightway_core::{Bytes, Rate, Seconds};
use straightway_fabric::headroom::{Asic, Port, Rule};
use straightway_scenario::check::checked;
use straightway_view::headroom;

use crate::command::{output::Output, words::whole};

/// Calculate the headroom of lossless ports, as SONiC does, and how long pauses and buffers last
///
/// By the computation that gives the shipped table of the ASIC; by SONiC's script for an ASIC without one. Speeds that
/// SONiC has no peer response for are refused unless --peer-quanta gives one, and cells of other families unless
/// --pipeline, --mac-phy and --peer-quanta are given too.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The link's rate, such as 400Gb/s (repeatable)
    #[arg(long, value_name = "RATE", default_values = ["100Gb/s", "200Gb/s", "400Gb/s"])]
    rate: Vec<Rate>,

    /// The cable in metres (repeatable)
    #[arg(long, value_name = "METRES", allow_negative_numbers = true, default_values_t = [5.0, 40.0, 300.0])]
    cable_m: Vec<f64>,

    /// The longest frame of any class, instead of the rule's
    #[arg(long)]
    mtu: Option<Bytes>,

    /// The longest frame of the lossless class
    #[arg(long, default_value = "1024")]
    lossless_mtu: Bytes,

    /// The switch's ASIC, which has the size of a buffer cell
    #[arg(long, value_enum, default_value_t = AsicName::Spectrum4)]
    asic: AsicName,

    /// The SONiC computation to use, instead of the ASIC's
    #[arg(long, value_enum)]
    rule: Option<RuleName>,

    /// Lanes of a port; eight need twice the pipeline's reserve
    #[arg(long, default_value_t = 4, value_parser = whole(1..=u8::MAX))]
    lanes: u8,

    /// Whether all ports draw on one pool of headroom
    #[arg(long)]
    shared_pool: bool,

    /// The pipeline's latency in bytes, instead of the ASIC's
    #[arg(long)]
    pipeline: Option<Bytes>,

    /// The bytes that MAC and PHY hold, instead of the ASIC's 0.8 KiB
    #[arg(long)]
    mac_phy: Option<Bytes>,

    /// The delay of a gearbox on the way, such as 400ns
    #[arg(long, default_value = "0s")]
    gearbox: Seconds,

    /// A cell of the switch's buffer, instead of the ASIC's
    #[arg(long)]
    cell: Option<Bytes>,

    /// The share of packets small enough to waste cells, instead of the rule's
    #[arg(long, value_name = "SHARE")]
    small_packet_share: Option<f64>,

    /// The neighbour's reaction in quanta of 512 bits, instead of SONiC's table
    #[arg(long, value_name = "QUANTA", value_parser = whole(0..=u32::MAX))]
    peer_quanta: Option<u32>,

    /// Also show how long this much buffer lasts when many hosts send to one port
    #[arg(long, value_name = "SIZE", default_value = "64MB")]
    buffer: Bytes,

    /// Show every formula and constant with its source
    #[arg(long)]
    basis: bool,

    #[command(flatten)]
    output: Output,
}

/// ASICs that SONiC describes
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum AsicName {
    /// SN2000
    Spectrum,
    /// SN3000
    #[value(name = "spectrum-2")]
    Spectrum2,
    /// SN4000
    #[value(name = "spectrum-3")]
    Spectrum3,
    /// SN5400 and SN5600
    #[value(name = "spectrum-4")]
    Spectrum4,
    /// SN5640
    #[value(name = "spectrum-5")]
    Spectrum5,
    /// SN6600
    #[value(name = "spectrum-6")]
    Spectrum6,
}

/// SONiC's computations
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum RuleName {
    /// The Lua script that computes profiles today
    Lua,
    /// The shipped tables of Spectrum 1 to 3
    Tables,
    /// The shipped table of the SN4280
    Sn4280,
    /// The shipped table of the SN5600
    Sn5600,
}

impl From<AsicName> for Asic {
    fn from(name: AsicName) -> Self {
        match name {
            AsicName::Spectrum => Self::Spectrum1,
            AsicName::Spectrum2 => Self::Spectrum2,
            AsicName::Spectrum3 => Self::Spectrum3,
            AsicName::Spectrum4 => Self::Spectrum4,
            AsicName::Spectrum5 => Self::Spectrum5,
            AsicName::Spectrum6 => Self::Spectrum6,
        }
    }
}

impl From<RuleName> for Rule {
    fn from(name: RuleName) -> Self {
        match name {
            RuleName::Lua => Self::Lua,
            RuleName::Tables => Self::Tables,
            RuleName::Sn4280 => Self::Sn4280,
            RuleName::Sn5600 => Self::Sn5600,
        }
    }
}

/// Computes the headroom of each port.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let ports = ports(args);
    for port in &ports {
        checked(port)?;
    }
    let answers: Vec<_> = ports.iter().map(Port::headroom).collect();
    let page = headroom::page(&ports, &answers, args.buffer, args.basis || args.output.is_html());
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
        asic: args.asic.into(),
        rule: args.rule.map(Rule::from),
        lanes: args.lanes,
        shared_pool: args.shared_pool,
        pipeline: args.pipeline,
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
