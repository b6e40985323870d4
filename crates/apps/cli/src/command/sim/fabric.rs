//! `straightway sim fabric`: a lossless Ethernet fabric, packet by packet.

use std::{ops::ControlFlow, process::ExitCode};

use serde_json::Value;
use straightway_core::Result;
use straightway_fabric::{FabricOutcome, FabricScenario, SimulationProgress, simulate};
use straightway_view as view;

use super::{
    simulator::{Case, Simulated, SimulationArgs},
    stopwatch::{Elapsed, Stopwatch},
};
use crate::command::{bar::Bar, library::Runner, output::say};

/// Simulate a lossless Ethernet fabric packet by packet: queues, marks, pauses, victims, deadlock
///
/// Without --scenario, it lists the scenarios that come with the program. Exits with 1 if the fabric deadlocked, or
/// lost packets although it is lossless; a sweep shows that and exits with 0.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    ask: SimulationArgs,
}

impl Simulated for FabricScenario {
    const RUNNER: Runner = Runner::Fabric;
    const NAME: &'static str = "Fabric";
    const USUAL: &'static [(&'static str, &'static str)] = &[
        ("traffic[0].completion.p50", "completion p50"),
        ("traffic[0].completion.p99", "completion p99"),
        ("traffic[0].goodput_mean", "goodput each"),
        ("traffic[1].goodput_mean", "second: goodput"),
        ("buffer.shared_peak_bytes", "buffer"),
        ("pauses.frames", "pause frames"),
        ("spreading.innocent_flows", "held for others"),
        ("ledger.dropped_packets", "lost"),
    ];

    fn case(&mut self) -> Case<'_> {
        Case::of(&mut self.title, &mut self.seed, &mut self.claims)
    }

    /// The outcome without its queues over time, which are most of its size: a sweep has a thousand outcomes.
    fn outcome(&self, check: &dyn Fn() -> ControlFlow<()>) -> Result<Value> {
        let mut outcome = simulate(self, |_| check())?;
        outcome.series.clear();
        Ok(serde_json::json!(outcome))
    }
}

/// Runs the simulation or the sweep, or lists the scenarios.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let scenario: FabricScenario = match args.ask.scenario_or_list()? {
        ControlFlow::Continue(scenario) => scenario,
        ControlFlow::Break(code) => return Ok(code),
    };
    let ask = &args.ask.ask;
    let watch = Stopwatch::begin();
    let mut outcome = watched(&scenario)?;
    let origins = args.ask.origins::<FabricScenario>()?;
    outcome.basis.attribute(|path| origins.of(path));
    let took = watch.took();
    let shown = ask.sweep.shown(&scenario.title, &serde_json::to_value(&outcome)?)?;
    if let Some((page, json)) = shown {
        ask.output.write(&page, &json)?;
        print_effort(&outcome, took);
        return Ok(ExitCode::SUCCESS);
    }
    let page = view::fabric::page(&scenario, &outcome, ask.in_full());
    let json = serde_json::json!({ "scenario": scenario, "outcome": outcome });
    ask.output.write(&page, &json)?;
    print_effort(&outcome, took);
    let lossless = scenario.switch.pfc.enabled;
    let lost = lossless && outcome.ledger.dropped_packets > 0;
    Ok(if lost || outcome.deadlock.happened.is_some() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// Runs a scenario with a progress bar, until it ends or is interrupted.
fn watched(scenario: &FabricScenario) -> anyhow::Result<FabricOutcome> {
    let bar = Bar::begin();
    let outcome = simulate(scenario, |progress: &SimulationProgress| {
        let doing = format!("{} simulated, {} packets", progress.simulated, progress.packets);
        bar.show(progress.done, &doing)
    });
    Ok(outcome?)
}

/// Prints the effort of the run to stderr, below the page.
fn print_effort(outcome: &FabricOutcome, took: Elapsed) {
    let (events, packets) = (outcome.effort.events, outcome.effort.packets);
    let rate = events as f64 / took.wall_s / 1e6;
    let each = took.wall_s * 1e6 / packets.max(1) as f64;
    say(&format!(
        "{events} events, {packets} packets in {took}: {rate:.1} M events/s, {each:.2} µs a packet"
    ));
}
