//! A scenario of the cluster planner with its text, which gives refusals their line numbers.

use anyhow::{Context, bail};
use straightway_planner::scenario::{Scenario, Topic};
use straightway_scenario::check::Refusals;

use crate::command::{library::Runner, source};

/// A scenario and its source.
#[derive(Debug)]
pub(super) struct Question {
    /// The scenario.
    pub(super) scenario: Scenario,
    name: String,
    text: Option<String>,
}

impl Question {
    /// Reads the scenario `asked`; the default scenario of the topic if it is `None`.
    pub(super) fn read(asked: Option<&str>, topic: Topic) -> anyhow::Result<Self> {
        let Some(asked) = asked else {
            return Ok(Self {
                scenario: Scenario::default_of(topic),
                name: format!("{} with its defaults", topic.name()),
                text: None,
            });
        };
        let text = source::text(Runner::Plan, asked)?;
        let scenario = Scenario::read(&text).with_context(|| format!("scenario {asked}"))?;
        if scenario.topic() != topic {
            let of = scenario.topic().name();
            bail!("scenario {asked} is about {of}: run `straightway plan {of} --scenario {asked}`");
        }
        Ok(Self {
            scenario,
            name: asked.to_owned(),
            text: Some(text),
        })
    }

    /// The error of a refusal by the model, with the scenario's name and lines.
    pub(super) fn refuse(&self, refused: Refusals) -> anyhow::Error {
        let refused = match &self.text {
            Some(text) => refused.located(text),
            None => refused,
        };
        anyhow::Error::new(refused).context(format!("scenario {}", self.name))
    }
}
