//! `straightway plan`: what a cluster will do, before it is bought.
//!
//! Every topic takes the same arguments, because every topic is the same thing: a scenario with
//! parameters, a model that answers, and a page that shows the answer with what it rests on.

mod compare;
mod list;
pub(crate) mod page;
mod question;
mod usual;

use std::process::ExitCode;

use clap::Subcommand;
use straightway_model::{
    scenario::{Scenario, Topic},
    setting,
    sweep::POINTS_MAX,
};

use super::ask::Ask;
use question::Question;

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
    let question = Question::read(ask.scenario.as_deref(), topic)?;
    let scenario = setting::set(&question.scenario, &ask.settings()?)?;
    if ask.sweep.is_asked() {
        sweep_over(&scenario, topic, &ask)?;
    } else {
        answer(&scenario, &question, &ask)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn answer(scenario: &Scenario, question: &Question, ask: &Ask) -> anyhow::Result<()> {
    let answer = scenario
        .answer()
        .map_err(|refused| question.refuse(refused))?;
    let page = page::page(scenario, &answer, ask.in_full());
    let json = serde_json::json!({ "scenario": scenario, "answer": answer });
    ask.output.write(&page, &json)
}

fn sweep_over(scenario: &Scenario, topic: Topic, ask: &Ask) -> anyhow::Result<()> {
    let usual = usual::usual(topic);
    let answer = |settings: &[setting::Setting], _: &super::bar::Bar| {
        let answer = setting::set(scenario, settings).and_then(|changed| changed.answer());
        Ok(answer.map(|answer| answer.to_json()))
    };
    let is_count = |path: &str| setting::is_count(scenario, path);
    let grid = ask
        .sweep
        .answer(topic.name(), usual, POINTS_MAX, is_count, answer)?;
    ask.output.write(&grid.page(), &grid.json())
}
