//! `straightway sim fabric`: a lossless Ethernet fabric, packet by packet.

mod page;

use std::{process::ExitCode, time::Instant};

use straightway_model::{
    fabric::{Outcome, Progress, Scenario, cases, simulate},
    seed::Seed,
};

use super::{bar::Bar, source};
use crate::command::{output::Output, plan::page::with_basis};

/// Simulate a lossless Ethernet fabric packet by packet: queues, marks, pauses, victims, deadlock
///
/// Exits with 1 where the fabric came to a deadlock, or lost packets though it is lossless.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A scenario file, or the name of one that comes with the program; without it they are listed
    #[arg(long, value_name = "FILE|NAME")]
    scenario: Option<String>,

    /// Change a parameter by its path, such as traffic[0].incast.senders=32 (repeatable)
    #[arg(long, value_name = "PATH=VALUE")]
    set: Vec<String>,

    /// Start the randomness elsewhere: paths, permutations, marks
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Show every formula and constant with its source
    #[arg(long)]
    basis: bool,

    #[command(flatten)]
    output: Output,
}

/// Runs the simulation, or lists what can be run.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let Some(asked) = &args.scenario else {
        let (page, json) = page::list()?;
        args.output.write(&page, &json)?;
        return Ok(ExitCode::SUCCESS);
    };
    let scenario = source::read(asked, cases::case(asked), cases::CASES)?;
    let scenario = changed(scenario, args)?;
    let begin = Instant::now();
    let outcome = watched(&scenario)?;
    page::say_effort(&outcome, begin.elapsed());
    let page = page::of(&scenario, &outcome);
    let page = with_basis(page, &outcome.basis, args.basis || args.output.is_html());
    let json = serde_json::json!({ "scenario": scenario, "outcome": outcome });
    args.output.write(&page, &json)?;
    let lossless = scenario.switch.pfc.enabled;
    let lost = lossless && outcome.ledger.dropped_packets > 0;
    Ok(if lost || outcome.deadlock.happened.is_some() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// The scenario with what the command line changes. Claims are about the case as published.
fn changed(mut scenario: Scenario, args: &Args) -> anyhow::Result<Scenario> {
    if let Some(seed) = args.seed {
        scenario.seed = Seed(seed);
    }
    if args.set.is_empty() {
        return Ok(scenario);
    }
    scenario.claims.clear();
    source::set(scenario, &args.set)
}

/// Runs a scenario with a progress bar, until it is done or the user has had enough.
fn watched(scenario: &Scenario) -> anyhow::Result<Outcome> {
    let bar = Bar::begin();
    let outcome = simulate(scenario, |progress: &Progress| {
        let doing = format!(
            "{} simulated, {} packets",
            progress.simulated, progress.packets
        );
        bar.show(progress.done, doing)
    });
    Ok(outcome?)
}
