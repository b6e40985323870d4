//! `straightway plan`: what a cluster will do, before it is bought.
//!
//! Every topic takes the same arguments, because every topic is the same thing: a scenario with
//! parameters, a model that answers, and a page that shows the answer with what it rests on.

mod compare;
mod grid;
mod headline;
mod list;
pub(crate) mod page;
pub(crate) mod source;

use std::process::ExitCode;

use clap::Subcommand;
use straightway_model::{
    scenario::{Scenario, Topic},
    setting::{self, Setting},
    sweep::{self, Sweep},
};

use super::output::Output;

/// Plan a cluster: checkpoints, ingest, transports, architectures and more
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// How long a checkpoint takes and stops training, how often to save, what is lost to failures
    Checkpoint(Ask),
    /// What registering memory costs, and when doing it once pays off
    Registration(Ask),
    /// What NVMe over RoCE, InfiniBand, TCP, SRP and CXL carry, and the cores they take
    Transport(Ask),
    /// Lustre, Weka, VAST and FlashBlade under checkpoint, ingest and a metadata storm
    Architecture(Ask),
    /// Whether GPUs wait for their samples
    Ingest(Ask),
    /// How many requests hide the latency of object storage
    S3(Ask),
    /// What several network ports give a node together
    Rail(Ask),
    /// Deduplication against compression
    Reduction(Ask),
    /// What reservation, limit and weight do for tenants of one store
    Qos(Ask),
    /// Which cores a DPU gives back, and what it carries itself
    Dpu(Ask),
    /// The buffer a lossless Ethernet port needs beyond its pause threshold
    Headroom(Ask),
    Compare(compare::Args),
    /// List the scenarios that come with the program
    List(list::Args),
}

/// A question and how its answer is wanted
#[derive(Debug, clap::Args)]
struct Ask {
    /// A scenario file, or the name of one that comes with the program (see `plan list`)
    #[arg(long, value_name = "FILE|NAME")]
    scenario: Option<String>,

    /// Change a parameter by its path, such as cluster.gpus=2048 (repeatable)
    #[arg(long, value_name = "PATH=VALUE")]
    set: Vec<String>,

    /// Answer for many values: PATH=a,b,c or PATH=from..to:steps[:log] (repeatable: a grid)
    #[arg(long, value_name = "PATH=VALUES")]
    sweep: Vec<String>,

    /// Figures a sweep shows, as paths into the JSON answer (repeatable)
    #[arg(long, value_name = "PATH", requires = "sweep")]
    show: Vec<String>,

    /// Show every formula and constant with its source
    #[arg(long)]
    basis: bool,

    #[command(flatten)]
    output: Output,
}

/// Answers the question.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let (topic, ask) = match args.what {
        What::Checkpoint(ask) => (Topic::Checkpoint, ask),
        What::Registration(ask) => (Topic::Registration, ask),
        What::Transport(ask) => (Topic::Transport, ask),
        What::Architecture(ask) => (Topic::Architecture, ask),
        What::Ingest(ask) => (Topic::Ingest, ask),
        What::S3(ask) => (Topic::S3, ask),
        What::Rail(ask) => (Topic::Rail, ask),
        What::Reduction(ask) => (Topic::Reduction, ask),
        What::Qos(ask) => (Topic::Qos, ask),
        What::Dpu(ask) => (Topic::Dpu, ask),
        What::Headroom(ask) => (Topic::Headroom, ask),
        What::Compare(args) => return compare::run(&args),
        What::List(args) => return list::run(&args),
    };
    let source = source::read(ask.scenario.as_deref(), topic)?;
    let settings = ask
        .set
        .iter()
        .map(|text| Setting::parse(text))
        .collect::<Result<Vec<_>, _>>()?;
    let scenario = setting::set(&source.scenario, &settings)?;
    if ask.sweep.is_empty() {
        answer(&scenario, &source, &ask)?;
    } else {
        sweep_over(&scenario, topic, &ask)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn answer(scenario: &Scenario, source: &source::Source, ask: &Ask) -> anyhow::Result<()> {
    let answer = scenario
        .answer()
        .map_err(|refused| source.refuse(refused))?;
    let page = page::page(scenario, &answer, ask.basis || ask.output.is_html());
    let json = serde_json::json!({ "scenario": scenario, "answer": answer });
    ask.output.write(&page, &json)
}

fn sweep_over(scenario: &Scenario, topic: Topic, ask: &Ask) -> anyhow::Result<()> {
    let sweeps = ask
        .sweep
        .iter()
        .map(|text| Sweep::parse(text))
        .collect::<Result<Vec<_>, _>>()?;
    let points = sweep::run(scenario, &sweeps)?;
    let headlines = headline::chosen(topic, &ask.show);
    let page = grid::page(scenario, &sweeps, &points, &headlines)?;
    ask.output.write(&page, &grid::json(&points))
}
