//! `straightway sim ecn`: where DCQCN settles, whether it stays there, and which thresholds are better.

use std::process::ExitCode;

use clap::ValueEnum;
use straightway_core::{Bytes, Rate, Seconds};
use straightway_fabric::{
    beside,
    dcqcn::{Ecn, ParameterSet},
    fluid::{Fluid, SETTLE, Tuned, tune},
};
use straightway_scenario::check::checked;
use straightway_view::ecn::{self, Answer};

use crate::command::output::Output;

/// Tune ECN thresholds by DCQCN's fluid model: fixed point, stability, and what others would give
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How many long flows share the link
    #[arg(long, default_value_t = 10)]
    flows: u32,

    /// The link's rate
    #[arg(long, default_value = "400Gb/s")]
    rate: Rate,

    /// Bytes of a packet
    #[arg(long, default_value = "4096")]
    packet: Bytes,

    /// The way back of a notification; half the notification interval comes on top
    #[arg(long, value_name = "TIME", default_value = "4us")]
    way_back: Seconds,

    /// The published constants to start from
    #[arg(long, value_enum, default_value_t = Set::Paper)]
    parameters: Set,

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
enum Set {
    /// SIGCOMM 2015
    Paper,
    /// `ConnectX` defaults
    Connectx,
    /// HPCC's simulation
    Hpcc,
    /// `SimAI` at 400 Gb/s
    Simai,
}

/// Answers with the fixed point and a table of choices.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let fluid = fluid(args);
    checked(&fluid)?;
    let choice = fluid.choice();
    let settled = fluid.settle(SETTLE);
    let tuned = tune(&fluid);
    let Tuned { choices, best, .. } = &tuned;
    let play = |ecn: Ecn| beside::play(&fluid, set(args), ecn, PLAYED).transpose();
    let played = play(fluid.ecn)?;
    let best_played = match best {
        Some(best) => play(choices[*best].ecn)?,
        None => None,
    };
    let answer = Answer {
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

/// How long the packet simulator plays: a few thousand notification intervals.
const PLAYED: Seconds = Seconds(0.1);

fn set(args: &Args) -> ParameterSet {
    match args.parameters {
        Set::Paper => ParameterSet::Paper,
        Set::Connectx => ParameterSet::Connectx,
        Set::Hpcc => ParameterSet::Hpcc,
        Set::Simai => ParameterSet::Simai,
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
