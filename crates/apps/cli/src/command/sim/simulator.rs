//! The shared command line of the simulators: the source of the scenario, the changes by arguments, and sweeps.

use std::{ops::ControlFlow, process::ExitCode};

use anyhow::Context;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use straightway_core::{ErrorKind, Result, random::Seed};
use straightway_planner::scenario::Topic;
use straightway_report::{Block, Page};
use straightway_scenario::{
    check::{self, Checkable, Refusals},
    claim::Claim,
    origin::Origins,
    setting::{self, ParameterSetting},
    sweep::SIMULATIONS_MAX,
};

use crate::command::{
    library::{self, Runner},
    scenario_args::ScenarioArgs,
    source,
    words::whole,
};

/// A simulator's scenario.
pub(super) trait Simulated: Serialize + DeserializeOwned + Checkable + Clone + Sync {
    /// Which simulator it is for.
    const RUNNER: Runner;
    /// The name of what it simulates.
    const NAME: &'static str;
    /// The default figures of a sweep: path and label.
    const USUAL: &'static [(&'static str, &'static str)];

    /// What all simulators' scenarios have.
    fn case(&mut self) -> Case<'_>;

    /// Simulates it as one point of a sweep. `check` can stop it.
    fn outcome(&self, check: &dyn Fn() -> ControlFlow<()>) -> Result<Value>;
}

/// What the scenarios of all simulators have.
pub(super) struct Case<'a> {
    title: &'a mut String,
    seed: &'a mut Seed,
    /// Claims apply only to the unchanged case.
    claims: &'a mut Vec<Claim>,
}

impl<'a> Case<'a> {
    /// These parts of a scenario.
    pub(super) fn of(title: &'a mut String, seed: &'a mut Seed, claims: &'a mut Vec<Claim>) -> Self {
        Self { title, seed, claims }
    }
}

/// The arguments of a simulation
#[derive(Debug, clap::Args)]
pub(super) struct SimulationArgs {
    #[command(flatten)]
    pub(super) ask: ScenarioArgs,

    /// The random seed of paths, permutations, marks and the tails of latencies
    #[arg(long, value_name = "N", value_parser = whole(0..=u64::MAX))]
    seed: Option<u64>,
}

impl SimulationArgs {
    /// The scenario of a single simulation. Without a scenario, lists those that come with the program; with a sweep,
    /// simulates its points.
    pub(super) fn scenario_or_list<S: Simulated>(&self) -> anyhow::Result<ControlFlow<ExitCode, S>> {
        Ok(match self.scenario::<S>()? {
            None => ControlFlow::Break(self.list::<S>()?),
            Some(scenario) if self.ask.sweep.is_asked() => ControlFlow::Break(self.sweep(scenario)?),
            Some(scenario) => ControlFlow::Continue(scenario),
        })
    }

    /// The requested scenario with the changes of the command line; `None` if no scenario is named.
    fn scenario<S: Simulated>(&self) -> anyhow::Result<Option<S>> {
        let Some(asked) = &self.ask.scenario else {
            return Ok(None);
        };
        let text = source::text(S::RUNNER, asked)?;
        let mut scenario: S = check::read(&text)
            .map_err(|refused| elsewhere(asked, refused))
            .with_context(|| format!("scenario {asked}"))?;
        if let Some(seed) = self.seed {
            *scenario.case().seed = Seed(seed);
        }
        let settings = self.ask.settings()?;
        if settings.is_empty() {
            return Ok(Some(scenario));
        }
        scenario.case().claims.clear();
        let mut changed = setting::set(scenario, &settings)?;
        // The title shows that the case differs from its file.
        let set: Vec<String> = settings.iter().map(|s| format!("{} = {}", s.path, s.value)).collect();
        let title = changed.case().title;
        *title = format!("{title}, but {}", set.join(", "));
        Ok(Some(changed))
    }

    /// The origin of each parameter: the scenario's file, or the user.
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

    /// Lists the available scenarios.
    fn list<S: Simulated>(&self) -> anyhow::Result<ExitCode> {
        let table = library::table_of(S::RUNNER)?;
        let json = table.to_json();
        let hint = "Run one with --scenario NAME.".to_owned();
        let title = format!("{} scenarios", S::NAME);
        let page = Page::new(title).section("", [table.into(), Block::from(hint)]);
        self.ask.output.write(&page, &json)?;
        Ok(ExitCode::SUCCESS)
    }

    /// Simulates every point of the sweep.
    fn sweep<S: Simulated>(&self, mut scenario: S) -> anyhow::Result<ExitCode> {
        scenario.case().claims.clear();
        let (sweep, output) = (&self.ask.sweep, &self.ask.output);
        let is_count = |path: &str| setting::is_count(&scenario, path);
        let grid = sweep.answer(S::NAME, S::USUAL, SIMULATIONS_MAX, is_count, |settings, bar| {
            let changed = match setting::set(scenario.clone(), settings) {
                Ok(changed) => changed,
                Err(refused) => return Ok(Err(refused)),
            };
            match changed.outcome(&|| bar.check()) {
                Ok(outcome) => Ok(Ok(outcome)),
                Err(error) if error.kind() == ErrorKind::Invalid => Ok(Err(refused(settings, &error))),
                Err(error) => Err(error.into()),
            }
        })?;
        output.write(&grid.page(), &grid.json())?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The error for a scenario of the cluster planner names the right command; other refusals are unchanged.
fn elsewhere(asked: &str, refused: Refusals) -> anyhow::Error {
    let is = |topic: &&Topic| refused.0.iter().any(|r| r.field == topic.name());
    match Topic::ALL.iter().find(is).map(|topic| topic.name()) {
        Some(topic) => {
            anyhow::anyhow!("`{topic}` is for another command: run `straightway plan {topic} --scenario {asked}`")
        }
        None => refused.into(),
    }
}

/// An error of the simulation itself, as a refusal of the point.
fn refused(settings: &[ParameterSetting], error: &straightway_core::Error) -> Refusals {
    let set = settings.iter().map(|s| format!("{}={}", s.path, s.value));
    let allowed = format!("a scenario that can be simulated: {error}");
    Refusals::one("--sweep", set.collect::<Vec<_>>().join(", "), allowed)
}
