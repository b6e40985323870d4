//! `straightway plan compare`: compares predictions with measurements.

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, bail};
use straightway::compare::measured_machines;
use straightway_planner::{
    measured::{Comparison, MeasuredMachine},
    path::ComputeNode,
};
use straightway_probe::profile::Profile;
use straightway_scenario::check;
use straightway_view::compare;

use crate::command::{output::Output, source};

/// Compare the models' predictions with the measurements of a machine
///
/// Each prediction is made twice: with the constants that the cluster planner assumes, and with the machine's own
/// measurements of the stages (drive, copies) instead. It never uses the measurement that it is compared with. The
/// measurements are this machine's profile, written by `straightway bench`, or a file. Exits with 1 if a calibrated
/// prediction misses the measurement by more than 15 %, except for at most one row in ten with a stated reason.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The measurements, as TOML [default: this machine's profile]
    #[arg(long, value_name = "FILE")]
    measured: Option<PathBuf>,

    /// Show every formula and constant with its source
    #[arg(long)]
    basis: bool,

    #[command(flatten)]
    output: Output,
}

/// Compares predictions with measurements.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let machines = match &args.measured {
        Some(path) => {
            let text = source::bounded(path)?;
            let name = path.display();
            vec![check::read(&text).with_context(|| format!("measurements {name}"))?]
        }
        None => from_profile()?,
    };
    let node = ComputeNode::default();
    let comparisons: Vec<Comparison> = machines.iter().map(|m| m.compare(&node)).collect();
    let page = compare::page(&comparisons, args.basis || args.output.is_html());
    args.output.write(&page, &serde_json::to_value(&comparisons)?)?;
    Ok(if comparisons.iter().all(Comparison::holds) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The measurements of each drive from the profile of `bench`.
fn from_profile() -> anyhow::Result<Vec<MeasuredMachine>> {
    const HOW: &str = "run `straightway bench` first, or give --measured FILE";
    let path = Profile::place().with_context(|| format!("no place to keep a profile; {HOW}"))?;
    let machines = measured_machines(&Profile::read(&path)?);
    if machines.is_empty() {
        bail!("this machine was not measured yet; {HOW}");
    }
    Ok(machines)
}
