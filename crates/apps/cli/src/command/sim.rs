//! `straightway sim`: simulates a machine or a network under load, event by event.

use std::process::ExitCode;

use clap::Subcommand;

mod ecn;
mod fabric;
mod headroom;
mod pcie;
mod simulator;
mod stopwatch;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Pcie(pcie::Args),
    Fabric(fabric::Args),
    Headroom(headroom::Args),
    Ecn(ecn::Args),
}

/// Runs the requested simulation.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Pcie(args) => pcie::run(&args),
        Command::Fabric(args) => fabric::run(&args),
        Command::Headroom(args) => headroom::run(&args),
        Command::Ecn(args) => ecn::run(&args),
    }
}
