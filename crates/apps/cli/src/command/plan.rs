//! `straightway plan`: predicts the behaviour of a cluster before it is bought.
//!
//! Every topic takes the same arguments, because every topic has the same parts: a scenario with parameters, a model
//! that computes the answer, and a page that shows the answer with its basis.

mod claims;
mod compare;
mod list;
mod question;

use std::process::ExitCode;

use clap::Subcommand;
use straightway_planner::{
    parameter_list,
    scenario::{Scenario, Topic},
    topics, uncertainty,
};
use straightway_scenario::{setting::ParameterSetting, sweep::POINTS_MAX};
use straightway_view::plan;

use super::scenario_args::ScenarioArgs;
use question::Question;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

/// The arguments of a topic
#[derive(Debug, clap::Args)]
struct TopicArgs {
    #[command(flatten)]
    ask: ScenarioArgs,

    /// List all parameters with their units, defaults, ranges and meanings, and compute nothing. With --scenario, the
    /// defaults are its values
    #[arg(long, conflicts_with_all = ["set", "sweep"])]
    parameters: bool,
}

/// Expands the table of topics to subcommands.
macro_rules! commands {
    ($($(#[$doc:meta])* $Topic:ident $table:ident: $Question:ty,)*) => {
        #[derive(Debug, Subcommand)]
        enum Command {
            $($(#[$doc])* $Topic(TopicArgs),)*
            Claims(claims::Args),
            Compare(compare::Args),
            /// List the scenarios that come with the program
            List(list::Args),
        }

        /// Runs the subcommand.
        pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
            match args.command {
                $(Command::$Topic(ask) => answer(Topic::$Topic, &ask),)*
                Command::Claims(args) => claims::run(&args),
                Command::Compare(args) => compare::run(&args),
                Command::List(args) => list::run(&args),
            }
        }
    };
}

topics!(commands);

fn answer(topic: Topic, args: &TopicArgs) -> anyhow::Result<ExitCode> {
    let ask = &args.ask;
    let question = Question::read(ask.scenario.as_deref(), topic)?;
    if args.parameters {
        let list = parameter_list::list(&question.scenario);
        let json = serde_json::json!({ "topic": topic.name(), "parameters": list });
        ask.output.write(&plan::parameters(topic, &list), &json)?;
        return Ok(ExitCode::SUCCESS);
    }
    let settings = ask.settings()?;
    let scenario = question.scenario.set(&settings)?;
    if ask.sweep.is_asked() {
        sweep_over(&scenario, topic, ask)?;
    } else {
        let answer = scenario.answer().map_err(|refused| question.refuse(refused))?;
        let title = scenario.shown_title(&settings);
        if let Some((page, json)) = ask.sweep.shown(&title, &answer.to_json())? {
            ask.output.write(&page, &json)?;
            return Ok(ExitCode::SUCCESS);
        }
        let usual = plan::usual(topic, &answer.to_json());
        let uncertainty = uncertainty::of(&scenario, &answer, &labels(&usual));
        let json = serde_json::json!({
            "title": title, "scenario": scenario, "answer": answer, "uncertainty": uncertainty,
        });
        let page = plan::page(title, &scenario, &answer, &uncertainty, ask.in_full());
        ask.output.write(&page, &json)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn sweep_over(scenario: &Scenario, topic: Topic, ask: &ScenarioArgs) -> anyhow::Result<()> {
    // The names come from the unchanged scenario. They are missing if it cannot be answered.
    let named = scenario.answer().map(|answer| answer.to_json());
    let usual = plan::usual(topic, &named.unwrap_or_default());
    let answer = |settings: &[ParameterSetting], _: &super::bar::Bar| {
        let answer = scenario.set(settings).and_then(|changed| changed.answer());
        Ok(answer.map(|answer| answer.to_json()))
    };
    let is_count = |path: &str| scenario.is_count(path);
    let grid = ask
        .sweep
        .answer(topic.name(), &labels(&usual), POINTS_MAX, is_count, answer)?;
    ask.output.write(&grid.page(), &grid.json())
}

/// Paths and labels, borrowed.
fn labels<'a>(usual: &'a [(&'static str, String)]) -> Vec<(&'a str, &'a str)> {
    usual.iter().map(|(path, label)| (*path, label.as_str())).collect()
}
