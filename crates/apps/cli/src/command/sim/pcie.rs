//! `straightway sim pcie`: a machine's PCIe tree under many streams.

use std::{ops::ControlFlow, process::ExitCode};

use serde_json::Value;
use straightway_core::Result;
use straightway_pcie::{self as pcie, PcieOutcome, PcieScenario};
use straightway_view::{self as view, pcie::More};

use super::{
    simulator::{Case, Simulated, SimulationArgs},
    stopwatch::{Elapsed, Stopwatch},
};
use crate::command::{bar::Bar, library::Runner, output::say};

/// Simulate streams over a tree of PCIe links, TLP by TLP: the rate of each stream, and the bottleneck
///
/// Without --scenario, it lists the scenarios that come with the program.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    ask: SimulationArgs,

    /// Switch the streams on one after another and find the number with the highest total rate
    #[arg(long, conflicts_with = "sweep")]
    streams_sweep: bool,

    /// Try every single move of a device and every wider or newer link, and rank them by gain
    #[arg(long, conflicts_with = "sweep")]
    what_if: bool,
}

impl Simulated for PcieScenario {
    const RUNNER: Runner = Runner::Pcie;
    const NAME: &'static str = "PCIe";
    const USUAL: &'static [(&'static str, &'static str)] = &[
        ("steady_bytes_per_s", "total"),
        ("mean_bytes_per_s", "each"),
        ("fair_bytes_per_s", "fair share"),
        ("ios_per_s", "I/O a second"),
        ("streams[0].latency.median_s", "first: p50"),
        ("streams[0].latency.p99_s", "first: p99"),
        ("bottleneck.what", "bound by"),
    ];

    fn case(&mut self) -> Case<'_> {
        Case::of(&mut self.title, &mut self.seed, &mut self.claims)
    }

    fn outcome(&self, check: &dyn Fn() -> ControlFlow<()>) -> Result<Value> {
        let outcome = pcie::simulate(self, |_| check())?;
        Ok(serde_json::json!(outcome))
    }
}

/// Runs the simulation or the sweep, or lists the scenarios.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let scenario: PcieScenario = match args.ask.scenario_or_list()? {
        ControlFlow::Continue(scenario) => scenario,
        ControlFlow::Break(code) => return Ok(code),
    };
    let ask = &args.ask.ask;
    let bar = Bar::begin();
    let watch = Stopwatch::begin();
    let mut outcome = pcie::simulate(&scenario, |done| bar.show(done, "simulating"))?;
    let took = watch.took();
    let origins = args.ask.origins::<PcieScenario>()?;
    outcome.basis.attribute(|path| origins.of(path));
    let more = more(args, &scenario, &outcome, &bar)?;
    drop(bar);
    if let Some((page, json)) = ask.sweep.shown(&outcome.title, &serde_json::to_value(&outcome)?)? {
        ask.output.write(&page, &json)?;
        print_effort(&outcome, took);
        return Ok(ExitCode::SUCCESS);
    }
    let page = view::pcie::page(&scenario, &outcome, &more, ask.in_full());
    let json = serde_json::json!({
        "scenario": scenario, "outcome": outcome,
        "streams_sweep": more.sweep, "what_if": more.what_if,
    });
    ask.output.write(&page, &json)?;
    print_effort(&outcome, took);
    Ok(ExitCode::SUCCESS)
}

fn more(args: &Args, scenario: &PcieScenario, outcome: &PcieOutcome, bar: &Bar) -> anyhow::Result<More> {
    let sweep = args
        .streams_sweep
        .then(|| pcie::sweep(scenario, |done| bar.show(done, "more and more streams")));
    let what_if = args
        .what_if
        .then(|| pcie::what_if(scenario, outcome, |done| bar.show(done, "changing the tree")));
    Ok(More {
        sweep: sweep.transpose()?,
        what_if: what_if.transpose()?,
    })
}

/// Prints the effort of the run to stderr, below the page.
fn print_effort(outcome: &PcieOutcome, took: Elapsed) {
    let audit = &outcome.audit;
    let rate = audit.tlps as f64 / took.wall_s / 1e6;
    say(&format!(
        "{} TLPs, {} link crossings, {} events in {took}: {rate:.1} M TLP/s",
        audit.tlps, audit.hops, audit.events
    ));
}
