//! `straightway sim fabric`: a lossless Ethernet fabric, packet by packet.

mod page;

use std::{
    ops::ControlFlow,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use straightway_model::{
    check,
    fabric::{Outcome, Progress, Scenario, cases, simulate},
    seed::Seed,
    setting::{self, Setting},
};

use crate::command::{
    output::Output,
    plan::{page::with_basis, source::bounded},
};

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
    let scenario = changed(read(asked)?, args)?;
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

fn read(asked: &str) -> anyhow::Result<Scenario> {
    let text = if let Some(case) = cases::case(asked) {
        case.text.to_owned()
    } else {
        let path = std::path::Path::new(asked);
        if !path.exists() {
            let names: Vec<&str> = cases::CASES.iter().map(|case| case.name).collect();
            let names = names.join(", ");
            bail!("no scenario or file `{asked}`; there are {names}");
        }
        bounded(path)?
    };
    check::read(&text).with_context(|| format!("scenario {asked}"))
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
    let settings = args.set.iter().map(|text| Setting::parse(text));
    let settings = settings.collect::<Result<Vec<_>, _>>()?;
    Ok(setting::set_input(scenario, &settings)?)
}

/// Runs a scenario with a progress bar, until it is done or the user has had enough.
fn watched(scenario: &Scenario) -> anyhow::Result<Outcome> {
    const STEPS: u64 = 1000;
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    // A second command in one process would find the handler set; there is none.
    let _ = ctrlc::set_handler(move || stopped.store(true, Ordering::Relaxed));
    let template = "{bar:32} {percent:>3} %  {msg}  {eta} left";
    let style = ProgressStyle::with_template(template).expect("the template is a constant");
    // indicatif draws to stderr, and nothing at all where that is no terminal.
    let bar = ProgressBar::new(STEPS).with_style(style);
    let outcome = simulate(scenario, |progress: &Progress| {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of a thousand"
        )]
        bar.set_position((progress.done * STEPS as f64) as u64);
        bar.set_message(format!(
            "{} simulated, {} packets",
            progress.simulated, progress.packets
        ));
        if stop.load(Ordering::Relaxed) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    bar.finish_and_clear();
    Ok(outcome?)
}
