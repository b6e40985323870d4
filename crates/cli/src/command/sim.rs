//! `straightway sim`: what a machine or a network does under load, event by event.

use std::process::ExitCode;

use clap::Subcommand;

mod ecn;
mod fabric;
mod headroom;
mod pcie;
mod simulator;
mod stopwatch;

/// Simulate a machine's PCIe tree or a cluster's fabric, event by event
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Pcie(pcie::Args),
    Fabric(fabric::Args),
    Headroom(headroom::Args),
    Ecn(ecn::Args),
}

/// Runs the simulation that was asked for.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.what {
        What::Pcie(args) => pcie::run(&args),
        What::Fabric(args) => fabric::run(&args),
        What::Headroom(args) => headroom::run(&args),
        What::Ecn(args) => ecn::run(&args),
    }
}
