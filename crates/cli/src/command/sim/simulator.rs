//! What the simulators have in common on the command line: where their scenario comes from, what
//! the arguments change in it, and a sweep over it.

use std::{ops::ControlFlow, process::ExitCode};

use anyhow::Context;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use straightway_core::{Kind, Result};
use straightway_model::scenario::Topic;
use straightway_report::{Block, Page};
use straightway_scenario::{
    check::{self, Checked, Refusals},
    origin::Origins,
    seed::Seed,
    setting::{self, Setting},
    sweep::SIMULATIONS_MAX,
};

use crate::command::{
    ask::Ask,
    library::{self, Runner},
    source,
};

/// A simulator's scenario.
pub(super) trait Simulated: Serialize + DeserializeOwned + Checked + Clone + Sync {
    /// Which simulator it is for.
    const RUNNER: Runner;
    /// What it simulates, in a word.
    const NAME: &'static str;
    /// The figures a sweep shows where none are asked for: path and label.
    const USUAL: &'static [(&'static str, &'static str)];

    /// Starts its randomness elsewhere.
    fn reseed(&mut self, seed: Seed);

    /// Its title.
    fn title_mut(&mut self) -> &mut String;

    /// Forgets what was published: claims are about the case as it was.
    fn forget_claims(&mut self);

    /// Simulates it, as one point of a sweep. `look` breaks it off.
    fn outcome(&self, look: &dyn Fn() -> ControlFlow<()>) -> Result<Value>;
}

/// A question to a simulator
#[derive(Debug, clap::Args)]
pub(super) struct SimAsk {
    #[command(flatten)]
    pub(super) ask: Ask,

    /// Start the randomness elsewhere: paths, permutations, marks, the tails of latencies
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

impl SimAsk {
    /// The scenario asked for, with what the command line changes; none where none was named.
    pub(super) fn scenario<S: Simulated>(&self) -> anyhow::Result<Option<S>> {
        let Some(asked) = &self.ask.scenario else {
            return Ok(None);
        };
        let text = source::text(S::RUNNER, asked)?;
        let mut scenario: S = check::read(&text)
            .map_err(|refused| elsewhere(asked, refused))
            .with_context(|| format!("scenario {asked}"))?;
        if let Some(seed) = self.seed {
            scenario.reseed(Seed(seed));
        }
        let settings = self.ask.settings()?;
        if settings.is_empty() {
            return Ok(Some(scenario));
        }
        scenario.forget_claims();
        let mut changed = setting::set(scenario, &settings)?;
        // A case that was changed is no longer the one of its file.
        let set: Vec<String> = settings
            .iter()
            .map(|s| format!("{} = {}", s.path, s.value))
            .collect();
        let title = changed.title_mut();
        *title = format!("{title}, but {}", set.join(", "));
        Ok(Some(changed))
    }

    /// Who chose which parameter: the scenario's file, or the user.
    pub(super) fn origins<S: Simulated>(&self) -> anyhow::Result<Origins> {
        let Some(asked) = &self.ask.scenario else {
            return Ok(Origins::default());
        };
        let mut origins = Origins::of_text(&source::text(S::RUNNER, asked)?, None);
        for setting in self.ask.settings()? {
            origins.set(&setting.path);
        }
        Ok(origins)
    }

    /// Lists what can be run.
    pub(super) fn list<S: Simulated>(&self) -> anyhow::Result<ExitCode> {
        let table = library::table_of(S::RUNNER)?;
        let json = table.to_json();
        let hint = "Run one with --scenario NAME.".to_owned();
        let title = format!("{} scenarios", S::NAME);
        let page = Page::new(title).section("", [table.into(), Block::from(hint)]);
        self.ask.output.write(&page, &json)?;
        Ok(ExitCode::SUCCESS)
    }

    /// Simulates every point of the sweep that was asked for.
    pub(super) fn sweep<S: Simulated>(&self, mut scenario: S) -> anyhow::Result<ExitCode> {
        scenario.forget_claims();
        let (sweep, output) = (&self.ask.sweep, &self.ask.output);
        let is_count = |path: &str| setting::is_count(&scenario, path);
        let grid = sweep.answer(
            S::NAME,
            S::USUAL,
            SIMULATIONS_MAX,
            is_count,
            |settings, bar| {
                let changed = match setting::set(scenario.clone(), settings) {
                    Ok(changed) => changed,
                    Err(refused) => return Ok(Err(refused)),
                };
                match changed.outcome(&|| bar.look()) {
                    Ok(outcome) => Ok(Ok(outcome)),
                    Err(error) if error.kind() == Kind::Invalid => {
                        Ok(Err(refused(settings, &error)))
                    }
                    Err(error) => Err(error.into()),
                }
            },
        )?;
        output.write(&grid.page(), &grid.json())?;
        Ok(ExitCode::SUCCESS)
    }
}

/// A file with a topic of the planner is told where it belongs; what else is wrong stays.
fn elsewhere(asked: &str, refused: Refusals) -> anyhow::Error {
    let is = |topic: &&Topic| refused.0.iter().any(|r| r.field == topic.name());
    match Topic::ALL.iter().find(is).map(|topic| topic.name()) {
        Some(topic) => anyhow::anyhow!(
            "`{topic}` is for another command: ask `straightway plan {topic} --scenario {asked}`"
        ),
        None => refused.into(),
    }
}

/// What only the run itself can find wrong, as a refusal of the point.
fn refused(settings: &[Setting], error: &straightway_core::Error) -> Refusals {
    let set = settings.iter().map(|s| format!("{}={}", s.path, s.value));
    let allowed = format!("what can be simulated: {error}");
    Refusals::one("--sweep", set.collect::<Vec<_>>().join(", "), allowed)
}
