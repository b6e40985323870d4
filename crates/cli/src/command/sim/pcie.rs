//! `straightway sim pcie`: a machine's PCIe tree under many streams.

mod page;

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use straightway_model::{
    pcie::{self, Outcome, Scenario, Sweep, WhatIf},
    seed::Seed,
};

use super::{bar::Bar, source};
use crate::command::{output::Output, plan::page::with_basis};

/// Simulate streams over a tree of PCIe links, TLP by TLP: who gets what, and what is in the way
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A scenario file, or the name of one that comes with the program; without it they are listed
    #[arg(long, value_name = "FILE|NAME")]
    scenario: Option<String>,

    /// Change a parameter by its path, such as stream[0].depth=8 or pcie.mps=512 (repeatable)
    #[arg(long, value_name = "PATH=VALUE")]
    set: Vec<String>,

    /// Start the randomness elsewhere: the tails of latencies with a jitter
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Switch the streams on one after another and find how many give the most
    #[arg(long)]
    streams_sweep: bool,

    /// Try every single move of a device and every wider or newer link, and rank them by gain
    #[arg(long)]
    what_if: bool,

    /// Show every formula and constant with its source
    #[arg(long)]
    basis: bool,

    #[command(flatten)]
    output: Output,
}

/// What was asked for beside the outcome.
#[derive(Debug)]
struct More {
    sweep: Option<Sweep>,
    what_if: Option<Vec<WhatIf>>,
}

/// Runs the simulation, or lists what can be run.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let Some(asked) = &args.scenario else {
        let (page, json) = page::list()?;
        args.output.write(&page, &json)?;
        return Ok(ExitCode::SUCCESS);
    };
    let scenario = source::read(asked, pcie::case(asked), pcie::CASES)?;
    let scenario = changed(scenario, args)?;
    let bar = Bar::begin();
    let begin = Instant::now();
    let outcome = pcie::simulate(&scenario, |done| bar.show(done, "simulating".to_owned()))?;
    let took = begin.elapsed();
    let more = more(args, &scenario, &outcome, &bar)?;
    drop(bar);
    say_effort(&outcome, took);
    let page = page::of(&scenario, &outcome, &more);
    let page = with_basis(page, &outcome.basis, args.basis || args.output.is_html());
    let json = serde_json::json!({
        "scenario": scenario, "outcome": outcome,
        "streams_sweep": more.sweep, "what_if": more.what_if,
    });
    args.output.write(&page, &json)?;
    Ok(ExitCode::SUCCESS)
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

fn more(args: &Args, scenario: &Scenario, outcome: &Outcome, bar: &Bar) -> anyhow::Result<More> {
    let sweep = args.streams_sweep.then(|| {
        pcie::sweep(scenario, |done| {
            bar.show(done, "more and more streams".to_owned())
        })
    });
    let what_if = args.what_if.then(|| {
        pcie::what_if(scenario, outcome, |done| {
            bar.show(done, "changing the tree".to_owned())
        })
    });
    Ok(More {
        sweep: sweep.transpose()?,
        what_if: what_if.transpose()?,
    })
}

/// Says on stderr what the run took.
fn say_effort(outcome: &Outcome, took: Duration) {
    use std::io::Write;
    let (s, audit) = (took.as_secs_f64(), &outcome.audit);
    let rate = audit.tlps as f64 / s / 1e6;
    // If stderr is gone there is nobody to tell.
    let _ = writeln!(
        std::io::stderr(),
        "{} TLPs, {} link crossings, {} events in {s:.2} s: {rate:.1} M TLP/s",
        audit.tlps,
        audit.hops,
        audit.events
    );
}
