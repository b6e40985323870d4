//! `straightway sim ecn`: the fixed point of DCQCN, its stability, and better thresholds.

use std::process::ExitCode;

use clap::ValueEnum;
use straightway_core::{Bytes, Rate, Seconds};
use straightway_fabric::{
    dcqcn::{Ecn, ParameterSet},
    fluid::{Fluid, SETTLE, Tuned, tune},
    packet_check,
};
use straightway_scenario::check::checked;
use straightway_view::ecn::{self, EcnAnswer};

use crate::command::{output::Output, words::whole};

/// Tune ECN thresholds with DCQCN's fluid model: fixed point, stability, and alternative thresholds
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The number of long flows that share the link
    #[arg(long, default_value_t = 10, value_parser = whole(1..=u32::MAX))]
    flows: u32,

    /// The link's rate
    #[arg(long, default_value = "400Gb/s")]
    rate: Rate,

    /// The size of a packet
    #[arg(long, default_value = "4096")]
    packet: Bytes,

    /// The delay of a notification on its way back; half the notification interval is added
    #[arg(long, value_name = "TIME", default_value = "4us")]
    way_back: Seconds,

    /// The published constants to start from
    #[arg(long, value_enum, default_value_t = SetName::Paper)]
    parameters: SetName,

    /// Marking starts at this queue, instead of the set's
    #[arg(long, value_name = "SIZE")]
    kmin: Option<Bytes>,

    /// Everything is marked above this queue
    #[arg(long, value_name = "SIZE")]
    kmax: Option<Bytes>,

    /// The share marked just below kmax
    #[arg(long, value_name = "SHARE")]
    pmax: Option<f64>,

    /// Show every formula and constant with its source
    #[arg(long)]
    basis: bool,

    #[command(flatten)]
    output: Output,
}

/// The published sets
#[derive(Clone, Copy, Debug, ValueEnum)]
enum SetName {
    /// SIGCOMM 2015
    Paper,
    /// `ConnectX` defaults
    Connectx,
    /// HPCC's simulation
    Hpcc,
    /// `SimAI` at 400 Gb/s
    Simai,
}

/// Computes the fixed point and a table of alternatives.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let fluid = fluid(args);
    checked(&fluid)?;
    let choice = fluid.choice();
    let settled = fluid.settle(SETTLE);
    let tuned = tune(&fluid);
    let Tuned { choices, best, .. } = &tuned;
    let play = |ecn: Ecn| packet_check::simulate_queue(&fluid, set(args), ecn, PLAYED).transpose();
    let played = play(fluid.ecn)?;
    let best_played = match best {
        Some(best) => play(choices[*best].ecn)?,
        None => None,
    };
    let answer = EcnAnswer {
        fluid: &fluid,
        choice: &choice,
        settled: &settled,
        tuned: &tuned,
        played,
        best_played,
    };
    let basis = fluid.basis();
    let page = ecn::page(&answer, args.basis || args.output.is_html());
    let json = serde_json::json!({
        "fluid": fluid, "choice": choice, "settled": settled,
        "tried": choices, "best": best, "best_settled": tuned.settled,
        "played": played, "best_played": best_played, "basis": basis,
    });
    args.output.write(&page, &json)?;
    Ok(ExitCode::SUCCESS)
}

/// The duration of the packet simulation: a few thousand notification intervals.
const PLAYED: Seconds = Seconds(0.1);

fn set(args: &Args) -> ParameterSet {
    match args.parameters {
        SetName::Paper => ParameterSet::Paper,
        SetName::Connectx => ParameterSet::Connectx,
        SetName::Hpcc => ParameterSet::Hpcc,
        SetName::Simai => ParameterSet::Simai,
    }
}

fn fluid(args: &Args) -> Fluid {
    let set = set(args);
    let interval = set.dcqcn(args.rate).cnp_interval.0;
    let delay = Seconds(args.way_back.0 + interval / 2.0);
    let fluid = Fluid::new(set, args.flows, args.rate, args.packet, delay);
    let ecn = Ecn {
        kmin: args.kmin.unwrap_or(fluid.ecn.kmin),
        kmax: args.kmax.unwrap_or(fluid.ecn.kmax),
        pmax: args.pmax.unwrap_or(fluid.ecn.pmax),
    };
    Fluid { ecn, ..fluid }
}
