//! `straightway sim fabric`: a lossless Ethernet fabric, packet by packet.

use std::{ops::ControlFlow, process::ExitCode};

use serde_json::Value;
use straightway_core::Result;
use straightway_fabric::{Outcome, Progress, Scenario, simulate};
use straightway_scenario::seed::Seed;

use straightway_view as view;

use super::{
    simulator::{SimAsk, Simulated},
    stopwatch::{Stopwatch, Took},
};
use crate::command::{bar::Bar, library::Runner, output::say};

/// Simulate a lossless Ethernet fabric packet by packet: queues, marks, pauses, victims, deadlock
///
/// Without --scenario it lists those that come with the program. Exits with 1 where the fabric came
/// to a deadlock, or lost packets though it is lossless; a sweep shows that and exits with 0.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    ask: SimAsk,
}

impl Simulated for Scenario {
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

    fn reseed(&mut self, seed: Seed) {
        self.seed = seed;
    }

    fn title_mut(&mut self) -> &mut String {
        &mut self.title
    }

    fn forget_claims(&mut self) {
        self.claims.clear();
    }

    /// The outcome without its queues over time: they are most of its bytes, and a sweep has a
    /// thousand of them.
    fn outcome(&self, look: &dyn Fn() -> ControlFlow<()>) -> Result<Value> {
        let mut outcome = simulate(self, |_| look())?;
        outcome.series.clear();
        Ok(serde_json::json!(outcome))
    }
}

/// Runs the simulation, or lists what can be run.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let Some(scenario) = args.ask.scenario::<Scenario>()? else {
        return args.ask.list::<Scenario>();
    };
    let ask = &args.ask.ask;
    if ask.sweep.is_asked() {
        return args.ask.sweep(scenario);
    }
    let watch = Stopwatch::begin();
    let mut outcome = watched(&scenario)?;
    let origins = args.ask.origins::<Scenario>()?;
    outcome.basis.attribute(|path| origins.of(path));
    say_effort(&outcome, watch.took());
    let page = view::fabric::page(&scenario, &outcome, ask.in_full());
    let json = serde_json::json!({ "scenario": scenario, "outcome": outcome });
    ask.output.write(&page, &json)?;
    let lossless = scenario.switch.pfc.enabled;
    let lost = lossless && outcome.ledger.dropped_packets > 0;
    Ok(if lost || outcome.deadlock.happened.is_some() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// Runs a scenario with a progress bar, until it is done or the user has had enough.
fn watched(scenario: &Scenario) -> anyhow::Result<Outcome> {
    let bar = Bar::begin();
    let outcome = simulate(scenario, |progress: &Progress| {
        let doing = format!(
            "{} simulated, {} packets",
            progress.simulated, progress.packets
        );
        bar.show(progress.done, &doing)
    });
    Ok(outcome?)
}

/// Says on stderr what the run took.
fn say_effort(outcome: &Outcome, took: Took) {
    let (events, packets) = (outcome.effort.events, outcome.effort.packets);
    let rate = events as f64 / took.wall_s / 1e6;
    let each = took.wall_s * 1e6 / packets.max(1) as f64;
    say(&format!(
        "{events} events, {packets} packets in {took}: {rate:.1} M events/s, {each:.2} µs a packet"
    ));
}
